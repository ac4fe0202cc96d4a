-- Trimming first says where a partition starts, then deletes what lies below, bit by bit and
-- without locks: so a reader that misses a message can always tell why.

CREATE FUNCTION counterpoise_log.trim(p_log text, p_partitions integer[], p_positions bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
BEGIN
    v_log := counterpoise_log.lock_log(p_log, false);
    PERFORM FROM counterpoise_log.partitions
        WHERE log_id = v_log.log_id AND partition = ANY (p_partitions)
        ORDER BY partition FOR UPDATE;
    UPDATE counterpoise_log.partitions AS p
        SET first_position = least(below.position, p.next_position)
        FROM unnest(p_partitions, p_positions) AS below (partition, position)
        WHERE p.log_id = v_log.log_id AND p.partition = below.partition
            AND least(below.position, p.next_position) > p.first_position;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.trim FROM PUBLIC;

-- Both sweeps take the first messages in the order of the primary key, however many there are.

-- Deletes at most p_limit messages below their partitions' starts; returns how many.
CREATE FUNCTION counterpoise_log.sweep(p_log text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off SET enable_seqscan = off AS $$
DECLARE
    v_deleted bigint;
BEGIN
    DELETE FROM counterpoise_log.messages WHERE ctid = ANY (ARRAY(
        SELECT old.ctid
        FROM counterpoise_log.logs AS l JOIN counterpoise_log.partitions AS p USING (log_id)
        CROSS JOIN LATERAL (
            SELECT m.ctid FROM counterpoise_log.messages AS m
            WHERE m.log_id = p.log_id AND m.partition = p.partition
                AND m.position < p.first_position
            ORDER BY m.position LIMIT p_limit
        ) AS old
        WHERE l.name = p_log AND p.first_position > 0
        LIMIT p_limit));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.sweep FROM PUBLIC;

-- Deletes at most p_limit messages of logs that have been dropped; returns how many.
CREATE FUNCTION counterpoise_log.sweep_dropped(p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off SET enable_seqscan = off AS $$
DECLARE
    v_deleted bigint;
BEGIN
    DELETE FROM counterpoise_log.messages WHERE ctid = ANY (ARRAY(
        WITH RECURSIVE present (log_id) AS (
            (SELECT log_id FROM counterpoise_log.messages ORDER BY log_id LIMIT 1)
            UNION ALL
            SELECT (SELECT m.log_id FROM counterpoise_log.messages AS m
                    WHERE m.log_id > present.log_id ORDER BY m.log_id LIMIT 1)
            FROM present WHERE present.log_id IS NOT NULL
        )
        SELECT old.ctid
        FROM (SELECT log_id FROM present WHERE log_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM counterpoise_log.logs AS l WHERE l.log_id = present.log_id)) AS dropped
        CROSS JOIN LATERAL (
            SELECT m.ctid FROM counterpoise_log.messages AS m
            WHERE m.log_id = dropped.log_id LIMIT p_limit
        ) AS old
        LIMIT p_limit));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.sweep_dropped FROM PUBLIC;
