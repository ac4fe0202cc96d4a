"""Trigger.AvailableNow: "nothing to read" is the end of the query, so it must be certain.

The flow and the log are doubles in virtual time: a question to the log takes a second, and so does
waiting for the flow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.logs import Bounds, Log, LogUnavailable
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.logs.port import Successor
from counterpoise.spark.errors import FlowEnded, InvalidOffset, Unfinished
from counterpoise.spark.offsets import Offset, Place
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.query import Consumption, QueueState
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.counterpoise.spark.doubles import NumberLog, Partition, Queue
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.source.test_query import EMPTY, FlowDouble, ends
from tests.log_support import until
from tests.service import Service

Step = Callable[[], None]


class World:
    """One query on four partitions of two messages each. `steps`: events while it waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[Step] = []
        self.log = TimedLog(self)
        self.flow = TimedFlow(self)
        self.flow.grant(0, 1, 2, 3)
        self.settled = 0

        def opener(name: str, access: object) -> Log:
            return self.log

        self.consumption = Consumption(
            SourceOptions("flights", max_bytes_per_trigger=None),
            cast(Flow, self.flow),
            QueueLog(self.flow, None, opener),
            Place("flights", "log-1"),
            wake=self.flow.wake,
            cores=2,
            queue=QueueState(settled=self.settle),
            clock=lambda: self.now,
        )

    def settle(self) -> None:
        """The queue grants its flows their partitions; this takes longer than other waits."""
        self.settled += 1
        self.now += 60
        if self.flow.granted_late:
            self.flow.grant(*self.flow.granted_late)
            self.flow.granted_late = ()

    def aim(self) -> None:
        self.consumption.available_now(lambda numbers: self.log.bounds(numbers).ends)

    def read(self, start: dict[str, Any], limit: int | None = None) -> dict[str, tuple[str, str]]:
        """All the ranges up to the end of the query."""
        read: dict[str, list[str]] = {}
        while (offset := self.consumption.next_offset(start, limit)) is not start:
            before = ends(start)
            for number, (begin, end) in ends(offset).items():
                if before.get(number) != (begin, end):
                    known = read.setdefault(number, [begin, begin])
                    assert begin == known[1]
                    known[1] = end
            start = offset
        return {number: (begin, end) for number, (begin, end) in sorted(read.items())}

    def step(self) -> None:
        self.now += 1
        if self.steps:
            self.steps.pop(0)()


class TimedLog(NumberLog):
    def __init__(self, world: World) -> None:
        super().__init__(4)
        self.world = world
        self.away = False
        for number in range(4):
            self.publish(number, 2)

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        self.world.step()
        if self.away:
            raise LogUnavailable("away")
        return super().bounds(partitions)

    def close(self) -> None:
        pass


class TimedFlow(FlowDouble):
    def __init__(self, world: World) -> None:
        super().__init__(Queue.of(4), threading.Event(), "")
        self.world = world
        self.number = 1
        self.granted_late: tuple[int, ...] = ()
        # What an ordered resize says of partitions.
        self.barriers: dict[int, dict[str, Any]] = {}
        self.keys: dict[int, str] = {}
        # The view, while the flow has not heard of the queue's latest changes.
        self.heard: Mapping[int, Owned] | None = None

    @property
    def partitions(self) -> Mapping[int, Owned]:
        if self.heard is not None:
            return self.heard
        view = super().partitions
        return {
            n: replace(one, key=self.keys.get(n), **self.barriers.get(n, {}))
            for n, one in view.items()
        }

    @property
    def flow_id(self) -> str | None:
        return f"flow-{self.number}" if self.status == "bound" else None

    def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool:
        # The threads of the query, which know no virtual time, get on meanwhile.
        time.sleep(0.05)
        self.world.step()
        return False

    def lose(self) -> None:
        """The lease has expired, and the flow knows it."""
        self.status = "binding"
        for one in self.queue.partitions.values():
            one.leave("orphaned")

    def bind_again(self, *numbers: int) -> None:
        """It gets its partitions some time later."""
        self.status, self.number = "bound", self.number + 1
        self.granted_late = numbers


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.consumption.start()
    yield world
    world.flow.last_error = None
    world.consumption.stop()


ALL = {str(number): ("0", "2") for number in range(4)}


def test_it_reads_up_to_where_the_log_ended_when_it_began(world: World) -> None:
    world.aim()
    world.log.publish(0, 5)
    assert world.read(EMPTY, limit=3) == ALL
    assert world.settled == 1


def test_a_flow_that_is_bound_again_reads_on_to_the_end(world: World) -> None:
    world.aim()
    first = world.consumption.next_offset(EMPTY, 4)
    assert ends(first) == {str(number): ("0", "1") for number in range(4)}
    for one in world.flow.queue.partitions.values():
        one.position = "1"
    world.flow.lose()
    # Longer than the limit for an endless binding; and the queue has a holddown.
    world.steps = [*[lambda: None] * 20, lambda: world.flow.bind_again(0, 1, 2, 3)]
    assert world.read(first) == {str(number): ("1", "2") for number in range(4)}
    assert world.settled == 2


def test_partitions_handed_to_other_flows_are_not_awaited(world: World) -> None:
    world.aim()
    world.flow.lose()
    world.flow.queue.partitions[3].grant("other")
    world.steps = [lambda: world.flow.bind_again(0, 1, 2)]
    assert world.read(EMPTY) == {number: ALL[number] for number in "012"}


def test_a_suspended_process_first_learns_its_partitions(world: World) -> None:
    world.aim()
    world.flow.in_doubt = True

    def renew() -> None:
        world.flow.in_doubt = False

    world.steps = [lambda: None, renew]
    assert world.read(EMPTY) == ALL


@pytest.mark.parametrize("amid", [False, True])
def test_a_flow_that_is_not_bound_again_in_time_is_an_error(world: World, amid: bool) -> None:
    def lose() -> None:
        world.flow.lose()
        world.flow.last_error = ServiceUnavailable("away")

    world.aim()
    if amid:
        # During the question: the partitions were gone before the flow knew it.
        world.steps = [lose]
    else:
        lose()
    with pytest.raises(Unfinished, match=r"being bound again \(away\)"):
        world.read(EMPTY)


def test_a_lease_that_stays_in_doubt_is_an_error(world: World) -> None:
    world.aim()
    world.flow.in_doubt = True
    with pytest.raises(Unfinished, match="whether the lease still lasts"):
        world.read(EMPTY)


def test_done_positions_are_committed_although_the_query_cannot_continue(world: World) -> None:
    world.aim()
    first = world.consumption.next_offset(EMPTY, 4)
    world.flow.in_doubt = True
    with pytest.raises(Unfinished):
        world.read(first)
    world.consumption.stop()
    assert {one.position for one in world.flow.queue.partitions.values()} == {"1"}


def test_a_flow_that_is_over_ends_the_query_at_once(world: World) -> None:
    world.aim()
    world.flow.lose()

    def replace() -> None:
        world.flow.status, world.flow.gone_reason = "gone", "replaced"

    world.steps = [replace]
    with pytest.raises(FlowEnded, match="instanceId"):
        world.read(EMPTY)


def test_targets_are_those_of_the_finally_granted_partitions(world: World) -> None:
    world.flow.lose()
    world.steps = [lambda: world.flow.bind_again(0, 1, 2, 3)]
    world.aim()
    assert world.read(EMPTY) == ALL


def test_a_partition_that_stops_at_its_cut_is_waited_for(world: World) -> None:
    """The barrier is lifted when the service has heard that the others are at theirs."""
    world.flow.barriers = {3: {"resize": 1, "cut": "1", "waits_for": (0,)}}
    world.aim()
    world.steps = [*[lambda: None] * 20, world.flow.barriers.clear]
    assert world.read(EMPTY) == ALL


def test_a_partition_that_keeps_stopping_at_its_cut_is_an_error(world: World) -> None:
    world.flow.barriers = {3: {"resize": 1, "cut": "1", "waits_for": (0, 2)}}
    world.aim()
    with pytest.raises(Unfinished, match=r"partition 3 stops at 1 .*0, 2"):
        world.read(EMPTY)


def test_partitions_whose_epochs_are_over_are_unknown_until_the_next_view(world: World) -> None:
    """The service refuses a commit before the flow hears why: the positions were set."""
    world.aim()
    first = world.consumption.next_offset(EMPTY, 4)
    world.flow.heard = dict(world.flow.partitions)
    for one in world.flow.queue.partitions.values():
        one.position = "1"
        one.grant("me", "forced")
    assert world.consumption.batch_done(first)
    world.flow.wake.set()
    until(lambda: world.consumption.status().handoffs.taken_over_count == 4)

    def hear() -> None:
        world.flow.heard = None

    world.steps = [lambda: None, hear]
    assert world.read(first) == {str(number): ("1", "2") for number in range(4)}


def test_what_comes_after_a_split_is_read(world: World) -> None:
    """Partition 3 was split into 4 and 5, which wait for its end."""
    world.flow.keys = world.log.keys = {n: f"key-{n}" for n in range(6)}
    world.log.sealed = {3: tuple(Successor(n, f"key-{n}", ("key-3",)) for n in (4, 5))}
    for number in (4, 5):
        world.flow.queue.partitions[number] = Partition(number)
        world.log.publish(number, 2)
    world.aim()
    # The service grants them when it has heard that partition 3 is finished.
    world.flow.granted_late = (4, 5)
    assert world.read(EMPTY) == {**ALL, "4": ("0", "2"), "5": ("0", "2")}
    assert world.settled == 2


def test_an_end_that_the_service_refuses_is_a_condition_and_ends_the_query_by_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes after partition 3 waits until a person acts: that is no success."""
    monkeypatch.setattr(world.flow.queue, "children", lambda owner, item: "conflicting_child")
    world.flow.keys = world.log.keys = {n: f"key-{n}" for n in range(5)}
    world.log.sealed = {3: (Successor(4, "key-4", ("key-3",)),)}
    world.aim()
    first = world.consumption.next_offset(EMPTY, None)
    assert world.consumption.batch_done(first)
    until(lambda: world.flow.reported)
    assert [(one.kind, one.partition) for one in world.flow.reported] == [("end_refused", 3)]
    with pytest.raises(Unfinished, match="partition 3: conflicting_child"):
        world.read(first)
    assert not world.consumption.status().handoffs.taken_over_count
    (line,) = [line for line in caplog.records if "have ended" in line.message]
    assert line.levelname == "ERROR"


def test_the_end_is_explained(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.aim()
    with caplog.at_level(logging.INFO, "counterpoise.spark"):
        world.read(EMPTY)
    (line,) = [text for text in caplog.messages if "ends" in text]
    assert "everything is read" in line
    assert "0 at 2 of 2" in line


def test_a_query_that_leaves_ends(world: World) -> None:
    world.aim()
    world.flow.drain()
    world.consumption.take_nothing_new()
    assert world.read(EMPTY) == {}
    world.consumption.left()
    world.flow.status, world.flow.gone_reason = "gone", "unbound"
    assert world.read(EMPTY) == {}


def test_a_log_that_does_not_answer_in_time_is_an_error(world: World) -> None:
    world.aim()
    world.log.away = True
    with pytest.raises(Unfinished, match="away"):
        world.read(EMPTY)


def started_at(position: str) -> dict[str, Any]:
    document = {"epoch": 1, "from": "0", "to": position}
    parts = {str(number): document for number in range(4)}
    return Offset("flights").to_json() | {"partitions": parts}


def test_a_log_that_ends_earlier_for_a_while_is_waited_for(world: World) -> None:
    start = started_at("2")
    for number in range(4):
        world.log.publish(number, 1)
    world.aim()
    world.log.next[3] = 1
    world.steps = [*[lambda: None] * 90, lambda: world.log.publish(3, 2)]
    assert world.read(start) == {str(number): ("2", "3") for number in range(4)}


def test_a_log_that_ended_early_at_the_start_of_the_query_is_waited_for(world: World) -> None:
    world.log.next[3] = 1
    world.aim()
    world.steps = [*[lambda: None] * 90, lambda: world.log.publish(3, 5)]
    assert world.read(started_at("2")) == {"3": ("2", "6")}
    assert world.settled == 1


def test_a_log_that_keeps_ending_early_is_an_error_in_the_end(world: World) -> None:
    world.log.next[3] = 1
    world.aim()
    with pytest.raises(InvalidOffset):
        world.read(started_at("2"))
    assert world.now > AHEAD_SECONDS


@pytest.mark.long
def test_a_micro_batch_that_outlasts_the_lease_does_not_end_the_query(
    service: Service, client: Client
) -> None:
    """On a real service: its holddown is longer than `maxBatchSeconds`."""
    client.create_queue("flights", 4, rebalance_delay=1.5)
    publish(service, "flights", 40)
    options = {"queue": "flights", "url": service.url, "leaseSeconds": "1", "maxBatchSeconds": "1"}
    reader = StreamReaderWithLimits(read_options(options), 2)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    ranges: dict[str, set[tuple[str, str]]] = {}
    try:
        while (offset := reader.latestOffset(start, ReadMaxRows(12))) != start:
            if not ranges:
                until(lambda: not client.flows("flights"))
                until(lambda: client.rebalance_status("flights").status == "Ready")
            for number, one in ends(offset).items():
                ranges.setdefault(number, set()).add(one)
            reader.partitions(start, offset)
            start = offset
    finally:
        reader.stop()
    last = {number: max(int(end) for _, end in some) for number, some in ranges.items()}
    assert sum(last.values()) == 40
