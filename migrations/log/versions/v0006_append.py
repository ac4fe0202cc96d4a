"""An append copies no message more often than it must.

Theory. The rows of a batch are numbered partition by partition, so that each partition's messages
lie together on their pages. Up to log_0005 the messages themselves went through that: a table of
all columns was sorted, numbered and kept for a join, with several copies of each value, and a batch
larger than `work_mem` went to the disk on its way. Here only (partition, place in the batch) is
sorted, numbered and joined, and the INSERT takes the columns out of the arrays by the place.

Two conditions make this cheap and safe:

* An element is found by its place in constant time only in arrays that PL/pgSQL has unfolded, as it
  does with the arguments of a function. A plan made for one batch has them folded, as constants;
  then the time grows with the square of the batch. So the plans must be the general ones, from the
  first append of a session on (`plan_cache_mode`). That saves the planning, too.
* `unnest` counts elements from 1, whatever an array says of itself, but a place is looked up by the
  array's own numbering. An array with another numbering would be checked with one key and stored
  with another, outside its hash range. So arrays must have one dimension and begin at 1, as drivers
  send them.

The partitions of a batch are looked through once, for what is out of range and for what to lock.
Locks, their order, all checks and errors are those of log_0004.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0004_ranges

revision = "log_0006"
down_revision = "log_0005"
branch_labels = None
depends_on = None
serves_from = "log_0001"

_DECLARED = """
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
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
    v_appended bigint;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log);
    SELECT array_agg(p), bool_or(({valid}) IS NOT TRUE) INTO v_touched, v_out_of_range
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
"""

_STORED = """
    v_last := counterpoise_log.lock_publisher(v_log_id, p_publisher);
    v_skip := least(greatest(v_last + 1 - p_first_sequence, 0), v_messages);
    IF v_skip = v_messages THEN
        RETURN 0;
    END IF;
    UPDATE counterpoise_log.publishers
        SET last_sequence = p_first_sequence + v_messages - 1, appended_at = now()
        WHERE log_id = v_log_id AND publisher = p_publisher;

    WITH routed AS MATERIALIZED (
        SELECT m.partition, m.nth::integer,
            row_number() OVER (PARTITION BY m.partition ORDER BY m.nth) - 1 AS place
        FROM unnest(p_partitions) WITH ORDINALITY AS m (partition, nth)
        WHERE m.nth > v_skip
    ), advanced AS (
        UPDATE counterpoise_log.partitions AS p
        SET next_position = p.next_position + counted.messages
        FROM (SELECT partition, count(*) AS messages FROM routed GROUP BY partition) AS counted
        WHERE p.log_id = v_log_id AND p.partition = counted.partition
        RETURNING p.partition, p.next_position - counted.messages AS position
    )
    INSERT INTO counterpoise_log.messages
        (log_id, partition, position, published_at, key, value, headers)
    SELECT v_log_id, routed.partition, advanced.position + routed.place,
        coalesce(p_published_at[nth], now()), p_keys[nth], p_values[nth], p_headers[nth]::jsonb
    FROM routed JOIN advanced USING (partition);
    GET DIAGNOSTICS v_appended = ROW_COUNT;
    IF v_appended <> v_messages - v_skip THEN
        RAISE EXCEPTION 'the log % lacks a row for one of its partitions', quote_literal(p_log);
    END IF;
    RETURN v_appended;
END $$;
"""

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

APPEND_BY_RANGE = (
    """
CREATE OR REPLACE FUNCTION counterpoise_log.append_by_range(
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
)


def upgrade() -> None:
    op.execute(APPEND)
    op.execute(APPEND_BY_RANGE)


def downgrade() -> None:
    for script in (v0004_ranges.APPEND, v0004_ranges.APPEND_BY_RANGE):
        op.execute(script.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
