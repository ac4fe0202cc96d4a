"""The probe asks the log on a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from counterpoise.logs import Bounds, Log
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.logs.port import Rest
from counterpoise.spark.errors import InvalidOffset
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.planning import Answer, Question
from counterpoise.spark.source.probe import LogProbe
from counterpoise.wire import LogAccess
from tests.counterpoise.spark.doubles import NumberLog
from tests.log_support import until


class SlowLog(NumberLog):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0
        self.may_answer = threading.Semaphore(0)

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        self.asked += 1
        assert self.may_answer.acquire(timeout=240)
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
    def opener(name: str, access: object) -> Log:
        return log

    probe = LogProbe(QueueLog(Access(), None, opener), clock)
    probe.start()
    return probe


def test_a_log_slower_than_the_calls_patience_is_read_nevertheless(
    log: SlowLog, probe: LogProbe
) -> None:
    log.publish(0, 3)
    question = Question({0: "0"})
    assert probe.ask(question, max_age=0.0, wait=0.01) is None
    log.may_answer.release()
    found: list[Answer | None] = []

    def answered() -> bool:
        found[:] = [probe.ask(question, max_age=0.0, wait=0.01)]
        return found[0] is not None

    until(answered)
    assert found[0] is not None
    assert found[0].ends == {0: "3"}
    # Only once: an answer given twice would be planned again without news.
    assert probe.ask(question, max_age=0.0, wait=0.01) is None
    assert log.asked == 2
    log.may_answer.release(10)
    probe.close()


def test_an_answer_to_another_question_is_not_given(log: SlowLog, probe: LogProbe) -> None:
    log.publish(0, 3)
    assert probe.ask(Question({0: "0"}), max_age=0.0, wait=0.01) is None
    log.may_answer.release()
    until(lambda: probe._answer is not None)
    assert probe.ask(Question({0: "3"}), max_age=0.0, wait=0.01) is None
    log.may_answer.release(10)
    probe.close()


def test_an_expected_question_is_answered_before_it_is_asked(log: SlowLog, probe: LogProbe) -> None:
    log.publish(0, 9)
    log.may_answer.release(1)
    probe.look_ahead(Question({0: "2"}, max_messages=3))
    until(lambda: probe._answer is not None)
    # A limit that grew meanwhile is no reason to ask again. However old the answer is, a new one
    # would have no more messages.
    found = probe.ask(Question({0: "2"}, max_messages=6), max_age=0.0, wait=0.0)
    assert found is not None
    assert found.ends == {0: "5"}
    assert log.asked == 1
    # Only once.
    assert probe.ask(Question({0: "2"}, max_messages=3), max_age=0.0, wait=0.0) is None
    log.may_answer.release(10)
    probe.close()


@pytest.mark.parametrize(
    ("expected", "asked"),
    [
        # The limit has grown to much more.
        (Question({0: "2"}, max_messages=3), Question({0: "2"}, max_messages=7)),
        # The limit was lowered, the partition was set to another position, the log had no more.
        (Question({0: "2"}, max_messages=3), Question({0: "2"}, max_messages=2)),
        (Question({0: "2"}, max_messages=3), Question({0: "4"}, max_messages=3)),
        (Question({0: "2"}, max_messages=30), Question({0: "2"}, max_messages=30)),
    ],
)
def test_an_answer_that_does_not_fit_or_could_be_larger_is_asked_for_again(
    expected: Question, asked: Question, log: SlowLog, probe: LogProbe
) -> None:
    log.publish(0, 9)
    log.may_answer.release(1)
    probe.look_ahead(expected)
    until(lambda: probe._answer is not None)
    log.publish(0, 9)
    log.may_answer.release(1)
    found = probe.ask(asked, max_age=0.0, wait=10.0)
    assert found is not None
    assert found.question == asked
    assert found.bounds.ends == {0: "18"}
    assert log.asked == 2
    log.may_answer.release(10)
    probe.close()


def test_a_question_that_is_being_answered_is_not_asked_twice(
    log: SlowLog, probe: LogProbe
) -> None:
    log.publish(0, 9)
    question = Question({0: "2"}, max_messages=3)
    probe.look_ahead(question)
    until(lambda: log.asked == 1)
    assert probe.ask(question, max_age=0.0, wait=0.0) is None
    log.may_answer.release(1)
    until(lambda: probe.ask(question, max_age=0.0, wait=0.1) is not None)
    assert log.asked == 1
    log.may_answer.release(10)
    probe.close()


class DefectiveLog(NumberLog):
    """Fails with an unforeseen error while `defective`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.defective = True

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        if self.defective:
            raise OverflowError("date value out of range")
        return super().bounds(partitions)

    def close(self) -> None:
        pass


def test_an_unforeseen_error_is_shown_and_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DefectiveLog()
    log.publish(0, 3)
    probe = probe_of(log)
    question = Question({0: "0"})
    with caplog.at_level(logging.ERROR, "counterpoise.spark"):
        assert probe.ask(question, max_age=0.0, wait=5.0) is None
    assert "date value out of range" in str(probe.last_error)
    assert "Traceback" in caplog.text
    log.defective = False
    until(lambda: probe.ask(question, max_age=0.0, wait=0.1) is not None)
    assert probe.last_error is None
    probe.close()


class ShortLog(NumberLog):
    """Its ends may be lowered; each question takes a virtual second."""

    def __init__(self) -> None:
        super().__init__(2)
        self.now = 0.0

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        self.now += 1.0
        return super().bounds(partitions)

    def clock(self) -> float:
        return self.now

    def close(self) -> None:
        pass


@pytest.fixture
def short() -> ShortLog:
    log = ShortLog()
    log.publish(0, 8)
    log.publish(1, 5)
    return log


def look(probe: LogProbe, question: Question) -> Answer:
    """The log's next answer."""
    answer = probe.ask(question, max_age=-1.0, wait=10.0)
    assert answer is not None
    return answer


def look_on(probe: LogProbe, question: Question) -> None:
    while True:
        look(probe, question)


def test_a_log_that_ends_earlier_for_a_while_is_waited_for(short: ShortLog) -> None:
    probe = probe_of(short, short.clock)
    question = Question({0: "10", 1: "3"})
    while short.now < AHEAD_SECONDS - 10:
        assert look(probe, question).ends == {1: "5"}, "the others are read"
        assert "partition 0" in str(probe.last_error)
    short.publish(0, 4)
    assert look(probe, question).ends == {0: "12", 1: "5"}
    assert probe.last_error is None
    # Once an answer was right, the time counts from the start.
    short.next[0] = 8
    for _ in range(30):
        look(probe, question)
    probe.close()


def test_a_log_that_goes_on_to_end_before_a_position_ends_the_query(short: ShortLog) -> None:
    probe = probe_of(short, short.clock)
    question = Question({0: "10", 1: "3"})
    with pytest.raises(InvalidOffset, match="partition 0 at 10, which ends at 8, for more than"):
        look_on(probe, question)
    assert short.now > AHEAD_SECONDS
    probe.close()


def test_two_looks_far_apart_do_not_prove_that_a_log_has_lost_messages(short: ShortLog) -> None:
    probe = probe_of(short, short.clock)
    question = Question({0: "10"})
    look(probe, question)
    short.now += 3600
    look(probe, question)
    # Nor do answers for another position.
    for position in range(20, 30):
        short.now += 100
        look(probe, Question({0: str(position)}))
    for _ in range(3):
        look(probe, question)
    short.now += AHEAD_SECONDS
    with pytest.raises(InvalidOffset):
        look(probe, question)
    probe.close()


class QuietLog(NumberLog):
    """Wakes those who wait when messages are published, if it can."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0
        self.can: Callable[[], bool] = lambda: True
        self.heard, self.bell = socket.socketpair()

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        self.asked += 1
        return super().bounds(partitions)

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        if not self.can():
            return None
        moved = any(int(end) != self.next.get(number, 0) for number, end in ends.items())
        return Rest(0.0 if moved else 3600.0, (self.heard.fileno(),))

    def publish(self, partition: int, count: int) -> None:
        super().publish(partition, count)
        self.bell.send(b"\0")

    def close(self) -> None:
        self.heard.close()
        self.bell.close()


@pytest.fixture
def quiet() -> QuietLog:
    log = QuietLog()
    log.next[0] = 3
    return log


def test_a_log_that_is_watched_is_asked_again_when_it_has_more(quiet: QuietLog) -> None:
    probe, question = probe_of(quiet), Question({0: "3"})
    answer = look(probe, question)
    probe.watch(answer)
    assert probe.watches(answer)
    quiet.publish(0, 2)
    until(lambda: probe._answer is not answer and probe._answer is not None)
    assert not probe.watches(answer)
    found = probe.ask(question, max_age=60.0, wait=0.0)
    assert found is not None
    assert found.ends == {0: "5"}
    assert quiet.asked == 2
    probe.close()


def test_another_question_ends_the_wait(quiet: QuietLog) -> None:
    probe = probe_of(quiet)
    answer = look(probe, Question({0: "3"}))
    probe.watch(answer)
    assert look(probe, Question({0: "2"})).ends == {0: "3"}
    assert not probe.watches(answer)
    # An answer that is not the last one says nothing.
    probe.watch(answer)
    assert not probe.watches(answer)
    probe.close()


def test_a_log_that_wakes_nobody_is_not_watched(quiet: QuietLog) -> None:
    quiet.can = lambda: False
    probe, question = probe_of(quiet), Question({0: "3"})
    answer = look(probe, question)
    probe.watch(answer)
    until(lambda: not probe.watches(answer))
    assert probe.ask(question, max_age=60.0, wait=0.0) is answer
    probe.close()


def test_a_log_that_fails_while_it_is_watched_is_asked(
    quiet: QuietLog, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise OverflowError("too late")

    quiet.can = fail
    probe, question = probe_of(quiet), Question({0: "3"})
    answer = look(probe, question)
    with caplog.at_level(logging.ERROR, "counterpoise.spark"):
        probe.watch(answer)
        until(lambda: quiet.asked == 2)
    assert "too late" in caplog.text
    # It is not asked to wake again for a while.
    again = look(probe, question)
    probe.watch(again)
    assert not probe.watches(again)
    probe.close()
