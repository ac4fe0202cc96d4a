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

-- Both sweeps take the first messages in the order of the primary key, however many there are. A
-- sweep locks no row of the log that others lock: a drop waits for none.

-- Deletes at most p_limit messages below their partitions' starts; returns how many. It begins where
-- the last one has ended: beside a long transaction, it would look at all that was deleted before.
CREATE FUNCTION counterpoise_log.sweep(p_log text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off SET enable_seqscan = off AS $$
DECLARE
    v_partition record;
    v_found bigint;
    v_last bigint;
    v_deleted bigint;
    v_all bigint := 0;
BEGIN
    FOR v_partition IN
        SELECT p.log_id, p.partition, p.first_position, coalesce(s.position, 0) AS swept
        FROM counterpoise_log.logs AS l JOIN counterpoise_log.partition_rows AS p USING (log_id)
        LEFT JOIN counterpoise_log.sweeps AS s USING (log_id, partition)
        WHERE l.name = p_log AND p.first_position > coalesce(s.position, 0)
        ORDER BY p.partition
    LOOP
        EXIT WHEN v_all >= p_limit;
        SELECT count(*), max(old.position) INTO v_found, v_last FROM (
            SELECT m.position FROM counterpoise_log.messages AS m
            WHERE m.log_id = v_partition.log_id AND m.partition = v_partition.partition
                AND m.position >= v_partition.swept AND m.position < v_partition.first_position
            ORDER BY m.position LIMIT p_limit - v_all
        ) AS old;
        DELETE FROM counterpoise_log.messages
            WHERE log_id = v_partition.log_id AND partition = v_partition.partition
                AND position >= v_partition.swept AND position <= v_last;
        GET DIAGNOSTICS v_deleted = ROW_COUNT;
        -- What another sweep has found meanwhile is deleted, or was found here.
        INSERT INTO counterpoise_log.sweeps AS s (log_id, partition, position)
            VALUES (v_partition.log_id, v_partition.partition,
                CASE WHEN v_found = p_limit - v_all THEN v_last + 1
                    ELSE v_partition.first_position END)
            ON CONFLICT (log_id, partition) DO UPDATE SET position = excluded.position
                WHERE s.position < excluded.position;
        v_all := v_all + v_deleted;
    END LOOP;
    RETURN v_all;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.sweep FROM PUBLIC;

-- Deletes at most p_limit messages of logs that have been dropped; returns how many.
CREATE FUNCTION counterpoise_log.sweep_dropped(p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off SET enable_seqscan = off AS $$
DECLARE
    v_deleted bigint;
BEGIN
    DELETE FROM counterpoise_log.sweeps AS s
        WHERE NOT EXISTS (SELECT FROM counterpoise_log.logs AS l WHERE l.log_id = s.log_id);
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

-- Forgets publishers that have not appended for so long; returns how many. Those that append now are
-- left out, and what another has appended meanwhile is seen by the second statement.
CREATE FUNCTION counterpoise_log.forget_publishers(p_idle interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_since CONSTANT timestamptz := now() - p_idle;
    v_locked tid[];
    v_deleted bigint;
BEGIN
    v_locked := ARRAY(
        SELECT p.ctid FROM counterpoise_log.publishers AS p
        JOIN counterpoise_log.sequences AS s USING (log_id, publisher)
        WHERE s.appended_at < v_since
        FOR UPDATE OF p SKIP LOCKED);
    DELETE FROM counterpoise_log.publishers AS p USING counterpoise_log.sequences AS s
        WHERE p.ctid = ANY (v_locked) AND s.log_id = p.log_id AND s.publisher = p.publisher
            AND s.appended_at < v_since;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.forget_publishers FROM PUBLIC;
