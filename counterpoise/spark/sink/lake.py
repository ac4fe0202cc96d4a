"""The target that is a table in a lake: Delta or Iceberg. Docs, *The fenced sink*.

A lake has no row locks. It commits optimistically: a commit through a *snapshot* of the table fails
if what the snapshot relies on has changed since. So for each micro-batch the driver

1. takes a snapshot and reads the high-waters in it,
2. judges all ranges,
3. lets the executors write data files with the rows that are still to be written,
4. commits the files and the new high-waters, in one commit through the same snapshot.

If another commit came first, all of it begins again. The files are kept if they still hold exactly
the rows that are to be written; else they are written anew. So a row before a high-water is never
committed, however late the commit comes.

What a commit may fail on differs by format, and is the whole of the fence: `delta` and `iceberg`
say how they make sure of it.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.backoff import Backoff, Pauses
from counterpoise.logs.columns import binaries, counting, integers
from counterpoise.spark.errors import InvalidSink, Overtaken
from counterpoise.spark.sink.fence import HighWater, HighWaterKey, judge
from counterpoise.spark.sink.rows import Remainder, chosen, messages
from counterpoise.spark.sink.target import Line, MicroBatch, RangeResult

logger = logging.getLogger("counterpoise.spark")

NewColumns = Literal["refuse", "ignore", "add"]
TARGET_BYTES = 128 * 1024 * 1024
COMMIT_SECONDS = 300.0

_BACKOFF = Backoff(0.05, 2.0)

# On an executor: rows into data files of the table. Returns what the commit needs of each file.
WriteFiles = Callable[[pa.Table], Iterable[bytes]]


class LakeSnapshot(Protocol):
    """A table as it was when its high-waters were read."""

    @property
    def marks(self) -> Mapping[int, HighWater]:
        """By partition."""

    @property
    def layout(self) -> object:
        """Files that were written for another layout cannot be committed."""

    def files(self) -> WriteFiles:
        """What writes data files; it travels to the executors."""

    def commit(self, files: Sequence[bytes], marks: Mapping[int, HighWater]) -> None:
        """Add the files and set the high-waters, at once.

        Raises Overtaken if one of these high-waters, or the layout, has changed since.
        """

    def merge(self, rows: pa.Table, keys: Sequence[str], marks: Mapping[int, HighWater]) -> None:
        """The same with rows that replace those of equal `keys`, or are added."""


class LakeTable(Protocol):
    """A table that keeps high-waters beside its rows."""

    key: str
    remedy: str

    def snapshot(
        self, mark: HighWaterKey, partitions: Sequence[int], schema: pa.Schema
    ) -> LakeSnapshot:
        """The newest one. Creates the table for rows of this schema, or adds columns to it.

        Raises InvalidSink, if the table cannot be written to under the fence; Overtaken.
        """

    def forget(self, sink: str, queue: str) -> int:
        """As in `Target`."""


@dataclass(frozen=True)
class _Written:
    """The data files for one set of verdicts; by partition, how many rows came and are in them."""

    begins: tuple[str | None, ...]
    layout: object
    files: list[bytes]
    came: Counter[int]
    written: Counter[int]

    def nothing(self) -> _Written:
        """For verdicts by which nothing is to be written. The log is not read again for that."""
        return replace(self, begins=(None,) * len(self.begins), files=[], written=Counter())


class Lake:
    """The target. `columns` None: all columns of the rows except `replay` and `tenure`.

    With `keys`, rows replace those of equal keys. Then the tasks send them to the driver.
    """

    def __init__(
        self,
        table: LakeTable,
        columns: tuple[str, ...] | None,
        keys: tuple[str, ...],
        target_bytes: int,
        commit_seconds: float,
    ) -> None:
        self._table = table
        self._columns = columns
        self._keys = keys
        self._target_bytes = target_bytes
        self._commit_seconds = commit_seconds
        self.key = table.key
        self.remedy = table.remedy

    def write(self, batch: MicroBatch) -> list[RangeResult]:
        """The target's own. Raises Overtaken if others were faster for `commit_seconds`."""
        whole = batch.rows.schema
        names = chosen(whole.names, self._columns)
        # Spark says of a literal's column that it has no nulls, but other rows may lack it.
        schema = pa.schema([whole.field(one).with_nullable(True) for one in names])
        if not set(self._keys) <= set(schema.names):
            raise InvalidSink(f"the columns to write lack the keys {', '.join(self._keys)}")
        partitions = [one.partition for one in batch.ranges]
        give_up_at = time.monotonic() + self._commit_seconds
        pauses = Pauses(_BACKOFF)
        done: _Written | None = None
        while True:
            try:
                snapshot = self._table.snapshot(batch.mark, partitions, schema)
                verdicts = [
                    judge(snapshot.marks.get(one.partition), one, batch.on_gap)
                    for one in batch.ranges
                ]
                begins = tuple(verdict.begin for verdict in verdicts)
                if done is not None and not any(begins):
                    done = done.nothing()
                elif done is None or (done.begins, done.layout) != (begins, snapshot.layout):
                    done = self._written(batch, snapshot, schema.names, begins)
                marks = {
                    one.partition: verdict.after
                    for one, verdict in zip(batch.ranges, verdicts, strict=True)
                    if verdict.after is not None
                }
                if done.files and self._keys:
                    rows = latest(map(unpacked, done.files), self._keys).select(schema.names)
                    snapshot.merge(rows, self._keys, marks)
                elif done.files or marks:
                    snapshot.commit(done.files, marks)
                break
            except Overtaken as error:
                pause = pauses.failed(random.random())
                if time.monotonic() + pause > give_up_at:
                    raise
                logger.info("counterpoise: sink %s: %s; again", batch.mark.sink, error)
                time.sleep(pause)
        return [
            RangeResult(
                one.partition,
                one.epoch,
                verdict.outcome,
                done.written[one.partition],
                done.came[one.partition] - done.written[one.partition],
                verdict.gap,
            )
            for one, verdict in zip(batch.ranges, verdicts, strict=True)
        ]

    def forget(self, sink: str, queue: str) -> int:
        """The target's own."""
        return self._table.forget(sink, queue)

    def _written(
        self,
        batch: MicroBatch,
        snapshot: LakeSnapshot,
        columns: Sequence[str],
        begins: tuple[str | None, ...],
    ) -> _Written:
        remainder = Remainder(zip(batch.ranges, begins, strict=True))
        if self._keys:
            columns = [*columns, *({"partition", "position"} - set(columns))]
        files = packed if self._keys else snapshot.files()
        task = FileTask(remainder, tuple(columns), files, self._target_bytes)
        lines = batch.rows.map(task, LINE_SCHEMA)
        return _Written(
            begins,
            snapshot.layout,
            [bytes(line["file"]) for line in lines if line["file"] is not None],
            _sums(lines, "came"),
            _sums(lines, "written"),
        )


def _sums(lines: Iterable[Line], column: str) -> Counter[int]:
    sums: Counter[int] = Counter()
    for line in lines:
        if line["partition"] is not None:
            sums[line["partition"]] += line[column]
    return sums


# A task's report: a line for each partition with its numbers of rows, and one for each file.
LINE_SCHEMA = "partition long, came long, written long, file binary"
_LINE: pa.Schema = pa.schema(
    [
        ("partition", pa.int64()),
        ("came", pa.int64()),
        ("written", pa.int64()),
        ("file", pa.binary()),
    ]
)


@dataclass(frozen=True)
class FileTask:
    """All that a task needs; it travels to the executors inside the pickled function."""

    remainder: Remainder
    columns: tuple[str, ...]
    files: WriteFiles = field(repr=False)
    target_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark calls this in each task. Raises InvalidRows, InvalidPosition, and what `files`
        raises.
        """
        came: Counter[int] = Counter()
        written: Counter[int] = Counter()
        for rows in self._fresh(batches, came, written):
            yield _lines(file=binaries([*self.files(rows)]))
        partitions = sorted(came)
        yield _lines(
            partition=integers(partitions),
            came=integers(came[one] for one in partitions),
            written=integers(written[one] for one in partitions),
        )

    def _fresh(
        self, batches: Iterable[pa.RecordBatch], came: Counter[int], written: Counter[int]
    ) -> Iterator[pa.Table]:
        """The rows that are still to be written, as many together as make a file; counts them."""
        ready: list[pa.Table] = []
        for rows in messages(batches):
            fresh = self.remainder(rows)
            came.update(_counts(rows))
            written.update(_counts(fresh))
            if fresh.num_rows:
                ready.append(fresh.select(self.columns))
            if sum(one.nbytes for one in ready) >= self.target_bytes:
                yield pa.concat_tables(ready)
                ready = []
        if ready:
            yield pa.concat_tables(ready)


def _counts(rows: pa.Table) -> dict[int, int]:
    counts = pc.value_counts(rows.column("partition"))
    return {one["values"]: one["counts"] for one in counts.to_pylist()}


def _lines(**columns: pa.Array) -> pa.RecordBatch:
    length = max(map(len, columns.values()))
    return pa.RecordBatch.from_arrays(
        [columns.get(one.name, pa.nulls(length, one.type)) for one in _LINE], schema=_LINE
    )


def packed(rows: pa.Table) -> Iterator[bytes]:
    """The rows as bytes; a `WriteFiles` that writes none."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    yield sink.getvalue().to_pybytes()


def unpacked(data: bytes) -> pa.Table:
    """The rows again."""
    return pa.ipc.open_stream(data).read_all()


def latest(parts: Iterable[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Of the rows of each key, the one with the highest position. Raises InvalidSink for a null."""
    rows = pa.concat_tables(parts)
    for key in keys:
        if rows.column(key).null_count:
            raise InvalidSink(f"there are rows whose key {key} is null: filter them out before")
    order = pa.table(
        {
            "partition": rows.column("partition"),
            "position": pc.cast(rows.column("position"), pa.int64()),
        }
    )
    ascending = [("partition", "ascending"), ("position", "ascending")]
    rows = rows.take(pc.sort_indices(order, sort_keys=ascending))
    places = pa.table(
        [*(rows.column(key) for key in keys), counting(0, rows.num_rows)], [*keys, ""]
    )
    return rows.take(places.group_by([*keys]).aggregate([("", "max")]).column("_max"))


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of the table, in its order and types; null where they have none.

    Raises InvalidSink.
    """
    columns = []
    for one in schema:
        column = pa.chunked_array([pa.nulls(rows.num_rows, one.type)])
        if one.name in rows.column_names:
            try:
                column = _converted(rows.column(one.name), one.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidSink(f"column {one.name} of the rows does not fit: {error}") from None
        if column.null_count and not one.nullable:
            raise InvalidSink(
                f"the table requires the column {one.name}, and there are rows without it: write "
                "it, or make it nullable in the table"
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in this type. Raises ArrowInvalid, ArrowNotImplementedError.

    Arrow alone would take a whole number for a time, leave out the time of a day, and make
    infinity of what a float cannot have.
    """
    own = column.type
    for one, other in ((own, kind), (kind, own)):
        if pa.types.is_integer(one) and pa.types.is_temporal(other):
            raise pa.ArrowInvalid(f"a time is no number ({own} to {kind})")
    if pa.types.is_timestamp(own) and pa.types.is_date(kind):
        raise pa.ArrowInvalid("a timestamp is more than a date")
    found = column.cast(kind)
    is_narrowed = pa.types.is_float64(own) and pa.types.is_float32(kind)
    if is_narrowed and not pc.is_inf(found).equals(pc.is_inf(column)):
        raise pa.ArrowInvalid("a value is too large for a float")
    return found


def unknown_columns(rows: pa.Schema, table: pa.Schema, policy: NewColumns) -> list[pa.Field]:
    """The columns to add to the table, by policy. Raises InvalidSink."""
    unknown = [one for one in rows if one.name not in table.names]
    known = {name.lower(): name for name in table.names}
    for one in unknown:
        if (other := known.get(one.name.lower())) is not None:
            raise InvalidSink(
                f"the rows have a column {one.name}, and the table a column {other}: give both one "
                "name, since many tools cannot tell these apart"
            )
    lacking = [] if policy == "add" else [one.name for one in unknown]
    for one in rows:
        if one.name in table.names:
            lacking += _lost(one.name, one.type, table.field(one.name).type)
    if lacking and policy != "ignore":
        raise InvalidSink(
            f"the table has no column {', '.join(lacking)}: name the columns to write (columns), "
            "or give the sink new_columns='ignore', or 'add' (which adds none within a struct)"
        )
    return unknown if policy == "add" else []


def _lost(name: str, own: pa.DataType, kind: pa.DataType) -> Iterator[str]:
    """The fields within a column of the rows that the table's lacks. Arrow's cast drops them."""
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        for one in own:
            path, at = f"{name}.{one.name}", kind.get_field_index(one.name)
            yield from [path] if at < 0 else _lost(path, one.type, kind.field(at).type)
    elif pa.types.is_nested(own) and pa.types.is_nested(kind):
        yield from _lost(name, _items(own), _items(kind))


def _items(kind: pa.DataType) -> pa.DataType:
    """The type of a list's values, or a map's; of another one itself."""
    if pa.types.is_map(kind):
        return kind.item_type
    return getattr(kind, "value_type", kind)
