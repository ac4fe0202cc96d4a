"""The connection to the database: how a task gets it, and how a transaction begins.

The URL is a secret. One small class holds it and shows nothing of it. On its way to the tasks it is
inside the pickled function, and errors do not carry it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterpoise.backoff import Backoff, Pauses
from counterpoise.spark.errors import InvalidSink

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

logger = logging.getLogger("counterpoise.spark")

URL_VARIABLE = "COUNTERPOISE_SINK_URL"
MakeEngine = Callable[[], "Engine"]

_CONNECT_SECONDS = 10
_TRANSACTION_TIMEOUT_SINCE = (17,)
_BACKOFF = Backoff(0.1, 2.0)

# A Python worker runs many tasks one after another, so it keeps its connections.
_kept: dict[str, Engine] = {}


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Limits of a transaction, so that a frozen writer does not hold its row for ever.

    The server ends a transaction that is idle for `idle_seconds`, or (PostgreSQL 17 and later) has
    taken `transaction_seconds`. An unavailable database is retried for `retry_seconds` at the
    begin.
    """

    idle_seconds: float = 60.0
    transaction_seconds: float = 600.0
    retry_seconds: float = 30.0


class Database:
    """The target database: a URL, or a function that makes an engine on the executors."""

    def __init__(self, where: str | MakeEngine | None) -> None:
        """None: the environment's COUNTERPOISE_SINK_URL as it is now. Raises InvalidSink."""
        where = where if where is not None else os.environ.get(URL_VARIABLE)
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
        """A transaction that commits at the end of the block, or rolls back on an error."""
        from sqlalchemy import text

        with contextlib.ExitStack() as ending:
            connection = ending.enter_context(self._connect(bounds.retry_seconds))
            ending.enter_context(connection.begin())
            limits = {"idle_in_transaction_session_timeout": bounds.idle_seconds}
            if (connection.dialect.server_version_info or (0,)) >= _TRANSACTION_TIMEOUT_SINCE:
                limits["transaction_timeout"] = bounds.transaction_seconds
            for name, seconds in limits.items():
                connection.execute(
                    text("SELECT set_config(:name, :most, true)"),
                    {"name": name, "most": f"{max(1, round(seconds * 1000))}ms"},
                )
            yield connection

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
                if time.monotonic() + pause > give_up_at:
                    raise
                logger.warning("counterpoise: the sink's database is away: %s", error.orig)
                time.sleep(pause)


def _checked(url: str) -> None:
    """Raises InvalidSink, which shows nothing of the URL."""
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" not in url or scheme not in ("postgresql", "postgres"):
        raise InvalidSink("the sink's database is a URL like postgresql://user:password@host/name")


def _engine_of(url: str) -> Engine:
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidSink("the URL of the sink's database cannot be read") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    defaults = {"connect_timeout": _CONNECT_SECONDS, "application_name": "counterpoise sink"}
    return create_engine(
        parsed,
        connect_args={name: value for name, value in defaults.items() if name not in parsed.query},
        pool_size=1,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
    )
