"""Delta and Iceberg as places. Only long tests need them: their libraries take long to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyiceberg.catalog import Catalog, load_catalog

from counterpoise.spark import FencedSink
from counterpoise.spark.sink.delta import DeltaLake
from counterpoise.spark.sink.iceberg import IcebergLake
from counterpoise.spark.sink.lake import COMMIT_SECONDS, TARGET_BYTES, Lake
from counterpoise.spark.sink.target import Target
from tests.counterpoise.spark.sink.places import MARK, Place


class Delta(Place):
    """In a directory, of this machine or (by its URI) of an object store."""

    def __init__(self, directory: Path | str, options: Mapping[str, str] | None = None) -> None:
        self.uri = f"{directory}/delta"
        self.options = dict(options or {})

    def target(
        self,
        *,
        columns: tuple[str, ...] | None = None,
        partition_by: tuple[str, ...] = (),
        keys: tuple[str, ...] = (),
        new_columns: Any = "refuse",
        target_bytes: int = TARGET_BYTES,
    ) -> Target:
        table = DeltaLake(self.uri, self.options, partition_by, new_columns)
        return Lake(table, columns, keys, target_bytes, COMMIT_SECONDS)

    def sink(self, name: str, **settings: Any) -> FencedSink:
        return FencedSink.to_delta(self.uri, name=name, storage_options=self.options, **settings)

    def table(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    def rows(self) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.uri, storage_options=self.options):
            return []
        rows: list[dict[str, Any]] = self.table().to_pyarrow_table().to_pylist()
        return rows

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        table = self.table()
        table.create_checkpoint()  # has all of them
        path = f"_delta_log/{table.version():020}.checkpoint.parquet"
        files = PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        found = pq.read_table(path, columns=["txn"], filesystem=files).column("txn").to_pylist()
        versions = {one["appId"]: one["version"] for one in found if one is not None}
        marks = {}
        for name, epoch in versions.items():
            if (parts := name.split("/"))[:2] == [sink, "flights"] and parts[5] == "epoch":
                after = versions["/".join([*parts[:5], "next"])]
                marks[int(parts[4])] = (epoch, None if after == -1 else str(after))
        return marks


class Iceberg(Place):
    """In a directory of this machine, with a catalog in a file; or in the catalog with these
    properties.
    """

    def __init__(
        self, directory: Path, properties: Mapping[str, str] | None = None, name: str = "db.events"
    ) -> None:
        self.name = name
        self.properties = properties or {
            "type": "sql",
            "uri": f"sqlite:///{directory / 'catalog.db'}",
            "warehouse": f"file://{directory / 'warehouse'}",
        }
        self.catalog().create_namespace_if_not_exists("db")

    def catalog(self) -> Catalog:
        return load_catalog(**self.properties)

    def target(
        self,
        *,
        columns: tuple[str, ...] | None = None,
        keys: tuple[str, ...] = (),
        new_columns: Any = "refuse",
        target_bytes: int = TARGET_BYTES,
    ) -> Target:
        table = IcebergLake(self.properties, self.name, new_columns)
        return Lake(table, columns, keys, target_bytes, COMMIT_SECONDS)

    def sink(self, name: str, **settings: Any) -> FencedSink:
        return FencedSink.to_iceberg(self.properties, self.name, name=name, **settings)

    def table(self) -> Any:
        return self.catalog().load_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        if not self.catalog().table_exists(self.name):
            return []
        rows: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return rows

    def high_water(self, sink: str = MARK.sink) -> dict[int, tuple[int, str | None]]:
        marks = {}
        for name, text in self.table().properties.items():
            if (parts := name.split("."))[:3] == ["counterpoise", sink, "flights"]:
                epoch, after = text.split(":")
                marks[int(parts[5])] = (int(epoch), after or None)
        return marks


LAKES: dict[str, Callable[[Path], Delta | Iceberg]] = {"delta": Delta, "iceberg": Iceberg}
