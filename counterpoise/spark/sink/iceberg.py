"""An Iceberg table that keeps high-waters, by pyiceberg, without a JVM.

The high-waters are properties of the table, `counterpoise.….{partition}` = `epoch:next`. (A
snapshot's summary is gone after the next snapshot of another tool.) A catalog checks the
*requirements* of a commit and makes it in one step. The rules that make this a fence:

- Each commit requires that the branch `main` still is at the snapshot that the marks were read
  with, and each makes a snapshot, also if it has no rows to add. So no two commits from the same
  marks both succeed: no requirement of Iceberg is about properties themselves.
- The commit goes to the catalog as it is. pyiceberg's `commit_transaction` would try again with the
  newest snapshot, and a stale writer would pass; `commit.retry.num-retries` of the table decides
  that, and anybody may set it.

A rollback of the branch to the very snapshot that a frozen writer has read would let that writer
pass, so stop the writers before (docs).
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
)

from counterpoise.spark.errors import InvalidSink, Overtaken
from counterpoise.spark.sink.fence import HighWater, HighWaterKey
from counterpoise.spark.sink.lake import (
    NewColumns,
    WriteFiles,
    conformed,
    unknown_columns,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext

_MAIN = "main"
# Of a new table: one manifest for each commit would soon be too many.
_PROPERTIES = {TableProperties.MANIFEST_MERGE_ENABLED: "true"}


class IcebergLake:
    """A table by its catalog and name. Raises InvalidSink."""

    def __init__(
        self, catalog: Catalog | Mapping[str, str] | str, name: str, new_columns: NewColumns
    ) -> None:
        if isinstance(catalog, str):
            catalog = load_catalog(catalog)
        elif isinstance(catalog, Mapping):
            catalog = load_catalog(**catalog)
        _end_failed_transactions(catalog)
        self._catalog = catalog
        self._name = name
        self._new_columns: NewColumns = new_columns
        content = f"{catalog.name} {sorted(catalog.properties.items())} {name}"
        self.key = f"iceberg {hashlib.sha256(content.encode()).hexdigest()}"
        self.remedy = f"removing the properties that begin with counterpoise. from the table {name}"

    def snapshot(
        self, mark: HighWaterKey, partitions: Sequence[int], schema: pa.Schema
    ) -> IcebergSnapshot:
        """As in `LakeTable`."""
        table = self._table(schema)
        added = unknown_columns(schema, schema_to_pyarrow(table.schema()), self._new_columns)
        if added:
            try:
                with table.update_schema() as update:
                    update.union_by_name(pa.schema(added))
            except CommitFailedException as error:
                raise Overtaken(str(error)) from None
            table = self._catalog.load_table(self._name)
        return IcebergSnapshot(table, mark, partitions)

    def forget(self, sink: str, queue: str) -> int:
        """As in `LakeTable`."""
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return 0
        prefix = f"{_quoted(sink, queue)}."
        marks = {
            name: _text(HighWater(_high_water(text).epoch, None))
            for name, text in table.properties.items()
            if name.startswith(prefix)
        }
        if marks:
            _commit(table, [], marks)
        return len(marks)

    def _table(self, schema: pa.Schema) -> Table:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            pass
        try:
            return self._catalog.create_table(self._name, schema, properties=_PROPERTIES)
        except TableAlreadyExistsError as error:
            raise Overtaken(str(error)) from None


def _end_failed_transactions(catalog: Catalog) -> None:
    """Roll back the transaction of a catalog in SQLite when a commit fails.

    A commit fails if another process keeps the catalog's file locked. SQLite leaves the transaction
    open then, SQLAlchemy takes it for ended, and the next session of this connection would read its
    high-waters, which were never committed.
    """
    engine = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return
    from sqlalchemy import event  # a catalog with an engine has imported it

    if not event.contains(engine, "handle_error", _roll_back):
        event.listen(engine, "handle_error", _roll_back)


def _roll_back(context: ExceptionContext) -> None:
    if context.connection is not None:
        context.connection.connection.rollback()


class IcebergSnapshot:
    """The metadata of the table at one moment."""

    def __init__(self, table: Table, mark: HighWaterKey, partitions: Sequence[int]) -> None:
        self._table = table
        self._mark = mark
        texts = {one: table.properties.get(_property(mark, one)) for one in partitions}
        self.marks = {one: _high_water(text) for one, text in texts.items() if text is not None}
        self.layout = (table.metadata.current_schema_id, table.metadata.default_spec_id)

    def files(self) -> WriteFiles:
        """As in `LakeSnapshot`."""
        # Old snapshots are most of the metadata, and writing needs none of them.
        metadata = self._table.metadata.model_copy(
            update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        )
        return IcebergFiles(metadata, self._table.io)

    def commit(self, files: Sequence[bytes], marks: Mapping[int, HighWater]) -> None:
        """As in `LakeSnapshot`."""
        _commit(self._table, files, self._properties(marks))

    def merge(self, rows: pa.Table, keys: Sequence[str], marks: Mapping[int, HighWater]) -> None:
        """As in `LakeSnapshot`."""
        columns = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        _merge(self._table, conformed(rows, columns), keys, self._properties(marks))

    def _properties(self, marks: Mapping[int, HighWater]) -> dict[str, str]:
        return {_property(self._mark, one): _text(to) for one, to in marks.items()}


def _commit(table: Table, files: Sequence[bytes], properties: dict[str, str]) -> None:
    """Through this metadata. Raises Overtaken."""
    transaction = table.transaction()
    # Merges manifests if the table has that set.
    with _unless_expired(table), transaction.update_snapshot().merge_append() as append:
        for one in files:
            append.append_data_file(pickle.loads(one))
    _finish(transaction, table, properties)


def _merge(table: Table, rows: pa.Table, keys: Sequence[str], properties: dict[str, str]) -> None:
    """Through this metadata. Raises Overtaken, InvalidSink."""
    transaction = table.transaction()
    try:
        with _unless_expired(table):
            changes = transaction.upsert(rows, list(keys))
    except ValueError as error:
        if "duplicate rows" not in str(error):
            raise
        raise InvalidSink(
            f"the Iceberg table has several rows of one key ({', '.join(keys)}), and merging "
            "replaces one: remove the others, or merge into another table"
        ) from None
    if changes.rows_inserted + changes.rows_updated == 0:
        # All rows are there as they are. Without a snapshot there would be no fence.
        with _unless_expired(table), transaction.update_snapshot().fast_append():
            pass
    _finish(transaction, table, properties)


@contextlib.contextmanager
def _unless_expired(table: Table) -> Iterator[None]:
    """Files of a snapshot may be removed as soon as another one has come. Raises Overtaken then."""
    try:
        yield
    except FileNotFoundError as error:
        newest = table.catalog.load_table(table.name()).metadata
        if newest.current_snapshot_id == table.metadata.current_snapshot_id:
            raise
        raise Overtaken(f"the snapshot was expired meanwhile: {error}") from None


def _finish(transaction: Transaction, table: Table, properties: dict[str, str]) -> None:
    if properties:
        transaction.set_properties(properties)
    metadata = table.metadata
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": _MAIN, "snapshot-id": metadata.current_snapshot_id}
        ),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )
    try:
        table.catalog.commit_table(table, requirements, transaction._updates)
    except CommitFailedException as error:
        for producer in transaction._snapshot_producers:
            producer._clean_all_uncommitted()  # its manifests
        raise Overtaken(str(error)) from None
    except CommitStateUnknownException as error:
        raise Overtaken(str(error)) from None  # if it was made, the marks say so


def _property(mark: HighWaterKey, partition: int) -> str:
    return f"{_quoted(mark.sink, mark.queue, mark.queue_id, mark.log)}.{partition}"


def _quoted(*parts: str) -> str:
    return ".".join(["counterpoise", *(quote(part, safe="").replace(".", "%2E") for part in parts)])


def _text(mark: HighWater) -> str:
    return f"{mark.epoch}:{mark.next or ''}"


def _high_water(text: str) -> HighWater:
    epoch, _, after = text.partition(":")
    return HighWater(int(epoch), after or None)


@dataclass(frozen=True)
class IcebergFiles:
    """Writes data files of the table, by its own format and partitions. On the executors."""

    metadata: TableMetadata = field(repr=False)
    io: FileIO = field(repr=False)

    def __call__(self, rows: pa.Table) -> Iterator[bytes]:
        """Yields each file as the catalog's entry, pickled."""
        columns = schema_to_pyarrow(self.metadata.schema(), include_field_ids=False)
        files: Any = _dataframe_to_data_files(
            self.metadata, conformed(rows, columns), self.io, uuid.uuid4()
        )
        for one in files:
            yield pickle.dumps(one)
