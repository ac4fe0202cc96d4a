"""State of `foreachBatch` that outlives its owner: warm before a partition comes, then exact.

Docs: *Warm-up*, *Snapshots*. Two threads use the states: Spark's, in which `foreachBatch` is
called, and the one of `tending`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.errors import ServiceUnavailable
from counterpoise.logs import LogNotFound, LogUnavailable, PositionAhead
from counterpoise.logs.patience import Patience
from counterpoise.spark.errors import InvalidSchema
from counterpoise.spark.plan.offsets import Slice
from counterpoise.spark.plan.options import SourceOptions, read_options
from counterpoise.spark.sink.batch import RunningBatch
from counterpoise.spark.tasks.executor import ARROW_SCHEMA
from counterpoise.spark.warmup.snapshots import SnapshotStore
from counterpoise.spark.warmup.state import Cell, PartitionState
from counterpoise.spark.warmup.states import States
from counterpoise.spark.warmup.tending import Tending

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("counterpoise.spark")

S = TypeVar("S")


@dataclass(frozen=True)
class Output:
    """What `apply` returned for the rows [start, end) of a partition; None: there were no rows."""

    partition: int
    epoch: int
    start: str
    end: str
    value: Any


class StatefulForeachBatch(Generic[S]):
    """A function for `foreachBatch` that keeps a state for each partition.

    `options`: those of the source (queue, url, logUrl, ...); with several queries on one queue in
    this application, they must include `instanceId`. `write(outputs, batch_id)` is called once for
    each micro-batch, with what `apply` returned for each partition. If it raises, the query fails,
    and the states are restored when the query runs again. `publish_seconds`: how often the state of
    a partition is published while it is processed here (its micro-batches wait while `dump` fills
    memory, but not for the disk). `without_snapshot`: rebuild a state from the log, or begin
    `empty`.

    The stream must be the source's own, not filtered or changed: history is read from the log
    directly, not through Spark.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        state: PartitionState[S],
        write: Callable[[Sequence[Output], int], object],
        *,
        snapshots: SnapshotStore,
        publish_seconds: float = 60.0,
        without_snapshot: Literal["replay", "empty"] = "replay",
    ) -> None:
        """Raises InvalidOption. Makes no call to service or log before a state is needed."""
        self._options: SourceOptions = read_options(options)
        self._how = state
        self._write = write
        self._states = States(self._options, state, snapshots, without_snapshot)
        self._tending = Tending(self._options, self._states, publish_seconds)
        self._tending.start()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        running = RunningBatch.of(batch)
        self._tending.channel = running.channel
        table = rows_of(batch)
        planned = running.planned.read
        with contextlib.ExitStack() as held:
            cells = [(one, self._prepared(one, held)) for one in planned]
            outputs = []
            for one, cell in cells:
                rows = table.filter(pc.equal(table["partition"], one.partition))
                cell.clean = False
                state: Any = cell.state
                value = self._how.apply(state, rows) if rows.num_rows else None
                outputs.append(Output(one.partition, one.epoch, one.start, one.end, value))
            self._write(outputs, batch_id)
            for one, cell in cells:
                cell.position, cell.clean = one.end, True

    def _prepared(self, one: Slice, held: contextlib.ExitStack) -> Cell[S]:
        """The partition's cell, locked, with its state at the start of the range."""
        cell = self._states.cell(one.partition)
        held.enter_context(cell.lock)
        goes_on = cell.epoch == one.epoch - 1 and cell.position == one.start
        if cell.epoch is not None and cell.epoch != one.epoch and not goes_on:
            cell.drop()  # of another tenure
        cell.epoch = one.epoch
        patience = Patience(self._options.read_timeout_seconds)
        while True:
            try:
                self._states.bring_to(cell, one.start)
                return cell
            except (LogUnavailable, ServiceUnavailable, LogNotFound, PositionAhead) as error:
                pause = patience.pause_after(error)
                if pause is None:
                    raise
                logger.warning("counterpoise: the state of partition %d: %s", one.partition, error)
                time.sleep(pause)

    def close(self) -> None:
        """Publish the states and stop. Call it when the query has stopped."""
        if self._tending.close():
            self._states.close()


def rows_of(batch: DataFrame) -> pa.Table:
    """The micro-batch as rows of the source. Raises InvalidSchema if its columns were changed."""
    if batch.columns != ARROW_SCHEMA.names:
        raise InvalidSchema(
            "StatefulForeachBatch needs the unchanged stream of the source, with the columns "
            f"{', '.join(ARROW_SCHEMA.names)}, not {', '.join(batch.columns)}: history is "
            "read from the log directly, so select and filter within apply"
        )
    return batch.toArrow().cast(ARROW_SCHEMA)
