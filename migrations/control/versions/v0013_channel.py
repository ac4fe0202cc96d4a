"""The channel on which replicas wake each other has a name that only they know.

Each role of a database may LISTEN and NOTIFY on every channel that it can name, clients of a log in
the same database too. A replica of an older version uses the channel `counterpoise`: while both
serve, they find each other's changes when they look, every second.
"""

from __future__ import annotations

from alembic import op

revision = "control_0013"
down_revision = "control_0012"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.service
            ADD COLUMN channel text NOT NULL DEFAULT 'counterpoise_' || gen_random_uuid();
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.service DROP COLUMN channel")
