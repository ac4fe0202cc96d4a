"""How long a queue's own built-in log keeps messages that have been processed.

See `broker.logs.retention`. A queue that is there keeps none, as before; null is for queues without
a built-in log of their own. A version before this one trims without regard to it.
"""

from __future__ import annotations

from alembic import op

revision = "control_0018"
down_revision = "control_0017"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues
            ADD COLUMN retention_seconds double precision,
            ADD COLUMN retention_bytes bigint;
        UPDATE counterpoise.queues SET retention_seconds = 0, retention_bytes = 0
            WHERE log = 'builtin:' || name;
    """)


def downgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.queues
            DROP COLUMN retention_seconds,
            DROP COLUMN retention_bytes;
    """)
