"""Tasks like on executors, in this process, on a real database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import Database
from counterpoise.spark.sink.writer import Task, write_ranges
from tests.counterpoise.spark.sink.mariadb import MariaDbServer, running_mariadb
from tests.counterpoise.spark.sink.places import MARK, Rows, batch


def insert(connection: Any, rows: pa.Table, scope: Any) -> None:
    """Appends to `result`; the id is assigned under the lock of the partition's high-water."""
    with connection.connection.driver_connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO result (partition, position, epoch, value) VALUES (%s, %s, %s, %s)",
            [
                (one["partition"], int(one["position"]), scope.epoch, one["value"])
                for one in rows.to_pylist()
            ],
        )


class Writing:
    """Attempts of tasks, and their results in the database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.task = Task(Database(url), "high_water", MARK, 0, {}, insert, None)
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE result (id bigserial PRIMARY KEY, partition int, position bigint,"
                " epoch int, value text)"
            )

    def write(
        self,
        ranges: Iterable[Slice],
        rows: Rows | Iterable[pa.RecordBatch],
        mine: Iterable[int] = (),
        **changes: Any,
    ) -> dict[int, str]:
        """One attempt of one task. Returns the outcome by partition."""
        task = replace(self.task, ranges={one.partition: one for one in ranges}, **changes)
        batches = [batch(rows)] if isinstance(rows, list) else rows
        return {
            line["partition"]: line["outcome"]
            for result in write_ranges(task, batches, mine)
            for line in result.to_pylist()
        }

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement).fetchall()

    def positions(self, partition: int) -> list[int]:
        """The written positions, in the order of writing."""
        return [
            at
            for (at,) in self.query(
                f"SELECT position FROM result WHERE partition = {partition} ORDER BY id"
            )
        ]

    def high_water(self) -> dict[int, tuple[int, str]]:
        rows = self.query("SELECT partition, epoch, next_position FROM high_water")
        return {partition: (epoch, after) for partition, epoch, after in rows}


@pytest.fixture
def writing(database_url: str) -> Writing:
    return Writing(database_url)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """One server for each process that runs tests."""
    with running_mariadb() as server:
        yield server


@pytest.fixture
def messages() -> Callable[..., list[tuple[int, int, str]]]:
    """Messages with unique values."""
    numbers = itertools.count()

    def make(partition: int, start: int, end: int) -> list[tuple[int, int, str]]:
        return [(partition, at, f"m{next(numbers)}") for at in range(start, end)]

    return make
