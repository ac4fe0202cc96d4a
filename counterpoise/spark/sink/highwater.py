"""The table of high-waters in the target database.

PostgreSQL, MariaDB or MySQL: the fence needs row locks, an insert that waits for a concurrent
insert, and limits that stop a frozen writer from holding a row for ever (`database`). PostgreSQL
has no such limit for COPY, so there a writer that waits for a row ends the session of one that is
frozen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, inspect, text
from sqlalchemy.exc import DBAPIError

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.database import (
    MARIADB,
    Database,
    TransactionLimits,
    database_of,
    milliseconds,
    quoted,
)
from counterpoise.spark.sink.fence import HighWater, HighWaterKey

# The key of an advisory lock; any number works if nothing else uses it. Creators of the table wait
# for each other.
_CREATION_LOCK = 0x636F756E746572
_LOCK_NOT_AVAILABLE = "55P03"
# Of a savepoint that is not there: MariaDB's number, and PostgreSQL's states, of which the second
# says that there is no transaction at all.
_NO_SUCH_SAVEPOINT = frozenset({1305, "3B001", "25P01"})

# MariaDB compares texts without trailing spaces, so names are bytes there.
_COLUMNS = {
    "postgresql": (
        "sink text NOT NULL, queue_id text NOT NULL, log text NOT NULL,"
        " {partition} integer NOT NULL, queue text NOT NULL, epoch bigint NOT NULL,"
        " next_position text, updated_at timestamptz NOT NULL DEFAULT now(),"
        " PRIMARY KEY (sink, queue_id, log, {partition})"
    ),
    MARIADB: (
        "sink varbinary(255) NOT NULL, queue_id varbinary(255) NOT NULL,"
        " log varbinary(255) NOT NULL, {partition} integer NOT NULL,"
        " queue varbinary(255) NOT NULL, epoch bigint NOT NULL, next_position varchar(20),"
        " updated_at timestamp NOT NULL DEFAULT current_timestamp,"
        " PRIMARY KEY (sink, queue_id, log, {partition})"
    ),
}
# What an insert does if the row is there: nothing, but wait for it.
_UNLESS_THERE = {
    "postgresql": "ON CONFLICT DO NOTHING",
    MARIADB: "ON DUPLICATE KEY UPDATE epoch = epoch",
}


class HighWaters:
    """The SQL statements for one table, named with or without a schema (`a` or `schema.a`)."""

    def __init__(self, table: str) -> None:
        self.table = table

    def create(self, engine: Engine) -> None:
        """Create the table if it does not exist; concurrent calls are safe.

        If the table exists, this needs no right to create one. Raises InvalidSink if the engine has
        no transactions, or is of another database.
        """
        kind = database_of(engine.dialect)
        with engine.begin() as connection:
            if _is_autocommit(connection):
                raise InvalidSink(
                    "the sink's engine is in AUTOCOMMIT: data and high-water must be committed "
                    "together, so leave its isolation level as it is"
                )
            if has_table(connection, self.table):
                return
            if kind == "postgresql":
                lock = text("SELECT pg_advisory_xact_lock(:key)")
                connection.execute(lock, {"key": _CREATION_LOCK})
            ending = " ENGINE = InnoDB" if kind == MARIADB else ""
            connection.execute(
                self._sql(connection, f"CREATE TABLE IF NOT EXISTS {{}} ({_COLUMNS[kind]}){ending}")
            )

    @contextlib.contextmanager
    def locked(
        self, database: Database, limits: TransactionLimits, mark: HighWaterKey, partition: int
    ) -> Iterator[tuple[Connection, HighWater | None]]:
        """A transaction in which the high-water is locked against other writers until its end.

        None: nothing was written before. Afterwards the row exists, with epoch -1. Raises
        DBAPIError if another writer still holds the row after `transaction_seconds`.
        """
        give_up_at = time.monotonic() + limits.transaction_seconds
        with contextlib.ExitStack() as ending:
            while True:
                try:
                    with contextlib.ExitStack() as failing:
                        connection = failing.enter_context(database.transaction(limits))
                        with _limited_wait(connection, limits.idle_seconds):
                            found = self._lock(connection, mark, partition)
                        connection.exec_driver_sql("SAVEPOINT counterpoise")
                        ending.push(failing.pop_all())
                    break
                except DBAPIError as error:
                    if not _was_locked(error) or time.monotonic() > give_up_at:
                        raise
                database.end_frozen(self.table, limits)
            yield connection, found

    def _lock(self, connection: Connection, mark: HighWaterKey, partition: int) -> HighWater | None:
        key = _key(mark, partition)
        row = connection.execute(self._select(connection), key).one_or_none()
        if row is None:
            # A second insert waits until the first transaction ends, and finds its row.
            connection.execute(
                self._sql(
                    connection,
                    "INSERT INTO {} (sink, queue_id, log, {partition}, queue, epoch)"
                    " VALUES (:sink, :queue_id, :log, :partition, :queue, -1) "
                    + _UNLESS_THERE[database_of(connection.dialect)],
                ),
                {**key, "queue": mark.queue},
            )
            row = connection.execute(self._select(connection), key).one()
        return None if row.epoch < 0 else HighWater(row.epoch, row.next_position)

    def put(
        self, connection: Connection, mark: HighWaterKey, partition: int, to: HighWater
    ) -> None:
        """Set the row that is `locked`. Raises InvalidSink if that transaction has ended since.

        A statement does not show that: the next one begins another transaction, without the lock.
        After a deadlock MariaDB ends a transaction by itself. The savepoint ends with it.
        """
        try:
            connection.exec_driver_sql("RELEASE SAVEPOINT counterpoise")
        except DBAPIError as error:
            if not _codes(error) & _NO_SUCH_SAVEPOINT:
                raise
            raise InvalidSink(
                "the transaction of the fence has ended within write, so its rows are not "
                "committed with the high-water: write must not commit, roll back or (in MariaDB) "
                "change tables, and must not go on after a deadlock's error, but let it pass"
            ) from error
        changed = connection.execute(
            self._sql(
                connection,
                "UPDATE {} SET epoch = :epoch, next_position = :next, updated_at = now()"
                " WHERE sink = :sink AND queue_id = :queue_id AND log = :log"
                " AND {partition} = :partition",
            ),
            {**_key(mark, partition), "epoch": to.epoch, "next": to.next},
        )
        assert changed.rowcount == 1, "the row of the high-water is gone"

    def forget(self, engine: Engine, sink: str, queue: str) -> int:
        """Accept any next range as the first, except of older epochs. Returns how many rows."""
        self.create(engine)
        with engine.begin() as connection:
            return connection.execute(
                self._sql(
                    connection,
                    "UPDATE {} SET next_position = NULL, updated_at = now()"
                    " WHERE sink = :sink AND queue = :queue AND epoch >= 0",
                ),
                {"sink": sink, "queue": queue},
            ).rowcount

    def _select(self, connection: Connection) -> TextClause:
        return self._sql(
            connection,
            "SELECT epoch, next_position FROM {} WHERE sink = :sink AND queue_id = :queue_id"
            " AND log = :log AND {partition} = :partition FOR UPDATE",
        )

    def _sql(self, connection: Connection, statement: str) -> TextClause:
        partition = connection.dialect.identifier_preparer.quote_identifier("partition")
        return text(statement.format(quoted(connection, self.table), partition=partition))


def has_table(connection: Connection, name: str) -> bool:
    """Whether there is a table of this name, with or without a schema."""
    schema, _, table = name.rpartition(".")
    return inspect(connection).has_table(table, schema or None)


@contextlib.contextmanager
def _limited_wait(connection: Connection, seconds: float) -> Iterator[None]:
    """Within, a statement that waits so long for a row fails (`_was_locked`).

    MariaDB has its own limits. Of other drivers than psycopg's the error would not be known.
    """
    if not connection.dialect.driver.startswith("psycopg"):
        yield
        return
    change = text("SELECT current_setting('lock_timeout'), set_config('lock_timeout', :most, true)")
    before, _ = connection.execute(change, {"most": milliseconds(seconds)}).one()
    yield
    connection.execute(change, {"most": before})


def _was_locked(error: DBAPIError) -> bool:
    return _LOCK_NOT_AVAILABLE in _codes(error)


def _codes(error: DBAPIError) -> set[object]:
    """The state in SQL, and the number that MariaDB's drivers have as the first argument."""
    found = error.orig
    states = {getattr(found, "sqlstate", None), getattr(found, "pgcode", None)}
    return states | set(getattr(found, "args", ())[:1])


def _key(mark: HighWaterKey, partition: int) -> dict[str, str | int]:
    return {
        "sink": mark.sink,
        "queue_id": mark.queue_id,
        "log": mark.log,
        "partition": partition,
    }


def _is_autocommit(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    found = getattr(driver, "autocommit", False)
    return bool(driver.get_autocommit() if callable(found) else found)
