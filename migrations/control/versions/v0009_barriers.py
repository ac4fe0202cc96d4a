"""The barriers of an ordered resize: which cuts are awaited, and which are not reached yet.

`queues.barriers` says of which resize, `partitions.cut` where it has cut each partition. They mean
something only for a queue with ordered resizes, which a version before this one does not resize in
order.
"""

from __future__ import annotations

from alembic import op

revision = "control_0009"
down_revision = "control_0008"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues
            ADD COLUMN resize_seen bigint NOT NULL DEFAULT 0,
            ADD COLUMN barriers jsonb,
            ADD COLUMN cuts_due double precision,
            ADD COLUMN cuts_attempt integer NOT NULL DEFAULT 0;
        ALTER TABLE counterpoise.partitions
            ADD COLUMN cut text,
            ADD COLUMN cut_reached boolean;
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.partitions DROP COLUMN cut, DROP COLUMN cut_reached")
    op.execute("""
        ALTER TABLE counterpoise.queues
            DROP COLUMN resize_seen, DROP COLUMN barriers,
            DROP COLUMN cuts_due, DROP COLUMN cuts_attempt;
    """)
