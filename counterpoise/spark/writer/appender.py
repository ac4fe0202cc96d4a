"""The work of a task: its rows become messages, and these appends.

An append has at most some thousand messages, of one publisher. It ends only where the sequence
changes: so all rows made of one message are in the log or none, and their order among themselves
may be another one when they are repeated (`numbering`). An append is sent while the next is built.

The log itself refuses an append that was routed with other partitions than it has now, and says
the present ones. Then the same messages are routed again (`counterpoise.publisher.delivery`). The
service is not asked: executors need no access to it, only to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from random import randrange
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.keys import hash_of
from counterpoise.logs import AppendResult, Message, open_log
from counterpoise.logs.columns import scalar, times
from counterpoise.logs.rows import tombstone
from counterpoise.publisher.buffer import Batch
from counterpoise.publisher.delivery import Delivery
from counterpoise.spark.errors import InvalidRows
from counterpoise.spark.writer.numbering import Numbering

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from counterpoise.wire import LogView

APPEND_MESSAGES = 2000
APPEND_BYTES = 4 * 1024 * 1024
"""An append ends at these, as soon as the rows of its last message are complete."""
MOST_BYTES = 64 * 1024 * 1024
"""The most bytes of all rows made of one message. An append has up to `APPEND_BYTES` more."""

_TYPES = {
    "key": ("string",),
    "value": ("binary", "string"),
    "headers": ("map<string,string>",),
    "published_at": ("timestamp",),
    "partition": ("int", "bigint"),
    "position": ("string",),
    # Of the source. Nothing of them is written; replayed rows are left out.
    "epoch": ("bigint",),
    "tenure": ("bigint",),
    "replay": ("boolean",),
}
_FALSE = scalar(False, pa.bool_())


def check_columns(schema: StructType) -> bool:
    """Whether the rows carry the partition and position of their message. Raises InvalidRows."""
    found = {one.name: one.dataType.simpleString() for one in schema.fields}
    wrong = [f"{name} ({kind})" for name, kind in found.items() if kind not in _TYPES.get(name, ())]
    if wrong or "value" not in found:
        raise InvalidRows(
            f"a queue takes the columns {_columns()}, of which value is needed; "
            + (f"not {', '.join(wrong)}" if wrong else "it is missing")
            + ". Choose and convert them with select, and put more fields into the value or headers"
        )
    placed = {"partition", "position"} & found.keys()
    if len(placed) == 1:
        raise InvalidRows(
            f"the rows have a column {placed.pop()} alone: pass partition and position of the "
            "source through, both or none"
        )
    return bool(placed)


def _columns() -> str:
    shown = ("key", "value", "headers", "published_at", "partition", "position")
    return ", ".join(f"{name} ({' or '.join(_TYPES[name])})" for name in shown)


@dataclass(frozen=True)
class TargetQueue:
    """The queue that a task writes to. It travels to the executors inside the pickled function.

    `view`: how to reach the log, with credentials for publishing. `log_url`: the user's own access.
    """

    view: LogView
    log_url: str | None = field(default=None, repr=False)
    timeout_seconds: float = 600.0

    def delivery(self) -> Delivery:
        """A connection to the log; nothing is connected yet."""
        return Delivery(
            lambda refused: self.view,
            open_log,
            log_url=self.log_url,
            timeout_seconds=self.timeout_seconds,
        )


@dataclass(slots=True)
class _Append:
    """Messages of one publisher, and their sequences."""

    publisher: str
    messages: list[Message] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    size_bytes: int = 0
    # Of the rows with the last sequence.
    last_bytes: int = 0

    def is_full(self) -> bool:
        return len(self.messages) >= APPEND_MESSAGES or self.size_bytes >= APPEND_BYTES

    def add(self, sequence: int, message: Message) -> None:
        size = message.size_bytes()
        goes_on = self.sequences and sequence == self.sequences[-1]
        self.last_bytes = size + (self.last_bytes if goes_on else 0)
        self.messages.append(message)
        self.sequences.append(sequence)
        self.size_bytes += size
        if self.last_bytes > MOST_BYTES:
            raise InvalidRows(
                f"the rows made of the message {sequence} of {self.publisher} have more than "
                f"{MOST_BYTES} bytes: they are appended together, so make fewer or smaller ones"
            )


def appends(batches: Iterable[pa.RecordBatch], numbering: Numbering) -> Iterator[_Append]:
    """The rows as appends, in their order. Raises InvalidRows, InvalidMessage."""
    pending: _Append | None = None
    for batch in batches:
        rows = _written(batch)
        names = numbering.names(rows)
        for (publisher, sequence), message in zip(names, _messages(rows), strict=True):
            if pending is None or publisher != pending.publisher:
                if pending is not None:
                    yield pending
                pending = _Append(publisher)
            elif pending.is_full() and sequence != pending.sequences[-1]:
                yield pending
                pending = _Append(publisher)
            pending.add(sequence, message)
    if pending is not None:
        yield pending


def _written(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without those of a warm-up, which were read only to restore state."""
    if "replay" not in rows.schema.names:
        return rows
    return rows.filter(pc.invert(pc.fill_null(rows.column("replay"), _FALSE)))


def _messages(rows: pa.RecordBatch) -> Iterator[Message]:
    """The messages of the rows. A column that is missing is null; a value that is null is one of a
    message without a value.
    """
    names = rows.schema.names
    values = rows.column("value")
    if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
        values = values.cast(pa.binary())

    def column(name: str, read: Callable[[Any], list[Any]]) -> list[Any]:
        return read(rows.column(name)) if name in names else [None] * rows.num_rows

    found = _pylist(values)
    headers: Iterable[Mapping[str, str] | None] = map(_headers, column("headers", _pylist))
    if values.null_count:
        headers = [
            tombstone(of) if value is None else of for of, value in zip(headers, found, strict=True)
        ]
        found = [value or b"" for value in found]
    return map(Message, found, column("key", _pylist), headers, column("published_at", times))


def _pylist(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _headers(pairs: list[tuple[str, str | None]] | None) -> Mapping[str, str] | None:
    if not pairs:
        return None
    return {name: "" if text is None else text for name, text in pairs}


def append_all(
    target: TargetQueue, numbering: Numbering, batches: Iterable[pa.RecordBatch]
) -> AppendResult:
    """Append all rows, in their order. Returns how many, and how many the log had already.

    Raises InvalidRows, and like `Delivery.deliver`: what was appended before stays, and the log
    knows it when the task is repeated.
    """
    sent: list[Future[AppendResult]] = []
    turn = randrange(2**31)
    with closing(target.delivery()) as delivery, ThreadPoolExecutor(1) as sender:
        for one in appends(batches, numbering):
            batch = _routable(one, turn)
            turn += len(one.messages)
            if sent:
                sent[-1].result()
            sent.append(sender.submit(delivery.deliver, batch))
    results = [one.result() for one in sent]
    return AppendResult(
        sum(one.appended for one in results), sum(one.duplicates for one in results)
    )


def _routable(one: _Append, turn: int) -> Batch:
    """Messages without a key take turns, beginning with number `turn`."""
    return Batch(
        one.messages,
        [
            turn + place if message.key is None else hash_of(message.key)
            for place, message in enumerate(one.messages)
        ],
        publisher=one.publisher,
        first_sequence=one.sequences[0],
        sequences=one.sequences,
        # A repeated task appends what an attempt before may have appended.
        uncertain=True,
    )
