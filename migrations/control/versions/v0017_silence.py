"""The history's pauses begin with the last sign of life of their owner.

`history_moves` has `silent_seconds`: the part of a pause until the lease of a silent owner ended.
`paused_seconds` contains it since this version; older entries count from the end of the lease, and
have 0.
"""

from __future__ import annotations

from alembic import op

revision = "control_0017"
down_revision = "control_0016"
branch_labels = None
depends_on = None
serves_from = "control_0001"

# Not of a handoff that ended at its deadline: its owner's lease ended later, if it did.
SILENT = """CASE WHEN giver.reason = 'lease_expired' AND one ->> 4 <> 'graceful'
                  AND NOT (one ->> 4 = 'forced' AND (one ->> 6)::boolean)
            THEN least((one ->> 5)::double precision, greatest(0,
                giver.left_at - (record ->> 'at')::double precision + (one ->> 5)::double precision
            ))
       END AS silent_seconds"""
MOVES = """
CREATE VIEW counterpoise.history_moves AS
SELECT queues.name AS queue, records.rebalance_id,
       to_timestamp((record ->> 'at')::double precision) AS at,
       (one ->> 0)::integer AS partition, (one ->> 3)::bigint AS epoch,
       one ->> 1 AS from_flow, giver.client_name AS from_client,
       one ->> 2 AS to_flow, taker.client_name AS to_client,
       one ->> 4 AS outcome, (one ->> 5)::double precision AS paused_seconds,
       (one ->> 6)::boolean AS by_handoff{more}
FROM counterpoise.records
JOIN counterpoise.queues ON queues.id = records.queue_id
CROSS JOIN LATERAL jsonb_array_elements(records.records) AS r(record)
CROSS JOIN LATERAL jsonb_array_elements(record -> 'grants') AS g(one)
LEFT JOIN counterpoise.flows AS giver ON giver.id = one ->> 1
LEFT JOIN counterpoise.flows AS taker ON taker.id = one ->> 2
WHERE records.rebalance_id IS NOT NULL AND record ->> 'kind' = 'Granted';
"""


def upgrade() -> None:
    # Replaced, not made anew: the rights to read it stay.
    replaced = MOVES.replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
    op.execute(replaced.format(more=f",\n       {SILENT}"))


def downgrade() -> None:
    op.execute("DROP VIEW counterpoise.history_moves")
    op.execute(MOVES.format(more=""))
