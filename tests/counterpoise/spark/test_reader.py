"""What the reader does before it binds, driven as Spark drives it, on a real service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.spark.channel import DriverEnd
from counterpoise.spark.options import read_options
from counterpoise.spark.reader import CounterpoiseStreamReader
from counterpoise.spark.tasks import LogPartition
from tests.counterpoise.spark.waiting import until
from tests.service import Service

CORES = 2
ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _this_process_keeps_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.spark.reader.ignore_signals", lambda: None)


@contextmanager
def reading(
    service: Service, home: str | None = None, **options: str
) -> Iterator[CounterpoiseStreamReader]:
    given = read_options({"queue": "flights", "url": service.url, **options})
    reader = CounterpoiseStreamReader(given, CORES, home)
    try:
        yield reader
    finally:
        reader.stop()


@contextmanager
def owned(service: Service, holddown_seconds: float = 0.0) -> Iterator[Client]:
    """A queue that another flow owns."""
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)

        def release(owned: Owned, _: float) -> None:
            owner.release(owned.partition)

        with Flow("flights", url=service.url, on_revoking=release) as owner:
            until(lambda: len(owner.partitions) == 4, "the owner has all")
            client.change_queue("flights", rebalance_delay=holddown_seconds)
            yield client


def slices_of(partitions: object) -> list[tuple[object, ...]]:
    assert isinstance(partitions, list)
    assert all(isinstance(one, LogPartition) for one in partitions)
    return [one.slices for one in partitions]


def test_a_new_query_runs_a_micro_batch_without_messages_before_it_binds(
    service: Service, tmp_path: Path
) -> None:
    with owned(service) as client, reading(service, str(tmp_path)) as reader:
        start = reader.initialOffset()
        prepared = reader.latestOffset(start, ALL)
        assert prepared["prepared"] == 1
        assert slices_of(reader.partitions(start, prepared)) == [()] * CORES
        assert len(client.flows("flights")) == 1, "a bind takes partitions from their owner"
        assert client.rebalance_status("flights").status == "Ready"
        # A sink that needs the plan of each micro-batch has this one, too.
        driver = DriverEnd(str(tmp_path), start["instance"])
        plan = driver.get("plan")
        assert plan is not None
        assert (plan["start"], plan["end"], plan["read"]) == (start, prepared, [])
        assert reader.latestOffset(prepared, ALL) is prepared, "it is ready, so it only waits"
        assert len(client.flows("flights")) == 2


def test_a_query_that_is_ready_binds_although_spark_asks_much_later(
    service: Service, tmp_path: Path
) -> None:
    with owned(service) as client, reading(service, str(tmp_path)) as reader:
        start = reader.initialOffset()
        prepared = reader.latestOffset(start, ALL)
        reader.partitions(start, prepared)
        driver = DriverEnd(str(tmp_path), start["instance"])
        driver.put("done", {"offset": prepared, "batch": 0, "ended": False})
        until(lambda: [one.partitions for one in client.flows("flights")] == [2, 2], "a share")
        # What it has got can be released, too.
        mine = client.flows("flights")[1]
        client.drain("flights", mine.flow_id)
        until(lambda: len(client.flows("flights")) == 1, "it has left")


def test_a_query_that_has_its_queue_to_itself_binds_at_once(service: Service) -> None:
    with Client(service.url) as client, reading(service) as reader:
        client.create_queue("flights", 4, rebalance_delay=0)
        reader.latestOffset(reader.initialOffset(), ALL)
        assert len(client.flows("flights")) == 1


@pytest.mark.parametrize("options", [{"instanceId": "app"}, {"warmup": "true"}])
def test_a_query_whose_partitions_may_wait_for_it_binds_at_once(
    service: Service, options: dict[str, str]
) -> None:
    with owned(service) as client, reading(service, **options) as reader:
        reader.latestOffset(reader.initialOffset(), ALL)
        assert len(client.flows("flights")) == 2


def test_a_query_that_goes_on_from_a_checkpoint_binds_at_once(service: Service) -> None:
    with owned(service) as client, reading(service) as reader:
        reader.latestOffset({**reader.initialOffset(), "instance": "of the checkpoint"}, ALL)
        assert len(client.flows("flights")) == 2


def test_a_holddown_is_the_time_to_get_ready(service: Service) -> None:
    with owned(service, holddown_seconds=5.0) as client, reading(service) as reader:
        reader.latestOffset(reader.initialOffset(), ALL)
        assert len(client.flows("flights")) == 2
