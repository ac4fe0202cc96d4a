"""Whether more partitions are to be discarded: a large resize is committed in slices.

A version before this one discards at once, so for it nothing is ever left.
"""

from __future__ import annotations

from alembic import op

revision = "control_0006"
down_revision = "control_0005"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues ADD COLUMN discarding boolean NOT NULL DEFAULT false;
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.queues DROP COLUMN discarding")
