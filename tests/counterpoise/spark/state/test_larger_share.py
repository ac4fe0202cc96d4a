"""Partitions that move between flows of a query, on a real service without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark.options import read_options
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.log_support import until
from tests.service import Service

READ_ALL = ReadMaxRows(1000)


@contextmanager
def reading(service: Service, flows: int, floor: str) -> Iterator[StreamReaderWithLimits]:
    options = {"queue": "flights", "url": service.url, "instanceId": "app", "flows": str(flows)}
    reader = StreamReaderWithLimits(
        read_options({**options, "warmup": "true", "warmupFrom": floor}), cores=2
    )
    try:
        yield reader
    finally:
        reader.stop()


def publish(service: Service, messages: int) -> None:
    with Publisher("flights", url=service.url) as publisher:
        for number in range(messages):
            publisher.publish(b"", key=f"k{number}")


@pytest.mark.long
@pytest.mark.parametrize("floor", ["earliest", "snapshot"])
def test_a_restart_with_more_flows_shares_out_at_once_and_the_states_go_on(
    service: Service, client: Client, floor: str
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0, max_warmup_time=600)
    publish(service, 40)
    offsets: list[Any] = []

    def step(reader: StreamReaderWithLimits) -> None:
        """Like Spark: the planned batch is done when it asks for the next."""
        offset = reader.latestOffset(offsets[-1], READ_ALL)
        if offset != offsets[-1]:
            reader.partitions(offsets[-1], offset)
            offsets.append(offset)

    def all_done(reader: StreamReaderWithLimits, published: int) -> bool:
        step(reader)
        positions = {n: one["to"] for n, one in offsets[-1]["partitions"].items()}
        known = {str(one.partition): one.position for one in client.partitions("flights")}
        return positions == known and sum(map(int, positions.values())) == published

    def shared_out(reader: StreamReaderWithLimits) -> bool:
        step(reader)
        return [one.partitions for one in client.flows("flights")] == [2, 2]

    # The first one dies without unbinding.
    with reading(service, 1, floor) as first, reading(service, 2, floor) as second:
        offsets.append(first.initialOffset())
        until(lambda: all_done(first, 40))
        before = dict(offsets[-1]["partitions"])
        until(lambda: shared_out(second))
        publish(service, 40)
        until(lambda: all_done(second, 80))
    assert all("replays" not in offset for offset in offsets)
    for number, after in offsets[-1]["partitions"].items():
        assert after["epoch"] > before[number]["epoch"]
        assert after["tenure"] == before[number]["epoch"], "the state that the query has kept"
