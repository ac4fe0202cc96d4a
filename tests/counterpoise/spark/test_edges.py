"""Queries at the edges: the largest messages, many partitions and many queries on two cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.logs import MAX_MESSAGE_BYTES
from counterpoise.publisher import Publisher
from tests.counterpoise.spark.queries import QueryStage, publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="edges")]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stage(spark: SparkSession, service: Service, tmp_path: Path) -> Iterator[QueryStage]:
    stage = QueryStage(spark, service, tmp_path)
    yield stage
    stage.end()


def test_the_largest_messages_arrive_whole(stage: QueryStage) -> None:
    """A task and Spark's link to its Python workers have them in memory, one of them at a time."""
    stage.client.create_queue("flights", 2, rebalance_delay=0)
    sizes = [MAX_MESSAGE_BYTES - 1000 - number for number in range(3)]
    with Publisher("flights", url=stage.service.url) as publisher:
        for number, size in enumerate(sizes):
            publisher.publish(bytes([number]) * size, key="one")
        with pytest.raises(ValueError, match="is the most a log holds"):
            publisher.publish(bytes(MAX_MESSAGE_BYTES + 1), key="one")
    stage.published = len(sizes)
    seen: list[tuple[int, int]] = []

    def sink(batch: Any, _: int) -> None:
        rows = batch.selectExpr("length(value) size", "hex(substring(value, -1, 1)) last").collect()
        seen.extend((row["size"], int(row["last"], 16)) for row in rows)

    stage.started(stage.messages().writeStream.foreachBatch(sink))
    until(stage.all_committed, "all is committed")
    assert seen == [(size, number) for number, size in enumerate(sizes)]


def test_a_micro_batch_takes_many_leases(stage: QueryStage) -> None:
    """As with a sink that takes a minute: its partitions wait for it, and are handed over once."""
    stage.client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
    publish(stage.service, "flights", 40)
    stage.published = 40
    held, goes_on = Event(), Event()
    seen: Counter[bytes] = Counter()

    def sink(batch: Any, _: int) -> None:
        seen.update(bytes(row["value"]) for row in batch.select("value").collect())
        held.set()
        goes_on.wait(400)

    query = stage.started(stage.messages(leaseSeconds="1").writeStream.foreachBatch(sink))
    until(held.is_set, "a micro-batch in the sink")
    (bound,) = stage.client.flows("flights")
    ten_leases_later = bound.lease_expires_at + timedelta(seconds=10)

    def renewed() -> bool:
        expires_at = {one.flow_id: one.lease_expires_at for one in stage.client.flows("flights")}
        return expires_at[bound.flow_id] > ten_leases_later

    with Flow("flights", url=stage.service.url) as newcomer:
        until(renewed, "it has renewed its lease")
        assert not newcomer.partitions
        goes_on.set()
        until(lambda: len(newcomer.partitions) == 2, "its share of the partitions")
        assert {one.handed_over for one in newcomer.partitions.values()} == {"graceful"}
    until(stage.all_committed, "all is committed")
    assert seen == Counter(b"v%d" % number for number in range(40))
    assert query.exception() is None


def test_a_thousand_partitions_on_two_cores(stage: QueryStage) -> None:
    stage.client.create_queue("flights", 1000, rebalance_delay=0)
    seen: Counter[bytes] = Counter()
    tasks: list[int] = []

    def sink(batch: Any, _: int) -> None:
        tasks.append(batch.rdd.getNumPartitions())
        seen.update(bytes(row["value"]) for row in batch.select("value").collect())

    query = stage.started(stage.messages().writeStream.foreachBatch(sink))
    for batch in range(3):
        with Publisher("flights", url=stage.service.url) as publisher:
            for number in range(2000):
                publisher.publish(f"{batch} {number}".encode(), key=str(number))
        stage.published += 2000
        until(stage.all_committed, "all is committed")
    assert len(seen) == stage.published
    assert set(seen.values()) == {1}
    # Each core reads many partitions: a task for each of them would cost more than its work.
    assert max(tasks) <= 2 * stage.spark.sparkContext.defaultParallelism
    assert query.exception() is None


def test_four_queries_of_one_session_share_two_cores(stage: QueryStage) -> None:
    """Two queues, and two queries on each: they are told apart, and none starves."""
    names = ("flights", "trips")
    seen: dict[str, Counter[bytes]] = {name: Counter() for name in names}
    for name in names:
        stage.client.create_queue(name, 4, rebalance_delay=0, max_handoff_time=600)
        for number in range(2):

            def sink(batch: Any, _: int, name: str = name) -> None:
                seen[name].update(bytes(row["value"]) for row in batch.select("value").collect())

            one = f"{name}-{number}"
            stream = stage.messages(queue=name, instanceId=one, clientName=one)
            stage.started(stream.writeStream.foreachBatch(sink), checkpoint=one)

    def shared(client: Client) -> bool:
        return all([flow.partitions for flow in client.flows(name)] == [2, 2] for name in names)

    until(lambda: shared(stage.client), "each query has two partitions")
    for name in names:
        with Publisher(name, url=stage.service.url) as publisher:
            for number in range(400):
                publisher.publish(str(number).encode(), key=str(number))

    def lags() -> list[int]:
        return [one.lag or 0 for name in names for one in stage.client.partitions(name)]

    until(lambda: all(len(counts) == 400 for counts in seen.values()), "all is read")
    until(lambda: not any(lags()), "all is committed")
    assert all(set(counts.values()) == {1} for counts in seen.values())
    assert [query.exception() for query in stage.queries] == [None] * 4


def test_three_queries_share_a_queue_amid_splits(stage: QueryStage) -> None:
    names = ("one", "two", "three")
    stage.client.create_queue(
        "flights", 3, partitioning="dynamic", rebalance_delay=0, max_handoff_time=600
    )
    seen: list[tuple[str, int]] = []

    def sink(batch: Any, _: int) -> None:
        rows = batch.selectExpr("key", "cast(cast(value as string) as int) number").collect()
        seen.extend((row["key"], row["number"]) for row in rows)

    for name in names:
        stream = stage.messages(instanceId=name, clientName=name, maxMessagesPerTrigger="300")
        stage.started(stream.writeStream.foreachBatch(sink), checkpoint=name)
    until(lambda: stage.shares() == dict.fromkeys(names, 1), "each has a partition")
    with Publisher("flights", url=stage.service.url) as publisher:
        for number in range(3000):
            publisher.publish(b"%d" % number, key=f"k{number % 50}")
            if number in (1000, 2000):
                stage.client.split_partition("flights", 0 if number == 1000 else 1)
    until(lambda: len(seen) >= 3000, "all is read")
    until(lambda: not any(one.lag for one in stage.client.partitions("flights")), "all is done")
    assert sorted(number for _, number in seen) == list(range(3000))
    for key in {key for key, _ in seen}:
        numbers = [number for one, number in seen if one == key]
        assert numbers == sorted(numbers)
    assert sum(stage.shares().values()) == 5
    assert [query.exception() for query in stage.queries] == [None] * 3
