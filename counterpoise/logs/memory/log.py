"""One log in memory, as consumers and publishers of the same process reach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from counterpoise.logs.columns import integers, strings
from counterpoise.logs.errors import LogBehind, PositionAhead, PositionTrimmed
from counterpoise.logs.memory.logs import Chunk, MemoryLogs, Row
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds
from counterpoise.logs.rows import record_batch
from counterpoise.logs.shares import fair_shares

CHUNK_MESSAGES = 8192
CHUNK_BYTES = 8 * 1024 * 1024


class MemoryLog(NumberedLog):
    """The log `name` among `logs`. See `counterpoise.logs.Log`; positions have no holes."""

    kind = "the log in memory"
    too_large = TOO_LARGE["builtin"]
    appends_in_parallel = False

    def __init__(self, logs: MemoryLogs, name: str) -> None:
        self.name = name
        self._logs = logs

    def __repr__(self) -> str:
        return f"MemoryLog({self.name!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        if not batch.messages:
            return AppendResult(0, 0)
        return self._logs.append(self.name, batch)

    def read(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        position = self.number(start)
        if end is None:
            last = self._logs.chunk(self.name, partition, 0, 0, 0).end
            if position > last:
                raise PositionAhead(partition, str(position), str(last))
        else:
            last = self.number(end)
        messages_left = max_messages
        bytes_left = CHUNK_BYTES if max_bytes is None else max_bytes
        while position < last and messages_left > 0 and bytes_left > 0:
            most = min(messages_left, CHUNK_MESSAGES)
            found = self._logs.chunk(self.name, partition, position, last, most)
            rows = _first_bytes(found.rows, bytes_left)
            if not rows:
                position = _after_gap(partition, position, last, found)
                continue
            yield _record_batch(partition, position, rows)
            position += len(rows)
            messages_left -= len(rows)
            if max_bytes is not None:
                bytes_left -= sum(len(row.message.value) for row in rows)

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        return self._logs.bounds(self.name, partitions)

    def next_sequence(self, publisher: str) -> int:
        return self._logs.next_sequence(self.name, publisher)

    def close(self) -> None:
        """Nothing to close."""

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        shares = fair_shares(backlogs, max_messages)
        # In the order of the bytes that lie before each message in its own partition, see
        # `counterpoise.logs.builtin.admission`.
        waiting: list[tuple[int, int, int, int]] = []
        for number, share in shares.items():
            begin, before = begins[number], 0
            found = self._logs.chunk(self.name, number, begin, begin + share, share)
            for row in found.rows:
                size = len(row.message.value)
                waiting.append((before, -backlogs[number], number, size))
                before += size
        admitted, so_far = dict.fromkeys(backlogs, 0), 0
        for _, _, number, size in sorted(waiting, key=lambda one: one[:3]):
            if so_far >= max(1, max_bytes):
                break
            admitted[number] += 1
            so_far += size
        return admitted


def _first_bytes(rows: Sequence[Row], values_bytes: int) -> Sequence[Row]:
    """The rows before which there are fewer bytes than that of values, and than a chunk's."""
    values = memory = 0
    for count, (message, _) in enumerate(rows):
        if values >= values_bytes or memory >= CHUNK_BYTES:
            return rows[:count]
        values += len(message.value)
        memory += message.size_bytes()
    return rows


def _after_gap(partition: int, position: int, last: int, found: Chunk) -> int:
    """Where to continue if there is no message at `position`, which is before `last`."""
    if position < found.discarded:
        return found.discarded
    if position < found.first:
        raise PositionTrimmed(partition, str(position), str(found.first))
    if position > found.end:
        raise PositionAhead(partition, str(position), str(found.end))
    raise LogBehind(partition, str(found.end), str(last))


def _record_batch(partition: int, position: int, rows: Sequence[Row]) -> pa.RecordBatch:
    messages = [row.message for row in rows]
    return record_batch(
        partition,
        integers(range(position, position + len(rows))),
        [row.microseconds for row in rows],
        strings([message.key for message in messages]),
        [message.value for message in messages],
        [list(message.headers.items()) if message.headers else None for message in messages],
    )
