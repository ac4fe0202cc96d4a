-- Readers that have read all there is wait to be woken. A wake-up is a notification on the channel of
-- the log, with the numbers of partitions (none: of any).
--
-- To notify takes a lock of the whole server that is held until the commit is on disk: appends with
-- notifications in them would wait for each other, whatever their log. So an append only looks
-- whether anybody waits (`watched`), under the lock of its partitions that it has anyway, and its
-- client wakes them afterwards (`wake`), in a transaction with nothing to write to the disk. A row of
-- `watches` says at which end of a partition readers wait, and an append looks for the end that it
-- moves. So of many appends one finds a reader that waits, and nothing has to be taken back.
--
-- No wake-up is lost, as long as the client of the append lives. A reader says where it waits
-- (`watch`), and when that is committed, looks once more (`still_waits`). An append that did not find
-- what it said has looked before, and had locked the row of its partition before that. So at the
-- second look the partition has moved, or its row is locked by a transaction that has not ended: the
-- reader looks again soon. A wake-up that is lost otherwise costs the time to the reader's next look.
--
-- Readers write nothing but positions that are the ends of their log's partitions, and no append
-- waits for them: it locks no row of `watches`. A reader that keeps such a row locked hinders other
-- readers of the same log to be woken, and they ask now and then (`lock_timeout`). The name of the
-- channel is known to those who may read the log: others can neither listen to it nor wake.

CREATE FUNCTION counterpoise_log.channel_of(p_incarnation uuid) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN 'counterpoise_log_' || replace(p_incarnation::text, '-', '');
REVOKE ALL ON FUNCTION counterpoise_log.channel_of FROM PUBLIC;

-- Says that a reader waits at those of these positions that are ends now. Answers the channel.
CREATE FUNCTION counterpoise_log.watch(
    p_log text, p_partitions integer[], p_positions bigint[]
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms' SET enable_seqscan = off AS $$
DECLARE
    v_log counterpoise_log.logs;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log, 'read');
    SELECT * INTO v_log FROM counterpoise_log.logs WHERE name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    INSERT INTO counterpoise_log.watches (log_id, partition, position)
        SELECT DISTINCT v_log.log_id, p.partition, p.next_position
        FROM unnest(p_partitions, p_positions) AS asked (partition, position)
        JOIN counterpoise_log.partitions AS p
            ON p.log_id = v_log.log_id AND p.partition = asked.partition
                AND p.next_position = asked.position
        ORDER BY 2
        ON CONFLICT DO NOTHING;
    RETURN counterpoise_log.channel_of(v_log.incarnation);
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.watch FROM PUBLIC;

-- Whether a reader that has said so still waits at these ends: `yes`; `moved`, a partition has moved,
-- or nothing will be appended to it; `unsaid`, `watch` was not called, or the server has crashed
-- since; `soon`, a transaction has locked a partition. It must be a statement of its own after
-- `watch`, and all in it is of one snapshot. Of a partition that only a resize can make (the log is
-- read beside a larger one) nothing is said: the resize notifies (`wake_all`).
CREATE FUNCTION counterpoise_log.still_waits(
    p_log text, p_channel text, p_partitions integer[], p_positions bigint[]
) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    -- Transactions after this one have begun later. A row's numbers lack the upper half.
    v_next CONSTANT bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_running CONSTANT bigint[] := ARRAY(
        SELECT x::text::bigint & 4294967295 FROM pg_snapshot_xip(pg_current_snapshot()) AS x);
    v_log_id integer;
    v_count integer;
    v_waits boolean;
    v_said boolean;
    v_locked boolean;
BEGIN
    PERFORM counterpoise_log.check_client(p_log, 'read');
    SELECT log_id, partition_count INTO v_log_id, v_count FROM counterpoise_log.logs
        WHERE name = p_log AND counterpoise_log.channel_of(incarnation) = p_channel;
    IF NOT FOUND THEN
        RETURN 'moved';
    END IF;
    SELECT bool_and(coalesce(e.next_position, 0) = asked.position AND p.successors IS NULL),
            bool_and(w.position IS NOT NULL
                OR (p.partition IS NULL AND asked.partition >= v_count)),
            bool_or(p.xmax <> '0'::xid AND (
                ((p.xmax::text::bigint - v_next) & 4294967295) < 2147483648
                OR p.xmax::text::bigint = ANY (v_running)))
        INTO v_waits, v_said, v_locked
        FROM unnest(p_partitions, p_positions) AS asked (partition, position)
        LEFT JOIN counterpoise_log.partition_rows AS p
            ON p.log_id = v_log_id AND p.partition = asked.partition
        LEFT JOIN LATERAL (
            SELECT next_position FROM counterpoise_log.ends
            WHERE log_id = v_log_id AND partition = asked.partition
            ORDER BY next_position DESC LIMIT 1
        ) AS e ON true
        LEFT JOIN LATERAL (
            SELECT position FROM counterpoise_log.watches
            WHERE log_id = v_log_id AND partition = asked.partition
                AND position = asked.position
            LIMIT 1
        ) AS w ON true;
    RETURN CASE WHEN NOT v_waits THEN 'moved' WHEN NOT v_said THEN 'unsaid'
        WHEN v_locked THEN 'soon' ELSE 'yes' END;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.still_waits FROM PUBLIC;

-- Those of these partitions, the rows of which an append has locked, at whose ends readers wait.
CREATE FUNCTION counterpoise_log.watched(p_log_id integer, p_partitions integer[])
RETURNS integer[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT array_agg(appended.partition)
        FROM unnest(p_partitions) AS appended (partition)
        CROSS JOIN LATERAL (
            SELECT next_position FROM counterpoise_log.ends
            WHERE log_id = p_log_id AND partition = appended.partition
            ORDER BY next_position DESC LIMIT 1
        ) AS e
        WHERE EXISTS (
            SELECT FROM counterpoise_log.watches
            WHERE log_id = p_log_id AND partition = appended.partition
                AND position = e.next_position OFFSET 0));
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.watched FROM PUBLIC;

-- Wakes them, for a publisher that has appended to these partitions.
CREATE FUNCTION counterpoise_log.wake(p_log text, p_partitions integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM counterpoise_log.check_client(p_log, 'publish');
    -- A payload has at most 8,000 bytes.
    PERFORM pg_notify(counterpoise_log.channel_of(incarnation),
            CASE WHEN cardinality(p_partitions) <= 1000
                THEN array_to_string(p_partitions, ',') ELSE '' END)
        FROM counterpoise_log.logs WHERE name = p_log;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.wake FROM PUBLIC;

-- A resize, a split and a merge concern readers, too. They are rare, and notify themselves.
CREATE FUNCTION counterpoise_log.wake_all() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify(counterpoise_log.channel_of(incarnation), '')
        FROM counterpoise_log.logs WHERE log_id = NEW.log_id;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.wake_all FROM PUBLIC;

CREATE TRIGGER wake_all AFTER UPDATE OF partition_count ON counterpoise_log.logs
    FOR EACH ROW EXECUTE FUNCTION counterpoise_log.wake_all();
CREATE TRIGGER wake_all AFTER UPDATE OF successors ON counterpoise_log.partition_rows
    FOR EACH ROW EXECUTE FUNCTION counterpoise_log.wake_all();

-- A log that is gone is not waited for.
CREATE FUNCTION counterpoise_log.forget_watches() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM counterpoise_log.watches WHERE log_id = OLD.log_id;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.forget_watches FROM PUBLIC;

CREATE TRIGGER forget_watches AFTER DELETE ON counterpoise_log.logs
    FOR EACH ROW EXECUTE FUNCTION counterpoise_log.forget_watches();

-- Deletes what readers have said of ends that have been; returns how many rows.
CREATE FUNCTION counterpoise_log.sweep_watches() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_deleted bigint;
BEGIN
    -- Where there is no partition any more, the log was dropped while a reader said it.
    DELETE FROM counterpoise_log.watches AS w WHERE NOT EXISTS (
        SELECT FROM counterpoise_log.partitions AS p
            WHERE p.log_id = w.log_id AND p.partition = w.partition
                AND p.next_position <= w.position);
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.sweep_watches FROM PUBLIC;
