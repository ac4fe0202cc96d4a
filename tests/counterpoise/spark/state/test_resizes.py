"""State is kept per partition: after a resize, keys that have moved begin anew (docs, *Limits*)."""

from __future__ import annotations

import pickle
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark import (
    Output,
    PartitionState,
    Snapshots,
    StatefulForeachBatch,
)
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.state.counts import ROCKSDB, STATE_STORE, KeyCounts
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="processors in handoffs"),
]

KEYS = [f"k{n}" for n in range(8)]


class PartitionCounts(PartitionState[Counter[str]]):
    def empty(self, partition: int) -> Counter[str]:
        return Counter()

    def apply(self, state: Counter[str], rows: pa.Table) -> list[tuple[str, int]]:
        state.update(rows["key"].to_pylist())
        return [(key, state[key]) for key in set(rows["key"].to_pylist())]

    def dump(self, state: Counter[str], file: BinaryIO) -> None:
        pickle.dump(state, file)

    def load(self, file: BinaryIO) -> Counter[str]:
        found: Counter[str] = pickle.load(file)
        return found


class Stage:
    """A queue of one partition, and the newest count of each key."""

    def __init__(self, service: Service, client: Client) -> None:
        self.service = service
        self.client = client
        self.counts: dict[str, int] = {}
        client.create_queue("flights", 1, rebalance_delay=0)
        client.create_queue("flights-history", 1, log="builtin:flights", ordered_resize=False)

    def publish(self) -> None:
        with Publisher("flights", url=self.service.url) as publisher:
            for key in KEYS * 5:
                publisher.publish(b"", key=key)

    def check(self) -> None:
        self.publish()
        until(lambda: self.counts == dict.fromkeys(KEYS, 5), "counted")
        self.client.change_queue("flights", partition_count=2)
        self.publish()
        moved = {key for key in KEYS if zlib.crc32(key.encode()) % 2}
        assert 0 < len(moved) < len(KEYS)
        stayed = dict.fromkeys(set(KEYS) - moved, 10)
        until(
            lambda: {key: n for key, n in self.counts.items() if n > 5} == stayed,
            "keys that stayed go on",
        )
        until(lambda: all(one.lag == 0 for one in self.client.partitions("flights")), "all is done")
        assert self.counts == {**stayed, **dict.fromkeys(moved, 5)}


@pytest.fixture
def stage(service: Service, client: Client) -> Stage:
    return Stage(service, client)


def test_of_a_processor(stage: Stage, spark: SparkSession, tmp_path: Path) -> None:
    def collect(batch: DataFrame, batch_id: int) -> None:
        stage.counts.update((row.key, row.n) for row in batch.collect())

    spark.conf.set(STATE_STORE, ROCKSDB)
    options = {"url": stage.service.url, "queue": "flights", "warmup": "true"}
    messages = spark.readStream.format("counterpoise").options(**options).load()
    counted = messages.groupBy("partition", "key").transformWithState(
        KeyCounts(), "key string, n long", "Update", "None"
    )
    writer = counted.writeStream.outputMode("update").foreachBatch(collect)
    query = started(writer.option("checkpointLocation", str(tmp_path)))
    try:
        stage.check()
    finally:
        query.stop()
        spark.conf.unset(STATE_STORE)


def test_of_a_foreach_batch(stage: Stage, spark: SparkSession, tmp_path: Path) -> None:
    def collect(outputs: Sequence[Output], batch_id: int) -> None:
        stage.counts.update(pair for one in outputs for pair in one.value or ())

    options = {"url": stage.service.url, "queue": "flights"}
    options |= {"warmup": "true", "warmupFrom": "snapshot"}
    handler = StatefulForeachBatch(
        options, PartitionCounts(), collect, snapshots=Snapshots(tmp_path / "snapshots")
    )
    messages = spark.readStream.format("counterpoise").options(**options).load()
    writer = messages.writeStream.foreachBatch(handler)
    query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    try:
        stage.check()
    finally:
        query.stop()
        handler.close()
