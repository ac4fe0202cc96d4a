"""What a client's own statements show besides their answers is not of other logs.

Row-level security hides rows from answers. But Postgres also shows how it finds them, and every
role may ask (EXPLAIN, `pg_stat_xact_*`). Four things of all rows came to light in this way:

* *Statistics.* The planner estimates with the values of all rows, and comparisons of text and bytea
  are leakproof. A plan is made before the right to read the table is checked, and
  `debug_print_plan` shows it to clients also when the check fails. So no column of the log's tables
  has statistics, not even of tables that no client may read; nor has an expression of an index.
* *The order of conditions.* Leakproof conditions may be evaluated before those of a policy, and
  what a policy asks for (`readable_log`) is asked when the first row comes that far: a client that
  may not read was refused if a row of another log met its condition, and got an empty answer
  otherwise. Postgres sorts conditions by their cost, and puts those of a policy first among equals.
  To subscribe an array costs nothing. So the first condition of each policy is an array that is
  true at the place of the client's log.
* *Indexes.* A leakproof condition on the first column of an index finds rows of all logs; then the
  policy takes some away, and it is shown how many. So a policy binds the first column of each
  index (`log_id`, of `logs` also `name`); or the index is on an expression that is not leakproof.
* *System columns, and functions that take the table* (`currtid2`). So clients have a right to each
  column, and none to the table.

Without statistics the planner takes the primary key wherever it can, as it should. Where another
way may be better, the statement says so itself (`broker.logs.times`, `sweep`).

What stays visible is how large the tables are, and where a client's own rows lie in them.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0009_sequences

revision = "log_0010"
down_revision = "log_0009"
branch_labels = None
depends_on = None
serves_from = "log_0001"

# A change of a column's type deletes its statistics, even if the type stays as it is: nothing is
# written anew, but the constraints are checked once. Others than superusers cannot delete them in
# another way before Postgres 18. What depends on a column is dropped before, and made again.
STATISTICS = """
DO $$
DECLARE
    v_table record;
BEGIN
    FOR v_table IN
        SELECT c.oid::regclass AS name,
            string_agg(format('ALTER COLUMN %I SET STATISTICS 0', a.attname), ', ') AS none,
            string_agg(format('ALTER COLUMN %I TYPE %s', a.attname,
                              format_type(a.atttypid, a.atttypmod)), ', ')
                FILTER (WHERE s.attname IS NOT NULL) AS deleted
        FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_stats AS s ON s.schemaname = 'counterpoise_log' AND s.tablename = c.relname
            AND s.attname = a.attname
        WHERE c.relnamespace = 'counterpoise_log'::regnamespace AND c.relkind = 'r'
            AND c.relname <> 'alembic_version'
        GROUP BY c.oid
    LOOP
        EXECUTE format('ALTER TABLE %s %s', v_table.name, v_table.none);
        IF v_table.deleted IS NOT NULL THEN
            EXECUTE format('ALTER TABLE %s %s', v_table.name, v_table.deleted);
        END IF;
    END LOOP;
END $$;
"""

DROP_TRIGGER = "DROP TRIGGER take_cuts ON counterpoise_log.logs"
TRIGGER = """
CREATE TRIGGER take_cuts BEFORE UPDATE OF partition_count ON counterpoise_log.logs
    FOR EACH ROW WHEN (NEW.partition_count <> OLD.partition_count)
    EXECUTE FUNCTION counterpoise_log.take_cuts();
"""

DROP_POLICIES = "\n".join(
    f"DROP POLICY IF EXISTS one_log ON counterpoise_log.{table};"
    for table in ("logs", "partitions", "messages")
)

# The expression is the time itself. It is not leakproof, so clients cannot look up times of others.
TIMES = """
DROP INDEX counterpoise_log.messages_published_at;
CREATE INDEX messages_published_at ON counterpoise_log.messages
    USING brin ((published_at AT TIME ZONE INTERVAL '0')) WITH (autosummarize = on);
ALTER INDEX counterpoise_log.messages_published_at ALTER COLUMN 1 SET STATISTICS 0;
"""

# They take the first messages in the order of the primary key, however many there are.
SWEEPS = """
ALTER FUNCTION counterpoise_log.sweep SET enable_bitmapscan = off;
ALTER FUNCTION counterpoise_log.sweep SET enable_seqscan = off;
ALTER FUNCTION counterpoise_log.sweep_dropped SET enable_bitmapscan = off;
ALTER FUNCTION counterpoise_log.sweep_dropped SET enable_seqscan = off;
"""

READABLE_NAME = """
CREATE FUNCTION counterpoise_log.readable_name() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log text;
BEGIN
    SELECT log INTO v_log FROM counterpoise_log.clients
        WHERE role = session_user AND purpose = 'read' AND expires_at > now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'these credentials are not valid for reading'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN v_log;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.readable_name FROM PUBLIC;
"""

# Makes the group and its rights, once or anew, as in log_0003; no log has the number 0.
GRANT_CLIENTS = """
CREATE OR REPLACE FUNCTION counterpoise_log.grant_clients() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text;
    v_own_log CONSTANT text := '(SELECT array_fill(true, ARRAY[1],'
        ' ARRAY[coalesce(counterpoise_log.readable_log(), 0)]))[log_id]'
        ' AND log_id = (SELECT counterpoise_log.readable_log())';
BEGIN
    IF to_regrole('counterpoise_log_client') IS NULL THEN
        BEGIN
            CREATE ROLE counterpoise_log_client NOLOGIN;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN RETURN false;
        END;
    END IF;
    -- The policies first: without them the grants would reach too far.
    FOREACH v_table IN ARRAY ARRAY['logs', 'partitions', 'messages'] LOOP
        IF NOT EXISTS (
            SELECT FROM pg_policy
            WHERE polrelid = to_regclass('counterpoise_log.' || v_table) AND polname = 'one_log'
                AND polroles = ARRAY[to_regrole('counterpoise_log_client')::oid]
        ) THEN
            EXECUTE format('DROP POLICY IF EXISTS one_log ON counterpoise_log.%I', v_table);
            EXECUTE format('CREATE POLICY one_log ON counterpoise_log.%I AS RESTRICTIVE'
                ' TO counterpoise_log_client USING (%s%s)', v_table, v_own_log,
                CASE v_table WHEN 'logs'
                    THEN ' AND name = (SELECT counterpoise_log.readable_name())' ELSE '' END);
        END IF;
    END LOOP;
    IF NOT has_function_privilege('counterpoise_log_client',
                                  'counterpoise_log.readable_name()', 'EXECUTE') THEN
        GRANT USAGE ON SCHEMA counterpoise_log TO counterpoise_log_client;
        FOREACH v_table IN ARRAY ARRAY['logs', 'partitions', 'messages'] LOOP
            EXECUTE format('REVOKE SELECT ON counterpoise_log.%I FROM counterpoise_log_client',
                v_table);
            EXECUTE format('GRANT SELECT (%s) ON counterpoise_log.%I TO counterpoise_log_client', (
                SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
                WHERE attrelid = to_regclass('counterpoise_log.' || v_table)
                    AND attnum > 0 AND NOT attisdropped
            ), v_table);
        END LOOP;
        GRANT EXECUTE ON FUNCTION counterpoise_log.append, counterpoise_log.append_numbered,
            counterpoise_log.append_by_range, counterpoise_log.append_numbered_by_range,
            counterpoise_log.next_sequence, counterpoise_log.ranges,
            counterpoise_log.readable_log, counterpoise_log.readable_name
            TO counterpoise_log_client;
    END IF;
    RETURN true;
END $$;
SELECT counterpoise_log.grant_clients();
"""

FORMER_STATISTICS = """
DO $$
DECLARE
    v_table record;
BEGIN
    FOR v_table IN
        SELECT attrelid::regclass AS name,
            string_agg(format('ALTER COLUMN %I SET STATISTICS -1', attname), ', ') AS usual
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = 'counterpoise_log'::regnamespace AND relkind = 'r'
            AND relname <> 'alembic_version' AND attnum > 0 AND NOT attisdropped
        GROUP BY attrelid
    LOOP
        EXECUTE format('ALTER TABLE %s %s', v_table.name, v_table.usual);
    END LOOP;
END $$;
"""
FORMER_TIMES = """
DROP INDEX counterpoise_log.messages_published_at;
CREATE INDEX messages_published_at ON counterpoise_log.messages
    USING brin (published_at) WITH (autosummarize = on);
"""
FORMER_SWEEPS = """
ALTER FUNCTION counterpoise_log.sweep RESET enable_bitmapscan;
ALTER FUNCTION counterpoise_log.sweep RESET enable_seqscan;
ALTER FUNCTION counterpoise_log.sweep_dropped RESET enable_bitmapscan;
ALTER FUNCTION counterpoise_log.sweep_dropped RESET enable_seqscan;
"""
FORMER_GRANTS = """
DO $$ BEGIN
    IF to_regrole('counterpoise_log_client') IS NOT NULL THEN
        REVOKE ALL ON ALL TABLES IN SCHEMA counterpoise_log FROM counterpoise_log_client;
        REVOKE ALL ON ALL FUNCTIONS IN SCHEMA counterpoise_log FROM counterpoise_log_client;
    END IF;
END $$;
"""


def upgrade() -> None:
    for script in (
        DROP_POLICIES,
        DROP_TRIGGER,
        STATISTICS,
        TRIGGER,
        TIMES,
        SWEEPS,
        READABLE_NAME,
        GRANT_CLIENTS,
    ):
        op.execute(script)


def downgrade() -> None:
    for script in (DROP_POLICIES, FORMER_GRANTS, FORMER_STATISTICS, FORMER_TIMES, FORMER_SWEEPS):
        op.execute(script)
    op.execute("DROP FUNCTION counterpoise_log.readable_name")
    op.execute(v0009_sequences.GRANT_CLIENTS)
    op.execute("SELECT counterpoise_log.grant_clients()")
