"""The database of the built-in logs, which may be another than the service's own.

No connection waits for ever for a database that neither answers nor refuses. Connecting is bounded
here (`log_engine`). The callers bound each call as a whole (`within`), because the database may
fall silent at any step. The server itself ends abandoned statements, and with them the locks that
make publishers and other replicas wait.

Most calls are rare and take several statements, in transactions that end in time and that lock the
log (`LogDatabase`). Their connections are tested first, which costs round trips. What a bind waits
for is one statement without them, in one round trip and without SQLAlchemy's share of it
(`fetch_row`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from broker.logs.ports import LogDatabaseUnavailable, LogOwner
from broker.postgres import driver, pools
from counterpoise.logs import LogNotFound, postgres
from counterpoise.logs.address import parse_log
from counterpoise.logs.builtin import LOG_NOT_FOUND

CONNECT_SECONDS = 5.0
# How long a replica that freezes within a transaction delays the others.
IDLE_SECONDS = 10.0
# The longest time of a statement: deleting 10,000 large messages takes minutes.
STATEMENT_SECONDS = 600.0
_POOL_SIZE = 2
# What the driver raises itself.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# Of these, those after which there is no connection any more.
LOST = (
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    ConnectionError,
)
# A call ends before its caller stops waiting for the answer (10 s). Looking up times and dropping
# may take longer.
CALL_SECONDS = 8.0
LONG_SECONDS = 60.0
# For each statement of the upkeep: deleting many large messages does take minutes.
SWEEP_SECONDS = STATEMENT_SECONDS
# While a resize waits for an append under way, other appends wait for the resize.
_LOCK_SECONDS = 5
_LOCK = "SELECT * FROM counterpoise_log.lock_log(:name, :exclusive)"


def log_engine(url: str, *, tested: bool = True) -> AsyncEngine:
    """An engine for the log at `url`, as libpq takes it. Nothing is connected yet.

    `tested`: each connection is tested before it is used, and replaced if it was closed meanwhile.
    """

    async def connect(**_: Any) -> asyncpg.Connection[asyncpg.Record]:
        settings = {
            **postgres.BY_KEY,
            "statement_timeout": str(int(STATEMENT_SECONDS * 1000)),
            "idle_in_transaction_session_timeout": str(int(IDLE_SECONDS * 1000)),
        }
        return await driver.connect(url, settings, timeout=CONNECT_SECONDS)

    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": connect},
        poolclass=pools.PatientPool,
        pool_size=_POOL_SIZE,
        pool_timeout=CONNECT_SECONDS,
        pool_pre_ping=tested,
    )
    pools.leave_standbys(engine)
    return engine


async def open_first(*engines: AsyncEngine) -> None:
    """Opens a connection of each, as far as the database answers: later it may have no slot."""

    async def opened(engine: AsyncEngine) -> None:
        with suppress(LogDatabaseUnavailable):
            async with within(CONNECT_SECONDS), engine.connect():
                pass

    await asyncio.gather(*(opened(engine) for engine in engines))


async def fetch_row(engine: AsyncEngine, statement: str, *arguments: object) -> asyncpg.Record:
    """The one row of a statement that is a transaction of its own: one round trip.

    Raises DRIVER_ERRORS (LOST if the connection ended: nobody knows whether the statement was
    carried out), SQLAlchemy's errors and OSError.
    """
    lent: PoolProxiedConnection = await greenlet_spawn(engine.sync_engine.pool.connect)
    try:
        connection: Any = lent.driver_connection
        row = await connection.fetchrow(statement, *arguments)
        assert row is not None
        return row
    except BaseException as error:
        # It may be lost, or the statement may still be under way on it.
        lent.invalidate(error)
        raise
    finally:
        # It has no transaction to end, so nothing waits.
        lent.close()


class LogDatabase:
    """One database with built-in logs, for the service."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def transaction(
        self, seconds: float | None = None, *, kept: bool = True
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction that ends after CALL_SECONDS, or the given seconds. Not `kept`: it is taken
        back at its end."""
        async with (
            within(CALL_SECONDS if seconds is None else seconds),
            self._engine.begin() if kept else self._engine.connect() as connection,
        ):
            yield connection

    async def lock(
        self, connection: AsyncConnection, name: str, exclusive: bool = True
    ) -> Mapping[str, Any]:
        """Lock out resizes and drops until the transaction ends, with `exclusive` also appends.

        Returns the log's row under the lock.
        """
        await self.known(connection, name)
        await self.set_lock_timeout(connection)
        try:
            locked = await connection.execute(text(_LOCK), {"name": name, "exclusive": exclusive})
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == LOG_NOT_FOUND:
                raise LogNotFound(f"there is no log {name!r}") from None
            raise
        return dict(locked.mappings().one())

    async def set_lock_timeout(self, connection: AsyncConnection) -> None:
        """Give up waiting for appends under way before other appends have waited for long."""
        await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))

    async def known(self, connection: AsyncConnection, name: str) -> Mapping[str, Any]:
        found = await connection.execute(
            text("SELECT * FROM counterpoise_log.logs WHERE name = :name"), {"name": name}
        )
        log = found.mappings().first()
        if log is None:
            raise LogNotFound(f"there is no log {name!r}")
        return dict(log)

    async def repeat(self, statement: str, parameters: Mapping[str, object]) -> int:
        """Run a statement that deletes a bounded number of messages until it finds none."""
        total = 0
        while deleted := await self.deleted(statement, parameters):
            total += deleted
        return total

    async def deleted(self, statement: str, parameters: Mapping[str, object]) -> int:
        """Run a statement that deletes, and has time for it; returns how much, as it says."""
        async with self.transaction(SWEEP_SECONDS) as connection:
            return int(await connection.scalar(text(statement), parameters) or 0)


@contextmanager
def available() -> Iterator[None]:
    """Raises LogDatabaseUnavailable if the database refuses or does not answer."""
    try:
        yield
    except TimeoutError:
        raise LogDatabaseUnavailable("the log's database did not answer in time") from None
    except (SQLAlchemyError, OSError, *DRIVER_ERRORS) as error:
        raise LogDatabaseUnavailable(str(error)) from error


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Raises LogDatabaseUnavailable also if it takes longer."""
    with available():
        async with asyncio.timeout(seconds):
            yield


def name_of(log: str) -> str:
    """The name of the log `builtin:NAME` in the log's table."""
    return parse_log(log).name


def may_touch(log: Mapping[str, Any], owner: LogOwner | None) -> bool:
    """Whether a call on behalf of `owner` is for this log; without an owner it is for any."""
    return owner is None or log["owner_id"] in (None, owner.queue_id)
