"""A target of each kind, with the rows and high-waters that it holds, and micro-batches without
Spark.

`Place.target()` gives what one more application has: a connection or a table handle of its own.
"""

from __future__ import annotations

import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyspark import cloudpickle
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from counterpoise.spark import FencedSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import TransactionLimits
from counterpoise.spark.sink.delta import DeltaLake
from counterpoise.spark.sink.fence import HighWaterKey
from counterpoise.spark.sink.iceberg import IcebergLake
from counterpoise.spark.sink.insert import Insert
from counterpoise.spark.sink.lake import COMMIT_SECONDS, TARGET_BYTES, Lake
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


class Delta(Place):
    """In a directory, of this machine or (by its URI) of an object store."""

    def __init__(self, directory: Path | str, options: Mapping[str, str] | None = None) -> None:
        self.uri = f"{directory}/delta"
        self.options = dict(options or {})

    def target(
        self,
        *,
        columns: tuple[str, ...] | None = None,
        partition_by: tuple[str, ...] = (),
        keys: tuple[str, ...] = (),
        new_columns: Any = "refuse",
        target_bytes: int = TARGET_BYTES,
    ) -> Target:
        table = DeltaLake(self.uri, self.options, partition_by, new_columns)
        return Lake(table, columns, keys, target_bytes, COMMIT_SECONDS)

    def sink(self, name: str, **settings: Any) -> FencedSink:
        return FencedSink.to_delta(self.uri, name=name, storage_options=self.options, **settings)

    def table(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    def rows(self) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.uri, storage_options=self.options):
            return []
        rows: list[dict[str, Any]] = self.table().to_pyarrow_table().to_pylist()
        return rows

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        table = self.table()
        table.create_checkpoint()  # has all of them
        path = f"_delta_log/{table.version():020}.checkpoint.parquet"
        files = PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        found = pq.read_table(path, columns=["txn"], filesystem=files).column("txn").to_pylist()
        versions = {one["appId"]: one["version"] for one in found if one is not None}
        marks = {}
        for name, epoch in versions.items():
            if (parts := name.split("/"))[:2] == [sink, "flights"] and parts[5] == "epoch":
                after = versions["/".join([*parts[:5], "next"])]
                marks[int(parts[4])] = (epoch, None if after == -1 else str(after))
        return marks


class Iceberg(Place):
    """In a directory of this machine, with a catalog in a file; or in the catalog with these
    properties.
    """

    def __init__(
        self, directory: Path, properties: Mapping[str, str] | None = None, name: str = "db.events"
    ) -> None:
        self.name = name
        self.properties = properties or {
            "type": "sql",
            "uri": f"sqlite:///{directory / 'catalog.db'}",
            "warehouse": f"file://{directory / 'warehouse'}",
        }
        self.catalog().create_namespace_if_not_exists("db")

    def catalog(self) -> Catalog:
        return load_catalog(**self.properties)

    def target(
        self,
        *,
        columns: tuple[str, ...] | None = None,
        keys: tuple[str, ...] = (),
        new_columns: Any = "refuse",
        target_bytes: int = TARGET_BYTES,
    ) -> Target:
        table = IcebergLake(self.properties, self.name, new_columns)
        return Lake(table, columns, keys, target_bytes, COMMIT_SECONDS)

    def sink(self, name: str, **settings: Any) -> FencedSink:
        return FencedSink.to_iceberg(self.properties, self.name, name=name, **settings)

    def table(self) -> Any:
        return self.catalog().load_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        if not self.catalog().table_exists(self.name):
            return []
        rows: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return rows

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        marks = {}
        for name, text in self.table().properties.items():
            if (parts := name.split("."))[:3] == ["counterpoise", sink, "flights"]:
                epoch, after = text.split(":")
                marks[int(parts[5])] = (int(epoch), after or None)
        return marks


LAKES: dict[str, Callable[[Path], Delta | Iceberg]] = {"delta": Delta, "iceberg": Iceberg}


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
