"""What everybody has by default is taken away, as far as it is the service's to take."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.logs.credentials import close_to_public
from broker.logs.database import log_engine


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = log_engine(database_url)
    yield engine
    await engine.dispose()


def may(url: str, what: str) -> Any:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT {what}".encode()).fetchone()
    assert row is not None
    return row[0]


TEMPORARY = "has_database_privilege('public', current_database(), 'TEMPORARY')"
CREATE = "has_schema_privilege('public', 'public', 'CREATE')"
LARGE_OBJECTS = "has_function_privilege('public', 'lo_create(oid)', 'EXECUTE')"
LOCKS = "has_function_privilege('public', 'pg_advisory_lock(bigint)', 'EXECUTE')"
LOCKS_OF_OTHERS = "has_function_privilege('public', 'pg_lock_status()', 'EXECUTE')"
PROCEDURES = "has_language_privilege('public', 'plpgsql', 'USAGE')"
ELSEWHERE = "has_database_privilege('public', 'postgres', 'CONNECT')"


async def test_in_the_service_s_own_server(database_url: str, engine: AsyncEngine) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        # As databases of old releases have it.
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    assert await close_to_public(engine)
    for what in (
        TEMPORARY,
        CREATE,
        LARGE_OBJECTS,
        LOCKS,
        LOCKS_OF_OTHERS,
        PROCEDURES,
        ELSEWHERE,
    ):
        assert not may(database_url, what)
    assert may(database_url, "has_function_privilege('public', 'now()', 'EXECUTE')")
    await engine.dispose()
    assert not await close_to_public(engine)


async def test_in_somebody_else_s_server_only_the_own_database(database_url: str) -> None:
    name = f"owner_of_{urlsplit(database_url).path[1:]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("GRANT CONNECT ON DATABASE postgres TO PUBLIC")
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'own'".encode())
        connection.execute(f"ALTER DATABASE {connection.info.dbname} OWNER TO {name}".encode())
    parts = urlsplit(database_url)
    netloc = f"{name}:own@{parts.hostname}:{parts.port}"
    # Not started by the service.
    url = parts._replace(netloc=netloc, query="options=-ccounterpoise.own_server%3Doff").geturl()
    theirs = log_engine(url)
    assert await close_to_public(theirs) == [
        f"REVOKE TEMPORARY ON DATABASE {parts.path[1:]} FROM PUBLIC"
    ]
    await theirs.dispose()
    assert not may(database_url, TEMPORARY)
    for what in (LARGE_OBJECTS, LOCKS, LOCKS_OF_OTHERS, PROCEDURES, ELSEWHERE):
        assert may(database_url, what)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"REASSIGN OWNED BY {name} TO counterpoise".encode())
        connection.execute(f"DROP ROLE {name}".encode())
        # As other tests on this server expect it.
        connection.execute("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
