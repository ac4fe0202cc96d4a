-- The built-in log: logs, partitions, messages, publishers, and the roles of clients.
--
-- The end of a partition is `partitions.next_position`. An append locks the row of its partition and
-- raises the end, until it commits, so positions are in the order of commits and have no holes.
--
-- What each append changes is apart from what it locks. An UPDATE leaves the old version of its row
-- behind, and as long as any transaction of the database has a snapshot from before, Postgres can
-- remove none of the versions since. Who looks for the row by its key then looks at all of them:
-- after an hour of appends beside a long transaction (a report, `pg_dump`, a standby that lags), each
-- append and each read would take a hundred times as long. Two rules avoid that:
--
-- * What is looked for with each append or read, and changes with each, has a key that ends with a
--   number that only rises (`ends`, `sequences`). It is looked for from the highest number down, with
--   LIMIT 1, and changed under its whole key. So the first version that is found is the present one,
--   however many there were. There is one row at a time: who changes it has locked another row, that
--   of the partition or the publisher, which stays as it is. A lock leaves no version behind.
-- * Rows that come and go (`watches`, `messages`) are looked for by positions that do not come again.
--
-- The lock says nothing of the end: a statement that waits for it has the snapshot of before. So the
-- end is read by the next statement (locks.sql).

CREATE TABLE counterpoise_log.logs (
    log_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    partition_count integer NOT NULL CHECK (partition_count >= 1),
    -- The revision of the queue whose resize was applied last; older ones are ignored.
    revision bigint NOT NULL DEFAULT 0,
    -- How often it was resized, and the count before the last time (resizes.sql).
    resize bigint NOT NULL DEFAULT 0,
    resized_from integer,
    -- Whose log it is: a queue of the same name that was made later starts with an empty one.
    owner_id text,
    owner_created_at timestamptz,
    -- Differs when a log is dropped and made again, also in a restored or copied database.
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- A row stays when its partition is retired: a number used again goes on counting.
CREATE TABLE counterpoise_log.partition_rows (
    log_id integer NOT NULL REFERENCES counterpoise_log.logs ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    -- The earliest position that can be read: what lies below has been trimmed or discarded.
    first_position bigint NOT NULL DEFAULT 0,
    -- Below it messages vanished because an administrator said so (a resize with discard).
    discarded_position bigint NOT NULL DEFAULT 0,
    -- Where it ended at the last resize; null if the log was not resized since the row exists.
    cut bigint,
    -- The hash range, both ends included, of a partition of a dynamic log (ranges.sql).
    first_hash bigint CHECK (first_hash BETWEEN 0 AND 4294967295),
    last_hash bigint CHECK (last_hash BETWEEN first_hash AND 4294967295),
    -- Which come after it: [{"partition": 7, "key": "…", "parents": ["…"]}]. Null: not sealed.
    successors jsonb CHECK (jsonb_typeof(successors) = 'array'),
    PRIMARY KEY (log_id, partition),
    CHECK (0 <= discarded_position AND discarded_position <= first_position),
    CONSTRAINT partitions_have_both_hashes
        CHECK ((first_hash IS NULL) = (last_hash IS NULL)),
    CONSTRAINT partitions_only_ranges_are_sealed
        CHECK (successors IS NULL OR first_hash IS NOT NULL)
) WITH (fillfactor = 50);
-- The current ranges, which publishers fetch: few, among all that a log ever had.
CREATE INDEX partitions_open ON counterpoise_log.partition_rows (log_id, first_hash)
    WHERE first_hash IS NOT NULL AND successors IS NULL;

-- Below it the messages of a partition have been deleted; it follows `first_position` (trims.sql).
-- Like `messages` without a foreign key: rows of dropped logs go with the messages.
CREATE TABLE counterpoise_log.sweeps (
    log_id integer NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (log_id, partition)
);

-- Of each partition one row, which is changed under the lock of the partition's row.
CREATE TABLE counterpoise_log.ends (
    log_id integer NOT NULL REFERENCES counterpoise_log.logs ON DELETE CASCADE,
    partition integer NOT NULL,
    next_position bigint NOT NULL DEFAULT 0 CHECK (next_position >= 0),
    -- No message in the positions `sized_from` .. `sized_to` (exclusive) is larger than
    -- `largest_bytes`: value, key and headers together. If so many messages of this size are below
    -- a reader's limit, it looks at no size.
    sized_from bigint NOT NULL DEFAULT 0,
    sized_to bigint NOT NULL DEFAULT 0,
    largest_bytes integer NOT NULL DEFAULT 0,
    PRIMARY KEY (log_id, partition, next_position)
);

CREATE FUNCTION counterpoise_log.begin_ends() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO counterpoise_log.ends (log_id, partition) SELECT log_id, partition FROM begun;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.begin_ends FROM PUBLIC;

CREATE TRIGGER begin_ends AFTER INSERT ON counterpoise_log.partition_rows
    REFERENCING NEW TABLE AS begun
    FOR EACH STATEMENT EXECUTE FUNCTION counterpoise_log.begin_ends();

-- The partitions with their ends, as clients see them. All columns but the end can be written.
CREATE VIEW counterpoise_log.partitions WITH (security_invoker = true) AS
SELECT p.log_id, p.partition, p.first_position, (
        SELECT e.next_position FROM counterpoise_log.ends AS e
        WHERE e.log_id = p.log_id AND e.partition = p.partition
        ORDER BY e.next_position DESC LIMIT 1
    ) AS next_position, p.discarded_position, p.cut, p.first_hash, p.last_hash, p.successors
FROM counterpoise_log.partition_rows AS p;

-- Only rows that every consumer can show: times that a datetime of any time zone can show, and
-- headers that are texts. A key and headers may be as large as a message; JSON needs more than the
-- texts in it, but hardly twice as much.
-- No foreign key: it would lock a row of `logs` for every message.
CREATE TABLE counterpoise_log.messages (
    log_id integer NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    published_at timestamptz NOT NULL CHECK (isfinite(published_at)),
    key text,
    value bytea NOT NULL CHECK (octet_length(value) <= 16777216),
    headers jsonb CHECK (jsonb_typeof(headers) = 'object'),
    PRIMARY KEY (log_id, partition, position),
    CONSTRAINT messages_time_is_shown CHECK (
        published_at >= '0001-01-02T00:00:00Z' AND published_at < '9999-12-31T00:00:00Z'),
    CONSTRAINT messages_headers_are_texts CHECK (
        NOT jsonb_path_exists(headers, '$.* ? (@.type() != "string")')),
    CONSTRAINT messages_key_size CHECK (octet_length(key) <= 16777216),
    CONSTRAINT messages_headers_size CHECK (octet_length(headers::text) <= 33554432)
);
-- Payloads are compressed already or not worth the time; lengths are then known without reading.
ALTER TABLE counterpoise_log.messages ALTER COLUMN value SET STORAGE EXTERNAL;
-- For "go on at a time". BRIN costs an append next to nothing. The expression is the time itself:
-- it is not leakproof, so clients cannot look up times of others (access.sql).
CREATE INDEX messages_published_at ON counterpoise_log.messages
    USING brin ((published_at AT TIME ZONE INTERVAL '0')) WITH (autosummarize = on);

CREATE TABLE counterpoise_log.publishers (
    log_id integer NOT NULL REFERENCES counterpoise_log.logs ON DELETE CASCADE,
    publisher text NOT NULL CHECK (octet_length(publisher) BETWEEN 1 AND 200),
    PRIMARY KEY (log_id, publisher)
);

-- The log has the messages of a publisher up to `last_sequence`. Of each publisher one row, which is
-- changed under the lock of its row in `publishers`.
CREATE TABLE counterpoise_log.sequences (
    log_id integer NOT NULL,
    publisher text NOT NULL,
    last_sequence bigint NOT NULL,
    appended_at timestamptz NOT NULL,
    PRIMARY KEY (log_id, publisher, last_sequence),
    FOREIGN KEY (log_id, publisher) REFERENCES counterpoise_log.publishers ON DELETE CASCADE
);
CREATE INDEX sequences_appended_at ON counterpoise_log.sequences USING brin (appended_at);

-- At which ends readers wait for the next message (watches.sql). Rows of ends that have been are swept
-- now and then. After a crash of the server it is empty: readers find that out by themselves.
CREATE UNLOGGED TABLE counterpoise_log.watches (
    log_id integer NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (log_id, partition, position)
);

-- Which log the role of a client may read or append to (clients.sql).
CREATE TABLE counterpoise_log.clients (
    role name PRIMARY KEY,
    -- The name and not the id: a role may be made before the log is there.
    log text NOT NULL,
    purpose text NOT NULL CHECK (purpose IN ('read', 'publish')),
    -- For whom the role was made; see broker.logs.ports.
    holder text NOT NULL,
    -- The key with which it was made, if there was one.
    key_id text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX clients_holder ON counterpoise_log.clients (holder);
CREATE INDEX clients_key ON counterpoise_log.clients (key_id) WHERE key_id IS NOT NULL;

-- No column has statistics, nor has an expression of an index: a plan shows what they say of the
-- rows of all logs (access.sql). So the planner takes the primary key wherever it can, as it
-- should. Where another way may be better, the statement says so itself (trims.sql,
-- `broker.logs.times`).
ALTER INDEX counterpoise_log.messages_published_at ALTER COLUMN 1 SET STATISTICS 0;
DO $$
DECLARE
    v_column record;
BEGIN
    FOR v_column IN
        SELECT attrelid::regclass AS of_table, attname AS name
        FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
        WHERE c.relnamespace = 'counterpoise_log'::regnamespace AND c.relkind = 'r'
            AND c.relname <> 'alembic_version' AND attnum > 0
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0',
            v_column.of_table, v_column.name);
    END LOOP;
END $$;
