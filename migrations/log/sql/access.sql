-- What a client may do. Reading is bounded by row-level security: restrictive policies for the
-- group leave the rows of one log, which the server looks up once in a statement. Appending is
-- bounded by the functions, which ask `check_client`. The owner of the tables (the service) and
-- roles outside the group are not concerned.
--
-- A client may send any SQL, and Postgres also shows how it finds rows (EXPLAIN, `pg_stat_xact_*`).
-- Four things of all rows would come to light in this way:
--
-- * Statistics. The planner estimates with the values of all rows, and comparisons of text and
--   bytea are leakproof. A plan is made before the right to read the table is checked, and
--   `debug_print_plan` shows it to clients also when the check fails. So no column of the log's
--   tables has statistics, not even of tables that no client may read (tables.sql).
-- * The order of conditions. Leakproof conditions may be evaluated before those of a policy, and
--   what a policy asks for (`readable_log`) is asked when the first row comes that far: a client
--   that may not read would be refused if a row of another log meets its condition, and get an
--   empty answer otherwise. Postgres sorts conditions by their cost, and puts those of a policy
--   first among equals. To subscribe an array costs nothing. So the first condition of each policy
--   is an array that is true at the place of the client's log (no log has the number 0).
-- * Indexes. A leakproof condition on the first column of an index finds rows of all logs; then the
--   policy takes some away, and it is shown how many. So a policy binds the first column of each
--   index (`log_id`, of `logs` also `name`), or the index is on an expression that is not
--   leakproof.
-- * System columns, and functions that take the table (`currtid2`). So clients have a right to each
--   column, and none to the table.
--
-- What stays visible is how large the tables are, and where a client's own rows lie in them.

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

-- Its name.
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

-- Refuses a client that may not read, or publish in, this log; others are bound by their grants alone.
CREATE FUNCTION counterpoise_log.check_client(p_log text, p_purpose text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM counterpoise_log.clients
               WHERE role = session_user AND purpose = p_purpose AND log = p_log
                   AND expires_at > now()) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM pg_auth_members
               WHERE roleid = to_regrole('counterpoise_log_client')
                   AND member = to_regrole(quote_ident(session_user))) THEN
        RAISE EXCEPTION 'these credentials are not valid for %', CASE p_purpose
                WHEN 'read' THEN 'reading' ELSE 'publishing in ' || quote_literal(p_log) END
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.check_client FROM PUBLIC;

-- The ground on which all other roles stand; the policies for clients come on top of it.
ALTER TABLE counterpoise_log.logs ENABLE ROW LEVEL SECURITY;
CREATE POLICY granted ON counterpoise_log.logs USING (true) WITH CHECK (true);
ALTER TABLE counterpoise_log.partition_rows ENABLE ROW LEVEL SECURITY;
CREATE POLICY granted ON counterpoise_log.partition_rows USING (true) WITH CHECK (true);
ALTER TABLE counterpoise_log.ends ENABLE ROW LEVEL SECURITY;
CREATE POLICY granted ON counterpoise_log.ends USING (true) WITH CHECK (true);
ALTER TABLE counterpoise_log.messages ENABLE ROW LEVEL SECURITY;
CREATE POLICY granted ON counterpoise_log.messages USING (true) WITH CHECK (true);

-- Makes the group and its rights, once or anew: a group belongs to the whole server, and where a
-- dump is restored it may be missing. False: this user may not create roles.
CREATE FUNCTION counterpoise_log.grant_clients() RETURNS boolean
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
    FOREACH v_table IN ARRAY ARRAY['logs', 'partition_rows', 'ends', 'messages'] LOOP
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
        FOREACH v_table IN ARRAY
            ARRAY['logs', 'partition_rows', 'ends', 'partitions', 'messages']
        LOOP
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
            counterpoise_log.next_sequence, counterpoise_log.ranges, counterpoise_log.wake,
            counterpoise_log.watch, counterpoise_log.still_waits,
            counterpoise_log.readable_log, counterpoise_log.readable_name
            TO counterpoise_log_client;
    END IF;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION counterpoise_log.grant_clients FROM PUBLIC;
SELECT counterpoise_log.grant_clients();
