"""The database of the built-in logs: transactions that end in time, and the lock of a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs.clients.fetching import DRIVER_ERRORS
from broker.logs.engine import STATEMENT_SECONDS
from broker.logs.ports import LogDatabaseUnavailable, LogOwner
from counterpoise.logs import LogNotFound
from counterpoise.logs.address import parse_log

# A call ends before its caller stops waiting for the answer (10 s). Looking up times and dropping
# may take longer.
CALL_SECONDS = 8.0
LONG_SECONDS = 60.0
# For each statement of the upkeep: deleting many large messages does take minutes.
SWEEP_SECONDS = STATEMENT_SECONDS
# While a resize waits for an append under way, other appends wait for the resize.
_LOCK_SECONDS = 5
_LOCK = "SELECT * FROM counterpoise_log.lock_log(:name, :exclusive)"
_UNKNOWN_LOG = "CP002"


class LogDatabase:
    """One database with built-in logs, for the service."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def transaction(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction that ends after CALL_SECONDS, or the given seconds."""
        async with (
            within(CALL_SECONDS if seconds is None else seconds),
            self._engine.begin() as connection,
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
            if getattr(error.orig, "sqlstate", None) == _UNKNOWN_LOG:
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
        while True:
            async with self.transaction(SWEEP_SECONDS) as connection:
                deleted = await connection.scalar(text(statement), parameters) or 0
            if not deleted:
                return total
            total += deleted


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
