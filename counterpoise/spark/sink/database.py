"""The connection to the database: how a task gets it, and how a transaction begins.

The URL is a secret. One small class holds it and shows nothing of it. On its way to the tasks it is
inside the pickled function, and errors do not carry it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from counterpoise.backoff import Backoff, Pauses
from counterpoise.logs import postgres
from counterpoise.spark.errors import InvalidSink, SinkError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect, Engine

logger = logging.getLogger("counterpoise.spark")

URL_VARIABLE = "COUNTERPOISE_SINK_URL"
MakeEngine = Callable[[], "Engine"]
MARIADB = "mariadb"
"""Or MySQL: the same statements and the same driver."""

_NAME = "counterpoise sink"
_CONNECT_SECONDS = 10
_TRANSACTION_TIMEOUT_SINCE = (17,)
_BACKOFF = Backoff(0.1, 2.0)
_OF_PSYCOPG = ("postgresql", "postgres", "postgresql+psycopg")
# By the scheme of a URL: the driver that is meant, unless the URL names one.
_DRIVERS = {"mariadb": "mariadb+pymysql", "mysql": "mysql+pymysql"}
_KINDS = ("postgresql", "postgres", *_DRIVERS)

# Who holds rows of a table, whether that session is of this role, and its end if its client sends
# nothing. Of other roles' sessions the server does not show whether they wait.
_FROZEN = """
SELECT pid, usename, pg_has_role(usesysid, 'USAGE') AND pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid IN (
    SELECT pid FROM pg_locks
    WHERE relation = to_regclass(:table) AND mode IN ('RowShareLock', 'RowExclusiveLock')
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pid <> pg_backend_pid()
) AND (
    NOT pg_has_role(usesysid, 'USAGE') OR
    wait_event = 'ClientRead' AND state_change < clock_timestamp() - make_interval(secs => :idle)
)
"""

# A Python worker runs many tasks one after another, so it keeps its connections.
_kept: dict[str, Engine] = {}


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Limits of a transaction, so that a frozen writer does not hold its row for ever.

    The server ends a transaction that is idle for `idle_seconds`, or (PostgreSQL 17 and later) has
    taken `transaction_seconds`. So long may a transaction wait for the row of another one. An
    unavailable database is retried for `retry_seconds` at the begin.
    """

    idle_seconds: float = 60.0
    transaction_seconds: float = 600.0
    retry_seconds: float = 30.0


class Database:
    """The target database: a URL, or a function that makes an engine on the executors."""

    def __init__(self, where: str | MakeEngine | None) -> None:
        """None: the environment's COUNTERPOISE_SINK_URL as it is now. Raises InvalidSink."""
        where = where if where is not None else os.environ.get(URL_VARIABLE)
        if isinstance(where, str):
            where = where.strip()
        if not where:
            raise InvalidSink(
                f"no database for the sink: give it a URL, or set {URL_VARIABLE} "
                "(postgresql://user:password@host:port/database)"
            )
        self._where = where
        if callable(where):
            from pyspark import cloudpickle

            content = cloudpickle.dumps(where)  # type: ignore[no-untyped-call]
        else:
            _checked(where)
            content = where.encode()
        # Names the engine in a worker's memory without showing the secret.
        self.key = hashlib.sha256(content).hexdigest()

    def __repr__(self) -> str:
        return "Database(…)"

    def engine(self) -> Engine:
        """The engine, created once in this process."""
        engine = _kept.get(self.key)
        if engine is None:
            where = self._where
            engine = _kept[self.key] = where() if callable(where) else _engine_of(where)
        return engine

    @contextlib.contextmanager
    def transaction(self, bounds: TransactionLimits) -> Iterator[Connection]:
        """A transaction that commits at the end of the block, or rolls back on an error.

        Raises SinkError if the database cannot be reached.
        """
        from sqlalchemy.exc import DBAPIError

        try:
            with contextlib.ExitStack() as ending:
                connection = ending.enter_context(self._connect(bounds.retry_seconds))
                ending.enter_context(connection.begin())
                _limit(connection, bounds)
                yield connection
        except DBAPIError as error:
            if error.connection_invalidated:
                error.add_note(
                    "The server ends the session of a sink if no rows come for idle_seconds "
                    f"({bounds.idle_seconds:g}), or if a transaction takes transaction_seconds "
                    f"({bounds.transaction_seconds:g}). If this happens again and again, because "
                    "the rows are made slowly, give the sink more, or make micro-batches smaller "
                    "(maxMessagesPerTrigger)"
                )
            raise

    def end_frozen(self, table: str, limits: TransactionLimits) -> None:
        """End the sessions on PostgreSQL that hold rows of `table`, and for `idle_seconds` have
        been waiting for their client, within a statement or between two.

        None of the server's limits ends COPY while it waits for its client's data: not those of
        statements, of transactions, or of idle ones.
        """
        from sqlalchemy import text

        with self.transaction(limits) as connection:
            parameters = {"table": quoted(connection, table), "idle": limits.idle_seconds}
            for pid, role, is_ours in connection.execute(text(_FROZEN), parameters):
                if is_ours:
                    logger.warning(
                        "counterpoise: a writer (process %d of the database) held rows of %s and "
                        "had not answered for %g s: its session was ended",
                        *(pid, table, limits.idle_seconds),
                    )
                else:
                    logger.warning(
                        "counterpoise: process %d of the database, of the role %s, holds rows of "
                        "%s; the sink waits for it, since it can only end sessions of its own role",
                        *(pid, role, table),
                    )

    def _connect(self, retry_seconds: float) -> Connection:
        from sqlalchemy.exc import OperationalError

        engine = self.engine()
        give_up_at = time.monotonic() + retry_seconds
        pauses = Pauses(_BACKOFF)
        while True:
            try:
                return engine.connect()
            except OperationalError as error:
                pause = pauses.failed()
                why = " ".join(str(error.orig).split())
                if time.monotonic() + pause > give_up_at:
                    raise SinkError(f"the sink's database cannot be reached: {why}") from error
                logger.warning("counterpoise: the sink's database is away: %s", why)
                time.sleep(pause)


def database_of(dialect: Dialect) -> str:
    """`postgresql` or `mariadb`. Raises InvalidSink for another one."""
    if dialect.name in ("mariadb", "mysql"):
        return MARIADB
    if dialect.name != "postgresql":
        raise InvalidSink(
            "the sink writes to PostgreSQL (postgresql://…), MariaDB (mariadb://…) and MySQL "
            f"(mysql://…), not to {dialect.name}"
        )
    return "postgresql"


def _limit(connection: Connection, bounds: TransactionLimits) -> None:
    from sqlalchemy import text

    if database_of(connection.dialect) == MARIADB:
        idle, longest = (
            max(1, round(one)) for one in (bounds.idle_seconds, bounds.transaction_seconds)
        )
        # Repeatable reads would lock the gap around a row that is not there yet. As an option of
        # the connection, the level would be set back when the connection is returned: that fails
        # if the server has ended the session, although the transaction is committed. The
        # transaction begins later, with the first row.
        connection.exec_driver_sql(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
        )
        # Times are in UTC. A value that does not fit is an error, and is not cut.
        connection.exec_driver_sql(
            f"SET SESSION wait_timeout = {idle}, net_read_timeout = {idle},"
            f" innodb_lock_wait_timeout = {longest}, time_zone = '+00:00', sql_mode = CONCAT("
            "REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', ''), ',STRICT_ALL_TABLES')"
        )
        return
    statement = "SELECT set_config('idle_in_transaction_session_timeout', :idle, true)"
    if (connection.dialect.server_version_info or (0,)) >= _TRANSACTION_TIMEOUT_SINCE:
        statement += ", set_config('transaction_timeout', :longest, true)"
    times = {"idle": bounds.idle_seconds, "longest": bounds.transaction_seconds}
    connection.execute(
        text(statement), {name: milliseconds(seconds) for name, seconds in times.items()}
    )


def milliseconds(seconds: float) -> str:
    """As PostgreSQL's settings have it; at least 1, since 0 is no limit."""
    return f"{max(1, round(seconds * 1000))}ms"


def quoted(connection: Connection, name: str) -> str:
    """A table's name, with or without a schema, quoted for a statement."""
    from sqlalchemy import quoted_name

    quote = connection.dialect.identifier_preparer.quote
    return ".".join(quote(quoted_name(part, quote=True)) for part in name.split("."))


def _checked(url: str) -> None:
    """Raises InvalidSink, which shows nothing of the URL."""
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" not in url or scheme not in _KINDS:
        raise InvalidSink(
            "the sink's database is a URL like postgresql://user:password@host/name, or mariadb://…"
        )
    if scheme in ("mariadb", "mysql") and importlib.util.find_spec("pymysql") is None:
        raise InvalidSink("this sink needs pymysql: pip install 'counterpoise[mariadb]'")


def _engine_of(url: str) -> Engine:
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError

    # One is kept. A driver needs more while several of its queries, and the closing of idle
    # windows, use the database at once.
    pool: dict[str, Any] = {"pool_size": 1, "max_overflow": -1, "pool_pre_ping": True}
    try:
        if url.partition("://")[0] in _OF_PSYCOPG:
            opener = _opener(postgres.read(url))
            return create_engine(
                "postgresql+psycopg://", creator=opener, hide_parameters=True, **pool
            )
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidSink("the URL of the sink's database cannot be read") from None
    named = "application_name"
    if parsed.get_backend_name() in ("mariadb", "mysql"):
        named = "program_name"
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    defaults = {"connect_timeout": _CONNECT_SECONDS, named: _NAME}
    return create_engine(
        parsed,
        connect_args={name: value for name, value in defaults.items() if name not in parsed.query},
        hide_parameters=True,
        **pool,
    )


def _opener(parameters: Mapping[str, str]) -> Callable[[], psycopg.Connection[Any]]:
    """Opens connections as the product's own are, but for the path on which tables are looked for:
    they are the user's. What the URL itself sets comes last.
    """
    given = {"connect_timeout": str(_CONNECT_SECONDS), "application_name": _NAME, **parameters}
    settings = {name: value for name, value in postgres.SETTINGS.items() if name != "search_path"}

    def make(**startup: Any) -> psycopg.Connection[Any]:
        options = f"{startup['options']} {parameters.get('options', '')}"
        return psycopg.connect(**{**startup, "options": options})

    return lambda: postgres.connect(make, given, settings)
