"""The settler tells the service what is done, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from counterpoise.backoff import Pauses
from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.logs.port import Successor
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.offsets import Offset, Place, Range
from counterpoise.spark.source.progress import Progress, SharedProgress
from counterpoise.spark.source.settler import QuerySettler
from tests.counterpoise.spark.doubles import Queue
from tests.counterpoise.spark.source.test_query import FlowDouble
from tests.log_support import until


class Defect:
    """A call that fails with an unforeseen error, while `there`."""

    def __init__(self) -> None:
        self.there = True
        self.met = 0

    def __call__(self) -> None:
        if self.there:
            self.met += 1
            raise KeyError("epoch", self.met)


@pytest.fixture
def flow() -> FlowDouble:
    flow = FlowDouble(Queue.of(1), threading.Event(), "")
    flow.grant(0)
    return flow


class NothingLost(Handoffs):
    """Fails if a grant counts as taken over."""

    def taken_over(self, partition: int, epoch: int, position: str | None) -> None:
        raise AssertionError(f"partition {partition}, epoch {epoch} was refused")


class Noted(Handoffs):
    """Notes what counts as taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def taken_over(self, partition: int, epoch: int, position: str | None) -> None:
        self.noted.append(partition)


class Bell(threading.Event):
    """Who waits for it is woken by it alone, not by a timeout."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait()


def settler_of(
    double: FlowDouble,
    progress: Progress,
    also: Callable[[], None] = lambda: None,
    handoffs: Handoffs | None = None,
) -> QuerySettler:
    flow, wake = cast(Flow, double), Bell()
    wake.set()
    place = Place("flights", "log-1")
    shared = SharedProgress(flow, place, wake, handoffs or NothingLost(), progress)
    return QuerySettler(flow, shared, also)


def done_to(end: str) -> Progress:
    """All of partition 0 up to this position is in the sink."""
    return Progress(start=Offset("flights", {0: Range(1, "0", end)}))


def test_an_unforeseen_error_is_shown_and_does_not_end_the_thread(
    flow: FlowDouble, caplog: pytest.LogCaptureFixture
) -> None:
    defect = Defect()
    progress = Progress()
    settler = settler_of(flow, progress, defect)
    with caplog.at_level(logging.ERROR, "counterpoise.spark"):
        settler.start()
        until(lambda: defect.met >= 2)
    assert "epoch" in str(settler.last_error)
    assert caplog.text.count("Traceback") == 1, "once for all failures in a row"
    defect.there = False
    until(lambda: settler.last_error is None)
    settler.close(1.0)


def test_closing_survives_an_unforeseen_error(
    flow: FlowDouble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def todo(*_: object, **__: object) -> None:
        raise KeyError("epoch")

    progress = Progress()
    monkeypatch.setattr(progress, "todo", todo)
    settler = settler_of(flow, progress, Defect())
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        settler.start()
        settler.close(5.0)
    assert "will be read again" in caplog.text


@pytest.mark.parametrize("status", ["binding", "gone"])
def test_nothing_is_told_by_a_flow_that_is_not_bound(status: str) -> None:
    """Its calls would wait or fail in vain."""
    looked = threading.Semaphore(0)

    class Watched(FlowDouble):
        @property
        def status(self) -> str:
            looked.release()
            return status

        @status.setter
        def status(self, _: str) -> None: ...

    flow = Watched(Queue.of(1), threading.Event(), "")
    settler = settler_of(flow, done_to("7"), Defect())
    settler.start()
    # The second check shows that the first one was complete.
    assert looked.acquire(timeout=240)
    settler._shared.wake.set()
    assert looked.acquire(timeout=240)
    assert settler.last_error is None
    settler._closed.set()


class Answering(FlowDouble):
    """A flow whose calls are answered so, while `outcomes` says how; `calls`: those that came."""

    outcomes: dict[int, str] | None = None
    calls = 0

    def _answer(self, real: dict[int, str]) -> dict[int, str]:
        self.calls += 1
        return real if self.outcomes is None else self.outcomes

    def commit(self, items: Any, **options: Any) -> dict[int, str]:
        return self._answer({} if self.outcomes is not None else super().commit(items))

    def release_many(self, items: Any, **options: Any) -> dict[int, str]:
        return self._answer({} if self.outcomes is not None else super().release_many(items))

    def children_many(self, items: Any, **options: Any) -> dict[int, str]:
        return self._answer({} if self.outcomes is not None else super().children_many(items))


@pytest.fixture
def answering() -> Answering:
    flow = Answering(Queue.of(1), threading.Event(), "")
    flow.grant(0)
    return flow


def test_what_the_service_has_confirmed_is_not_told_again(answering: Answering) -> None:
    settler = settler_of(answering, done_to("7"))
    settler._settle(False, 1.0)
    answering.queue.partitions[0].position = None
    settler._settle(False, 1.0)
    assert answering.calls == 1


@pytest.mark.parametrize("outcomes", [{0: FLOW_GONE}, {}])
def test_a_flow_that_binds_again_has_lost_nothing_by_that(
    answering: Answering, outcomes: dict[int, str]
) -> None:
    """The partition may come back under the next epoch, with what was done."""
    answering.outcomes = outcomes
    settler = settler_of(answering, done_to("7"))
    settler._settle(False, 1.0)
    answering.outcomes = None
    answering.queue.partitions[0].grant("me", "replaced")
    settler._settle(False, 1.0)
    assert answering.queue.partitions[0].position == "7"


def test_what_was_refused_counts_as_taken_over(answering: Answering) -> None:
    handoffs = Noted()
    answering.outcomes = {0: "stale_epoch"}
    settler_of(answering, done_to("7"), handoffs=handoffs)._settle(False, 1.0)
    assert handoffs.noted == [0]


def test_what_is_not_to_be_released_any_more_was_not_taken_over(answering: Answering) -> None:
    """A resize has taken it back."""
    answering.outcomes = {0: "not_revoking"}
    answering.revoke(0)
    settler_of(answering, done_to("7"))._settle(False, 1.0)
    assert answering.calls == 1


def test_an_end_whose_other_parent_is_unknown_is_told_again_later(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("counterpoise.spark.source.settler.time.monotonic", lambda: now[0])
    answering.queue.partitions[0].position = "7"
    progress = done_to("7")
    settler = settler_of(answering, progress)
    progress.todo(answering.partitions)
    progress.ledger.ends_at(0, "0", "7", (Successor(1, "c", ("a", "b")),))
    answering.outcomes = {0: "unknown_parent"}
    for seconds, calls in ((0.0, 1), (0.4, 1), (0.2, 2)):
        now[0] += seconds
        settler._settle(False, 1.0)
        assert answering.calls == calls
    answering.outcomes = None
    now[0] += 0.6
    settler._settle(False, 1.0)
    assert [item.partition for item in answering.queue.reported] == [0]


@pytest.mark.parametrize("draining", [True, False])
def test_only_a_draining_flow_hands_over_what_it_need_not(flow: FlowDouble, draining: bool) -> None:
    flow.draining = flow.queue.draining = draining
    settler = settler_of(flow, done_to("7"))
    settler._settle(True, 1.0)
    assert bool(flow.released) is draining
    assert flow.queue.partitions[0].position == "7"


def test_an_order_to_hand_over_all_wakes_the_thread(flow: FlowDouble) -> None:
    quiet = threading.Event()
    settler = settler_of(flow, done_to("7"), quiet.set)
    settler.start()
    assert quiet.wait(240)
    assert not flow.released
    flow.draining = flow.queue.draining = True
    settler.hand_over_all()
    until(lambda: flow.released)
    settler.close(5.0)


def test_the_end_wakes_the_thread_and_hands_over_what_a_draining_flow_has(
    flow: FlowDouble,
) -> None:
    told = threading.Semaphore(0)
    settler = settler_of(flow, done_to("7"), lambda: told.release())
    settler.start()
    assert told.acquire(timeout=240)
    flow.draining = flow.queue.draining = True
    settler.close(30.0)
    assert not settler._thread.is_alive()
    assert [item.position for item in flow.released] == ["7"]
    # The thread itself has told nothing more.
    assert not told.acquire(blocking=False)


def test_after_a_success_the_pauses_are_short_again(
    flow: FlowDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    class Short(Pauses):
        def failed(self, chance: float = 1.0) -> float:
            super().failed(chance)
            failures.append(self.failures)
            return 0.0

    monkeypatch.setattr("counterpoise.spark.source.settler.Pauses", Short)
    defect = Defect()
    settler = settler_of(flow, Progress(), defect)
    settler.start()
    until(lambda: len(failures) > 2)
    defect.there = False
    until(lambda: settler.last_error is None)
    before = len(failures)
    defect.there = True
    settler.hand_over_all()
    until(lambda: len(failures) > before)
    assert failures[before] == 1
    defect.there = False
    settler.close(5.0)
