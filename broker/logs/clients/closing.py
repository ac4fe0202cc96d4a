"""What Postgres gives to everybody by default, taken away before strangers get credentials.

Every role that may connect can make temporary tables and large objects, and in databases of old
releases tables and functions in `public`. It can also take any advisory lock; many of them fill
the server's table of locks, and then nobody's statement gets one. And it can run a loop of its own
making in the server (DO, in PL/pgSQL), of which each turn is a transaction.

Taken away is what is the service's to take: in a database that it owns, the right to make temporary
tables and to create in `public`; in a server that it has started itself (`broker.postgres`), also
connecting to the other databases, PL/pgSQL, and the functions in _FUNCTIONS. In somebody else's
server they may be in use by others; docs/security.md says what its administrator may do.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

# Of pg_catalog; names as for LIKE. They write what nobody reads, or keep what others wait for.
_FUNCTIONS = (
    "lo\\_%",
    "loread",
    "lowrite",
    "pg\\_advisory\\_%",
    "pg\\_try\\_advisory\\_%",
    "pg\\_logical\\_emit\\_message",
)
# The service starts its own server with this setting (broker.postgres.embedded).
_IS_OURS = "coalesce(current_setting('counterpoise.own_server', true), '') = 'on'"

_DUE = f"""
SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', datname) FROM pg_database
WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE')
    AND has_database_privilege('public', oid, 'TEMPORARY')
UNION ALL
SELECT format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', nspname) FROM pg_namespace
WHERE nspname = 'public' AND pg_has_role(nspowner, 'USAGE')
    AND has_schema_privilege('public', oid, 'CREATE')
UNION ALL
SELECT format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', datname) FROM pg_database
WHERE datname IN ('postgres', 'template1') AND datname <> current_database()
    AND {_IS_OURS} AND has_database_privilege('public', oid, 'CONNECT')
UNION ALL
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
    AND proname LIKE ANY (CAST(:functions AS text[]))
    AND {_IS_OURS} AND has_function_privilege('public', oid, 'EXECUTE')
UNION ALL
-- For new functions and for DO; the log's own functions need no right to it.
SELECT format('REVOKE USAGE ON LANGUAGE %I FROM PUBLIC', lanname) FROM pg_language
WHERE lanname = 'plpgsql' AND {_IS_OURS} AND has_language_privilege('public', oid, 'USAGE')
UNION ALL
-- The server's limit is for clients; an index of a large log needs more.
SELECT format('ALTER ROLE %I SET temp_file_limit = -1', current_user)
WHERE {_IS_OURS} AND current_setting('temp_file_limit') <> '-1'
"""


async def close_to_public(engine: AsyncEngine) -> Sequence[str]:
    """Take it away, as far as it is still given. The statements that were run.

    Raises SQLAlchemy's errors and OSError if the database fails.
    """
    async with engine.connect() as connection:
        due = list(await connection.scalars(text(_DUE), {"functions": list(_FUNCTIONS)}))
    done = []
    for statement in due:
        try:
            async with engine.begin() as connection:
                await connection.exec_driver_sql(statement)
        except DBAPIError:
            # Another replica does it at this moment; if not, the next start finds it.
            continue
        done.append(statement)
    return done
