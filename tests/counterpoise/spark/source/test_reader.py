"""What the reader does before it binds, driven as Spark drives it, on a real service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.spark.channel.channel import DriverEnd, source_end
from counterpoise.spark.errors import Unsupported
from counterpoise.spark.offsets import Offset
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.source import opening
from counterpoise.spark.source.log_partition import LogPartition
from counterpoise.spark.source.opening import PreparedBatch
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service

CORES = 2
MANY = ReadMaxRows(1000)


@pytest.fixture(autouse=True)
def _this_process_keeps_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.spark.source.reader.ignore_signals", lambda: None)


@contextmanager
def reading(
    service: Service, home: str | None = None, **options: str
) -> Iterator[StreamReaderWithLimits]:
    given = read_options({"queue": "flights", "url": service.url, **options})
    reader = StreamReaderWithLimits(given, CORES, home)
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


class Countdown(threading.Event):
    """It is set after so many waits, each of which ends at once."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left <= 0


def slices_of(partitions: object) -> list[tuple[object, ...]]:
    assert isinstance(partitions, list)
    assert all(isinstance(one, LogPartition) for one in partitions)
    return [one.slices for one in partitions]


def test_a_new_query_runs_a_micro_batch_without_messages_before_it_binds(
    service: Service, tmp_path: Path
) -> None:
    with owned(service) as client, reading(service, str(tmp_path)) as reader:
        start = reader.initialOffset()
        prepared = reader.latestOffset(start, MANY)
        assert prepared["prepared"] == 1
        assert slices_of(reader.partitions(start, prepared)) == [()] * CORES
        assert len(client.flows("flights")) == 1, "a bind takes partitions from their owner"
        assert client.rebalance_status("flights").status == "Ready"
        # A sink that needs the plan of each micro-batch has this one, too.
        driver = DriverEnd(str(tmp_path), start["instance"])
        plan = driver.get("plan")
        assert plan is not None
        assert (plan["start"], plan["end"], plan["read"]) == (start, prepared, [])
        assert reader.latestOffset(prepared, MANY) is prepared, "it is ready, so it only waits"
        assert len(client.flows("flights")) == 2


def test_a_query_that_is_ready_binds_although_spark_asks_much_later(
    service: Service, tmp_path: Path
) -> None:
    with owned(service) as client, reading(service, str(tmp_path)) as reader:
        start = reader.initialOffset()
        prepared = reader.latestOffset(start, MANY)
        reader.partitions(start, prepared)
        driver = DriverEnd(str(tmp_path), start["instance"])
        driver.put("done", {"offset": prepared, "batch": 0, "ended": False})
        until(lambda: [one.partitions for one in client.flows("flights")] == [2, 2], "a share")
        # What it has got can be released, too.
        mine = client.flows("flights")[1]
        client.drain("flights", mine.flow_id)
        until(lambda: len(client.flows("flights")) == 1, "it has left")


@pytest.mark.parametrize("most", ["1000", "unlimited"])
def test_a_query_of_one_micro_batch_is_refused_before_it_binds(most: str) -> None:
    """It would end with success, before it has any partition. To Spark all else has a limit."""
    options = read_options({"queue": "flights", "maxMessagesPerTrigger": most})
    reader = StreamReaderWithLimits(options, CORES)
    with pytest.raises(Unsupported, match="availableNow=True"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)


def test_a_query_that_has_its_queue_to_itself_binds_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether others are bound, and whether the log answers, it finds out once."""
    reached: list[str] = []

    def reach(options: SourceOptions) -> opening.ReachedLog:
        reached.append(options.queue)
        return found(options)

    found = opening._reach
    monkeypatch.setattr(opening, "_reach", reach)
    with Client(service.url) as client, reading(service) as reader:
        client.create_queue("flights", 4, rebalance_delay=0)
        reader.latestOffset(reader.initialOffset(), MANY)
        assert len(client.flows("flights")) == 1
    assert reached == ["flights"]


def test_a_query_that_ends_by_itself_takes_no_holddown_if_nobody_else_is_bound(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.spark.source.opening._SETTLE_SECONDS", 1.0)
    with Client(service.url) as client, reading(service) as reader:
        client.create_queue("flights", 4, rebalance_delay=3600)
        publish(service, "flights", 40)
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(reader.initialOffset(), MANY)
        assert len(end["partitions"]) == 4
        assert client.rebalance_status("flights").status == "Ready"


@pytest.mark.long
@pytest.mark.parametrize("options", [{"instanceId": "app"}, {"warmup": "true"}])
def test_a_query_whose_partitions_may_wait_for_it_binds_at_once(
    service: Service, options: dict[str, str]
) -> None:
    with owned(service) as client, reading(service, **options) as reader:
        reader.latestOffset(reader.initialOffset(), MANY)
        assert len(client.flows("flights")) == 2


def test_a_query_that_goes_on_from_a_checkpoint_binds_at_once(service: Service) -> None:
    with owned(service) as client, reading(service) as reader:
        reader.latestOffset({**reader.initialOffset(), "instance": "of the checkpoint"}, MANY)
        assert len(client.flows("flights")) == 2


def test_a_holddown_is_no_reason_to_bind_before_it_is_ready(service: Service) -> None:
    """An application without executors would own its share when the holddown is over."""
    with owned(service, holddown_seconds=5.0) as client, reading(service) as reader:
        prepared = reader.latestOffset(reader.initialOffset(), MANY)
        assert prepared["prepared"] == 1
        assert len(client.flows("flights")) == 1


def test_it_waits_without_limit_for_the_end_of_that_micro_batch(tmp_path: Path) -> None:
    """Executors may come after minutes, or never."""
    start = Offset("flights", instance="app").to_json()
    channel = source_end(tmp_path, "app", None)
    batch = PreparedBatch({**start, "prepared": 1}, [], channel)
    DriverEnd(tmp_path, "app").put("done", {"offset": start, "batch": 0, "ended": False})
    stopped = Countdown(1000)
    assert not batch.wait_done(stopped)
    assert stopped.left == 0
    DriverEnd(tmp_path, "app").put("done", {"offset": batch.end, "batch": 1, "ended": False})
    assert batch.wait_done(Countdown(2))


def test_without_a_driver_that_says_it_spark_itself_has_to_ask() -> None:
    assert not PreparedBatch({}, [], None).wait_done(Countdown(1))
