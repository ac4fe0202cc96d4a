"""Which program bound a flow, and with which of its binds: a late one must not replace a later one.

See `broker.core.binding`. A flow that was bound without has no binder, and a replica of an older
version gives it none: then every bind of its instance replaces it, as before.
"""

from __future__ import annotations

from alembic import op

revision = "control_0004"
down_revision = "control_0003"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        ALTER TABLE counterpoise.flows
            ADD COLUMN binder text,
            ADD COLUMN attempt bigint NOT NULL DEFAULT 0;
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE counterpoise.flows DROP COLUMN binder, DROP COLUMN attempt")
