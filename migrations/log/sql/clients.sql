-- The roles of clients. The service makes a login role for each (`broker.logs.credentials`), a
-- member of the group `counterpoise_log_client`, and notes in `clients` which log it may read or
-- append to. A client is known by `session_user`: SET ROLE does not change it, and SECURITY DEFINER
-- neither.

-- Many at once: thousands of flows may bind together. Passwords arrive as verifiers, so that a
-- server that logs statements does not write them down.
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

-- A role ends in two steps, each its own transaction: a role that still could log in would come
-- back between the end of its sessions and its own. What a role should not own (large objects,
-- where the server lets every role make them) goes with it. A role that owns something in another
-- database stays, locked.
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
            -- Another replica does it, or has dropped it; or this user may not (`drop_clients`).
            WHEN undefined_object OR internal_error OR insufficient_privilege THEN NULL;
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
    FOREACH v_role IN ARRAY p_roles LOOP
        BEGIN
            PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = v_role::name;
        EXCEPTION
            -- The role was made by another user; it waits until its sessions have ended.
            WHEN insufficient_privilege THEN NULL;
        END;
    END LOOP;
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

-- Sessions of clients that are in the way of others: in another database of the server, or in a
-- transaction that lasts or does nothing. Postgres lets each role lift its own time limits.
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
