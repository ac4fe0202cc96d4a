"""Targets with the rows and high-waters that they hold, and micro-batches without Spark: databases
here, lakes in `lakes`.

`Place.target()` gives what one more application has: a connection or a table handle of its own.
"""

from __future__ import annotations

import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
from pyspark import cloudpickle
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from counterpoise.spark import FencedSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import TransactionLimits
from counterpoise.spark.sink.fence import HighWaterKey
from counterpoise.spark.sink.insert import Insert
from counterpoise.spark.sink.target import Line, MapRows, MicroBatch, RangeResult, Target
from counterpoise.spark.sink.transactions import Transactions
from counterpoise.spark.sink.writer import Task, write_ranges

Rows = Sequence[tuple[int, int, str]]
"""(partition, position, value)"""

COLUMNS = pa.schema([("partition", pa.int32()), ("position", pa.string()), ("value", pa.string())])
MARK = HighWaterKey("s", "q-1", "log-1", "flights")


def batch(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(COLUMNS.names, (p, str(at), value), strict=True)) for p, at, value in rows],
        COLUMNS,
    )


def rows_of(partition: int, start: int, end: int) -> list[tuple[int, int, str]]:
    return [(partition, at, f"p{partition}-{at}") for at in range(start, end)]


class LocalRows:
    """The rows of each task, made anew for each job, as Spark does. Functions travel as they do."""

    def __init__(
        self,
        ranges: Sequence[Slice],
        tasks: Sequence[Callable[[], Iterable[pa.RecordBatch]]],
        schema: pa.Schema = COLUMNS,
    ) -> None:
        self.schema = schema
        self._ranges = {one.partition: one for one in ranges}
        self._tasks = tasks

    def map(self, function: MapRows, schema: str) -> list[Line]:
        task = pickle.loads(cloudpickle.dumps(function))
        return _lines(result for rows in self._tasks for result in task(rows()))

    def map_partitions(
        self,
        make: Callable[[Mapping[int, Slice], tuple[tuple[int, ...], ...] | None], MapRows],
        schema: str,
    ) -> list[Line]:
        task = make(self._ranges, None)
        assert isinstance(task, Task)
        batches = itertools.chain.from_iterable(rows() for rows in self._tasks)
        return _lines(write_ranges(task, batches, self._ranges))


def _lines(results: Iterable[pa.RecordBatch]) -> list[Line]:
    return [line for result in results for line in result.to_pylist()]


class Place(ABC):
    """What is common; the rest is how to look into it from outside."""

    @abstractmethod
    def target(self) -> Target: ...

    @abstractmethod
    def sink(self, name: str, **settings: Any) -> FencedSink:
        """For a query."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """All rows of the result."""

    @abstractmethod
    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        """By partition of the queue `flights`. There must be one of this sink with one log."""

    def positions(self, partition: int) -> list[int]:
        """The written positions, each as often as it was written; in order, where none is known."""
        return sorted(int(one["position"]) for one in self.rows() if one["partition"] == partition)

    def write(
        self,
        ranges: Sequence[Slice],
        *tasks: Rows | Callable[[], Iterable[pa.RecordBatch]],
        mark: HighWaterKey = MARK,
        target: Target | None = None,
        **settings: Any,
    ) -> dict[int, str]:
        """One micro-batch of another application. Returns the outcomes."""
        results = self.results(ranges, *tasks, mark=mark, target=target, **settings)
        return {one.partition: one.outcome for one in results}

    def results(
        self,
        ranges: Sequence[Slice],
        *tasks: Rows | Callable[[], Iterable[pa.RecordBatch]],
        mark: HighWaterKey = MARK,
        target: Target | None = None,
        on_gap: Any = "fail",
        schema: pa.Schema = COLUMNS,
    ) -> list[RangeResult]:
        calls = [one if callable(one) else _batches(one) for one in tasks]
        rows = LocalRows(ranges, calls, schema)
        return (target or self.target()).write(MicroBatch(mark, 0, ranges, on_gap, rows))

    def write_at_last(
        self, ranges: Sequence[Slice], *tasks: Any, target: Target | None = None
    ) -> dict[int, str]:
        """As Spark does it: a task whose transaction was ended by the server is tried again."""
        try:
            return self.write(ranges, *tasks, target=target)
        except DBAPIError:
            return self.write(ranges, *tasks, target=target)


def _batches(rows: Rows) -> Callable[[], Iterable[pa.RecordBatch]]:
    return lambda: [batch(rows)]


class Postgres(Place):
    def __init__(self, url: str) -> None:
        self.url = url
        self._targets = itertools.count()
        self._create()

    def _create(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS result"
                " (id bigserial, partition int, position text, value text)"
            )

    def target(self) -> Target:
        write = Insert("result", ("partition", "position", "value"))
        target = Transactions(self.url, write, "high_water", TransactionLimits(idle_seconds=1))
        # A connection of its own, as in another process.
        target._database.key += f" {next(self._targets)}"
        return target

    def rows(self) -> list[dict[str, Any]]:
        rows = self._query("SELECT result.partition, position, value FROM result ORDER BY id")
        return [dict(zip(COLUMNS.names, row, strict=True)) for row in rows]

    def sink(self, name: str, **settings: Any) -> FencedSink:
        return FencedSink.to_table(
            self.url,
            "result",
            columns=COLUMNS.names,
            name=name,
            high_water="high_water",
            **settings,
        )

    def positions(self, partition: int) -> list[int]:
        """In the order of writing."""
        return [int(one["position"]) for one in self.rows() if one["partition"] == partition]

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        rows = self._query(
            "SELECT partition, epoch, next_position FROM high_water"
            f" WHERE sink = '{sink}' AND queue = 'flights'"
        )
        return {partition: (epoch, after) for partition, epoch, after in rows}

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement).fetchall()


class MariaDb(Postgres):
    """The same on MariaDB."""

    def _create(self) -> None:
        self._query(
            "CREATE TABLE IF NOT EXISTS result (id bigint AUTO_INCREMENT PRIMARY KEY,"
            " `partition` int, position text, value text) ENGINE = InnoDB"
        )

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        rows = self._query(
            "SELECT `partition`, epoch, next_position FROM high_water"
            f" WHERE sink = '{sink}' AND queue = 'flights'"
        )
        return {partition: (epoch, after) for partition, epoch, after in rows}

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        url = make_url(self.url)
        with (
            pymysql.connect(
                unix_socket=url.query["unix_socket"], user="root", database=url.database
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            rows = list(cursor.fetchall())
            connection.commit()
            return rows


def once(function: Callable[[], object]) -> Callable[[], None]:
    """Calls it only the first time."""
    left = [function]

    def call() -> None:
        if left:
            left.pop()()

    return call


def then(rows: Rows, act: Callable[[], object]) -> Callable[[], Iterator[pa.RecordBatch]]:
    """A task in which something happens behind its rows, before anything is committed."""

    def task() -> Iterator[pa.RecordBatch]:
        yield batch(rows)
        act()

    return task
