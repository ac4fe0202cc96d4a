"""One statement on the log's database, in one round trip and without SQLAlchemy's share of it."""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

# What the driver raises itself.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# Of these, those after which there is no connection any more.
LOST = (
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    ConnectionError,
)


async def fetch_row(engine: AsyncEngine, statement: str, *arguments: object) -> asyncpg.Record:
    """The one row of a statement that is a transaction of its own: one round trip.

    Raises DRIVER_ERRORS (LOST if the connection ended: nobody knows whether the statement was
    carried out), SQLAlchemy's errors and OSError.
    """
    lent: PoolProxiedConnection = await greenlet_spawn(engine.sync_engine.pool.connect)
    try:
        driver: Any = lent.driver_connection
        row = await driver.fetchrow(statement, *arguments)
        assert row is not None
        return row
    except BaseException as error:
        # It may be lost, or the statement may still be under way on it.
        lent.invalidate(error)
        raise
    finally:
        # It has no transaction to end, so nothing waits.
        lent.close()
