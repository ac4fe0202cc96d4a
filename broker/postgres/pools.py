"""Closing a pool of connections so that none is left.

When SQLAlchemy closes a pool, it closes the connections that are idle. A connection that is in use
then, by a call that outlasts its service, is given back later to a pool that nobody closes. So it
is with a connection that such a call opens afterwards. Postgres would keep its session until Python
frees the object.
"""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry


async def close(engine: AsyncEngine) -> None:
    """Closes the idle connections now, and each other one when it is given back."""
    event.listen(engine.sync_engine, "checkin", _close)
    await engine.dispose()


def _close(_: object, entry: ConnectionPoolEntry) -> None:
    entry.invalidate()
