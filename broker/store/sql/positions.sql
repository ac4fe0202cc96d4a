-- Commits positions of many partitions of many flows, each under a fence of its own. The theory is
-- in `broker.store.positions`.
--
-- It waits for no lock (SKIP LOCKED): rows that another transaction holds are left out.
--
-- The items are given as one array for each column; a partition occurs in one item only.

WITH

renewed AS (
    -- The leases of the flows begin anew, whether their positions are accepted or not. Locks are
    -- taken in the order of `commit.sql`: flows before partitions, each by their keys.
    UPDATE counterpoise.flows
    SET lease_expires_at =
        CAST(extract(epoch FROM statement_timestamp()) AS double precision) + lease_seconds
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM counterpoise.flows
        WHERE id = ANY(:flow_ids) AND reason IS NULL
        ORDER BY id
        FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING id
),

locked AS (
    -- The row of each item, and its fence: the lease of the flow was `renewed`, the partition is
    -- `owned` by the flow, and it `fits`: it has the epoch, and no later call of the flow, with a
    -- higher `seq`, was committed first.
    SELECT
        item.place,
        found.*,
        item.position AS new_position,
        item.done_above AS new_done_above,
        coalesce(item.seq, found.seq) AS new_seq,
        found.owner = item.flow_id AS owned,
        item.flow_id IN (SELECT id FROM renewed) AS renewed,
        found.epoch = item.epoch
            AND (item.seq IS NULL OR found.seq IS NULL OR item.seq > found.seq) AS fits
    FROM (
        SELECT *
        FROM unnest(
            CAST(:queue_ids AS text[]), CAST(:numbers AS integer[]), CAST(:flow_ids AS text[]),
            CAST(:epochs AS bigint[]), CAST(:seqs AS bigint[]), CAST(:positions AS text[]),
            CAST(:done_above AS text[])
        ) WITH ORDINALITY AS item (
            queue_id, number, flow_id, epoch, seq, position, done_above, place)
        ORDER BY queue_id, number
    ) AS item
    -- LIMIT leaves the planner one way: a look-up by the key, once for each item.
    CROSS JOIN LATERAL (
        SELECT *
        FROM counterpoise.partitions
        WHERE queue_id = item.queue_id AND number = item.number
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
    -- Always true, and known when the flows are locked.
    WHERE (SELECT count(*) FROM renewed) >= 0
),

written AS (
    -- Inserted over their rows, by the unique index of the key (see `commit.sql`). Only three
    -- columns change.
    INSERT INTO counterpoise.partitions (
        queue_id, number, state, epoch, owner, retiring, handed_over, next_handed_over, released_by,
        unowned_since, successor, deadline, handoff_since, warm, warmed_by, warmed_epoch,
        position, done_above, seq, cut, cut_reached
    )
    SELECT
        queue_id, number, state, epoch, owner, retiring, handed_over, next_handed_over, released_by,
        unowned_since, successor, deadline, handoff_since, warm, warmed_by, warmed_epoch,
        new_position, new_done_above, new_seq, cut, cut_reached
    FROM locked
    WHERE owned AND renewed AND fits
    ON CONFLICT (queue_id, number) DO UPDATE
        SET position = excluded.position, done_above = excluded.done_above, seq = excluded.seq
    RETURNING queue_id, number, epoch, position, done_above
)

-- The items as they were found, by their place. Then positions, without a place: first those that
-- an answer will show, as they were when the statement arrived, then those that were written.
SELECT
    place, NULL AS queue_id, NULL AS number, epoch, position, NULL AS done_above,
    owned, state, renewed, fits
FROM locked
UNION ALL
SELECT NULL, shown.queue_id, shown.number, found.epoch, found.position, found.done_above,
    NULL, NULL, NULL, NULL
FROM unnest(CAST(:shown_queue_ids AS text[]), CAST(:shown_numbers AS integer[]))
    AS shown (queue_id, number)
CROSS JOIN LATERAL (
    SELECT epoch, position, done_above
    FROM counterpoise.partitions
    WHERE queue_id = shown.queue_id AND number = shown.number
    LIMIT 1
) AS found
UNION ALL
SELECT NULL, queue_id, number, epoch, position, done_above, NULL, NULL, NULL, NULL
FROM written
