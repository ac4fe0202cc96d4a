"""Under which publisher and sequence a row is appended: how the log knows a repeated row.

A log drops what is at or below the newest sequence of a publisher (`counterpoise.logs.port`,
promise 3). So a row needs a name that it has again when it is repeated:

| numbering | publisher, sequence | the same row has it again |
|---|---|---|
| `ByPosition` | name, queue id, log and partition of the input; the position there | always |
| `ByRow` | query or job, and task; micro-batch, and place in the task | in a task that repeats it |
| `AtLeastOnce` | a random one for each process of tasks; counted on | never |
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.spark.errors import InvalidRows

ROW_BITS = 26
"""A task appends fewer than 2^26 rows of one micro-batch."""
_LARGEST = 2**53
"""Sequences are below it in every log."""

Names = Iterator[tuple[str, int]]
"""A publisher and a sequence for each row."""


class Numbering(Protocol):
    """Names the rows of one attempt of a task, batch after batch."""

    def names(self, rows: pa.RecordBatch) -> Names:
        """The names of these rows. Raises InvalidRows."""
        ...


@dataclass(frozen=True)
class Input:
    """The queue that the rows were read from: its id, and the incarnation of its log."""

    queue_id: str
    log: str


class ByPosition:
    """By the position of the message that a row was made of.

    Rows of one partition of the input come together and in the order of their positions. So a
    higher position never passes a lower one that is still to come, which the log would then drop.
    """

    def __init__(self, name: str, source: Input) -> None:
        self._prefix = f"{name}/{source.queue_id}/{source.log}"
        self._partition: int | None = None
        self._position = -1
        self._done: set[int] = set()

    def names(self, rows: pa.RecordBatch) -> Names:
        partitions = rows.column("partition").to_pylist()
        for partition, position in zip(partitions, _positions(rows), strict=True):
            if partition != self._partition:
                self._begin(partition)
            if position is None or position < self._position:
                raise InvalidRows(
                    f"a row of partition {partition} has the position {position} after "
                    f"{self._position}: {TOGETHER}"
                )
            self._position = position
            yield f"{self._prefix}/{partition}", position

    def _begin(self, partition: int | None) -> None:
        if partition is None or partition in self._done:
            raise InvalidRows(f"the rows of partition {partition} are not together: {TOGETHER}")
        if self._partition is not None:
            self._done.add(self._partition)
        self._partition, self._position = partition, -1


TOGETHER = (
    "pass the source's columns partition and position through unchanged, and change the order of "
    "the rows with QueueSink only, which brings them together again"
)


def _positions(rows: pa.RecordBatch) -> list[int | None]:
    try:
        positions: list[int | None] = pc.cast(rows.column("position"), pa.int64()).to_pylist()
    except pa.ArrowInvalid as error:
        raise InvalidRows(f"a row's position is not one of a queue's log: {error}") from None
    return positions


class ByRow:
    """By the place of a row among those of its task, in micro-batch number `batch_id`."""

    def __init__(self, publisher: str, batch_id: int = 0) -> None:
        first = batch_id << ROW_BITS
        if first >= _LARGEST:
            raise InvalidRows(
                f"micro-batch {batch_id} is beyond what a log can count: start the query again "
                "with a new checkpointLocation"
            )
        self._names = ((publisher, sequence) for sequence in count(first))
        self._left = 2**ROW_BITS

    def names(self, rows: pa.RecordBatch) -> Names:
        self._left -= rows.num_rows
        if self._left < 0:
            raise InvalidRows(
                f"a task has more than {2**ROW_BITS} rows: use more tasks (repartition) or smaller "
                "micro-batches"
            )
        return islice(self._names, rows.num_rows)


class AtLeastOnce:
    """For rows without a name of their own: nothing of them is dropped.

    The publisher is this process, which runs one task at a time. One for each task would fill the
    log with publishers.
    """

    def names(self, rows: pa.RecordBatch) -> Names:
        publisher, sequences = _of_process(os.getpid())
        return ((publisher, next(sequences)) for _ in range(rows.num_rows))


@functools.cache
def _of_process(process: int) -> tuple[str, Iterator[int]]:
    return uuid.uuid4().hex, count()
