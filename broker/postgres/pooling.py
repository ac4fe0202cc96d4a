"""Detects a connection pooler in transaction mode between the service and its database.

With such a pooler (pgbouncer with `pool_mode = transaction`, and the like) each transaction runs in
any free session. The service would fail later and in obscure ways: prepared statements belong to
another session, LISTEN receives nothing, session settings leak to other sessions, and the pooler
does not know the log-ins of consumers. So it is refused at the start.

Detection: Postgres reports at log-in the process that serves the session. If another process runs
the statements, there is a pooler in between. It is in transaction mode if one process serves two
sessions that are open at the same time, or several processes serve one session: a pooler in session
mode gives each session its own process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from broker.postgres.migrations import CONNECT_SECONDS, DatabaseUnreachable

TRIES = 5
REFUSED = (
    "the database URL leads to a connection pooler in transaction mode (such as pgbouncer with "
    "pool_mode = transaction), with which the service cannot work; give the address of Postgres "
    "itself: the service keeps a pool of its own (COUNTERPOISE_DATABASE_POOL_SIZE)"
)
NO_SETTINGS = (
    "the server at the database URL refuses session settings ({error}), as connection "
    "poolers do; give the address of Postgres itself: the service keeps a pool of its own "
    "(COUNTERPOISE_DATABASE_POOL_SIZE)"
)

Connect = Callable[[str], "psycopg.Connection[Any]"]


class Pooled(Exception):
    """A pooler with which the service cannot work; the message is one line."""


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)


def refuse_pooling(url: str, connect: Connect = _connect) -> None:
    """Raises Pooled if sessions are shared or refuse settings, DatabaseUnreachable. Blocks."""
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
