"""A queue that is deleted and created again while a query sleeps, on a real service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark.errors import FlowEnded
from counterpoise.spark.options import read_options
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.log_support import until
from tests.service import Service


@pytest.fixture
def reader(service: Service) -> Iterator[StreamReaderWithLimits]:
    options = read_options(
        {
            "queue": "flights",
            "url": service.url,
            "leaseSeconds": "1",
            "maxBatchSeconds": "1",
        }
    )
    reader = StreamReaderWithLimits(options, cores=2)
    yield reader
    reader.stop()


def make(client: Client, service: Service, messages: int) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(messages):
            publisher.publish(b"", key=f"k{number}")


@pytest.mark.long
def test_work_of_a_deleted_queue_is_not_committed_to_its_successor(
    reader: StreamReaderWithLimits, service: Service, client: Client
) -> None:
    make(client, service, 40)
    start = reader.initialOffset()
    planned: list[Any] = []

    def plans() -> bool:
        offset = reader.latestOffset(start, ReadMaxRows(1000))
        planned[:] = [offset]
        return bool(offset != start and len(offset["partitions"]) == 4)

    until(plans)
    reader.partitions(start, planned[0])
    # The micro-batch takes longer than allowed, so the lease is not renewed.
    until(lambda: client.flows("flights") == [])
    client.delete_queue("flights")
    make(client, service, 60)

    def goes_on() -> bool:
        reader.latestOffset(planned[0], ReadMaxRows(1000))
        return False

    with pytest.raises(FlowEnded, match=r"deleted and made again.*another checkpointLocation"):
        until(goes_on)
    reader.stop()
    until(lambda: client.flows("flights") == [])
    assert [(one.position, one.owner) for one in client.partitions("flights")] == [(None, None)] * 4
