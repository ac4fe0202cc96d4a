"""Whether the database can be used, and why it cannot.

**A database in another encoding than UTF8 is refused** (`why_not_usable`): names, keys and errors
may have any character. One in LATIN1 does not know most of them, and one in SQL_ASCII takes any
bytes for text.

**A connection pooler in transaction mode is refused** (`why_not_usable`). With such a pooler
(pgbouncer with `pool_mode = transaction`, and the like) each transaction runs in any free session.
The service would fail later and in obscure ways: prepared statements belong to another session,
LISTEN receives nothing, session settings leak to other sessions, and the pooler does not know the
log-ins of consumers. So it is refused at the start. Detection: Postgres reports at log-in the
process that serves the session. If another process runs the statements, there is a pooler in
between. It is in transaction mode if one process serves two sessions that are open at the same
time, or several processes serve one session: a pooler in session mode gives each session its own
process. Such a pooler may be used if it takes the settings of a session. If it ignores them, the
database itself has to have what would otherwise lose messages.

**Whether the database can write** (`why_not_writing`): a query that does not fit into memory goes
to its disk. A database with a full disk, or whose data directory is gone, may go on answering and
even updating what it has in memory. A new file, written and removed at once, shows both: creating
it needs the directory, and filling it needs room. It needs no table and leaves nothing behind.

**The log says why the database cannot be used** (`Reporter`): with the database's own code, and not
too often. A full disk or a lost data directory fails every call, hundreds in a second. One line
every `LOG_SECONDS` for each cause is enough to see what is wrong, and that it still is. A cause is
the database's code: its text names another file each time. Where the database gave no code (it
refused the connection, or did not answer) the text is all there is, so each text is a cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, LiteralString

import psycopg
import sqlalchemy
import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from broker.postgres.connections import CONNECT_SECONDS, Connection, DatabaseUnreachable
from counterpoise.logs import postgres

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
IGNORED = (
    "the database URL leads to a connection pooler that ignores session settings, and {name} is "
    "{found!r} there; give the address of Postgres itself, or set it to {wanted!r} (ALTER DATABASE)"
)
WRONG_ENCODING = (
    "the database {name!r} has the encoding {encoding}, and the service needs UTF8: give another "
    "one (CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0)"
)

# With other ones messages are lost, or none can be read.
_VITAL = ("default_transaction_isolation", "default_transaction_read_only", "row_security")
# Numbers that are put aside before they are counted: almost a megabyte.
_SPILL = "SELECT count(*) FROM generate_series(1, 50000)"
_MEMORY = "SET LOCAL work_mem = '64kB'"
_MILLISECONDS = 5000
_log = structlog.get_logger("broker.postgres")
LOG_SECONDS = 10.0
# Codes are few, texts need not be.
MOST_CAUSES = 100


def _opened(**parameters: Any) -> Connection:
    return psycopg.connect(**parameters, autocommit=True, connect_timeout=CONNECT_SECONDS)


def why_not_usable(url: str, opened: Callable[..., Connection] = _opened) -> str | None:
    """Why the service cannot work with this database, in one line: its encoding is another one, or
    sessions are shared or do not have the settings that they ask for. None: it can.

    Blocks. Raises DatabaseUnreachable.
    """
    parameters = postgres.read(url)
    try:
        is_pooled, refusal = _of_settings(opened, parameters)
        if is_pooled:
            with opened(**parameters) as one, opened(**parameters) as other:
                for _ in range(TRIES):
                    first = _process(one)
                    if first == _process(other) or first != _process(one):
                        return REFUSED
    except psycopg.Error as error:
        raise DatabaseUnreachable(_last_line(error)) from None
    return refusal


def _of_settings(
    opened: Callable[..., Connection], parameters: Mapping[str, str]
) -> tuple[bool, str | None]:
    """Whether there is a pooler, and what a session does not have as it should."""
    try:
        with postgres.connect(opened, parameters) as session:
            encoding = session.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                name = session.info.dbname
                return False, WRONG_ENCODING.format(name=name, encoding=encoding)
            if _process(session) == session.info.backend_pid:
                return False, None
            for name in _VITAL:
                found = _value(session, f"SELECT current_setting('{name}')")
                if found != (wanted := postgres.SETTINGS[name]):
                    return True, IGNORED.format(name=name, found=found, wanted=wanted)
            return True, None
    except psycopg.Error as error:
        said = _last_line(error)
        if "startup parameter" not in said:
            raise
        return True, NO_SETTINGS.format(error=said)


def _last_line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _process(connection: Connection) -> Any:
    return _value(connection, "SELECT pg_backend_pid()")


def _value(connection: Connection, statement: LiteralString) -> Any:
    row = connection.execute(statement, prepare=False).fetchone()
    assert row is not None
    return row[0]


def why_not_writing(connection: sqlalchemy.Connection) -> tuple[str, str | None] | None:
    """Why the database cannot write a file within a transaction, with its SQLSTATE; None: it can.

    Blocks. Raises SQLAlchemy's DBAPIError when the connection is lost.
    """
    try:
        for statement in (f"SET LOCAL statement_timeout = {_MILLISECONDS}", _MEMORY, _SPILL):
            connection.execute(text(statement))
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        said = str(getattr(error.orig, "__cause__", None) or error.orig).strip()
        return said.splitlines()[0], getattr(error.orig, "sqlstate", None)
    return None


class Reporter:
    """The log lines of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # The cause that was said last comes last.
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def report(self, error: str, code: str | None) -> None:
        """A line for this failure, unless its cause was in the log a moment ago.

        `code`: the database's SQLSTATE, None if it gave none.
        """
        now = self._monotonic()
        cause = code or error
        said_at = self._said_at.get(cause)
        if said_at is not None and now - said_at < LOG_SECONDS:
            self._unsaid[cause] = self._unsaid.get(cause, 0) + 1
            return
        self._said_at.pop(cause, None)
        self._said_at[cause] = now
        unsaid = self._unsaid.pop(cause, 0)
        if len(self._said_at) > MOST_CAUSES:
            forgotten = next(iter(self._said_at))
            del self._said_at[forgotten]
            self._unsaid.pop(forgotten, None)
        _log.error("the database cannot be reached", code=code, error=error, times_before=unsaid)


REPORTER = Reporter()
