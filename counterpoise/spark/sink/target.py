"""The port of the sink: a target changes rows and high-waters together, or neither.

A target gets the ranges of a micro-batch and a way to its rows (`MicroBatch`). For each range it
reads the high-water, lets `fence.judge` decide, and commits the rows still to be written with the
new high-water. Nothing may come in between: a database holds a lock meanwhile (`transactions`), a
lake refuses a commit if the table has changed since it was read (`lake`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from counterpoise.spark.sink.fence import HighWaterKey, OnGap, Outcome

if TYPE_CHECKING:
    from counterpoise.spark.offsets import Slice

# Work on the rows of one of Spark's tasks. It travels to the executors.
MapRows = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What became of a range: numbers of rows. `gap`: never written here, and accepted."""

    partition: int
    epoch: int
    outcome: Outcome
    written: int
    dropped: int
    gap: tuple[str, str] | None = None


class Rows(Protocol):
    """The rows of a micro-batch, which stay on the executors."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, without those that the sink keeps to itself."""

    def map(self, function: MapRows, schema: str) -> list[Line]:
        """Apply it to the rows of each task, which come in any order. Returns all lines."""

    def map_partitions(
        self,
        make: Callable[[Mapping[int, Slice], tuple[tuple[int, ...], ...] | None], MapRows],
        schema: str,
    ) -> list[Line]:
        """Apply what `make` gives to the rows, those of a queue partition in one task and in the
        order of positions. Each range gives a line, also if it has no rows.

        `make` gets the ranges, and the partitions of each of Spark's tasks (None: any).
        """


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch for a target. `ranges`: those that were read, one for each partition."""

    mark: HighWaterKey
    batch_id: int
    ranges: Sequence[Slice]
    on_gap: OnGap
    rows: Rows


class Target(Protocol):
    """A place for results."""

    key: str
    """Identifies the place; shows nothing of its secrets."""
    remedy: str
    """What makes the target forget the epochs of a sink and queue, for an error's text."""

    def write(self, batch: MicroBatch) -> list[RangeResult]:
        """Write what is still to be written. Returns one result for each range.

        Raises SinkGap, InvalidRows, and what the tasks raise (as Spark's exception).
        """

    def forget(self, sink: str, queue: str) -> int:
        """Accept any next range as the first, except of older epochs. Returns how many
        partitions this concerns.
        """
