"""What of a log is about to be trimmed, so that nobody begins to need it meanwhile.

See `broker.store.trims`. A version before this one neither announces its trims nor looks here:
while both serve, a new reader may meet a trim of the older one, as before.
"""

from __future__ import annotations

from alembic import op

revision = "control_0010"
down_revision = "control_0009"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE counterpoise.trims (
            log text COLLATE "C" PRIMARY KEY,
            readers text NOT NULL,
            announced text NOT NULL,
            pending text
        );
    """)


def downgrade() -> None:
    op.execute("DROP TABLE counterpoise.trims")
