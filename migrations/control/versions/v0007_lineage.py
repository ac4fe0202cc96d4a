"""Dynamic queues: partitions that wait and finish, and the graph of their keys (docs, *Lineage*).

A key is remembered for as long as the queue exists, the parents of a partition for as long as it
does. A replica of an older version never waits or finishes a partition, and does not know the
records of a queue in which others do.
"""

from __future__ import annotations

from alembic import op

revision = "control_0007"
down_revision = "control_0006"
branch_labels = None
depends_on = None
serves_from = "control_0001"

STATES = "('unassigned', 'owned', 'warming', 'revoking', 'removed'{})"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE counterpoise.lineage (
            queue_id text NOT NULL REFERENCES counterpoise.queues ON DELETE CASCADE,
            key text COLLATE "C" NOT NULL,
            number integer NOT NULL CHECK (number >= 0),
            -- Keys; null once the partition was removed.
            parents jsonb,
            PRIMARY KEY (queue_id, key)
        ) WITH (fillfactor = 80);

        ALTER TABLE counterpoise.queues
            ADD COLUMN waiting_count integer NOT NULL DEFAULT 0,
            ADD COLUMN finished_count integer NOT NULL DEFAULT 0;
    """)
    _allow(STATES.format(", 'waiting', 'finished'"))


def downgrade() -> None:
    _allow(STATES.format(""))
    op.execute("""
        ALTER TABLE counterpoise.queues DROP COLUMN waiting_count, DROP COLUMN finished_count;
        DROP TABLE counterpoise.lineage;
    """)


def _allow(states: str) -> None:
    op.execute(f"""
        ALTER TABLE counterpoise.partitions
            DROP CONSTRAINT partitions_state_check,
            ADD CONSTRAINT partitions_state_check CHECK (state IN {states});
    """)
