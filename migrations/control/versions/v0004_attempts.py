"""The binder of a flow and the attempt of its bind: a late bind must not replace a later one.

See `broker.core.decisions`. A flow that was bound without a binder has none, and a replica of an
older version stores none: then every bind of its instance replaces it, as before.
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
