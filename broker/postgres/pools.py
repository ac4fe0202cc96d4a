"""Which connections a pool keeps: none when it is closed, and none to a server that only reads.

**Closing.** When SQLAlchemy closes a pool, it closes the connections that are idle. A connection
that is in use then, by a call that outlasts its service, is given back later to a pool that nobody
closes. So it is with a connection that such a call opens afterwards. Postgres would keep its
session until Python frees the object.

**Standbys.** Amid a failover, an address may still lead to the server that was the primary. As a
standby it accepts connections and refuses to write. A pool would use such a connection for as long
as that server runs. So it is given up; the next one goes where the address leads by then.
"""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

# The SQLSTATE of a write in a transaction that only reads, as all are on a standby.
READ_ONLY = "25006"


async def close(engine: AsyncEngine) -> None:
    """Closes the idle connections now, and each other one when it is given back."""
    event.listen(engine.sync_engine, "checkin", _close)
    await engine.dispose()


def _close(_: object, entry: ConnectionPoolEntry) -> None:
    entry.invalidate()


def leave_standbys(engine: AsyncEngine) -> None:
    """Gives up connections to servers that refuse to write."""
    event.listen(engine.sync_engine, "handle_error", _leave)


def _leave(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True
