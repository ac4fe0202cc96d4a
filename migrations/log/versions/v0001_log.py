"""The built-in log: logs, partitions, messages, publishers and the only function to append.

All functions use one lock order, so that no deadlock is possible: the advisory lock of the log
(shared by appends, exclusive for a resize), then the publisher's row, then partition rows in
ascending order. Waiting for an advisory lock is fair; with FOR SHARE on the log's row, a steady
stream of appends could make a resize wait for ever.

The end of a partition is `partitions.next_position`. An append raises it and locks the row until it
commits, so positions are in the order of commits and have no holes.
"""

from __future__ import annotations

from alembic import op

revision = "log_0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE counterpoise_log.logs (
    log_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    partition_count integer NOT NULL CHECK (partition_count >= 1),
    -- The revision of the queue whose resize was applied last; older ones are ignored.
    revision bigint NOT NULL DEFAULT 0,
    -- Whose log it is: a queue of the same name that was made later starts with an empty one.
    owner_id text,
    owner_created_at timestamptz,
    -- Differs when a log is dropped and made again, also in a restored or copied database.
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- A row stays when its partition is retired: a number used again goes on counting.
CREATE TABLE counterpoise_log.partitions (
    log_id integer NOT NULL REFERENCES counterpoise_log.logs ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    -- The earliest position that can be read: what lies below has been trimmed or discarded.
    first_position bigint NOT NULL DEFAULT 0,
    next_position bigint NOT NULL DEFAULT 0,
    -- Below it messages vanished because an administrator said so (a resize with discard).
    discarded_position bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (log_id, partition),
    CHECK (0 <= discarded_position AND discarded_position <= first_position),
    CHECK (first_position <= next_position)
) WITH (fillfactor = 50);

-- No foreign key: it would lock a row of `logs` for every message.
CREATE TABLE counterpoise_log.messages (
    log_id integer NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    published_at timestamptz NOT NULL CHECK (isfinite(published_at)),
    key text,
    value bytea NOT NULL CHECK (octet_length(value) <= 16777216),
    headers jsonb CHECK (jsonb_typeof(headers) = 'object'),
    PRIMARY KEY (log_id, partition, position)
);
-- Payloads are compressed already or not worth the time; lengths are then known without reading.
ALTER TABLE counterpoise_log.messages ALTER COLUMN value SET STORAGE EXTERNAL;
-- For "go on at a time". BRIN costs an append next to nothing.
CREATE INDEX messages_published_at ON counterpoise_log.messages
    USING brin (published_at) WITH (autosummarize = on);

CREATE TABLE counterpoise_log.publishers (
    log_id integer NOT NULL REFERENCES counterpoise_log.logs ON DELETE CASCADE,
    publisher text NOT NULL CHECK (octet_length(publisher) BETWEEN 1 AND 200),
    last_sequence bigint NOT NULL,
    appended_at timestamptz NOT NULL,
    PRIMARY KEY (log_id, publisher)
) WITH (fillfactor = 50);
CREATE INDEX publishers_appended_at ON counterpoise_log.publishers USING brin (appended_at);

-- Short-lived login roles, for the service alone: nobody else is granted anything on it.
CREATE TABLE counterpoise_log.credentials (
    role text PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('read', 'publish')),
    password text NOT NULL,
    created_at timestamptz NOT NULL,
    valid_until timestamptz NOT NULL
);
"""

# In both functions a statement of its own follows each wait for a lock: in READ COMMITTED it sees
# what was committed meanwhile. Under a fixed snapshot it would not, so those are refused.
LOCK_LOG = """
CREATE FUNCTION counterpoise_log.lock_log(p_log text, p_exclusive boolean)
RETURNS counterpoise_log.logs
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_log_id integer;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'the log must be written in READ COMMITTED transactions'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    IF FOUND THEN
        IF p_exclusive THEN
            PERFORM pg_advisory_xact_lock(1668248945, v_log_id);
        ELSE
            PERFORM pg_advisory_xact_lock_shared(1668248945, v_log_id);
        END IF;
        SELECT * INTO v_log FROM counterpoise_log.logs WHERE log_id = v_log_id;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    RETURN v_log;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.lock_log FROM PUBLIC;
"""

# The last sequence of a publisher, its row locked. The INSERT waits for one that is under way.
LOCK_PUBLISHER = """
CREATE FUNCTION counterpoise_log.lock_publisher(p_log_id integer, p_publisher text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT last_sequence INTO v_last FROM counterpoise_log.publishers
        WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO counterpoise_log.publishers (log_id, publisher, last_sequence, appended_at)
            VALUES (p_log_id, p_publisher, -1, now()) ON CONFLICT DO NOTHING;
        SELECT last_sequence INTO STRICT v_last FROM counterpoise_log.publishers
            WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    END IF;
    RETURN v_last;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.lock_publisher FROM PUBLIC;

CREATE FUNCTION counterpoise_log.next_sequence(p_log text, p_publisher text)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT counterpoise_log.lock_publisher(
        (counterpoise_log.lock_log(p_log, false)).log_id, p_publisher) + 1
$$;
REVOKE ALL ON FUNCTION counterpoise_log.next_sequence FROM PUBLIC;
"""

# Arrays have one element per message; p_keys, p_headers and p_published_at may be null altogether.
# Returns how many were appended; the rest were duplicates.
# CP001: another partition count (DETAIL is the current one). CP002: no such log. CP003: bad batch.
APPEND = """
CREATE FUNCTION counterpoise_log.append(
    p_log text, p_partition_count integer, p_publisher text, p_first_sequence bigint,
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[]
) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_messages bigint := cardinality(p_partitions);
    v_last bigint;
    v_skip bigint;
    v_appended bigint;
BEGIN
    v_log := counterpoise_log.lock_log(p_log, false);
    IF v_log.partition_count <> p_partition_count THEN
        RAISE EXCEPTION 'routed for % partitions, but the log has %',
            p_partition_count, v_log.partition_count
            USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
    END IF;
    IF v_messages IS DISTINCT FROM cardinality(p_values)
        OR cardinality(p_keys) <> v_messages OR cardinality(p_headers) <> v_messages
        OR cardinality(p_published_at) <> v_messages
        OR EXISTS (SELECT FROM unnest(p_partitions) AS p
                   WHERE (p >= 0 AND p < p_partition_count) IS NOT TRUE)
        OR p_publisher IS NULL OR (p_first_sequence >= 0) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'arrays of different lengths, or a partition or sequence out of range'
            USING ERRCODE = 'CP003';
    END IF;

    v_last := counterpoise_log.lock_publisher(v_log.log_id, p_publisher);
    v_skip := least(greatest(v_last + 1 - p_first_sequence, 0), v_messages);
    IF v_skip = v_messages THEN
        RETURN 0;
    END IF;
    UPDATE counterpoise_log.publishers
        SET last_sequence = p_first_sequence + v_messages - 1, appended_at = now()
        WHERE log_id = v_log.log_id AND publisher = p_publisher;

    PERFORM FROM counterpoise_log.partitions
        WHERE log_id = v_log.log_id
            AND partition = ANY (ARRAY(SELECT DISTINCT unnest(p_partitions)))
        ORDER BY partition FOR UPDATE;

    WITH message AS MATERIALIZED (
        SELECT m.partition, m.value, m.key, m.headers, m.published_at,
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place
        FROM unnest(p_partitions, p_values, p_keys, p_headers, p_published_at) WITH ORDINALITY
            AS m (partition, value, key, headers, published_at, nth)
        WHERE m.nth > v_skip
    ), advanced AS (
        UPDATE counterpoise_log.partitions AS p
        SET next_position = p.next_position + counted.messages
        FROM (SELECT partition, count(*) AS messages FROM message GROUP BY partition) AS counted
        WHERE p.log_id = v_log.log_id AND p.partition = counted.partition
        RETURNING p.partition, p.next_position - counted.messages AS position
    )
    INSERT INTO counterpoise_log.messages
        (log_id, partition, position, published_at, key, value, headers)
    SELECT v_log.log_id, message.partition, advanced.position + message.place,
        coalesce(message.published_at, now()), message.key, message.value, message.headers::jsonb
    FROM message JOIN advanced USING (partition);
    GET DIAGNOSTICS v_appended = ROW_COUNT;
    IF v_appended <> v_messages - v_skip THEN
        RAISE EXCEPTION 'the log % lacks a row for one of its partitions', quote_literal(p_log);
    END IF;
    RETURN v_appended;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.append FROM PUBLIC;
"""

# Trimming first says where a partition starts, then deletes what lies below, bit by bit and without
# locks: so a reader that misses a message can always tell why.
TRIM = """
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

-- Deletes at most p_limit messages below their partitions' starts; returns how many.
CREATE FUNCTION counterpoise_log.sweep(p_log text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
"""

# Roles belong to the whole server, so another database's log may have made them already, or may be
# making them this moment. Whoever may not create roles goes without: consumers then bring a URL.
GRANT_ACCESS = """
CREATE FUNCTION counterpoise_log.grant_access() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['counterpoise_log_reader', 'counterpoise_log_publisher'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN RETURN false;
            END;
        END IF;
    END LOOP;
    GRANT USAGE ON SCHEMA counterpoise_log
        TO counterpoise_log_reader, counterpoise_log_publisher;
    GRANT SELECT ON counterpoise_log.logs, counterpoise_log.partitions, counterpoise_log.messages
        TO counterpoise_log_reader;
    GRANT EXECUTE ON FUNCTION counterpoise_log.append, counterpoise_log.next_sequence
        TO counterpoise_log_publisher;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.grant_access FROM PUBLIC;
SELECT counterpoise_log.grant_access();
"""


def upgrade() -> None:
    for script in (TABLES, LOCK_LOG, LOCK_PUBLISHER, APPEND, TRIM, GRANT_ACCESS):
        op.execute(script)


def downgrade() -> None:
    # The roles belong to the whole server and may serve another database.
    op.execute("""
        DROP TABLE counterpoise_log.credentials, counterpoise_log.publishers,
            counterpoise_log.messages, counterpoise_log.partitions CASCADE;
        DROP FUNCTION counterpoise_log.append, counterpoise_log.next_sequence,
            counterpoise_log.lock_publisher, counterpoise_log.lock_log,
            counterpoise_log.trim, counterpoise_log.sweep, counterpoise_log.sweep_dropped,
            counterpoise_log.grant_access;
        DROP TABLE counterpoise_log.logs;
    """)
