"""A query that warms up, without Spark: the real log, the real threads, a double for the flow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.offsets import Offset, Place
from counterpoise.spark.options import Floor, SourceOptions
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.progress import Progress, SharedProgress
from counterpoise.spark.source.query import Consumption
from counterpoise.spark.source.warmup_tracker import WarmupTracker
from tests.counterpoise.spark.doubles import Queue
from tests.counterpoise.spark.source.test_query import FlowDouble, ends, next_offset, stop
from tests.log_support import append, log, log_url, until

__all__ = ["log", "log_url"]

EMPTY = Offset("flights").to_json()


class Warm:
    """A flow as the tracker sees it, of which partition 0 warms up under epoch 1."""

    def __init__(self) -> None:
        self.warming = {0: Warming(0, 1, "4")}
        self.partitions: dict[int, Owned] = {}
        self.outcome = "ok"
        self.told: list[tuple[int, int | None]] = []
        self.refreshed = 0

    def ready(self, partition: int, epoch: int | None = None) -> str:
        self.told.append((partition, epoch))
        return self.outcome

    def refresh(self, *, timeout_seconds: float | None = None) -> None:
        self.refreshed += 1


class Tracked:
    """A tracker alone, with a clock."""

    def __init__(self, **options: Any) -> None:
        self.flow, self.now = Warm(), 100.0
        self.progress = Progress(start=Offset("flights"))
        flow = cast(Flow, self.flow)
        place = Place("flights", "log-1")
        shared = SharedProgress(flow, place, threading.Event(), Handoffs(), self.progress)
        chosen = SourceOptions("flights", **options)
        self.tracker = WarmupTracker(chosen, flow, shared, lambda: self.now)

    def asked(self) -> None:
        """Spark asks for an offset."""
        with self.tracker._shared.locked() as progress:
            self.tracker.restores(progress, {})


def test_a_ready_partition_is_told_once_in_each_warm_up() -> None:
    one = Tracked(warmup=True)
    assert not one.tracker.has_news()
    one.progress.near.add((0, 1))
    assert one.tracker.has_news()
    for _ in range(2):
        one.tracker.tell()
        assert one.flow.told == [(0, 1)]
        assert not one.tracker.has_news()
    # Its warm-up is called off, and begins again under the same owner.
    warming, one.flow.warming = one.flow.warming, {}
    one.tracker.tell()
    one.flow.warming = warming
    one.tracker.tell()
    assert one.flow.told == [(0, 1), (0, 1)]


def test_what_a_flow_that_binds_again_was_to_tell_is_told_later() -> None:
    one = Tracked(warmup=True)
    one.progress.near.add((0, 1))
    one.flow.outcome = FLOW_GONE
    one.tracker.tell()
    assert one.tracker.has_news()
    one.flow.outcome = "ok"
    one.tracker.tell()
    assert not one.tracker.has_news()


def test_positions_are_refreshed_once_for_a_question_and_not_too_often() -> None:
    one = Tracked(warmup=True)
    seen = []
    for asks, seconds in ((False, 9.0), (True, 0.0), (False, 9.0), (True, 0.0), (True, 0.4)):
        one.now += seconds
        if asks:
            one.asked()
        one.tracker.tell()
        seen.append(one.flow.refreshed)
    assert seen == [0, 1, 1, 2, 2]
    one.now += 0.2
    one.tracker.tell()
    assert one.flow.refreshed == 3


def test_what_the_driver_has_restored_is_news_once() -> None:
    one = Tracked(warmup=True, warmup_from=Floor(snapshot=True))
    document = {"partitions": {"0": {"epoch": 1}}}
    assert one.tracker.heard(document)
    assert not one.tracker.heard(document)
    assert one.tracker.heard({"partitions": {"0": {"epoch": 2}}})


@pytest.fixture
def flow(log_url: str, log: PostgresLog) -> FlowDouble:
    """Another consumer owns partition 0, at position 4 of 6, and this query is its successor."""
    flow = FlowDouble(Queue.of(4), threading.Event(), log_url)
    append(log, "a", "b", "c", "d", "e", "f")
    one = flow.queue.partitions[0]
    one.grant("other")
    one.position, one.learner = "4", "me"
    return flow


def running(
    flow: FlowDouble, log: PostgresLog, channel: Channel | None = None, **options: Any
) -> Consumption:
    return Consumption(
        SourceOptions("flights", **options),
        cast(Flow, flow),
        QueueLog(flow, None, lambda name, access: log),
        Place("flights", log.bounds([]).incarnation),
        wake=flow.wake,
        cores=2,
        channel=channel,
    )


@pytest.fixture
def consumption(flow: FlowDouble, log: PostgresLog) -> Iterator[Consumption]:
    consumption = running(flow, log, warmup=True)
    consumption.start()
    yield consumption
    stop(consumption)


def replays(offset: dict[str, Any]) -> dict[str, tuple[int, str, str]]:
    return {
        n: (one["tenure"], one["from"], one["to"]) for n, one in offset.get("replays", {}).items()
    }


def test_it_replays_says_ready_and_goes_on_from_the_grant(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    first = next_offset(consumption, EMPTY, limit=3)
    assert (ends(first), replays(first)) == ({}, {"0": (2, "0", "3")})
    (group,) = consumption.partitions(EMPTY, first)
    assert [(one.epoch, one.replay) for one in group.slices] == [(2, True)]
    second = next_offset(consumption, first, limit=3)
    assert replays(second) == {"0": (2, "3", "4")}
    assert flow.ready_told == []
    assert consumption.next_offset(second, 3) is second
    until(lambda: flow.ready_told == [(0, 1)])
    # The owner processes one more message and hands over.
    flow.queue.partitions[0].position = "5"
    flow.queue.partitions[0].leave("graceful")
    flow.grant(0)
    third = next_offset(consumption, second, limit=3)
    assert (ends(third), replays(third)) == ({}, {"0": (2, "4", "5")})
    fourth = next_offset(consumption, third, limit=3)
    assert (ends(fourth), replays(fourth)) == ({"0": ("5", "6")}, {})
    (group,) = consumption.partitions(third, fourth)
    assert [(one.epoch, one.state_of, one.replay) for one in group.slices] == [(2, 2, False)]
    # A restart that finds nothing to read stores its epoch.
    flow.queue.partitions[0].grant("me", "replaced")
    fifth = next_offset(consumption, fourth)
    assert fifth["partitions"] == {"0": {"epoch": 3, "from": "6", "to": "6", "tenure": 2}}
    assert consumption.partitions(fourth, fifth) == []
    assert consumption.next_offset(fifth, None) is fifth


def test_how_far_the_owner_is_is_asked_only_while_spark_asks(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    """The question renews the lease, and a query that hangs must lose it."""
    offset = next_offset(consumption, EMPTY)

    def asked_again() -> bool:
        consumption.next_offset(offset, None)
        return flow.refreshed > 1

    until(asked_again)
    flow.wake.set()
    until(lambda: not flow.wake.is_set())
    before = flow.refreshed
    for _ in range(3):
        flow.wake.set()
        until(lambda: not flow.wake.is_set())
    assert flow.refreshed <= before + 1


def test_ready_is_said_again_under_another_epoch_and_when_the_service_was_away(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    flow.away = True
    offset = next_offset(consumption, EMPTY)
    consumption.next_offset(offset, None)
    until(lambda: consumption.report()["lastError"] == "away")
    flow.away = False
    until(lambda: flow.ready_told == [(0, 1)])
    flow.queue.partitions[0].grant("other", "replaced")
    flow.queue.partitions[0].learner = "me"

    def told() -> bool:
        consumption.next_offset(offset, None)
        return flow.ready_told == [(0, 1), (0, 2)]

    until(told)


def test_trimmed_history_is_warned_of_once(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.trim({0: "2"})
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        offset = next_offset(consumption, EMPTY)
        consumption.next_offset(offset, None)
    assert replays(offset) == {"0": (2, "2", "4")}
    assert caplog.text.count("without positions 0 to 2") == 1


def test_without_the_option_nothing_is_replayed(flow: FlowDouble, log: PostgresLog) -> None:
    consumption = running(flow, log)
    consumption.start()
    try:
        assert replays(consumption.next_offset(EMPTY, None)) == {}
        flow.queue.partitions[0].leave("graceful")
        flow.grant(0)
        offset = next_offset(consumption, EMPTY)
        assert (ends(offset), replays(offset)) == ({"0": ("4", "6")}, {})
        assert flow.ready_told == []
        assert flow.refreshed == 0
        flow.queue.partitions[0].grant("me", "replaced")
        assert consumption.next_offset(offset, None) is offset
    finally:
        stop(consumption)


def test_with_snapshots_the_driver_reports_ready_partitions(
    flow: FlowDouble, log: PostgresLog, tmp_path: Path
) -> None:
    channel = Channel(tmp_path, "me")
    consumption = running(flow, log, channel, warmup=True, warmup_from=Floor(snapshot=True))
    consumption.start()
    try:
        assert consumption.next_offset(EMPTY, None) is EMPTY
        until(lambda: (channel.get("view") or {}).get("partitions"))
        channel.put("ready", {"partitions": {"0": {"epoch": 1}, "3": {"epoch": 7}}})
        until(lambda: flow.ready_told == [(0, 1)])
        flow.queue.partitions[0].leave("graceful")
        flow.grant(0)
        # The driver is responsible for its state.
        assert ends(next_offset(consumption, EMPTY)) == {"0": ("4", "6")}
    finally:
        stop(consumption)
