"""Connections to Postgres, and the errors that mean that the database is unreachable.

Everything has a time limit, on the server (statements, waits for locks, idle transactions) and in
the service (connecting, answers). So a database that neither answers nor refuses blocks no caller
for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from time import perf_counter
from typing import Any, TypeVar

import asyncpg
import orjson
from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from broker.postgres import driver, pools
from broker.postgres.checks import REPORTER
from broker.store.bulk import PreparedStatement
from broker.store.ports import StoreUnavailable

T = TypeVar("T")

# SQLSTATEs, or their first letters, that do not blame the statement itself: connection lost,
# refused credentials, no such database, resources exhausted, a full queue of notifications,
# operator intervention (shutdown, statement timeout), system error, lock not available, deadlock or
# serialization failure, idle in transaction, a standby, tables that do not exist (yet).
UNAVAILABLE = (
    "08",
    "28",
    "3D",
    "3F",
    "53",
    "54000",
    "57",
    "58",
    "55P03",
    "40",
    "25P03",
    pools.READ_ONLY,
    "42P01",
    "XX001",
    "XX002",
)
# Of these, those after which there is no connection any more, or none to use again.
LOST = ("08", "57P", pools.READ_ONLY)
# A constraint refused a statement of the service: a defect.
CONSTRAINT_VIOLATION = "23"
# A replica that freezes within a transaction holds its locks no longer than this. Between two
# statements a transaction waits for nothing, but a busy event loop may be late: then the
# transaction is repeated.
IDLE_SECONDS = 2.0
# As many as calls mostly need at a time: later the server may have no slot, or logins take long.
OPEN_FIRST = 4


class TransactionLost(StoreUnavailable):
    """The connection ended before the commit, so nothing was written."""


class ConnectionLost(StoreUnavailable):
    """The connection ended before the answer: the statement may or may not have been carried
    out.
    """


class _Refused(ConnectionRefusedError):
    """The database takes no connection; `sqlstate` is its code for the reason."""

    def __init__(self, reason: str, sqlstate: str | None) -> None:
        super().__init__(reason)
        self.sqlstate = sqlstate


class Connections:
    """A pool of connections to Postgres itself: poolers in transaction mode are refused
    (`broker.postgres.checks`).
    """

    def __init__(
        self,
        database_url: str,
        pool_size: int,
        *,
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
    ) -> None:
        """`database_url` as libpq takes it; a driver in its scheme is ignored."""
        # Called with the seconds of each round trip of `fetch` that was answered.
        self.heard: Callable[[float], object] = lambda seconds: None
        self._url = database_url
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._open_first = min(OPEN_FIRST, pool_size)
        self._closed = False
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args={"async_creator_fn": self._creator},
            poolclass=pools.PatientPool,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=connect_seconds,
            pool_use_lifo=True,
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=orjson.loads,
        )
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        pools.leave_standbys(self._engine)

    async def open_first(self) -> None:
        """Opens the first connections of the pool. Raises StoreUnavailable if it can open none."""
        with self._unavailable():
            async with AsyncExitStack() as opened:
                await opened.enter_async_context(self._single.connect())
                with suppress(OSError, TimeoutError):
                    for _ in range(self._open_first - 1):
                        await opened.enter_async_context(self._single.connect())

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection outside of the pool. Raises StoreUnavailable."""
        with self._unavailable():
            return await self._creator()

    async def close(self) -> None:
        """Closes the pool; connections in use are closed when they are given back. No other is
        opened.
        """
        self._closed = True
        await pools.close(self._engine)

    @asynccontextmanager
    async def single(self) -> AsyncIterator[AsyncConnection]:
        """For one statement, which is a transaction of its own. Raises StoreUnavailable."""
        with self._unavailable():
            async with self._single.connect() as connection:
                yield connection

    async def rows(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """The rows of one statement, which is a transaction of its own. Raises StoreUnavailable."""
        async with self.single() as connection:
            return (await connection.execute(statement, parameters)).all()

    async def fetch(
        self, prepared: PreparedStatement, parameters: Mapping[str, Any]
    ) -> Sequence[asyncpg.Record]:
        """The rows of one frequent statement, which is a transaction of its own.

        It goes to the driver directly: one round trip, and a fraction of the processor's time of
        the same statement through SQLAlchemy. Raises StoreUnavailable, ConnectionLost.
        """
        constants = prepared.constants
        arguments = [
            parameters[name] if name in parameters else constants[name] for name in prepared.names
        ]
        with self._unavailable():
            lent: PoolProxiedConnection = await greenlet_spawn(
                self._engine.sync_engine.pool.connect
            )
            try:
                began = perf_counter()
                rows = await self._fetch(lent.driver_connection, prepared.text, arguments)
                self.heard(perf_counter() - began)
                return rows
            except asyncpg.PostgresError as error:
                if str(error.sqlstate).startswith(LOST):
                    lent.invalidate(error)
                    raise ConnectionLost(_reason(error) or "", error.sqlstate) from error
                raise
            except (asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError) as error:
                lent.invalidate(error)
                raise ConnectionLost(str(error)) from error
            except BaseException as error:
                # It may still be under way on this connection.
                lent.invalidate(error)
                raise
            finally:
                # It has no transaction to end, so nothing waits.
                lent.close()

    async def _fetch(
        self, driver: Any, statement: str, arguments: Sequence[Any]
    ) -> Sequence[asyncpg.Record]:
        rows: Sequence[asyncpg.Record] = await driver.fetch(statement, *arguments)
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """For several statements in one transaction. Raises StoreUnavailable, TransactionLost."""
        with self._unavailable():
            async with self._engine.begin() as connection:
                with _lost():
                    yield connection

    async def carry_out(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Runs `work` in a transaction, and once more if the transaction was lost before its end.

        Raises StoreUnavailable.
        """
        try:
            async with self.transaction() as connection:
                return await work(connection)
        except TransactionLost:
            async with self.transaction() as connection:
                return await work(connection)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """For several statements that read one state of the database. Raises StoreUnavailable."""
        with self._unavailable():
            async with self._engine.connect() as connection:
                await connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
                yield connection

    async def _creator(self, **_: Any) -> asyncpg.Connection[asyncpg.Record]:
        try:
            return await driver.connect(
                self._url,
                self._settings(),
                timeout=self._connect_seconds,
                command_timeout=self._answer_seconds,
                statement_cache_size=100,
                # By default the driver prepares long statements again each time that they are
                # sent: for a commit, that took the server longer than to carry it out.
                max_cacheable_statement_size=0,
            )
        except (asyncpg.PostgresError, asyncpg.InternalClientError) as error:
            # Whatever the SQLSTATE is: a database that accepts no connections is unreachable. So is
            # one of which no server fits `target_session_attrs`.
            raise _Refused(str(error), getattr(error, "sqlstate", None)) from error

    def _settings(self) -> Mapping[str, str]:
        milliseconds = int(self._answer_seconds * 1000)
        return {
            # Compiling takes longer than any statement of the service.
            "jit": "off",
            # A plan made while a table is small must work when it is large (`bulk`).
            "enable_seqscan": "off",
            # The server gives up first, so that the service gets its error.
            "statement_timeout": str(milliseconds * 9 // 10),
            "lock_timeout": str(milliseconds // 3),
            "idle_in_transaction_session_timeout": str(int(IDLE_SECONDS * 1000)),
        }

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        """Turns errors that mean that the database is unreachable into StoreUnavailable.

        The service's log says why, unless this replica itself has closed the connections.
        """
        if self._closed:
            raise StoreUnavailable("this replica has stopped")
        try:
            yield
        except StoreUnavailable as error:
            self._report(str(error), error.code)
            raise
        except Exception as error:
            reason = _reason(error)
            if reason is not None:
                unavailable = StoreUnavailable(reason, _state(error))
                self._report(reason, unavailable.code)
                raise unavailable from error
            if (_state(error) or "").startswith(CONSTRAINT_VIOLATION):
                raise AssertionError(str(getattr(error, "orig", error))) from error
            raise

    def _report(self, reason: str, code: str | None) -> None:
        if not self._closed:
            REPORTER.report(reason, code)


@contextmanager
def _lost() -> Iterator[None]:
    """Turns the loss of the connection into TransactionLost."""
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated:
            raise TransactionLost(_reason(error) or "", _state(error)) from error
        raise


def sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE of a server's error."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def _state(error: Exception) -> str | None:
    """The SQLSTATE of a failure, None where the server gave none."""
    if isinstance(error, DBAPIError):
        return sqlstate(error)
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _reason(error: Exception) -> str | None:
    """One line that says why the database is unreachable; None: the error means something else."""
    state = _state(error)
    if isinstance(error, DBAPIError):
        lost, text = error.connection_invalidated, str(error.orig)
    else:
        lost = isinstance(error, OSError | TimeoutError | PoolTimeoutError | asyncpg.InterfaceError)
        # asyncio's own has no text.
        text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
        text = text or type(error).__name__
    if lost or (state is not None and state.startswith(UNAVAILABLE)):
        return text.strip().splitlines()[0]
    return None
