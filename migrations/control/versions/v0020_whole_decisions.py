"""Nothing is left of a decision: each is committed whole.

`queues.discarding` said that more partitions were to be discarded. `queues.departed` has the id of
a flow that left beside its place in the order of binding, and no list any more.
"""

from __future__ import annotations

from alembic import op

revision = "control_0020"
down_revision = "control_0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues DROP COLUMN discarding;
        UPDATE counterpoise.queues SET departed = '{}';
    """)


def downgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues ADD COLUMN discarding boolean NOT NULL DEFAULT false;
        UPDATE counterpoise.queues SET departed = '{}';
    """)
