"""The bind of a query's flow, on a real service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import CannotStart
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.flow import bind
from counterpoise.wire import ReleaseItem
from tests.counterpoise.spark.queries import Collected, publish, start
from tests.log_support import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 6, rebalance_delay=0, max_handoff_time=600)
        yield client


def bound(options: SourceOptions) -> Flow:
    return bind(
        options,
        "app",
        warmup=False,
        renew_while=lambda: True,
        wake=threading.Event(),
        handoffs=Handoffs(),
    )


def obliging(flow: Flow, condition: Callable[[], object]) -> None:
    """Wait until the condition holds; meanwhile release revoked partitions."""

    def holds() -> object:
        items = [
            ReleaseItem(number, held.epoch, held.position)
            for number, held in flow.partitions.items()
            if held.state == "revoking"
        ]
        if items:
            flow.release_many(items)
        return condition()

    until(holds)


def test_the_service_knows_what_the_options_ask_for(service: Service, client: Client) -> None:
    options = SourceOptions(
        "flights", service.url, client_name="me", lease_seconds=60, weight=3, max_partitions=4
    )
    flow = bound(options)
    try:
        (said,) = client.flows("flights")
        assert (said.client_name, said.instance_id) == ("me", "app")
        assert (said.weight, said.max_partitions) == (3, 4)
        assert flow.lease_seconds == 60
    finally:
        flow.close()


def test_a_queue_that_is_not_there_is_said_so(service: Service) -> None:
    with pytest.raises(CannotStart, match="nobody"):
        bound(SourceOptions("nobody", service.url))


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.matrix(of="applications")
def test_an_application_with_weight_two_works_for_two_also_after_a_restart(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    sink = Collected()

    def run() -> StreamingQuery:
        options: dict[str, str | int] = {"url": service.url, "queue": "flights", "weight": 2}
        return start(spark, sink, tmp_path / "checkpoint", **options)

    def committed_by_us() -> int:
        at = {one.partition: int(one.position or 0) for one in client.partitions("flights")}
        return sum(at[number] for number in {row.partition for row in sink.rows})

    def held() -> list[int]:
        """By the other flow, and by the query."""
        return [one.partitions for one in client.flows("flights")]

    with Flow("flights", url=service.url, instance_id="other") as other:
        until(lambda: len(other.partitions) == 6)
        query = run()
        try:
            obliging(other, lambda: held() == [2, 4])
            publish(service, "flights", 120)
            theirs = set(other.partitions)
            until(lambda: {row.partition for row in sink.rows} | theirs == set(range(6)))
            ours = {row.partition for row in sink.rows}
            assert len(ours) == 4
            # A holddown that outlasts the restart: its partitions wait for it.
            client.change_queue("flights", rebalance_delay=600)
            epochs = {one.partition: one.epoch for one in client.partitions("flights")}
            # If it were stopped before the last micro-batch is in Spark's commit log, that would be
            # repeated.
            until(lambda: committed_by_us() == len(sink.rows))
        finally:
            query.stop()
        until(lambda: held() == [2])
        query = run()
        try:
            until(lambda: held() == [2, 4])
            publish(service, "flights", 120, first=120)
            seen = len(sink.rows)
            until(lambda: {row.partition for row in sink.rows[seen:]} == ours)
        finally:
            query.stop()
    again = {row.partition: row.epoch for row in sink.rows}
    assert all(again[number] == epochs[number] + 1 for number in ours)
    values = [int(row.value[1:]) for row in sink.rows]
    assert len(set(values)) == len(values), "each message once"
