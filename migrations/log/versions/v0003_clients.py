"""Each reader and each publisher has a role of its own, which reaches one log, by one purpose.

Who is who. The service makes a login role for each client (`broker.logs.credentials`), a member of
the group `counterpoise_log_client`, and notes in `clients` which log it may read or append to. A
client is known by `session_user`: SET ROLE does not change it, and SECURITY DEFINER neither.

Reading is bounded by row-level security. A restrictive policy for the group leaves the rows of one
log, which the server looks up once in a statement. So readers send the statements that they have
always sent, get the same plans and are not slower; a statement of their own making reaches no
further. The owner of the tables (the service) and roles outside the group are not concerned.

Appending is bounded by the functions, which ask `check_client`. It refuses a member of the group
without a row in `clients`: a restored or copied database lets nobody in by mistake.

Locks. Whoever may connect can take any advisory lock, so nothing waits for one. Appends lock rows
that clients cannot lock otherwise, in one order, so that no deadlock is possible: the row of the
log (a resize and a drop alone), partition rows in ascending order, then the publisher's row. A
resize locks all partition rows. An append reads the partition count after it has locked its
partitions: then it sees the count of each resize that came before, and none comes meanwhile.
"""

from __future__ import annotations

from alembic import op

from migrations.log.versions import v0001_log

revision = "log_0003"
down_revision = "log_0002"
branch_labels = None
depends_on = None
# Replicas of the previous release hand out roles that are shared by all readers, or all publishers.
# They go on with these until they are gone; two hours later the roles have expired.
serves_from = "log_0001"

CLIENTS = """
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

-- The log that this session's client may read. A client that is not known, or not any more, is told
-- so: it then fetches new credentials, where an empty answer would look like a log that vanished.
CREATE FUNCTION counterpoise_log.readable_log() RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log_id integer;
BEGIN
    SELECT l.log_id INTO v_log_id
        FROM counterpoise_log.clients AS c LEFT JOIN counterpoise_log.logs AS l ON l.name = c.log
        WHERE c.role = session_user AND c.purpose = 'read' AND c.expires_at > now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'these credentials are not valid for reading'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN v_log_id;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.readable_log FROM PUBLIC;

-- Refuses a client that may not publish in this log; others are bound by their grants alone.
CREATE FUNCTION counterpoise_log.check_client(p_log text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM counterpoise_log.clients
               WHERE role = session_user AND purpose = 'publish' AND log = p_log
                   AND expires_at > now()) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM pg_auth_members
               WHERE roleid = to_regrole('counterpoise_log_client')
                   AND member = to_regrole(quote_ident(session_user))) THEN
        RAISE EXCEPTION 'these credentials are not valid for publishing in %', quote_literal(p_log)
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.check_client FROM PUBLIC;
"""

# The ground on which everybody else stands; the policies for clients come on top of it.
ROW_SECURITY = "\n".join(
    f"ALTER TABLE counterpoise_log.{table} ENABLE ROW LEVEL SECURITY;"
    f"CREATE POLICY granted ON counterpoise_log.{table} USING (true) WITH CHECK (true);"
    for table in ("logs", "partitions", "messages")
)

# Makes the group and its rights, once or anew: a group belongs to the whole server, and where a
# dump is restored it may be missing. False: this user may not create roles.
GRANT_CLIENTS = """
CREATE FUNCTION counterpoise_log.grant_clients() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text;
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
                ' TO counterpoise_log_client'
                ' USING (log_id = (SELECT counterpoise_log.readable_log()))', v_table);
        END IF;
    END LOOP;
    IF NOT has_function_privilege('counterpoise_log_client',
                                  'counterpoise_log.readable_log()', 'EXECUTE') THEN
        GRANT USAGE ON SCHEMA counterpoise_log TO counterpoise_log_client;
        GRANT SELECT ON counterpoise_log.logs, counterpoise_log.partitions,
            counterpoise_log.messages TO counterpoise_log_client;
        GRANT EXECUTE ON FUNCTION counterpoise_log.append, counterpoise_log.next_sequence,
            counterpoise_log.readable_log TO counterpoise_log_client;
    END IF;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.grant_clients FROM PUBLIC;
SELECT counterpoise_log.grant_clients();
"""

# Many at once: thousands of flows may bind together. Passwords arrive as verifiers, so that a
# server that logs statements does not write them down.
MAKE_CLIENTS = """
CREATE FUNCTION counterpoise_log.make_clients(
    p_roles text[], p_verifiers text[], p_logs text[], p_purposes text[], p_holders text[],
    p_keys text[],
    p_valid_seconds double precision, p_connections integer
) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_expires_at timestamptz := now() + make_interval(secs => p_valid_seconds);
    v_superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
    v_version integer := current_setting('server_version_num')::integer;
    v_also text := '';
BEGIN
    -- To see and end sessions of a role, one has to have its privileges; a superuser has all.
    IF NOT v_superuser THEN
        IF v_version >= 160000 THEN
            PERFORM set_config('createrole_self_grant', 'inherit', true);
        ELSE
            v_also := format(' ROLE %I', current_user);
        END IF;
    END IF;
    INSERT INTO counterpoise_log.clients
            (role, log, purpose, holder, key_id, created_at, expires_at)
        SELECT role, log, purpose, holder, key_id, now(), v_expires_at
        FROM unnest(p_roles, p_logs, p_purposes, p_holders, p_keys)
            AS c (role, log, purpose, holder, key_id);
    FOR i IN 1 .. cardinality(p_roles) LOOP
        EXECUTE format(
            'CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE INHERIT'
            ' CONNECTION LIMIT %s PASSWORD %L VALID UNTIL %L IN ROLE counterpoise_log_client%s',
            p_roles[i], p_connections, p_verifiers[i],
            -- VALID UNTIL is text; the session's time zone must not matter.
            to_char(v_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || 'Z', v_also);
    END LOOP;
    RETURN v_expires_at;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.make_clients FROM PUBLIC;
"""

# In two steps, each its own transaction: a role that still could log in would come back between the
# end of its sessions and its own. What a role should not own (large objects, where the server lets
# everybody make them) goes with it. A role that owns something in another database stays, locked.
DROP_CLIENTS = """
CREATE FUNCTION counterpoise_log.lock_out_clients(p_roles text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_role text;
BEGIN
    UPDATE counterpoise_log.clients SET expires_at = least(expires_at, now())
        WHERE role = ANY (p_roles::name[]);
    FOR v_role IN SELECT rolname FROM pg_roles
        WHERE rolname = ANY (p_roles::name[]) AND rolcanlogin
    LOOP
        BEGIN
            EXECUTE format('ALTER ROLE %I NOLOGIN', v_role);
        EXCEPTION
            -- Another replica does it, or has dropped it.
            WHEN undefined_object OR internal_error THEN NULL;
        END;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.lock_out_clients FROM PUBLIC;

CREATE FUNCTION counterpoise_log.drop_clients(p_roles text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_role text;
    v_dropped text[] := '{}';
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = ANY (p_roles::name[]);
    FOREACH v_role IN ARRAY p_roles LOOP
        BEGIN
            IF to_regrole(quote_ident(v_role)) IS NOT NULL THEN
                EXECUTE format('DROP OWNED BY %I', v_role);
                EXECUTE format('DROP ROLE %I', v_role);
            END IF;
            DELETE FROM counterpoise_log.clients WHERE role = v_role::name;
            v_dropped := v_dropped || v_role;
        EXCEPTION
            WHEN undefined_object OR internal_error OR insufficient_privilege
                OR dependent_objects_still_exist OR object_in_use THEN NULL;
        END;
    END LOOP;
    RETURN v_dropped;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.drop_clients FROM PUBLIC;
"""

# Sessions of clients that are in the way of others: in another database of the server, or in a
# transaction that lasts or does nothing. Postgres lets each role lift its own time limits.
END_SESSIONS = """
CREATE FUNCTION counterpoise_log.end_sessions(
    p_transaction_seconds double precision, p_idle_seconds double precision
) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FROM (
        SELECT pg_terminate_backend(a.pid)
        FROM pg_stat_activity AS a JOIN counterpoise_log.clients AS c ON c.role = a.usename
        WHERE a.datname <> current_database()
            OR a.xact_start < clock_timestamp() - make_interval(secs => p_transaction_seconds)
            OR (a.state LIKE 'idle in transaction%'
                AND a.state_change < clock_timestamp() - make_interval(secs => p_idle_seconds))
    ) AS ended
$$;
REVOKE ALL ON FUNCTION counterpoise_log.end_sessions FROM PUBLIC;
"""

LOCK_LOG = """
CREATE OR REPLACE FUNCTION counterpoise_log.lock_log(p_log text, p_exclusive boolean)
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
"""

LOCK_PUBLISHER = """
CREATE OR REPLACE FUNCTION counterpoise_log.lock_publisher(p_log_id integer, p_publisher text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT last_sequence INTO v_last FROM counterpoise_log.publishers
        WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    IF NOT FOUND THEN
        BEGIN
            INSERT INTO counterpoise_log.publishers
                (log_id, publisher, last_sequence, appended_at)
                VALUES (p_log_id, p_publisher, -1, now()) ON CONFLICT DO NOTHING;
        EXCEPTION
            WHEN foreign_key_violation THEN
                RAISE EXCEPTION 'there is no such log any more' USING ERRCODE = 'CP002';
        END;
        SELECT last_sequence INTO STRICT v_last FROM counterpoise_log.publishers
            WHERE log_id = p_log_id AND publisher = p_publisher FOR UPDATE;
    END IF;
    RETURN v_last;
END $$;

CREATE OR REPLACE FUNCTION counterpoise_log.next_sequence(p_log text, p_publisher text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log_id integer;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log);
    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    RETURN counterpoise_log.lock_publisher(v_log_id, p_publisher) + 1;
END $$;
"""

# As in log_0001, but for the locks and who may call it.
APPEND = """
CREATE OR REPLACE FUNCTION counterpoise_log.append(
    p_log text, p_partition_count integer, p_publisher text, p_first_sequence bigint,
    p_partitions integer[], p_values bytea[], p_keys text[], p_headers text[],
    p_published_at timestamptz[]
) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log counterpoise_log.logs;
    v_log_id integer;
    v_messages bigint := cardinality(p_partitions);
    v_last bigint;
    v_skip bigint;
    v_appended bigint;
BEGIN
    PERFORM counterpoise_log.check_isolation();
    PERFORM counterpoise_log.check_client(p_log);
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

    SELECT log_id INTO v_log_id FROM counterpoise_log.logs WHERE name = p_log;
    PERFORM FROM counterpoise_log.partitions
        WHERE log_id = v_log_id
            AND partition = ANY (ARRAY(SELECT DISTINCT unnest(p_partitions)))
        ORDER BY partition FOR NO KEY UPDATE;
    SELECT * INTO v_log FROM counterpoise_log.logs WHERE log_id = v_log_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log %', quote_literal(p_log) USING ERRCODE = 'CP002';
    END IF;
    IF v_log.partition_count <> p_partition_count THEN
        RAISE EXCEPTION 'routed for % partitions, but the log has %',
            p_partition_count, v_log.partition_count
            USING ERRCODE = 'CP001', DETAIL = v_log.partition_count::text;
    END IF;

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


def upgrade() -> None:
    for script in (
        CLIENTS,
        ROW_SECURITY,
        LOCK_LOG,
        LOCK_PUBLISHER,
        APPEND,
        GRANT_CLIENTS,
        MAKE_CLIENTS,
        DROP_CLIENTS,
        END_SESSIONS,
    ):
        op.execute(script)


def downgrade() -> None:
    # The roles belong to the whole server; without grants they reach nothing here.
    op.execute("""
        DO $$ BEGIN
            IF to_regrole('counterpoise_log_client') IS NOT NULL THEN
                REVOKE ALL ON ALL TABLES IN SCHEMA counterpoise_log FROM counterpoise_log_client;
                REVOKE ALL ON ALL FUNCTIONS IN SCHEMA counterpoise_log FROM counterpoise_log_client;
                REVOKE ALL ON SCHEMA counterpoise_log FROM counterpoise_log_client;
            END IF;
        END $$;
    """)
    for table in ("logs", "partitions", "messages"):
        op.execute(f"DROP POLICY IF EXISTS one_log ON counterpoise_log.{table}")
        op.execute(f"DROP POLICY granted ON counterpoise_log.{table}")
        op.execute(f"ALTER TABLE counterpoise_log.{table} DISABLE ROW LEVEL SECURITY")
    for script in (v0001_log.LOCK_LOG, v0001_log.LOCK_PUBLISHER, v0001_log.APPEND):
        op.execute(script.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    op.execute("""
        DROP FUNCTION counterpoise_log.make_clients, counterpoise_log.grant_clients,
            counterpoise_log.end_sessions, counterpoise_log.lock_out_clients,
            counterpoise_log.drop_clients,
            counterpoise_log.check_client, counterpoise_log.readable_log,
            counterpoise_log.check_isolation;
        DROP TABLE counterpoise_log.clients;
    """)
