"""The table of high-waters in the target database.

PostgreSQL: the fence needs row locks, an insert that waits for a concurrent insert, and
`idle_in_transaction_session_timeout`, which stops a frozen writer from holding a row for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, TextClause, quoted_name, text

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.fence import HighWater

# The key of an advisory lock; any number works if nothing else uses it. Creators of the table wait
# for each other.
_CREATION_LOCK = 0x636F756E746572


@dataclass(frozen=True, slots=True)
class HighWaterKey:
    """Names the high-waters of one sink, queue and log; the partition completes the key."""

    sink: str
    queue_id: str
    log: str
    queue: str


class HighWaters:
    """The SQL statements for one table, named with or without a schema (`a` or `schema.a`)."""

    def __init__(self, table: str) -> None:
        self.table = table

    def create(self, engine: Engine) -> None:
        """Create the table if it does not exist; concurrent calls are safe.

        If the table exists, this needs no right to create one. Raises InvalidSink if the engine has
        no transactions, or is not PostgreSQL's.
        """
        if engine.dialect.name != "postgresql":
            raise InvalidSink(
                f"the sink writes to PostgreSQL (postgresql://…), not to {engine.dialect.name}"
            )
        with engine.begin() as connection:
            if _is_autocommit(connection):
                raise InvalidSink(
                    "the sink's engine is in AUTOCOMMIT: data and high-water must be committed "
                    "together, so leave its isolation level as it is"
                )
            quoted = self._quoted(connection)
            if connection.scalar(text("SELECT to_regclass(:name)"), {"name": quoted}) is not None:
                return
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
            connection.execute(
                text(
                    f"CREATE TABLE IF NOT EXISTS {quoted} ("
                    " sink text NOT NULL, queue_id text NOT NULL, log text NOT NULL,"
                    " partition integer NOT NULL, queue text NOT NULL, epoch bigint NOT NULL,"
                    " next_position text, updated_at timestamptz NOT NULL DEFAULT now(),"
                    " PRIMARY KEY (sink, queue_id, log, partition))"
                )
            )

    def lock(self, connection: Connection, mark: HighWaterKey, partition: int) -> HighWater | None:
        """The high-water, locked against other readers for update until the transaction ends.

        None: nothing was written before. Afterwards the row exists, with epoch -1.
        """
        key = _key(mark, partition)
        row = connection.execute(self._select(connection), key).one_or_none()
        if row is None:
            # A second insert waits until the first transaction ends, and finds its row.
            connection.execute(
                self._sql(
                    connection,
                    "INSERT INTO {} (sink, queue_id, log, partition, queue, epoch)"
                    " VALUES (:sink, :queue_id, :log, :partition, :queue, -1)"
                    " ON CONFLICT DO NOTHING",
                ),
                {**key, "queue": mark.queue},
            )
            row = connection.execute(self._select(connection), key).one()
        return None if row.epoch < 0 else HighWater(row.epoch, row.next_position)

    def put(
        self, connection: Connection, mark: HighWaterKey, partition: int, to: HighWater
    ) -> None:
        """Set the row that `lock` has locked."""
        connection.execute(
            self._sql(
                connection,
                "UPDATE {} SET epoch = :epoch, next_position = :next, updated_at = now()"
                " WHERE sink = :sink AND queue_id = :queue_id AND log = :log"
                " AND partition = :partition",
            ),
            {**_key(mark, partition), "epoch": to.epoch, "next": to.next},
        )

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
            " AND log = :log AND partition = :partition FOR UPDATE",
        )

    def _sql(self, connection: Connection, statement: str) -> TextClause:
        return text(statement.format(self._quoted(connection)))

    def _quoted(self, connection: Connection) -> str:
        return quoted(connection, self.table)


def quoted(connection: Connection, name: str) -> str:
    """A table's name, with or without a schema, quoted for a statement."""
    quote = connection.dialect.identifier_preparer.quote
    return ".".join(quote(quoted_name(part, quote=True)) for part in name.split("."))


def _key(mark: HighWaterKey, partition: int) -> dict[str, str | int]:
    return {
        "sink": mark.sink,
        "queue_id": mark.queue_id,
        "log": mark.log,
        "partition": partition,
    }


def _is_autocommit(connection: Connection) -> bool:
    driver = connection.connection.driver_connection
    return bool(getattr(driver, "autocommit", False))
