"""The sink of the demo's applications: statistics, and the journal for the verdict.

One SQLite file serves all applications; every micro-batch is one transaction, so a SIGKILL leaves
all of it or nothing. Any database with transactions would serve.

The **journal** gets every message that Spark delivered, in the order of the transactions: it is
append-only and has no unique constraint, so every repetition is visible.

The **statistics** are exact although messages are delivered again after a crash. In the same
transaction as the statistics the sink stores, for each partition, the highest epoch that has
written and the last counted position:

- a slice with a lower epoch is refused: its writer lost the partition and does not know it yet, and
  the messages belong to the new owner (the contract, *What must never happen*, 2);
- a message at or below the last position is journaled but not counted again: an application was
  killed after this transaction and before its commit at the service, so its successor read the
  messages again.

A sink needs this fence for exactly-once results. `fenced=False` leaves it out; the verdict must
notice this sabotage.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from broker.demo.work.flights import Flight, Statistics

LOCK_TIMEOUT_SECONDS = 30.0

_STATISTICS_COLUMNS = [field.name for field in fields(Statistics)]
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    flight TEXT NOT NULL, aircraft TEXT, sequence INTEGER,
    partition INTEGER NOT NULL, position INTEGER NOT NULL, epoch INTEGER NOT NULL,
    application TEXT NOT NULL, batch INTEGER NOT NULL,
    published_at REAL NOT NULL, time REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS progress (
    partition INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, position INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS statistics (
    aircraft TEXT PRIMARY KEY, {", ".join(f"{name} NOT NULL" for name in _STATISTICS_COLUMNS)}
);
CREATE TABLE IF NOT EXISTS refused (
    partition INTEGER NOT NULL, epoch INTEGER NOT NULL, messages INTEGER NOT NULL,
    application TEXT NOT NULL, batch INTEGER NOT NULL, time REAL NOT NULL
);
"""


class FlightMessage(NamedTuple):
    """A flight as it came from the queue. `published_at` in Unix seconds."""

    position: int
    flight: Flight
    published_at: float


@dataclass(frozen=True, slots=True)
class FlightSlice:
    """The messages of one partition in one micro-batch, in the order of Spark's delivery."""

    partition: int
    epoch: int
    messages: Sequence[FlightMessage]


class JournalEntry(NamedTuple):
    """One line of the journal. Times in Unix seconds; `time` is when the transaction wrote it."""

    flight: str
    aircraft: str | None
    sequence: int | None
    partition: int
    position: int
    epoch: int
    application: str
    batch: int
    published_at: float
    time: float


class Sink:
    """The writer, one for each application. Each message is counted once."""

    def __init__(self, path: Path, application: str, *, fenced: bool = True) -> None:
        self._connection = _open(path)
        self._application = application
        self._fenced = fenced

    def write(self, batch: int, slices: Iterable[FlightSlice]) -> int:
        """Journal and count a micro-batch in one transaction; how many messages were journaled."""
        written = 0
        with _transaction(self._connection):
            for part in slices:
                epoch, position = self._progress(part.partition)
                if self._fenced and part.epoch < epoch:
                    self._refuse(batch, part)
                    continue
                self._journal(batch, part)
                written += len(part.messages)
                fresh = [m for m in part.messages if not self._fenced or m.position > position]
                self._count([message.flight for message in fresh])
                self._advance(part, max([position, *(m.position for m in fresh)]))
        return written

    def close(self) -> None:
        self._connection.close()

    def _progress(self, partition: int) -> tuple[int, int]:
        """The highest epoch that wrote to this partition and the last position counted."""
        row = self._connection.execute(
            "SELECT epoch, position FROM progress WHERE partition = ?", [partition]
        ).fetchone()
        return (row[0], row[1]) if row else (-1, -1)

    def _advance(self, part: FlightSlice, position: int) -> None:
        self._connection.execute(
            "INSERT INTO progress VALUES (?, ?, ?) ON CONFLICT (partition) DO UPDATE"
            " SET epoch = excluded.epoch, position = excluded.position",
            [part.partition, part.epoch, position],
        )

    def _refuse(self, batch: int, part: FlightSlice) -> None:
        self._connection.execute(
            "INSERT INTO refused VALUES (?, ?, ?, ?, ?, ?)",
            [
                part.partition,
                part.epoch,
                len(part.messages),
                self._application,
                batch,
                time.time(),
            ],
        )

    def _journal(self, batch: int, part: FlightSlice) -> None:
        now = time.time()
        self._connection.executemany(
            "INSERT INTO journal (flight, aircraft, sequence, partition, position, epoch,"
            " application, batch, published_at, time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                JournalEntry(
                    flight=flight.flight,
                    aircraft=flight.aircraft,
                    sequence=flight.sequence,
                    partition=part.partition,
                    position=position,
                    epoch=part.epoch,
                    application=self._application,
                    batch=batch,
                    published_at=published_at,
                    time=now,
                )
                for position, flight, published_at in part.messages
            ),
        )

    def _count(self, flights: Sequence[Flight]) -> None:
        statistics: dict[str, Statistics] = {}
        for flight in flights:
            aircraft = flight.aircraft or ""
            if aircraft not in statistics:
                statistics[aircraft] = self._load(aircraft)
            count(statistics[aircraft], flight)
        marks = ", ".join("?" * (1 + len(_STATISTICS_COLUMNS)))
        self._connection.executemany(
            f"INSERT OR REPLACE INTO statistics VALUES ({marks})",
            [(aircraft, *astuple(of)) for aircraft, of in statistics.items()],
        )

    def _load(self, aircraft: str) -> Statistics:
        row = self._connection.execute(
            "SELECT * FROM statistics WHERE aircraft = ?", [aircraft]
        ).fetchone()
        return Statistics(*row[1:]) if row else Statistics()


class Record:
    """The reader, for the display and the verdict."""

    def __init__(self, path: Path) -> None:
        self._connection = _open(path)

    def messages(self) -> int:
        """How many messages have been journaled, repeated ones included."""
        (count,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()
        return int(count)

    def counted(self) -> int:
        """How many flights are in the statistics."""
        (count,) = self._connection.execute(
            "SELECT coalesce(sum(flights), 0) FROM statistics"
        ).fetchone()
        return int(count)

    def next_positions(self) -> dict[int, int]:
        """By partition: the position after the last counted one."""
        rows = self._connection.execute("SELECT partition, position + 1 FROM progress")
        return dict(rows.fetchall())

    def last_write(self, application: str) -> int:
        """A number that grows with every journaled message of this application; 0 before."""
        (last,) = self._connection.execute(
            "SELECT coalesce(max(id), 0) FROM journal WHERE application = ?", [application]
        ).fetchone()
        return int(last)

    def messages_after(self, entry: int) -> tuple[dict[str, int], int]:
        """By application, the number of messages journaled after this entry; and the last entry."""
        rows = self._connection.execute(
            "SELECT application, count(*), max(id) FROM journal WHERE id > ? GROUP BY application",
            [entry],
        ).fetchall()
        return {name: count for name, count, _ in rows}, max(
            (row[2] for row in rows), default=entry
        )

    def journal(self) -> Iterator[JournalEntry]:
        """The whole journal, in the order of the transactions."""
        rows = self._connection.execute(
            f"SELECT {', '.join(JournalEntry._fields)} FROM journal ORDER BY id"
        )
        return map(JournalEntry._make, rows)

    def statistics(self) -> dict[str, Statistics]:
        """By aircraft; "" for the keyless flights."""
        rows = self._connection.execute("SELECT * FROM statistics")
        return {aircraft: Statistics(*values) for aircraft, *values in rows}

    def refused(self) -> int:
        """How many messages the fence refused, because their writer had lost the partition."""
        (count,) = self._connection.execute(
            "SELECT coalesce(sum(messages), 0) FROM refused"
        ).fetchone()
        return int(count)

    def close(self) -> None:
        self._connection.close()


def count(statistics: Statistics, flight: Flight) -> None:
    """Add one flight, the next of its aircraft."""
    statistics.flights += 1
    statistics.distance_miles += flight.distance
    statistics.air_time_minutes += flight.air_time or 0
    if flight.departure_delay is not None:
        statistics.departures += 1
        statistics.departure_delay_minutes += flight.departure_delay
    if flight.arrival_delay is not None:
        statistics.arrivals += 1
        statistics.arrival_delay_minutes += flight.arrival_delay
    if flight.aircraft is not None:
        if statistics.last_origin not in ("", flight.origin):
            statistics.airport_changes += 1
        statistics.last_origin = flight.origin
        statistics.last_flight = flight.flight


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.executescript(_SCHEMA)
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE: rows read before writing cannot change before the commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
