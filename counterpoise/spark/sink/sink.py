"""The sink that users pass to `foreachBatch`: the fence's surroundings in the driver."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from counterpoise.spark.channel.running_batch import RunningBatch, batches_by_queue
from counterpoise.spark.errors import InvalidRows, InvalidSink, SinkError
from counterpoise.spark.sink.batch import BatchRows
from counterpoise.spark.sink.database import MakeEngine, TransactionLimits
from counterpoise.spark.sink.fence import HighWaterKey, OnGap
from counterpoise.spark.sink.insert import Insert
from counterpoise.spark.sink.lake import COMMIT_SECONDS, TARGET_BYTES, Lake, NewColumns
from counterpoise.spark.sink.names import used_once
from counterpoise.spark.sink.target import MicroBatch, RangeResult, Target
from counterpoise.spark.sink.transactions import Transactions
from counterpoise.spark.sink.writer import Write

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame


logger = logging.getLogger("counterpoise.spark")

HIGH_WATER_TABLE = "counterpoise_high_water"


@dataclass(frozen=True)
class Report:
    """The outcome of one micro-batch: numbers of rows, and partitions of the queue, or of any of
    several.

    `dropped`: rows that were written before, or that the new owners of `superseded` write. `gaps`:
    ranges that were never written here and were accepted, as (partition, from, to).
    """

    batch_id: int
    written: int = 0
    dropped: int = 0
    superseded: tuple[int, ...] = ()
    gaps: tuple[tuple[int, str, str], ...] = ()


class FencedSink:
    """Writes each message exactly once, across all applications: `.foreachBatch(FencedSink(url,
    write, name=…))`. `to_table`, `to_delta` and `to_iceberg` append the rows to a table.

    `where`: the URL of a database (postgresql://…, mariadb://… or mysql://…; a secret, shown
    nowhere), or a function that makes a SQLAlchemy engine and is called on the executors; None:
    COUNTERPOISE_SINK_URL of this process.

    `write(connection, rows, scope)` is called on the executors with a `sqlalchemy.Connection` in
    the transaction of the fence, a `pyarrow.Table` of rows of one queue partition in the order of
    their positions, and a `Scope`. It may be called several times for one range, and must not
    commit.

    `name` tells apart the sinks of one database; all applications of a queue use the same.
    `on_gap`: `fail`, or `accept` a range that was never written here. `idle_seconds` and
    `transaction_seconds`: how long a transaction may be idle or take, and so how long a frozen
    writer can keep a partition from its successor. `retry_seconds`: how long an unavailable
    database is retried. `confirm_seconds`: when the fence has refused a range, how long the source
    may take to learn that it lost the partition.

    Raises InvalidSink.
    """

    def __init__(
        self,
        where: str | MakeEngine | None,
        write: Write,
        *,
        name: str,
        high_water: str = HIGH_WATER_TABLE,
        on_gap: OnGap = "fail",
        idle_seconds: float = 60.0,
        transaction_seconds: float = 600.0,
        retry_seconds: float = 30.0,
        confirm_seconds: float = 60.0,
    ) -> None:
        _needs("sqlalchemy", "sink")
        limits = TransactionLimits(idle_seconds, transaction_seconds, retry_seconds)
        self._begin(Transactions(where, write, high_water, limits), name, on_gap, confirm_seconds)

    @classmethod
    def to_table(
        cls,
        where: str | MakeEngine | None,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        name: str | None = None,
        high_water: str = HIGH_WATER_TABLE,
        on_gap: OnGap = "fail",
        idle_seconds: float = 60.0,
        transaction_seconds: float = 600.0,
        retry_seconds: float = 30.0,
        confirm_seconds: float = 60.0,
    ) -> FencedSink:
        """A sink that inserts `columns` into the columns of the same names of a table.

        Default: all columns of the rows except `replay` and `tenure`. Maps and structs become JSON
        (lists too, in MariaDB and in a column of JSON), and bytes become text where the table has
        text. The default `name` is the table's.
        """
        return cls(
            where,
            Insert(table, _chosen(columns)),
            name=name or table,
            high_water=high_water,
            on_gap=on_gap,
            idle_seconds=idle_seconds,
            transaction_seconds=transaction_seconds,
            retry_seconds=retry_seconds,
            confirm_seconds=confirm_seconds,
        )

    @classmethod
    def to_delta(
        cls,
        uri: str,
        *,
        name: str,
        columns: Sequence[str] | None = None,
        merge_on: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        new_columns: NewColumns = "refuse",
        target_bytes: int = TARGET_BYTES,
        on_gap: OnGap = "fail",
        commit_seconds: float = COMMIT_SECONDS,
        confirm_seconds: float = 60.0,
    ) -> FencedSink:
        """A sink that appends `columns` (default: as in `to_table`) to a Delta table.

        `uri` and `storage_options` are those of delta-rs, and shown nowhere. If there is no table,
        the first micro-batch creates it, partitioned by `partition_by`. `merge_on`: rows replace
        those with equal values in these columns, and pass the driver. `new_columns`: `refuse`
        columns that the table does not have, `ignore` them, or `add` them. `target_bytes`: a task
        begins another file after so many bytes of Arrow data. `commit_seconds`: how long a commit
        that others overtake is tried again.

        Raises InvalidSink; so does the first micro-batch, if the table cannot be written to.
        """
        _needs("deltalake", "delta")
        _one_of("new_columns", new_columns, NewColumns)
        from counterpoise.spark.sink.delta import DeltaLake

        table = DeltaLake(uri, dict(storage_options or {}), _tuple(partition_by), new_columns)
        target = Lake(table, _chosen(columns), _tuple(merge_on), target_bytes, commit_seconds)
        return cls._into(target, name, on_gap, confirm_seconds)

    @classmethod
    def to_iceberg(
        cls,
        catalog: Catalog | Mapping[str, str] | str,
        table: str,
        *,
        name: str,
        columns: Sequence[str] | None = None,
        merge_on: Sequence[str] = (),
        new_columns: NewColumns = "refuse",
        target_bytes: int = TARGET_BYTES,
        on_gap: OnGap = "fail",
        commit_seconds: float = COMMIT_SECONDS,
        confirm_seconds: float = 60.0,
    ) -> FencedSink:
        """A sink that appends to an Iceberg table (`namespace.name`).

        `catalog`: one of pyiceberg's, its properties, or its name in pyiceberg's configuration. A
        new table has no partitions. The rest is as in `to_delta`.
        """
        _needs("pyiceberg", "iceberg")
        _one_of("new_columns", new_columns, NewColumns)
        from counterpoise.spark.sink.iceberg import IcebergLake

        target = Lake(
            IcebergLake(catalog, table, new_columns),
            _chosen(columns),
            _tuple(merge_on),
            target_bytes,
            commit_seconds,
        )
        return cls._into(target, name, on_gap, confirm_seconds)

    @classmethod
    def _into(cls, target: Target, name: str, on_gap: OnGap, confirm_seconds: float) -> FencedSink:
        sink = cls.__new__(cls)
        sink._begin(target, name, on_gap, confirm_seconds)
        return sink

    def _begin(self, target: Target, name: str, on_gap: OnGap, confirm_seconds: float) -> None:
        if not name:
            raise InvalidSink("the sink needs a name: its high-water is kept under it")
        _one_of("on_gap", on_gap, OnGap)
        self.name = name
        self.last_report: Report | None = None
        self._target = target
        self._on_gap: OnGap = on_gap
        self._confirm_seconds = confirm_seconds

    def __repr__(self) -> str:
        return f"FencedSink(name={self.name!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; `foreachBatch` calls this.

        Raises InvalidRows, InvalidSink, SinkError, and what the tasks raise: a SinkError as
        it is, other errors as Spark's exception.
        """
        _check_columns(batch)
        with batches_by_queue(batch) as parts, contextlib.ExitStack() as names:
            for running, _ in parts:
                target = f"{running.planned.queue} {self._target.key}"
                names.enter_context(
                    used_once(type(self), self.name, target, running.run_id, batch_id)
                )
            reports = [self._write(running, rows, batch_id) for running, rows in parts]
        self.last_report = Report(
            batch_id,
            sum(one.written for one in reports),
            sum(one.dropped for one in reports),
            tuple(partition for one in reports for partition in one.superseded),
            tuple(gap for one in reports for gap in one.gaps),
        )

    def _write(self, running: RunningBatch, batch: DataFrame, batch_id: int) -> Report:
        """Write what was read of one queue."""
        planned = running.planned
        mark = HighWaterKey(self.name, planned.queue_id, planned.log, planned.queue)
        rows = BatchRows(batch, running)
        given = MicroBatch(mark, batch_id, planned.read, self._on_gap, rows)
        return self._finish(running, batch_id, self._target.write(given))

    def forget(self, queue: str) -> int:
        """Accept the next range of each partition as the first (docs, *Delivering again*).

        Call it while no application writes. Returns the number of partitions concerned.
        """
        return self._target.forget(self.name, queue)

    def _finish(
        self, running: RunningBatch, batch_id: int, results: Sequence[RangeResult]
    ) -> Report:
        missing = {one.partition for one in running.planned.read} - {r.partition for r in results}
        if missing:
            raise SinkError(f"no task has written the partitions {sorted(missing)}")
        superseded = [(one.partition, one.epoch) for one in results if one.outcome == "superseded"]
        gaps = sorted((one.partition, *one.gap) for one in results if one.gap is not None)
        report = Report(
            batch_id,
            sum(one.written for one in results),
            sum(one.dropped for one in results),
            tuple(sorted(partition for partition, _ in superseded)),
            tuple(gaps),
        )
        for gap in gaps:
            logger.warning(
                "counterpoise: sink %s: queue %s, partition %d: positions %s to %s were never "
                "written here; accepted (on_gap)",
                self.name,
                running.planned.queue,
                *gap,
            )
        for partition, epoch in superseded:
            logger.warning(
                "counterpoise: sink %s: queue %s, partition %d has a new owner, which has written "
                "already: its rows of micro-batch %d under epoch %d were dropped, the new owner "
                "reads them",
                self.name,
                running.planned.queue,
                partition,
                batch_id,
                epoch,
            )
        held = running.still_held(superseded, self._confirm_seconds)
        if held:
            raise SinkError(
                f"sink {self.name!r} has seen higher epochs than those under which this "
                f"application holds {', '.join(f'partition {p} (epoch {e})' for p, e in held)}, "
                f"and in {self._confirm_seconds:g} s the service has not said that they were "
                "lost. Start the query again if the service was away. If it was restored from a "
                "backup, 'counterpoise migrate --after-restore' must follow, which fences what was "
                f"granted since; without that, only {self._target.remedy} helps"
            )
        return report


def _needs(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InvalidSink(f"this sink needs {module}: pip install 'counterpoise[{extra}]'")


def _one_of(what: str, value: str, choices: object) -> None:
    if value not in get_args(choices):
        raise InvalidSink(f"{what} is one of {', '.join(get_args(choices))}, not {value!r}")


def _chosen(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else _tuple(columns)


def _tuple(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise InvalidSink(f"columns are a list of names, [{columns!r}] and not {columns!r}")
    return tuple(columns)


_SIDES = {f"{side}_{name}" for side in ("left", "right") for name in ("partition", "position")}
_PAIRS = (
    "a pair of aligned logs belongs to ranges of two partitions, which are restored and written "
    "one by one, so the fence cannot tell whether it was written before. Write pairs in a "
    "foreachBatch function to a table whose key is (left_partition, left_position, "
    "right_partition, right_position), and skip those that are there (INSERT … ON CONFLICT DO "
    "NOTHING, or MERGE). Or write both sides with FencedSink, and join the tables. Do not name the "
    "columns of one side partition and position: pairs would be missing. See docs/aligned.md, A "
    "join in Spark"
)


def _check_columns(batch: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in batch.schema.fields}
    if types.keys() >= _SIDES and "position" not in types:
        raise InvalidRows(_PAIRS)
    wrong = []
    if types.get("partition") not in ("int", "bigint"):
        wrong.append("partition (int)")
    if types.get("position") != "string":
        wrong.append("position (string)")
    if wrong:
        raise InvalidRows(
            f"the rows have no column {' and no column '.join(wrong)}: the fence needs them, so "
            "pass those of the source through, as in select('partition', 'position', …). Rows "
            "made of several messages have none: aggregate within the sink's write function, or "
            "with FencedAggregate"
        )
