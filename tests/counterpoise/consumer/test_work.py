"""A worker takes as many messages at once as it gets to in a turn."""

from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.consumer import work
from counterpoise.consumer.work import TURN_MESSAGES, TURN_SECONDS, Worker
from tests.counterpoise.consumer.test_lanes import View, fill, make


class Steps:
    """A worker on one lane; `take(seconds)` is its next turn, with messages that take so long."""

    def __init__(self, monkeypatch):
        self.now = self.seconds = 0.0
        monkeypatch.setattr(work, "lease_time", lambda: self.now)
        self.view = View(0)
        self.lanes = make(self.view, max_messages=1000)
        self.taken: list[int] = []
        take = self.lanes.take

        def taking(most, wait_seconds):
            piece = take(most, wait_seconds)
            if piece is not None:
                self.taken.append(len(piece.chunk.rows))
            return piece

        monkeypatch.setattr(self.lanes, "take", taking)
        watchdog: Any = SimpleNamespace(activity=SimpleNamespace, may_work=lambda: True)
        rules: Any = SimpleNamespace(attempts=1)
        self.worker = Worker(self.lanes, watchdog, rules, each=self.each)

    def each(self, _message):
        self.now += self.seconds

    def take(self, seconds):
        self.seconds = seconds
        fill(self.lanes)
        self.worker.turn(0)
        return self.taken[-1]


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def test_a_worker_with_slow_messages_takes_few_at_once(steps):
    slow = TURN_SECONDS / 2.5
    assert [steps.take(slow) for _ in range(4)] == [TURN_MESSAGES, 3, 3, 3]
    assert steps.lanes.handled == 12


def test_a_worker_with_very_slow_messages_takes_one(steps):
    assert [steps.take(1.0) for _ in range(3)] == [TURN_MESSAGES, 1, 1]


def test_a_worker_whose_messages_are_fast_again_takes_more_each_time(steps):
    steps.take(1.0)
    taken = [steps.take(0.0) for _ in range(8)]
    assert taken[:4] == [1, 2, 4, 8]
    assert taken[-1] == TURN_MESSAGES


def test_a_worker_whose_partition_is_lost_begins_no_other_message(steps):
    """Also before the look-out has told the lanes."""

    def lose(_message):
        steps.view.lose(0)

    steps.worker._each = lose
    fill(steps.lanes)
    assert steps.worker.turn(0)
    assert steps.lanes.handled == 1
    assert not steps.worker.turn(0)


def test_a_piece_of_a_lost_partition_is_not_begun(steps):
    fill(steps.lanes)
    steps.view.lose(0)
    assert not steps.worker.turn(0)
    assert steps.lanes.handled == 0


async def coroutine(*_):
    raise AssertionError


def generator(*_):
    yield AssertionError


@pytest.mark.parametrize("slip", [coroutine, generator])
@pytest.mark.parametrize("handler", ["_each", "_handle"])
def test_a_function_whose_code_has_not_run_has_handled_nothing(steps, handler, slip):
    halted: list[BaseException] = []
    setattr(steps.worker, handler, slip)
    steps.worker._rules.halt = halted.append
    fill(steps.lanes)
    with pytest.raises(TypeError, match="give a plain function"):
        steps.worker.turn(0)
    assert steps.lanes.handled == 0
    assert len(halted) == 1
