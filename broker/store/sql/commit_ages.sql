-- Adds a replica's counts of the ages of committed messages to those of a slot
-- (`broker.store.measurements`). Counts are given as the texts of arrays.

INSERT INTO counterpoise.commit_ages AS known (queue_id, at, counts)
SELECT queue_id, CAST(:at AS bigint), CAST(counts AS bigint[])
FROM unnest(CAST(:queue_ids AS text[]), CAST(:counts AS text[])) AS given (queue_id, counts)
-- The order in which rows are locked.
ORDER BY queue_id
ON CONFLICT (queue_id, at) DO UPDATE
    SET counts = ARRAY(
        SELECT coalesce(one, 0) + coalesce(other, 0)
        FROM unnest(known.counts, excluded.counts) WITH ORDINALITY AS both_of (one, other, place)
        ORDER BY place
    )
