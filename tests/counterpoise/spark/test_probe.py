"""Asking the log beside the thread that Spark waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from counterpoise.logs import Bounds, Log
from counterpoise.spark.door import LogDoor
from counterpoise.spark.planning import Answer, Question
from counterpoise.spark.probe import LogProbe
from counterpoise.wire import LogAccess
from tests.counterpoise.spark.doubles import NumberLog
from tests.log_support import until


class SlowLog(NumberLog):
    """Answers when it is let to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0
        self.may_answer = threading.Semaphore(0)

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        self.asked += 1
        assert self.may_answer.acquire(timeout=10)
        return super().bounds(partitions)

    def close(self) -> None:
        pass


class Access:
    log = "builtin:flights"

    def log_access(self, *, fresh: bool = False) -> LogAccess | None:
        return None


@pytest.fixture
def log() -> SlowLog:
    return SlowLog()


@pytest.fixture
def probe(log: SlowLog) -> LogProbe:
    return probe_of(log)


def probe_of(log: Log, clock: Callable[[], float] = time.monotonic) -> LogProbe:
    def opener(name: str, access: str | None) -> Log:
        return log

    probe = LogProbe(LogDoor(Access(), None, opener), clock)
    probe.start()
    return probe


def test_a_log_slower_than_a_call_waits_is_read_all_the_same(log: SlowLog, probe: LogProbe) -> None:
    log.publish(0, 3)
    question = Question({0: "0"})
    assert probe.ask(question, max_age=0.0, patience=0.01) is None
    log.may_answer.release()
    found: list[Answer | None] = []

    def answered() -> bool:
        found[:] = [probe.ask(question, max_age=0.0, patience=0.01)]
        return found[0] is not None

    until(answered)
    assert found[0] is not None
    assert found[0].ends == {0: "3"}
    # Once only: what is given twice would be planned again while nothing new is known.
    assert probe.ask(question, max_age=0.0, patience=0.01) is None
    assert log.asked == 2
    log.may_answer.release(10)
    probe.close()


def test_an_answer_to_another_question_is_not_given(log: SlowLog, probe: LogProbe) -> None:
    log.publish(0, 3)
    assert probe.ask(Question({0: "0"}), max_age=0.0, patience=0.01) is None
    log.may_answer.release()
    until(lambda: probe._answer is not None)
    assert probe.ask(Question({0: "3"}), max_age=0.0, patience=0.01) is None
    log.may_answer.release(10)
    probe.close()


class DefectiveLog(NumberLog):
    """Fails in a way that nobody has foreseen, while `defective`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.defective = True

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        if self.defective:
            raise OverflowError("date value out of range")
        return super().bounds(partitions)

    def close(self) -> None:
        pass


def test_an_error_that_nobody_has_foreseen_is_shown_and_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DefectiveLog()
    log.publish(0, 3)
    probe = probe_of(log)
    question = Question({0: "0"})
    with caplog.at_level(logging.ERROR, "counterpoise.spark"):
        assert probe.ask(question, max_age=0.0, patience=5.0) is None
    assert "date value out of range" in str(probe.last_error)
    assert "Traceback" in caplog.text
    log.defective = False
    until(lambda: probe.ask(question, max_age=0.0, patience=0.1) is not None)
    assert probe.last_error is None
    probe.close()
