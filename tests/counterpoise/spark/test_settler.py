"""Telling the service what is done, beside the thread that Spark waits for."""

from __future__ import annotations

import logging
import threading

import pytest

from counterpoise.spark.progress import Progress
from counterpoise.spark.settler import Settler
from counterpoise.wire import CommitItem, ReleaseItem
from tests.counterpoise.spark.doubles import Queue
from tests.counterpoise.spark.test_consumption import FlowDouble
from tests.log_support import until


class Defect:
    """Something beside that fails in a way that nobody has foreseen, while `there`."""

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


def settler_of(flow: FlowDouble, progress: Progress, beside: Defect) -> Settler:
    def refused(item: CommitItem | ReleaseItem, outcome: str) -> None:
        raise AssertionError(f"{item} was answered {outcome}")

    def released(item: ReleaseItem) -> None:
        pass

    return Settler(flow, progress, threading.Lock(), flow.wake, refused, released, beside)


def test_an_error_that_nobody_has_foreseen_is_shown_and_does_not_end_the_thread(
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


def test_closing_survives_an_error_that_nobody_has_foreseen(
    flow: FlowDouble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def todo(*_: object) -> None:
        raise KeyError("epoch")

    progress = Progress()
    monkeypatch.setattr(progress, "todo", todo)
    settler = settler_of(flow, progress, Defect())
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        settler.start()
        settler.close(5.0)
    assert "will be read again" in caplog.text
