"""Ranges of a log: how far a lane may be read, and the messages of a range."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from counterpoise.consumer.lane import Chunk, Lane
from counterpoise.flow.barriers import within
from counterpoise.logs import Bounds, Log, PositionTrimmed


@dataclass(frozen=True)
class Read:
    """Messages from `start` up to `reached`."""

    start: str
    batch: pa.RecordBatch
    reached: str

    def fits(self, messages: int) -> bool:
        return bool(self.batch.num_rows <= messages)


def end_of(bounds: Bounds, lane: Lane, start: str) -> str:
    """How far an ordered resize lets the lane be read, which need not be the partition's end."""
    number = lane.partition
    return within(bounds, {number: lane.grant.owned}, {number: start}).ends[number]


def read_range(
    log: Log, partition: int, start: str, end: str, max_messages: int, max_bytes: int
) -> tuple[list[Chunk], str]:
    """At most `max_messages` of [start, end), and the position up to which they are complete.

    Not much more than `max_bytes` in memory, but at least one message if there is any.
    """
    batches: list[pa.RecordBatch] = []
    memory_bytes = 0
    try:
        for batch in log.read(
            partition, start, end, max_messages=max_messages + 1, max_bytes=max_bytes
        ):
            batches.append(batch)
            # Keys and headers take memory too, and may be larger than values.
            memory_bytes += batch.nbytes
            if memory_bytes >= max_bytes:
                break
    except PositionTrimmed as gone:
        # Messages before the gap are handled first. Reading at the gap then raises again.
        if not batches:
            raise
        return _chunks(batches, gone.position), gone.position
    count = sum(batch.num_rows for batch in batches)
    if count <= max_messages and memory_bytes < max_bytes:
        return _chunks(batches, end), end
    if count == 1:  # one large message: what is the position after it?
        batches = list(log.read(partition, start, end, max_messages=2))
        count = sum(batch.num_rows for batch in batches)
        if count == 1:
            return _chunks(batches, end), end
    following: str = batches[-1].column("position")[-1].as_py()
    last = batches.pop()
    if last.num_rows > 1:
        batches.append(last.slice(0, last.num_rows - 1))
    return _chunks(batches, following), following


def _chunks(batches: list[pa.RecordBatch], end: str) -> list[Chunk]:
    chunks: list[Chunk] = []
    for batch in reversed(batches):
        chunk = Chunk(batch, end)
        chunks.append(chunk)
        end = chunk.start
    chunks.reverse()
    return chunks
