"""The target that is a database: each range is written in a transaction, on an executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from counterpoise.spark.sink.database import Database, MakeEngine, TransactionLimits
from counterpoise.spark.sink.target import Line, MapRows, MicroBatch, RangeResult
from counterpoise.spark.sink.writer import RESULT_SCHEMA, Task, Write

if TYPE_CHECKING:
    from counterpoise.spark.offsets import Slice


class Transactions:
    """PostgreSQL, MariaDB or MySQL. `table`: the high-waters. Raises InvalidSink."""

    def __init__(
        self, where: str | MakeEngine | None, write: Write, table: str, limits: TransactionLimits
    ) -> None:
        self._database = Database(where)
        self._write = write
        self._table = table
        self._limits = limits
        self.key = f"{self._database.key} {table}"
        self.remedy = f"deleting the rows of this sink and queue from the table {table}"

    def write(self, batch: MicroBatch) -> list[RangeResult]:
        """The target's own."""

        def task(ranges: Mapping[int, Slice], tasks: tuple[tuple[int, ...], ...] | None) -> MapRows:
            return Task(
                self._database,
                self._table,
                batch.mark,
                batch.batch_id,
                ranges,
                self._write,
                tasks,
                batch.on_gap,
                self._limits,
            )

        return [_result(line) for line in batch.rows.map_partitions(task, RESULT_SCHEMA)]

    def forget(self, sink: str, queue: str) -> int:
        """The target's own."""
        from counterpoise.spark.sink.highwater import HighWaters

        return HighWaters(self._table).forget(self._database.engine(), sink, queue)


def _result(line: Line) -> RangeResult:
    return RangeResult(
        line["partition"],
        line["epoch"],
        line["outcome"],
        line["written"],
        line["dropped"],
        None if line["gap_from"] is None else (line["gap_from"], line["gap_to"]),
    )
