"""What keys have taken from others, and flows that are held back for it.

`moved` has an entry for each key that has taken partitions lately (`broker.core.budget`). While a
flow is held back its queue has level 14: older replicas would give it partitions. Otherwise they
may change the queue; what they let a key take is not counted.
"""

from __future__ import annotations

from alembic import op

revision = "control_0014"
down_revision = "control_0013"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues ADD COLUMN moved jsonb NOT NULL DEFAULT '{}';
        ALTER TABLE counterpoise.flows ADD COLUMN held_until double precision;
    """)


def downgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.flows DROP COLUMN held_until;
        ALTER TABLE counterpoise.queues DROP COLUMN moved;
    """)
