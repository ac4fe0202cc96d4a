"""The database in which the tables were written first, to detect a dump restored elsewhere.

See `broker.postgres.restoring`. Null until a service or `counterpoise migrate` has set it.
"""

from __future__ import annotations

from alembic import op

revision = "control_0002"
down_revision = "control_0001"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("ALTER TABLE counterpoise.service ADD COLUMN home text")


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.service DROP COLUMN home")
