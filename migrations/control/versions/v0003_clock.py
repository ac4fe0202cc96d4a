"""An outage of negative length: the database's clock went back.

See `broker.store.leases`. A replica of an older version notices no such step, and takes one that
another noticed for an outage that no handoff lived through.
"""

from __future__ import annotations

from alembic import op

revision = "control_0003"
down_revision = "control_0002"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.outages
            DROP CONSTRAINT outages_seconds_check,
            ADD CONSTRAINT outages_seconds_check CHECK (seconds <> 0);
    """)


def downgrade() -> None:
    op.execute("""
        DELETE FROM counterpoise.outages WHERE seconds < 0;
        ALTER TABLE counterpoise.outages
            DROP CONSTRAINT outages_seconds_check,
            ADD CONSTRAINT outages_seconds_check CHECK (seconds > 0);
    """)
