-- Locks of the log, in one order for all functions, so that no deadlock is possible:
--
--   1. the row of the log (splits, merges, resizes, drops; no append),
--   2. partition rows in ascending order (a resize: all of them),
--   3. the row of the publisher.
--
-- Rows of `ends` and `sequences` are changed under the lock of the partition or the publisher, and
-- without any other.
--
-- Clients cannot lock these rows otherwise, and nothing waits for an advisory lock, which any role
-- that may connect can take.

-- Each wait for a lock is followed by a statement of its own: in READ COMMITTED it sees what was
-- committed meanwhile. Under a fixed snapshot it would not, so those are refused.
CREATE FUNCTION counterpoise_log.check_isolation() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the log must be written in READ COMMITTED transactions'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.check_isolation FROM PUBLIC;

CREATE FUNCTION counterpoise_log.lock_log(p_log text, p_exclusive boolean)
RETURNS counterpoise_log.logs
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    IF p_exclusive THEN
        SELECT * INTO v_log FROM counterpoise_log.logs WHERE name = p_log FOR NO KEY UPDATE;
    ELSE
        -- Not in the way of appends; it only cannot be dropped meanwhile.
        SELECT * INTO v_log FROM counterpoise_log.logs WHERE name = p_log FOR KEY SHARE;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    IF p_exclusive THEN
        PERFORM FROM counterpoise_log.partitions WHERE log_id = v_log.log_id
            ORDER BY partition FOR NO KEY UPDATE;
    END IF;
    RETURN v_log;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.lock_log FROM PUBLIC;

-- The last sequence of a publisher, its row locked. The INSERT waits for one that is under way.
CREATE FUNCTION counterpoise_log.lock_publisher(p_log_id integer, p_publisher text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
    v_last bigint;
BEGIN
    PERFORM FROM counterpoise_log.publishers
        WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    IF NOT FOUND THEN
        BEGIN
            INSERT INTO counterpoise_log.publishers (log_id, publisher)
                VALUES (p_log_id, p_publisher) ON CONFLICT DO NOTHING;
        EXCEPTION
            WHEN foreign_key_violation THEN
                RAISE EXCEPTION 'there is no such log any more' USING ERRCODE = 'CP002';
        END;
        PERFORM FROM counterpoise_log.publishers
            WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    END IF;
    SELECT last_sequence INTO v_last FROM counterpoise_log.sequences
        WHERE log_id = p_log_id AND publisher = p_publisher
        ORDER BY last_sequence DESC LIMIT 1;
    IF NOT FOUND THEN
        v_last := -1;
        INSERT INTO counterpoise_log.sequences (log_id, publisher, last_sequence, appended_at)
            VALUES (p_log_id, p_publisher, v_last, now());
    END IF;
    RETURN v_last;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.lock_publisher FROM PUBLIC;
