"""A stateful PySpark application for the tests: it counts the messages of each key.

For each message it outputs its key's count at that moment, as the value `NUMBER:COUNT`. So a
missing or repeated message in the state shows in every later row. `kind` is `replay`
(transformWithState) or `snapshot` (foreachBatch). While `hold` says `warm`, history waits. With
replay the whole query waits, because it learns and works in the same micro-batches.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
from pyspark.sql import Row

from counterpoise.spark import (
    Output,
    PartitionState,
    Snapshots,
    StatefulForeachBatch,
    TenuredProcessor,
)
from tests.counterpoise.spark.application import Application, Sink
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.small import LOCAL
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.state.counts import ROCKSDB, STATE_STORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control

COUNTED = "partition int, position string, epoch long, key string, value binary"


class StatefulApplication(Application):
    """As `Application`; `shared` is where snapshots are published."""

    module = "tests.counterpoise.spark.state.application"

    def __init__(
        self,
        name: str,
        directory: Path,
        url: str,
        queue: str,
        drivers: Drivers,
        kind: str,
        *,
        master: str = LOCAL,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"warmup": "true", **options}
        if kind == "snapshot":
            given["warmupFrom"] = "snapshot"
        super().__init__(name, directory, url, queue, drivers, master=master, **given)
        self._own = {"kind": kind, "shared": str(directory / "snapshots")}

    def settings(self) -> dict[str, Any]:
        return super().settings() | self._own


class Counts(PartitionState[Counter[str]]):
    """The state of a partition: the number of messages of each key."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def empty(self, partition: int) -> Counter[str]:
        return Counter()

    def apply(self, state: Counter[str], rows: pa.Table) -> list[list[Any]]:
        out = []
        if rows["replay"][0].as_py():
            self.sink.wait_if("warm")
        for row in rows.to_pylist():
            state[row["key"]] += 1
            value = f"{row['value'].decode()}:{state[row['key']]}"
            out.append([row["partition"], int(row["position"]), row["epoch"], row["key"], value])
        return out

    def dump(self, state: Counter[str], file: BinaryIO) -> None:
        pickle.dump(state, file)

    def load(self, file: BinaryIO) -> Counter[str]:
        self.sink.wait_if("warm")
        state: Counter[str] = pickle.load(file)
        return state


class KeyedCounts(TenuredProcessor):
    """The state of a key: its number of messages."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def open(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def clear(self) -> None:
        self.count.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        if rows[0]["replay"]:
            self.sink.wait_if("warm")
        known = self.count.get()
        n = known[0] if known is not None else 0
        for row in rows:
            n += 1
            value = bytes(row["value"]) + f":{n}".encode()
            same = {name: row[name] for name in ("partition", "position", "epoch", "key")}
            yield Row(**same, value=value)
        self.count.update((n,))


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    home = Path(settings["home"])
    sink = Sink(home)
    spark.conf.set(STATE_STORE, ROCKSDB)
    options = settings["options"]
    messages = spark.readStream.format("counterpoise").options(**options).load()
    handler: StatefulForeachBatch[Counter[str]] | None = None
    if settings["kind"] == "snapshot":

        def write(outputs: Sequence[Output], batch_id: int) -> None:
            rows = [[batch_id, *row] for one in outputs for row in one.value or ()]
            sink.put(rows)

        handler = StatefulForeachBatch(
            options,
            Counts(sink),
            write,
            snapshots=Snapshots(settings["shared"]),
            publish_seconds=1.0,
        )
        writer = messages.writeStream.foreachBatch(handler)
    else:
        counted = messages.groupBy("partition", "key").transformWithState(
            KeyedCounts(sink), COUNTED, "Update", "None"
        )
        writer = counted.writeStream.outputMode("Update").foreachBatch(sink)
    query = started(writer.option("checkpointLocation", str(home / "checkpoint")))
    try:
        control.run(query)
    finally:
        if handler is not None:
            handler.close()
