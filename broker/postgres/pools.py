"""Which connections a pool keeps: none when it is closed, and none to a server that only reads.
And what it does when it can open no more.

**Closing.** When SQLAlchemy closes a pool, it closes the connections that are idle. A connection
that is in use then, by a call that outlasts its service, is given back later to a pool that nobody
closes. So it is with a connection that such a call opens afterwards. Postgres would keep its
session until Python frees the object.

**Standbys.** Amid a failover, an address may still lead to the server that was the primary. As a
standby it accepts connections and refuses to write. A pool would use such a connection for as long
as that server runs. So it is given up; the next one goes where the address leads by then.

**No free slot.** Clients of the log, or strangers, may have taken all connections of the server.
The open ones of the service still work. So a caller waits for one of these (`PatientPool`).
"""

from __future__ import annotations

import logging

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry
from sqlalchemy.util.queue import Empty

# The SQLSTATE of a write in a transaction that only reads, as all are on a standby.
READ_ONLY = "25006"
# And of a server that has no slot for another connection.
NO_SLOT = "53300"
# SQLAlchemy names the log of a pool after its class.
logging.getLogger(f"{__name__}.PatientPool").setLevel(logging.WARNING)


class PatientPool(AsyncAdaptedQueuePool):
    """Gives no connection that the server has closed, and waits for an open one while the server
    has no slot for another.
    """

    def _do_get(self) -> ConnectionPoolEntry:
        while True:
            entry = self._opened_or_given_back()
            if entry.dbapi_connection is not None:
                if not entry.driver_connection.is_closed():  # type: ignore[union-attr]
                    return entry
                entry.invalidate()
            # Lost. The pool would open it again, or fail: there may be others that are open.
            self._dec_overflow()

    def _opened_or_given_back(self) -> ConnectionPoolEntry:
        try:
            return super()._do_get()
        except Exception as error:
            there_are = self.checkedin() + self.checkedout()
            if getattr(error, "sqlstate", None) != NO_SLOT or not there_are:
                raise
            refused = error
        try:
            return self._pool.get(True, self._timeout)
        except Empty:
            raise refused from None


async def close(engine: AsyncEngine) -> None:
    """Closes the idle connections now, and each other one when it is given back."""
    event.listen(engine.sync_engine, "checkin", _close)
    await engine.dispose()


def _close(_: object, entry: ConnectionPoolEntry) -> None:
    entry.invalidate()


def leave_standbys(engine: AsyncEngine) -> None:
    """Gives up all connections when the server refuses to write, else only those that are lost."""
    event.listen(engine.sync_engine, "handle_error", _leave)


def _leave(context: ExceptionContext) -> None:
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True
    else:
        # The other connections may be open, and there may be no slot for new ones.
        context.invalidate_pool_on_disconnect = False
