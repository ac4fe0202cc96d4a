"""Queues that read several logs side by side.

`aligned`: so many partitions in a row have one owner. Such a queue has level 15: an older replica
would give the partitions of a group to different flows.
"""

from __future__ import annotations

from alembic import op

revision = "control_0015"
down_revision = "control_0014"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("ALTER TABLE counterpoise.queues ADD COLUMN aligned integer NOT NULL DEFAULT 1")


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.queues DROP COLUMN aligned")
