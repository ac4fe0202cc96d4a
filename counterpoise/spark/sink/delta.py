"""A Delta table that keeps high-waters, by delta-rs, without a JVM.

A commit of Delta can carry *application transactions*: pairs of a name and a 64-bit version. Each
queue partition has two, `…/epoch` and `…/next`, in the commit of its data. The rules that make them
a fence:

- A commit goes through the table handle from which the marks were read. delta-rs checks every
  commit since that handle's version, and refuses ours if one of them has set a transaction of the
  same name. A path instead of a handle opens the newest version, and a stale writer passes.
- delta-rs accepts a version lower than the stored one: `fence.judge` compares.
- Writers of other partitions, and OPTIMIZE, do not conflict.
- Delta may forget application transactions after `delta.setTransactionRetentionDuration`. A table
  with this property is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, CommitProperties, Transaction

from counterpoise.spark.errors import InvalidSink, Overtaken
from counterpoise.spark.sink.fence import HighWater, HighWaterKey, number
from counterpoise.spark.sink.lake import (
    NewColumns,
    WriteFiles,
    conformed,
    unknown_columns,
)

# The version of `…/next` after `forget`: a transaction cannot be removed.
_FORGOTTEN = -1
# Statistics are kept for the first columns of a table, as other writers do.
_MOST_STATISTICS = 32
_MOST_CHARACTERS = 32
_LAST = "\U0010ffff"  # of all characters
# The log lacks the version of the handle, or one after it: a checkpoint has replaced them.
_CLEANED = ("Invalid table version", "Expected contiguous commit files")
# Without a put that fails if the file exists, two commits may both succeed.
_UNSAFE = frozenset({"aws_s3_allow_unsafe_rename", "allow_unsafe_rename"})


class DeltaLake:
    """A table by its URI. `partition_by`: for creating it. Raises InvalidSink."""

    def __init__(
        self,
        uri: str,
        options: Mapping[str, str],
        partition_by: tuple[str, ...],
        new_columns: NewColumns,
    ) -> None:
        self._uri = uri
        self._options = dict(options)
        self._partition_by = partition_by
        self._new_columns: NewColumns = new_columns
        settings = {name.lower(): value for name, value in {**os.environ, **options}.items()}
        if any(settings.get(one, "").lower() in ("true", "1", "yes", "on") for one in _UNSAFE):
            raise InvalidSink(
                "AWS_S3_ALLOW_UNSAFE_RENAME lets two commits overwrite each other: leave it out, "
                "delta-rs puts commits conditionally"
            )
        content = json.dumps([uri, sorted(self._options.items())]).encode()
        self.key = f"delta {hashlib.sha256(content).hexdigest()}"
        self.remedy = "another name of the sink, with the positions set to where its rows end,"

    def snapshot(
        self, mark: HighWaterKey, partitions: Sequence[int], schema: pa.Schema
    ) -> DeltaSnapshot:
        """As in `LakeTable`."""
        table = self._table(schema)
        _check(table, self._partition_by)
        columns = _arrow(table)
        added = unknown_columns(schema, columns, self._new_columns)
        if added:
            try:
                table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields)
            except DeltaError as error:
                raise _failed(error) from None
            table = self._table(schema)
            columns = _arrow(table)
        return DeltaSnapshot(self._uri, self._options, table, columns, mark, partitions)

    def forget(self, sink: str, queue: str) -> int:
        """As in `LakeTable`."""
        try:
            table = DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            return 0
        concerned = [
            name
            for name in _transactions(table, self._uri, self._options)
            if name.startswith(f"{_quoted(sink, queue)}/") and name.endswith("/next")
        ]
        if concerned:
            _commit(table, [], dict.fromkeys(concerned, _FORGOTTEN))
        return len(concerned)

    def _table(self, schema: pa.Schema) -> DeltaTable:
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            _check_partitioning(self._partition_by, schema.names)
        try:
            return DeltaTable.create(
                self._uri,
                schema,
                mode="error",
                partition_by=list(self._partition_by),
                storage_options=self._options,
            )
        except Exception as error:
            # Another application may have been faster.
            if not DeltaTable.is_deltatable(self._uri, storage_options=self._options):
                raise
            raise Overtaken(str(error)) from None


class DeltaSnapshot:
    """A version of the table, and the handle that commits may go through."""

    def __init__(
        self,
        uri: str,
        options: dict[str, str],
        table: DeltaTable,
        columns: pa.Schema,
        mark: HighWaterKey,
        partitions: Sequence[int],
    ) -> None:
        self._uri = uri
        self._options = options
        self._table = table
        self._columns = columns
        self._mark = mark
        self.marks = {
            one: high_water
            for one in partitions
            if (high_water := _high_water(table, _name(mark, one))) is not None
        }
        self.layout = (str(columns), tuple(table.metadata().partition_columns))

    def files(self) -> WriteFiles:
        """As in `LakeSnapshot`."""
        partition_by = tuple(self._table.metadata().partition_columns)
        return DeltaFiles(self._uri, self._options, self._columns, partition_by)

    def commit(self, files: Sequence[bytes], marks: Mapping[int, HighWater]) -> None:
        """As in `LakeSnapshot`."""
        _commit(self._table, [AddAction(**json.loads(one)) for one in files], self._versions(marks))

    def merge(self, rows: pa.Table, keys: Sequence[str], marks: Mapping[int, HighWater]) -> None:
        """As in `LakeSnapshot`."""
        _merge(self._table, conformed(rows, self._columns), keys, self._versions(marks))

    def _versions(self, marks: Mapping[int, HighWater]) -> dict[str, int]:
        versions: dict[str, int] = {}
        for partition, to in marks.items():
            name = _name(self._mark, partition)
            versions[f"{name}/epoch"] = to.epoch
            versions[f"{name}/next"] = _FORGOTTEN if to.next is None else number(to.next)
        return versions


def _merge(
    table: DeltaTable, rows: pa.Table, keys: Sequence[str], versions: Mapping[str, int]
) -> None:
    """Through this handle. Raises Overtaken."""
    same = " AND ".join(f"old.`{key}` = new.`{key}`" for key in keys)
    merger = table.merge(
        rows,
        same,
        source_alias="new",
        target_alias="old",
        commit_properties=_properties(versions),
    )
    try:
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
    except DeltaError as error:
        raise _failed(error) from None


def _properties(versions: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(name, to) for name, to in versions.items()]
    )


def _commit(table: DeltaTable, files: list[AddAction], versions: Mapping[str, int]) -> None:
    """Through this handle. Raises Overtaken."""
    try:
        table.create_write_transaction(
            [*files],
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=_properties(versions),
        )
    except DeltaError as error:
        raise _failed(error) from None


def _failed(error: DeltaError) -> Exception:
    """Another commit came first; or this one can never be made, and the same error says so."""
    words = str(error)
    if not isinstance(error, CommitFailedError):
        is_cleaned = any(sign in words for sign in _CLEANED)
        return Overtaken(f"the log was cleaned meanwhile: {words}") if is_cleaned else error
    if "Unsupported table features" in words or "append-only" in words:
        return InvalidSink(f"the Delta table does not take this from delta-rs: {words}")
    return Overtaken(words)


def _name(mark: HighWaterKey, partition: int) -> str:
    return f"{_quoted(mark.sink, mark.queue, mark.queue_id, mark.log)}/{partition}"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _high_water(table: DeltaTable, name: str) -> HighWater | None:
    epoch = table.transaction_version(f"{name}/epoch")
    after = table.transaction_version(f"{name}/next")
    if epoch is None:
        return None
    return HighWater(epoch, None if after is None or after == _FORGOTTEN else str(after))


def _transactions(table: DeltaTable, uri: str, options: dict[str, str]) -> list[str]:
    """The names of all application transactions. delta-rs finds one by its name only; a checkpoint
    has them all.
    """
    table.create_checkpoint()
    path = f"_delta_log/{table.version():020}.checkpoint.parquet"
    with _files(uri, options).open_input_file(path) as file:
        found = pq.read_table(file, columns=["txn"]).column("txn").to_pylist()
    return [one["appId"] for one in found if one is not None]


def _files(uri: str, options: dict[str, str]) -> pyarrow.fs.FileSystem:
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(uri, options))


def _arrow(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _check(table: DeltaTable, partition_by: tuple[str, ...]) -> None:
    """Raises InvalidSink if the fence, or files written by this module, would break the table."""
    metadata = table.metadata()
    settings = metadata.configuration
    if "delta.setTransactionRetentionDuration" in settings:
        raise InvalidSink(
            "the Delta table forgets transactions (delta.setTransactionRetentionDuration), and the "
            "high-waters are among them: remove that property"
        )
    kept = tuple(metadata.partition_columns)
    if partition_by and partition_by != kept:
        raise InvalidSink(f"the Delta table is partitioned by {kept}, not by {partition_by}")
    _check_partitioning(kept, _arrow(table).names)
    rules = [name for name in settings if name.startswith("delta.constraints.")]
    rules += [
        name
        for name, off in (
            ("delta.columnMapping.mode", "none"),
            ("delta.enableRowTracking", "false"),
            ("delta.enableIcebergCompatV1", "false"),
            ("delta.enableIcebergCompatV2", "false"),
        )
        if settings.get(name, off).lower() != off
    ]
    rules += [
        f"{name} of {one.name}"
        for one in table.schema().fields
        for name in one.metadata
        if name.startswith(("delta.identity.", "delta.invariants", "delta.generationExpression"))
    ]
    if rules:
        raise InvalidSink(
            f"the Delta table has rules that the sink cannot keep ({', '.join(rules)}): write to a "
            "table without them"
        )


def _check_partitioning(partition_by: Sequence[str], columns: Sequence[str]) -> None:
    """Raises InvalidSink if the files would have no column, for they have no row then either."""
    if set(columns) <= set(partition_by):
        raise InvalidSink(
            "the Delta table is partitioned by all of its columns: leave one out, or its files "
            "would be empty"
        )


@dataclass(frozen=True)
class DeltaFiles:
    """Writes Parquet files of the table, one for each of its partitions. On the executors."""

    uri: str = field(repr=False)
    options: dict[str, str] = field(repr=False)
    columns: pa.Schema
    partition_by: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> Iterator[bytes]:
        """Yields the action that adds each file to the table, as JSON."""
        filesystem = _files(self.uri, self.options)
        for values, part in self._parts(conformed(rows, self.columns)):
            path = f"part-{uuid.uuid4()}.zstd.parquet"
            with filesystem.open_output_stream(path) as file:
                pq.write_table(part, file, compression="zstd")
                size = file.tell()
            yield json.dumps(
                {
                    "path": path,
                    "size": size,
                    "partition_values": values,
                    "modification_time": int(time.time() * 1000),
                    "data_change": True,
                    "stats": json.dumps(statistics(part)),
                }
            ).encode()

    def _parts(self, rows: pa.Table) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
        """The rows by the values of the partition columns, without these columns."""
        if not self.partition_by:
            yield {}, rows
            return
        texts = pa.table({name: _texts(rows.column(name)) for name in self.partition_by})
        for values in texts.group_by(list(self.partition_by)).aggregate([]).to_pylist():
            own = None
            for name, value in values.items():
                column = texts.column(name)
                same = pc.is_null(column) if value is None else pc.equal(column, value)
                own = same if own is None else pc.and_(own, same)
            yield values, rows.filter(own).drop_columns(list(self.partition_by))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values of a partition column as the log of Delta has them; an empty text means null there."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"))
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), None, texts)


def statistics(rows: pa.Table) -> dict[str, Any]:
    """What lets readers skip the file: bounds, not exact values.

    Where some columns have bounds, delta-rs finds no row by a column without. So all have bounds
    whose values have an order, or none has.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    found = {"numRecords": rows.num_rows, "nullCount": nulls}
    bounds = {"minValues": least, "maxValues": most}
    for name in rows.column_names[:_MOST_STATISTICS]:
        column = rows.column(name)
        kind = column.type
        if pa.types.is_nested(kind):
            continue
        nulls[name] = column.null_count
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            continue
        if column.null_count < len(column):
            try:
                least[name], most[name] = _bounds(column)
            except OverflowError:
                bounds = {}
    return found | bounds


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """As in the log. Raises OverflowError for values that it cannot have."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if pa.types.is_timestamp(kind):
        # The log has milliseconds.
        return _instant(least // 1000, kind), _instant(-(-most // 1000), kind)
    if pa.types.is_date(kind):
        return least.isoformat(), most.isoformat()
    if pa.types.is_decimal(kind):
        least, most = math.floor(least), math.ceil(most)
        if max(-least, most) >= min(10 ** (kind.precision - kind.scale), 2**53):
            raise OverflowError
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        raise OverflowError
    if isinstance(most, str):
        return least[:_MOST_CHARACTERS], _not_below(most)
    return least, most


def _not_below(text: str) -> str:
    """A short text that is not below this one. Raises OverflowError if there is none."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    if text[_MOST_CHARACTERS] == _LAST:
        raise OverflowError
    return text[:_MOST_CHARACTERS] + _LAST


def _instant(milliseconds: int, kind: pa.DataType) -> str:
    at = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)  # noqa: DTZ001
    text = at.isoformat(timespec="milliseconds")
    return text + "Z" if kind.tz else text
