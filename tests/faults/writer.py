"""A process that writes through a fenced target what it owns, for the torture of sinks.

    python -m tests.faults.writer KIND WHERE AUTHORITY NAME SEED

It knows what it read from the authority at the beginning of its cycle. If it is frozen afterwards,
it writes under epochs that it has lost.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.spark.offsets import Slice
from tests.counterpoise.spark.sink.places import MariaDb, Place, Postgres, rows_of
from tests.faults.chains import Chained

MOST_MESSAGES = 400


class Owned(NamedTuple):
    """A partition as the authority has it. Its messages are [0, published)."""

    partition: int
    owner: str
    epoch: int
    position: int
    published: int


@dataclass(frozen=True)
class Authority:
    """Stands for the service: who owns what, and which positions are committed. A file."""

    path: Path

    def create(self, partitions: int) -> None:
        with closing(self._connect()) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "CREATE TABLE owned (partition INTEGER PRIMARY KEY, owner TEXT, epoch INTEGER,"
                " position INTEGER, published INTEGER)"
            )
            rows = [(one,) for one in range(partitions)]
            connection.executemany("INSERT INTO owned VALUES (?, '', 0, 0, 0)", rows)

    def owned(self) -> list[Owned]:
        with closing(self._connect()) as connection:
            return [*map(Owned._make, connection.execute("SELECT * FROM owned"))]

    def give(self, partition: int, owner: str) -> None:
        """Grant it, under the next epoch."""
        self._change("owner = ?, epoch = epoch + 1 WHERE partition = ?", owner, partition)

    def publish(self, partition: int, count: int) -> None:
        self._change("published = published + ? WHERE partition = ?", count, partition)

    def commit(self, partition: int, epoch: int, position: int) -> None:
        """Only by the owner."""
        where = "position = ? WHERE partition = ? AND epoch = ?"
        self._change(where, position, partition, epoch)

    def free(self) -> bool:
        """Whether no process holds it, not even to read: a frozen one would do so for ever."""
        with closing(sqlite3.connect(self.path, timeout=1)) as connection:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
            return True

    def _change(self, what: str, *parameters: object) -> None:
        with closing(self._connect()) as connection, connection:
            connection.execute(f"UPDATE owned SET {what}", parameters)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)


def place_of(kind: str, where: str) -> Place | Chained:
    """A new one, or one that is there."""
    by_url: dict[str, Callable[[str], Place | Chained]]
    by_url = {"postgres": Postgres, "mariadb": MariaDb, "queue": Chained}
    if kind in by_url:
        return by_url[kind](where)
    from tests.counterpoise.spark.sink.lakes import LAKES

    return LAKES[kind](Path(where))


def is_kept(partition: int, position: int) -> bool:
    """The filter, which leaves some ranges without a row."""
    return (position // 50 + partition) % 5 > 0


def main(arguments: Sequence[str]) -> None:
    kind, where, authority_path, name, seed = arguments
    authority, place = Authority(Path(authority_path)), place_of(kind, where)
    target: Any = place.target()
    rng = random.Random(seed)
    while True:
        ranges = []
        for own in authority.owned():
            end = min(own.published, own.position + rng.randint(1, MOST_MESSAGES))
            if own.owner == name and end > own.position:
                ranges.append(Slice(own.partition, own.epoch, str(own.position), str(end)))
        if not ranges:
            time.sleep(0.05)
            continue
        rows = [
            row
            for one in ranges
            for row in rows_of(one.partition, int(one.start), int(one.end))
            if is_kept(row[0], row[1])
        ]
        outcomes = place.write_at_last(ranges, rows, target=target)
        for one in ranges:
            # A line for the run, which reads them at its end.
            print(outcomes[one.partition], flush=True)
            if outcomes[one.partition] != "superseded":
                authority.commit(one.partition, one.epoch, int(one.end))


if __name__ == "__main__":
    main(sys.argv[1:])
