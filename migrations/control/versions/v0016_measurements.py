"""An hour of each queue's lag and of what was published to it.

See `broker.store.measurements`. A version before this one neither takes measurements nor shows
them.
"""

from __future__ import annotations

from alembic import op

revision = "control_0016"
down_revision = "control_0015"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE counterpoise.measurements (
            queue_id text NOT NULL,
            at bigint NOT NULL,
            lag bigint,
            "end" bigint,
            PRIMARY KEY (queue_id, at)
        );
        CREATE INDEX measurements_at ON counterpoise.measurements (at);
        ALTER TABLE counterpoise.service ADD COLUMN measured_at bigint;
    """)


def downgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.service DROP COLUMN measured_at;
        DROP TABLE counterpoise.measurements;
    """)
