-- Views of the history for people with SQL (docs, *Operations*).
--
-- They show what `counterpoise history` shows, by names of queues and clients and with times as
-- timestamps. A role needs only the right to select from them: they are read with the rights of
-- their owner, and contain neither keys nor tokens.
--
-- `records` holds the history as JSON, an array for each revision. An element with the kind
-- `Granted` has the array `grants`, and each grant is an array: partition, previous flow, flow,
-- epoch, how it was handed over, seconds, whether by a handoff (`broker.core.records`).

CREATE VIEW counterpoise.history_flows AS
SELECT queues.name AS queue, flows.id AS flow_id, flows.client_name, flows.instance_id,
       to_timestamp(flows.bound_at) AS bound_at, to_timestamp(flows.left_at) AS left_at,
       flows.reason
FROM counterpoise.flows JOIN counterpoise.queues ON queues.id = flows.queue_id;
COMMENT ON VIEW counterpoise.history_flows IS
    'Flows that are bound or left, and why they left; kept as long as the history.';

CREATE VIEW counterpoise.history_rebalances AS
SELECT queues.name AS queue, begun.rebalance_id, begun.record ->> 'trigger' AS trigger,
       to_timestamp((begun.record ->> 'at')::double precision) AS started_at,
       CASE WHEN begun.record ->> 'kind' = 'GrantedOutside'
            THEN to_timestamp((begun.record ->> 'at')::double precision)
            ELSE (SELECT to_timestamp(min((record ->> 'at')::double precision))
                  FROM counterpoise.records AS later,
                       jsonb_array_elements(later.records) AS r(record)
                  WHERE later.queue_id = begun.queue_id
                    AND later.rebalance_id = begun.rebalance_id
                    AND record ->> 'kind' = 'RebalanceFinished')
       END AS finished_at,
       coalesce(moved.handoffs, 0) AS handoffs, coalesce(moved.forced, 0) AS forced,
       coalesce(moved.granted, 0) AS granted
FROM (
    SELECT records.queue_id, records.rebalance_id, record
    FROM counterpoise.records, jsonb_array_elements(records.records) AS r(record)
    WHERE records.rebalance_id IS NOT NULL
      AND record ->> 'kind' IN ('RebalanceStarted', 'GrantedOutside')
) AS begun
JOIN counterpoise.queues ON queues.id = begun.queue_id
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE (one ->> 6)::boolean) AS handoffs,
           count(*) FILTER (WHERE (one ->> 6)::boolean AND one ->> 4 = 'forced') AS forced,
           count(*) FILTER (WHERE NOT (one ->> 6)::boolean) AS granted
    FROM counterpoise.records AS of_it, jsonb_array_elements(of_it.records) AS r(record),
         jsonb_array_elements(record -> 'grants') AS g(one)
    WHERE of_it.queue_id = begun.queue_id AND of_it.rebalance_id = begun.rebalance_id
      AND record ->> 'kind' = 'Granted'
) AS moved;
COMMENT ON VIEW counterpoise.history_rebalances IS
    'Rebalances, and grants outside of one, with their first trigger.';

-- `paused_seconds` begins with the last sign of life of the owner. `silent_seconds` is its part
-- until the lease of a silent owner ended.
CREATE VIEW counterpoise.history_moves AS
SELECT queues.name AS queue, records.rebalance_id,
       to_timestamp((record ->> 'at')::double precision) AS at,
       (one ->> 0)::integer AS partition, (one ->> 3)::bigint AS epoch,
       one ->> 1 AS from_flow, giver.client_name AS from_client,
       one ->> 2 AS to_flow, taker.client_name AS to_client,
       one ->> 4 AS outcome, (one ->> 5)::double precision AS paused_seconds,
       (one ->> 6)::boolean AS by_handoff,
       -- Not of a handoff that ended at its deadline: its owner's lease ended later, if it did.
       CASE WHEN giver.reason = 'lease_expired' AND one ->> 4 <> 'graceful'
                  AND NOT (one ->> 4 = 'forced' AND (one ->> 6)::boolean)
            THEN least((one ->> 5)::double precision, greatest(0,
                giver.left_at - (record ->> 'at')::double precision + (one ->> 5)::double precision
            ))
       END AS silent_seconds
FROM counterpoise.records
JOIN counterpoise.queues ON queues.id = records.queue_id
CROSS JOIN LATERAL jsonb_array_elements(records.records) AS r(record)
CROSS JOIN LATERAL jsonb_array_elements(record -> 'grants') AS g(one)
LEFT JOIN counterpoise.flows AS giver ON giver.id = one ->> 1
LEFT JOIN counterpoise.flows AS taker ON taker.id = one ->> 2
WHERE records.rebalance_id IS NOT NULL AND record ->> 'kind' = 'Granted';
COMMENT ON VIEW counterpoise.history_moves IS
    'Each grant of a partition: from which client to which, how, and how long it paused.';
