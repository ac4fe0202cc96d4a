"""Hash ranges: partitions of dynamic logs that split and merge while publishers append.

Theory. `counterpoise.logs.ranges` says what a hash range is. A partition of a dynamic log has
`first_hash` and `last_hash`, both included; a partition of another log has neither. `successors` of
a sealed partition are those that come after it, as they were decided in the transaction that sealed
it: [{"partition": 7, "key": "…", "parents": ["…"]}]. They never change, so a reader learns with the
end of a partition, from the same row, that the end is final and what comes next.

Order. An append locks the rows of its partitions, then checks, in a statement of its own, that none
is sealed and that the hash of each key is in its partition's range. A split or merge locks the rows
of the partitions that it seals, and creates their successors. So either the append comes first, and
its messages are below the sealed end; or it finds the partition sealed and is refused as a whole.
A publisher's idea of the ranges is therefore never trusted, only checked, and a split hinders only
appends to the partitions that it seals.

Locks, in this order: the row of the log (splits, merges, resizes, drops; no append), partition rows
in ascending order, the publisher's row.

Clients of earlier releases route by a partition count. They are refused with an error of its own
(CP004), because no count will ever be right, and read as before.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0003_clients

revision = "log_0004"
down_revision = "log_0003"
branch_labels = None
depends_on = None
serves_from = "log_0001"

COLUMNS = """
ALTER TABLE counterpoise_log.partitions
    ADD COLUMN first_hash bigint CHECK (first_hash BETWEEN 0 AND 4294967295),
    ADD COLUMN last_hash bigint CHECK (last_hash BETWEEN first_hash AND 4294967295),
    ADD COLUMN successors jsonb CHECK (jsonb_typeof(successors) = 'array'),
    ADD CONSTRAINT partitions_have_both_hashes
        CHECK ((first_hash IS NULL) = (last_hash IS NULL)),
    ADD CONSTRAINT partitions_only_ranges_are_sealed
        CHECK (successors IS NULL OR first_hash IS NOT NULL);
-- The current ranges, which publishers fetch: few, among all that a log ever had.
CREATE INDEX partitions_open ON counterpoise_log.partitions (log_id, first_hash)
    WHERE first_hash IS NOT NULL AND successors IS NULL;
"""

# Postgres 18 and later have the function. Half a byte at a time, the table has sixteen entries.
KEY_HASH_BUILTIN = """
CREATE FUNCTION counterpoise_log.key_hash(p_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN pg_catalog.crc32(pg_catalog.convert_to(p_key, 'UTF8'));
"""
KEY_HASH_PLAIN = """
CREATE FUNCTION counterpoise_log.key_hash(p_key text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
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
"""
KEY_HASH = f"""
DO $migration$ BEGIN
    IF to_regprocedure('pg_catalog.crc32(bytea)') IS NOT NULL THEN
        EXECUTE $body${KEY_HASH_BUILTIN}$body$;
    ELSE
        EXECUTE $body${KEY_HASH_PLAIN}$body$;
    END IF;
END $migration$;
REVOKE ALL ON FUNCTION counterpoise_log.key_hash FROM PUBLIC;
"""

_DECLARED = """
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_log_id integer;
    v_messages bigint := cardinality(p_partitions);
    v_has_ranges boolean;
    v_wrong integer;
    v_last bigint;
    v_skip bigint;
    v_appended bigint;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log);
    IF v_messages IS DISTINCT FROM cardinality(p_values)
        OR cardinality(p_keys) <> v_messages OR cardinality(p_headers) <> v_messages
        OR cardinality(p_published_at) <> v_messages
        OR EXISTS (SELECT FROM unnest(p_partitions) AS p WHERE ({valid}) IS NOT TRUE)
        OR p_publisher IS NULL OR (p_first_sequence >= 0) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'arrays of different lengths, or a partition or sequence out of range'
            USING ERRCODE = 'CP003';
    END IF;

    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    SELECT count(first_hash) > 0 INTO v_has_ranges FROM (
        SELECT first_hash FROM counterpoise_log.partitions
            WHERE log_id = v_log_id
                AND partition = ANY (ARRAY(SELECT DISTINCT unnest(p_partitions)))
            ORDER BY partition FOR NO KEY UPDATE
    ) AS locked;
    SELECT * INTO v_log FROM counterpoise_log.logs WHERE log_id = v_log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
"""

_STORED = """
    v_last := counterpoise_log.lock_publisher(v_log.log_id, p_publisher);
    v_skip := least(greatest(v_last + 1 - p_first_sequence, 0), v_messages);
    IF v_skip = v_messages THEN
        RETURN 0;
    END IF;
    UPDATE counterpoise_log.publishers
        SET last_sequence = p_first_sequence + v_messages - 1, appended_at = now()
        WHERE log_id = v_log.log_id AND publisher = p_publisher;

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
"""

# As in log_0003, but that it refuses a dynamic log: no partition count routes there.
APPEND = (
    """
CREATE OR REPLACE FUNCTION counterpoise_log.append(
    p_log text, p_partition_count integer, p_publisher text, p_first_sequence bigint,
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[]
) RETURNS integer"""
    + _DECLARED.format(valid="p >= 0 AND p < p_partition_count")
    + """
    IF v_has_ranges THEN
        RAISE EXCEPTION 'the partitions of the log % have hash ranges: publish with a client that'
            ' knows them', quote_literal(p_log) USING ERRCODE = 'CP004';
    END IF;
    IF v_log.partition_count <> p_partition_count THEN
        RAISE EXCEPTION 'routed for % partitions, but the log has %',
            p_partition_count, v_log.partition_count
            USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
    END IF;
"""
    + _STORED
)

# Messages without a key may go to any partition that is not sealed.
APPEND_BY_RANGE = (
    """
CREATE FUNCTION counterpoise_log.append_by_range(
    p_log text, p_publisher text, p_first_sequence bigint,
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[]
) RETURNS integer"""
    + _DECLARED.format(valid="p >= 0")
    + """
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
"""
    + _STORED
    + """
REVOKE ALL ON FUNCTION counterpoise_log.append_by_range FROM PUBLIC;
"""
)

# For publishers, which may not read tables.
RANGES = """
CREATE FUNCTION counterpoise_log.ranges(p_log text)
RETURNS TABLE (first_hash bigint, last_hash bigint, partition integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM counterpoise_log.check_client(p_log);
    RETURN QUERY SELECT p.first_hash, p.last_hash, p.partition
        FROM counterpoise_log.partitions AS p JOIN counterpoise_log.logs AS l USING (log_id)
        WHERE l.name = p_log AND p.first_hash IS NOT NULL AND p.successors IS NULL
        ORDER BY p.first_hash;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.ranges FROM PUBLIC;
"""

# Under both kinds of roles: clients keep the credentials that they got before the migration.
GRANTS = """
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['counterpoise_log_client', 'counterpoise_log_publisher'] LOOP
        IF to_regrole(v_role) IS NOT NULL THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION counterpoise_log.append_by_range,'
                ' counterpoise_log.ranges TO %I', v_role);
        END IF;
    END LOOP;
END $$;
"""
_FORMER = "counterpoise_log.append, counterpoise_log.next_sequence,"
_ASKED = "'counterpoise_log.readable_log()', 'EXECUTE')"
assert v0003_clients.GRANT_CLIENTS.count(_FORMER) == 1
assert v0003_clients.GRANT_CLIENTS.count(_ASKED) == 1
GRANT_CLIENTS = (
    v0003_clients.GRANT_CLIENTS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    .replace(
        _FORMER,
        f"{_FORMER}\n            counterpoise_log.append_by_range, counterpoise_log.ranges,",
    )
    .replace(_ASKED, "'counterpoise_log.ranges(text)', 'EXECUTE')")
)


def upgrade() -> None:
    for script in (COLUMNS, KEY_HASH, APPEND, APPEND_BY_RANGE, RANGES, GRANTS, GRANT_CLIENTS):
        op.execute(script)


def downgrade() -> None:
    for script in (v0003_clients.APPEND, v0003_clients.GRANT_CLIENTS):
        op.execute(script.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    op.execute("""
        DROP FUNCTION counterpoise_log.append_by_range, counterpoise_log.ranges,
            counterpoise_log.key_hash;
        ALTER TABLE counterpoise_log.partitions DROP COLUMN first_hash, DROP COLUMN last_hash,
            DROP COLUMN successors;
    """)
