"""An outage of negative length: the database's clock went back.

See `broker.store.leases`. A replica of an older version does not detect such a step. A step that
another replica detected looks to it like an outage during which no handoff was running.
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
