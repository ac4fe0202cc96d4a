-- Appending to a log with a partition count. ranges.sql has the same for dynamic logs.
--
-- Arrays have one element for each message; p_keys, p_headers and p_published_at may be null
-- altogether. The answer is how many were appended; the rest were duplicates. And of which of the
-- partitions readers wait for these messages, if any: the client wakes them (watches.sql). Errors:
--
--   CP001   another partition count; DETAIL is the current one
--   CP002   no such log
--   CP003   arrays, partitions or sequences that do not fit
--   CP004   other hash ranges than the log has
--
-- Order. An append locks the rows of its partitions, then reads the partition count, in a statement
-- of its own: it sees the count of each resize that came before, and none comes meanwhile.
--
-- Sequences. A publisher numbers its messages one after the other, so the first sequence says all
-- (`append`). Or it names a sequence for each message, with holes between them, because the messages
-- come from another queue and have their positions there (`append_numbered`):
--
-- * Sequences of an append never fall. So what the log has of a repeated append is its beginning.
-- * Messages with the same sequence are in the same append. So the log has all of them or none, and
--   their order among themselves need not be the same when they are appended again.
-- * The row of the publisher is one for the whole log, and an append is one transaction over all of
--   its partitions. So a repetition is found wherever it is routed, also after a resize or a split,
--   and no partition can lag behind another one.
--
-- No message is copied more often than it must. The rows of a batch are numbered partition by
-- partition, so that each partition's messages lie together on their pages. Only (partition, place
-- in the batch) is sorted, numbered and joined, and the INSERT takes the columns out of the arrays
-- by the place. Two conditions make this cheap and safe:
--
-- * An element is found by its place in constant time only in arrays that PL/pgSQL has unfolded, as
--   it does with the arguments of a function. A plan made for one batch has them folded, as
--   constants; then the time grows with the square of the batch. So the plans must be the general
--   ones, from the first append of a session on (`plan_cache_mode`). That saves the planning, too.
-- * `unnest` counts elements from 1, whatever an array says of itself, but a place is looked up by
--   the array's own numbering. An array with another numbering would be checked with one key and
--   stored with another, outside its hash range. So arrays must have one dimension and begin at 1,
--   as drivers send them.
--
-- The functions repeat each other's text, word for word (a test compares their ends): with the common
-- end in a function of its own, an append of 10,000 messages takes a fifth longer. With only what
-- moves the ends in one, an append of one message takes 4 to 7 % more of the processor.
--
-- The largest message of each partition is kept (tables.sql). An append continues the range of
-- positions for which it is known only if the range ends where its messages begin; otherwise a new
-- range begins with them. One large message must not count for ever: if the range has 100,000
-- messages, and the largest of a batch is less than a fourth of its largest, a new range begins.

CREATE FUNCTION counterpoise_log.next_sequence(p_log text, p_publisher text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log_id integer;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log, 'publish');
    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    RETURN counterpoise_log.lock_publisher(v_log_id, p_publisher) + 1;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.next_sequence FROM PUBLIC;

CREATE FUNCTION counterpoise_log.append(
    p_log text, p_partition_count integer, p_publisher text, p_first_sequence bigint,
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
    SELECT array_agg(p), bool_or((p >= 0 AND p < p_partition_count) IS NOT TRUE)
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

    IF v_has_ranges THEN
        RAISE EXCEPTION 'the partitions of the log % have hash ranges: publish with a client that'
            ' knows them', quote_literal(p_log) USING ERRCODE = 'CP004';
    END IF;
    IF v_log.partition_count <> p_partition_count THEN
        RAISE EXCEPTION 'routed for % partitions, but the log has %',
            p_partition_count, v_log.partition_count
            USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
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
REVOKE ALL ON FUNCTION counterpoise_log.append FROM PUBLIC;

CREATE FUNCTION counterpoise_log.append_numbered(
    p_log text, p_partition_count integer, p_publisher text, p_sequences bigint[],
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
    SELECT array_agg(p), bool_or((p >= 0 AND p < p_partition_count) IS NOT TRUE)
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

    IF v_has_ranges THEN
        RAISE EXCEPTION 'the partitions of the log % have hash ranges: publish with a client that'
            ' knows them', quote_literal(p_log) USING ERRCODE = 'CP004';
    END IF;
    IF v_log.partition_count <> p_partition_count THEN
        RAISE EXCEPTION 'routed for % partitions, but the log has %',
            p_partition_count, v_log.partition_count
            USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
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

REVOKE ALL ON FUNCTION counterpoise_log.append_numbered FROM PUBLIC;
