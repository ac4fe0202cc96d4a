"""Whether a connection pooler in transaction mode stands between the service and its database.

Through one (pgbouncer with `pool_mode = transaction`, and the like) each transaction runs in
whatever session is free. The service would not notice at once, and then badly: prepared statements
are another session's, LISTEN hears nothing, session settings leak to others, and the log-ins that
consumers are given are not the pooler's. So it is refused at the start.

How it is told: Postgres says at log-in which process serves the session. If that is not the process
that runs the statements, something stands between. It is in transaction mode if two sessions that
are open at the same time are served by the same process, or one by several: a pooler in session
mode gives each its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from broker.postgres.migrations import CONNECT_SECONDS, DatabaseUnreachable

TRIES = 5
REFUSED = (
    "the database URL leads to a connection pooler in transaction mode (such as pgbouncer with "
    "pool_mode = transaction), which the service cannot work through; give the address of Postgres "
    "itself: the service keeps a pool of its own (COUNTERPOISE_DATABASE_POOL_SIZE)"
)
NO_SETTINGS = (
    "what is at the database URL refuses the settings of a session ({error}), as connection "
    "poolers do; give the address of Postgres itself: the service keeps a pool of its own "
    "(COUNTERPOISE_DATABASE_POOL_SIZE)"
)

Connect = Callable[[str], "psycopg.Connection[Any]"]


class Pooled(Exception):
    """A pooler that the service cannot work through; the message is one line."""


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)


def refuse_pooling(url: str, connect: Connect = _connect) -> None:
    """Raises Pooled if sessions are shared or take no settings, DatabaseUnreachable. Blocks."""
    try:
        with connect(url) as one:
            if _process(one) == one.info.backend_pid:
                return
            with connect(url) as other:
                for _ in range(TRIES):
                    first = _process(one)
                    if first == _process(other) or first != _process(one):
                        raise Pooled(REFUSED)
        separator = "&" if "?" in url else "?"
        connect(f"{url}{separator}options=-cjit%3Doff").close()
    except psycopg.Error as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        if "startup parameter" in said:
            raise Pooled(NO_SETTINGS.format(error=said)) from None
        raise DatabaseUnreachable(said) from None


def _process(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    process: int = row[0]
    return process
