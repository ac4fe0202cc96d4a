-- Hash ranges: partitions of dynamic logs that split and merge while publishers append.
--
-- `counterpoise.logs.ranges` says what a hash range is. `successors` of a sealed partition are those
-- that come after it, as they were decided in the transaction that sealed it. They never change, so
-- a reader learns with the end of a partition, from the same row, that the end is final and what
-- comes next.
--
-- An append locks the rows of its partitions, then checks, in a statement of its own, that none is
-- sealed and that the hash of each key is in its partition's range. A split or merge locks the rows
-- of the partitions that it seals, and creates their successors. So either the append comes first,
-- and its messages are below the sealed end; or it finds the partition sealed and is refused as a
-- whole. A publisher's idea of the ranges is never trusted, only checked, and a split hinders only
-- appends to the partitions that it seals.

-- Where the server has a function for it (Postgres 18 and later), hashing a key is a part of the
-- statement. The server writes a function's expression into the statement that calls it only if the
-- expression is as constant as the function says: `convert_to` is STABLE, and so is `key_hash`.
-- Elsewhere half a byte is hashed at a time, with a table of sixteen entries.

DO $migration$ BEGIN
    IF to_regprocedure('pg_catalog.crc32(bytea)') IS NOT NULL THEN
        EXECUTE $body$
CREATE FUNCTION counterpoise_log.key_hash(p_key text) RETURNS bigint
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN pg_catalog.crc32(pg_catalog.convert_to(p_key, 'UTF8'));
$body$;
    ELSE
        EXECUTE $body$
CREATE FUNCTION counterpoise_log.key_hash(p_key text) RETURNS bigint
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table CONSTANT bigint[] := '{0, 498536548, 997073096, 651767980, 1994146192, 1802195444,
        1303535960, 1342533948, 3988292384, 4027552580, 3604390888, 3412177804, 2607071920,
        2262029012, 2685067896, 3183342108}';
    v_bytes CONSTANT bytea := convert_to(p_key, 'UTF8');
    v_crc bigint := 4294967295;
BEGIN
    FOR i IN 0 .. octet_length(v_bytes) - 1 LOOP
        v_crc := v_crc # get_byte(v_bytes, i);
        v_crc := v_table[(v_crc & 15) + 1] # (v_crc >> 4);
        v_crc := v_table[(v_crc & 15) + 1] # (v_crc >> 4);
    END LOOP;
    RETURN v_crc # 4294967295;
END $$;
$body$;
    END IF;
END $migration$;
REVOKE ALL ON FUNCTION counterpoise_log.key_hash FROM PUBLIC;

-- For publishers, which may not read tables.
CREATE FUNCTION counterpoise_log.ranges(p_log text)
RETURNS TABLE (first_hash bigint, last_hash bigint, partition integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM counterpoise_log.check_client(p_log, 'publish');
    RETURN QUERY SELECT p.first_hash, p.last_hash, p.partition
        FROM counterpoise_log.partitions AS p JOIN counterpoise_log.logs AS l USING (log_id)
        WHERE l.name = p_log AND p.first_hash IS NOT NULL AND p.successors IS NULL
        ORDER BY p.first_hash;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.ranges FROM PUBLIC;

-- Messages without a key may go to any partition that is not sealed.
CREATE FUNCTION counterpoise_log.append_by_range(
    p_log text, p_publisher text, p_first_sequence bigint,
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[],
    OUT appended integer, OUT watched integer[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_log_id integer;
    v_messages bigint := cardinality(p_partitions);
    v_touched integer[];
    v_out_of_range boolean;
    v_has_ranges boolean;
    v_wrong integer;
    v_last bigint;
    v_skip bigint;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log, 'publish');
    SELECT array_agg(p), bool_or((p >= 0) IS NOT TRUE)
        INTO v_touched, v_out_of_range
        FROM (SELECT DISTINCT unnest(p_partitions) AS p) AS touched;
    IF v_messages IS DISTINCT FROM cardinality(p_values)
        OR cardinality(p_keys) <> v_messages OR cardinality(p_headers) <> v_messages
        OR cardinality(p_published_at) <> v_messages
        OR v_out_of_range
        OR p_publisher IS NULL OR (p_first_sequence >= 0) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'arrays of different lengths, or a partition or sequence out of range'
            USING ERRCODE = 'CP003';
    END IF;
    IF array_ndims(p_values) <> 1 OR array_lower(p_values, 1) <> 1
        OR array_ndims(p_keys) <> 1 OR array_lower(p_keys, 1) <> 1
        OR array_ndims(p_headers) <> 1 OR array_lower(p_headers, 1) <> 1
        OR array_ndims(p_published_at) <> 1 OR array_lower(p_published_at, 1) <> 1
    THEN
        RAISE EXCEPTION 'arrays must have one dimension and begin at 1' USING ERRCODE = 'CP003';
    END IF;

    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    SELECT count(first_hash) > 0 INTO v_has_ranges FROM (
        SELECT first_hash FROM counterpoise_log.partitions
            WHERE log_id = v_log_id AND partition = ANY (v_touched)
            ORDER BY partition FOR NO KEY UPDATE
    ) AS locked;
    SELECT * INTO v_log FROM counterpoise_log.logs WHERE log_id = v_log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;

    IF NOT v_has_ranges AND NOT EXISTS (
        SELECT FROM counterpoise_log.partitions WHERE log_id = v_log_id AND first_hash IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'routed by hash ranges, but the log has % partitions without',
            v_log.partition_count USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
    END IF;
    SELECT m.partition INTO v_wrong
        FROM unnest(p_partitions, p_keys) AS m (partition, key)
        LEFT JOIN counterpoise_log.partitions AS p
            ON p.log_id = v_log_id AND p.partition = m.partition
        WHERE p.first_hash IS NULL OR p.successors IS NOT NULL
            OR counterpoise_log.key_hash(m.key) NOT BETWEEN p.first_hash AND p.last_hash
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'routed with other hash ranges than the log has: partition %', v_wrong
            USING ERRCODE = 'CP004';
    END IF;

    v_last := counterpoise_log.lock_publisher(v_log_id, p_publisher);
    v_skip := least(greatest(v_last + 1 - p_first_sequence, 0), v_messages);
    IF v_skip = v_messages THEN
        appended := 0;
        RETURN;
    END IF;
    watched := counterpoise_log.watched(v_log_id, v_touched);
    UPDATE counterpoise_log.sequences
        SET last_sequence = p_first_sequence + v_messages - 1, appended_at = now()
        WHERE log_id = v_log_id AND publisher = p_publisher AND last_sequence = v_last;

    WITH routed AS MATERIALIZED (
        SELECT m.partition, m.nth::integer,
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place,
            octet_length(p_values[m.nth::integer])
                + coalesce(octet_length(p_keys[m.nth::integer]), 0)
                + coalesce(octet_length(p_headers[m.nth::integer]::jsonb::text), 0) AS bytes
        FROM unnest(p_partitions) WITH ORDINALITY AS m (partition, nth)
        WHERE m.nth > v_skip
    ), ends AS MATERIALIZED (
        SELECT counted.*, present.next_position, present.sized_from, present.largest_bytes,
            present.sized_to = present.next_position AND NOT (
                present.largest_bytes / 4 > counted.largest
                AND present.sized_to - present.sized_from >= 100000) AS continues
        FROM (
            SELECT partition, count(*) AS messages, max(bytes) AS largest FROM routed
            GROUP BY partition
        ) AS counted
        CROSS JOIN LATERAL (
            SELECT * FROM counterpoise_log.ends AS e
            WHERE e.log_id = v_log_id AND e.partition = counted.partition
            ORDER BY e.next_position DESC LIMIT 1
        ) AS present
    ), advanced AS (
        -- Inserted over its row, by the unique index of the key: there is no other way to it.
        INSERT INTO counterpoise_log.ends
            (log_id, partition, next_position, sized_from, sized_to, largest_bytes)
        SELECT v_log_id, partition, next_position,
            CASE WHEN continues THEN sized_from ELSE next_position END,
            next_position + messages,
            CASE WHEN continues THEN greatest(largest_bytes, largest) ELSE largest END
        FROM ends
        ON CONFLICT (log_id, partition, next_position) DO UPDATE
            SET next_position = excluded.sized_to, sized_from = excluded.sized_from,
                sized_to = excluded.sized_to, largest_bytes = excluded.largest_bytes
    )
    INSERT INTO counterpoise_log.messages
        (log_id, partition, position, published_at, key, value, headers)
    SELECT v_log_id, routed.partition, ends.next_position + routed.place,
        coalesce(p_published_at[nth], now()), p_keys[nth], p_values[nth], p_headers[nth]::jsonb
    FROM routed JOIN ends USING (partition);
    GET DIAGNOSTICS appended = ROW_COUNT;
    IF appended <> v_messages - v_skip THEN
        RAISE EXCEPTION 'the log % lacks a row for one of its partitions', quote_literal(p_log);
    END IF;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.append_by_range FROM PUBLIC;

CREATE FUNCTION counterpoise_log.append_numbered_by_range(
    p_log text, p_publisher text, p_sequences bigint[],
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[],
    OUT appended integer, OUT watched integer[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_log_id integer;
    v_messages bigint := cardinality(p_partitions);
    v_touched integer[];
    v_out_of_range boolean;
    v_has_ranges boolean;
    v_wrong integer;
    v_last bigint;
    v_skip bigint;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log, 'publish');
    SELECT array_agg(p), bool_or((p >= 0) IS NOT TRUE)
        INTO v_touched, v_out_of_range
        FROM (SELECT DISTINCT unnest(p_partitions) AS p) AS touched;
    IF v_messages IS DISTINCT FROM cardinality(p_values)
        OR cardinality(p_keys) <> v_messages OR cardinality(p_headers) <> v_messages
        OR cardinality(p_published_at) <> v_messages
        OR v_out_of_range
        OR p_publisher IS NULL OR cardinality(p_sequences) IS DISTINCT FROM v_messages
        OR (p_sequences[1] >= 0) IS NOT TRUE
        OR EXISTS (
            SELECT FROM unnest(p_sequences) WITH ORDINALITY AS s (sequence, nth)
            WHERE (sequence >= p_sequences[greatest(nth - 1, 1)::integer]) IS NOT TRUE
        )
    THEN
        RAISE EXCEPTION 'arrays of different lengths, or a partition or sequence out of range'
            USING ERRCODE = 'CP003';
    END IF;
    IF array_ndims(p_sequences) <> 1 OR array_lower(p_sequences, 1) <> 1
        OR array_ndims(p_values) <> 1 OR array_lower(p_values, 1) <> 1
        OR array_ndims(p_keys) <> 1 OR array_lower(p_keys, 1) <> 1
        OR array_ndims(p_headers) <> 1 OR array_lower(p_headers, 1) <> 1
        OR array_ndims(p_published_at) <> 1 OR array_lower(p_published_at, 1) <> 1
    THEN
        RAISE EXCEPTION 'arrays must have one dimension and begin at 1' USING ERRCODE = 'CP003';
    END IF;

    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    SELECT count(first_hash) > 0 INTO v_has_ranges FROM (
        SELECT first_hash FROM counterpoise_log.partitions
            WHERE log_id = v_log_id AND partition = ANY (v_touched)
            ORDER BY partition FOR NO KEY UPDATE
    ) AS locked;
    SELECT * INTO v_log FROM counterpoise_log.logs WHERE log_id = v_log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;

    IF NOT v_has_ranges AND NOT EXISTS (
        SELECT FROM counterpoise_log.partitions WHERE log_id = v_log_id AND first_hash IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'routed by hash ranges, but the log has % partitions without',
            v_log.partition_count USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
    END IF;
    SELECT m.partition INTO v_wrong
        FROM unnest(p_partitions, p_keys) AS m (partition, key)
        LEFT JOIN counterpoise_log.partitions AS p
            ON p.log_id = v_log_id AND p.partition = m.partition
        WHERE p.first_hash IS NULL OR p.successors IS NOT NULL
            OR counterpoise_log.key_hash(m.key) NOT BETWEEN p.first_hash AND p.last_hash
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'routed with other hash ranges than the log has: partition %', v_wrong
            USING ERRCODE = 'CP004';
    END IF;

    v_last := counterpoise_log.lock_publisher(v_log_id, p_publisher);
    SELECT count(*) INTO v_skip FROM unnest(p_sequences) AS s WHERE s <= v_last;
    IF v_skip = v_messages THEN
        appended := 0;
        RETURN;
    END IF;
    watched := counterpoise_log.watched(v_log_id, v_touched);
    UPDATE counterpoise_log.sequences
        SET last_sequence = p_sequences[v_messages::integer], appended_at = now()
        WHERE log_id = v_log_id AND publisher = p_publisher AND last_sequence = v_last;

    WITH routed AS MATERIALIZED (
        SELECT m.partition, m.nth::integer,
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place,
            octet_length(p_values[m.nth::integer])
                + coalesce(octet_length(p_keys[m.nth::integer]), 0)
                + coalesce(octet_length(p_headers[m.nth::integer]::jsonb::text), 0) AS bytes
        FROM unnest(p_partitions) WITH ORDINALITY AS m (partition, nth)
        WHERE m.nth > v_skip
    ), ends AS MATERIALIZED (
        SELECT counted.*, present.next_position, present.sized_from, present.largest_bytes,
            present.sized_to = present.next_position AND NOT (
                present.largest_bytes / 4 > counted.largest
                AND present.sized_to - present.sized_from >= 100000) AS continues
        FROM (
            SELECT partition, count(*) AS messages, max(bytes) AS largest FROM routed
            GROUP BY partition
        ) AS counted
        CROSS JOIN LATERAL (
            SELECT * FROM counterpoise_log.ends AS e
            WHERE e.log_id = v_log_id AND e.partition = counted.partition
            ORDER BY e.next_position DESC LIMIT 1
        ) AS present
    ), advanced AS (
        -- Inserted over its row, by the unique index of the key: there is no other way to it.
        INSERT INTO counterpoise_log.ends
            (log_id, partition, next_position, sized_from, sized_to, largest_bytes)
        SELECT v_log_id, partition, next_position,
            CASE WHEN continues THEN sized_from ELSE next_position END,
            next_position + messages,
            CASE WHEN continues THEN greatest(largest_bytes, largest) ELSE largest END
        FROM ends
        ON CONFLICT (log_id, partition, next_position) DO UPDATE
            SET next_position = excluded.sized_to, sized_from = excluded.sized_from,
                sized_to = excluded.sized_to, largest_bytes = excluded.largest_bytes
    )
    INSERT INTO counterpoise_log.messages
        (log_id, partition, position, published_at, key, value, headers)
    SELECT v_log_id, routed.partition, ends.next_position + routed.place,
        coalesce(p_published_at[nth], now()), p_keys[nth], p_values[nth], p_headers[nth]::jsonb
    FROM routed JOIN ends USING (partition);
    GET DIAGNOSTICS appended = ROW_COUNT;
    IF appended <> v_messages - v_skip THEN
        RAISE EXCEPTION 'the log % lacks a row for one of its partitions', quote_literal(p_log);
    END IF;
END $$;

REVOKE ALL ON FUNCTION counterpoise_log.append_numbered_by_range FROM PUBLIC;
