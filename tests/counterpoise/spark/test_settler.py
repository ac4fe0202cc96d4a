"""The settler tells the service what is done, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import cast

import pytest

from counterpoise.spark.flows import BoundFlow, FlowGroup
from counterpoise.spark.offsets import Offset, Place, Range
from counterpoise.spark.progress import Progress, SharedProgress
from counterpoise.spark.settler import QuerySettler
from counterpoise.spark.status import Handoffs
from tests.counterpoise.spark.doubles import Queue
from tests.counterpoise.spark.test_query import FlowDouble
from tests.log_support import until


class Defect:
    """A call that fails with an unforeseen error, while `there`."""

    def __init__(self) -> None:
        self.there = True
        self.met = 0

    def __call__(self) -> None:
        if self.there:
            self.met += 1
            raise KeyError("epoch")


@pytest.fixture
def flow() -> FlowDouble:
    flow = FlowDouble(Queue.of(1), threading.Event(), "")
    flow.grant(0)
    return flow


class NothingLost(Handoffs):
    """Fails if a grant counts as taken over."""

    def taken_over(self, partition: int, epoch: int, position: str | None) -> None:
        raise AssertionError(f"partition {partition}, epoch {epoch} was refused")


def settler_of(flow: BoundFlow, progress: Progress, also: Callable[[], None]) -> QuerySettler:
    wake = threading.Event()
    wake.set()
    shared = SharedProgress(flow, Place("flights", "log-1"), wake, NothingLost(), progress)
    return QuerySettler(flow, shared, also)


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


def test_a_flow_that_is_being_bound_holds_up_none_of_the_others(flow: FlowDouble) -> None:
    """Their successors wait with a deadline."""
    other = FlowDouble(Queue.of(1), threading.Event(), "")
    other.grant(0)
    other.status = "binding"
    flows = FlowGroup([cast(BoundFlow, other), cast(BoundFlow, flow)])
    flow.revoke(0)
    progress = Progress(start=Offset("flights", {0: Range(1, "0", "7")}))
    settler = settler_of(flows, progress, lambda: None)
    settler.start()
    until(lambda: flow.released)
    assert flow.queue.partitions[0].position == "7"
    assert flow.queue.partitions[0].owner is None
    assert not other.released
    settler.close(5.0)


@pytest.mark.parametrize("status", ["binding", "gone"])
def test_nothing_is_told_by_a_flow_that_is_not_bound(flow: FlowDouble, status: str) -> None:
    """Its calls would wait or fail in vain."""
    other = FlowDouble(Queue.of(1), threading.Event(), "")
    other.status, other.gone_reason = status, "replaced"
    flow.revoke(0)
    progress = Progress(start=Offset("flights", {0: Range(1, "0", "7")}))
    looked = threading.Semaphore(0)

    class Watched(FlowGroup):
        @property
        def status(self) -> str:
            looked.release()
            return super().status

    members = [other] if status == "binding" else [other, flow]
    flows = Watched([cast(BoundFlow, one) for one in members])
    settler = settler_of(flows, progress, Defect())
    settler.start()
    # The second check shows that the first one was complete.
    assert looked.acquire(timeout=30)
    assert looked.acquire(timeout=30)
    assert not flow.released
    assert settler.last_error is None
    settler._closed.set()
