"""What consumers report of their partitions: a quarantine, a log that is away.

One row for each flow that has reported anything; it goes with the flow's row. The module
`broker.store.conditions` says what of it still holds. A version before this one does not know the
table.
"""

from __future__ import annotations

from alembic import op

revision = "control_0011"
down_revision = "control_0010"
branch_labels = None
depends_on = None
serves_from = "control_0001"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE counterpoise.conditions (
            flow_id text PRIMARY KEY REFERENCES counterpoise.flows ON DELETE CASCADE,
            queue_id text NOT NULL,
            seq bigint NOT NULL,
            conditions jsonb NOT NULL
        );
        CREATE INDEX conditions_of_queue ON counterpoise.conditions (queue_id)
            WHERE conditions <> '[]'::jsonb;
    """)


def downgrade() -> None:
    op.execute("DROP TABLE counterpoise.conditions")
