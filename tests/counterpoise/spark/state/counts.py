"""A processor for the tests' own Spark session, and the state store that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row

from counterpoise.spark import TenuredProcessor

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class KeyCounts(TenuredProcessor):
    """The number of rows of each key; its state is handed over."""

    def open(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def clear(self) -> None:
        self.count.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + len(rows)
        self.count.update((n,))
        yield Row(key=key[1], n=n)
