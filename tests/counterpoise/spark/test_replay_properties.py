"""After any events, a row is processed with the state of all rows before it.

The world of `test_progress_properties`, with another owner that keeps partitions for a while,
warm-ups that begin and are called off, and a state store like Spark's: a version for each
micro-batch, so an unfinished micro-batch is undone. The state of a partition is the list of its
processed positions, with its tenure. As docs, *Warm-up*, demand of a processor, rows of another
tenure find it empty.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given, settings

from counterpoise.flow.view import Warming
from counterpoise.spark.offsets import Slice, offset_of, replay_slices, slices
from counterpoise.spark.source.planning import Question, answer_to, sort_out
from tests.budgets import budget
from tests.counterpoise.spark.source.test_progress_properties import CALM, PARTITIONS, ROUGH, World

Event = Callable[["LearningWorld", int], None]


class LearningWorld(World):
    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        self.store: dict[int, tuple[int, list[int]]] = {}
        self.working: dict[int, tuple[int, list[int]]] = {}
        self.replayed = 0
        self.compared = 0

    # ------------------------------------------------------------------ the other owner

    def other_keeps(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner is None:
            one.grant("other")

    def other_moves(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "other":
            start = int(one.position or "0")
            end = min(start + 2, self.log.next.get(number, 0))
            assert self.sink.write(number, one.epoch, start, end)
            one.position = str(end)

    def other_restarts(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "other":
            learner = one.learner
            one.grant("other", "replaced")
            one.learner = learner

    def warm(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "other":
            one.learner = "me"

    def call_off(self, number: int) -> None:
        self.queue.partitions[number].learner = None

    def hand_to_us(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "other" and self.bound:
            one.leave("graceful")
            one.grant("me")

    def reset(self, number: int) -> None:
        """An administrator sets the position back; the owner continues there under a new epoch.

        The sink treats positions below its next one as known.
        """
        one = self.queue.partitions[number]
        if one.owner is not None and one.position is not None:
            one.position = str(int(one.position) // 2)
            one.grant(one.owner, "forced")

    # ------------------------------------------------------------------ the query

    @property
    def coming(self) -> dict[int, Warming]:
        return dict(self.queue.warming("me")) if self.bound else {}

    def ask(self, _: int = 0, *, released_meanwhile: bool = False, journaled: bool = True) -> None:
        if self.in_flight:
            return
        asked = self.view
        self.progress.finished(self.checkpoint.start, asked)
        if released_meanwhile:
            self.settle()
        positions = self.progress.wanted(asked)
        restores = self.progress.restores(asked, self.coming)
        question = Question(positions, self.limit, restores=restores)
        answer = answer_to(question, self.log, self.log.bounds(question.partitions))
        planned = self.progress.plan(answer, asked, self.view, "me", self.coming, renews=True)
        if planned is None or not journaled:
            return
        document = json.loads(json.dumps(planned.to_json()))
        assert offset_of(document, "q") == planned
        self.checkpoint.planned.append(document)
        self.reading = None

    @property
    def in_flight(self) -> bool:
        return len(self.checkpoint.planned) > self.checkpoint.committed

    def plan_slices(self, _: int = 0) -> None:
        if not self.in_flight or self.reading is not None:
            return
        before, after = self.checkpoint.start, offset_of(self.checkpoint.planned[-1], "q")
        sorted_out = sort_out(slices(before, after), self.view if self.bound else None)
        self.progress.replaying(before, after)
        self.progress.skip(sorted_out.skipped)
        self.reading = [*sorted_out.read, *replay_slices(before, after)]
        self.working = copy.deepcopy(self.store)

    def write_one(self, _: int = 0) -> None:
        if self.reading:
            one = self.reading.pop(0)
            self.fold(one)
            if not one.replay:
                self.sink.write(one.partition, one.epoch, int(one.start), int(one.end))

    def crash(self, fast: bool) -> None:
        # History is never written to the sink.
        self.reading = [one for one in self.reading or [] if not one.replay]
        super().crash(fast)

    def fold(self, one: Slice) -> None:
        tenure, made_of = self.working.get(one.partition, (-1, []))
        if tenure != one.state_of:
            tenure, made_of = one.state_of, []
        self.replayed += one.replay
        self.compared += not one.replay
        assert made_of == list(range(int(one.start))), f"wrong state before {one}"
        self.working[one.partition] = (tenure, made_of + list(range(int(one.start), int(one.end))))

    def commit_batch(self, _: int = 0) -> None:
        if self.reading == [] and self.in_flight:
            self.store = self.working
            super().commit_batch()

    def take_all(self) -> None:
        for one in self.queue.partitions.values():
            if one.owner == "other":
                one.leave("orphaned")
            if one.owner is None:
                one.grant("me")
            one.state = "owned"

    def run_to_the_end(self) -> None:
        for one in self.queue.partitions.values():
            one.learner = None
        self.bind_again()
        self.take_all()
        for _ in range(1000):
            self.finish_batch()
            self.settle()
            self.ask()
            if not self.in_flight:
                break
        super().run_to_the_end()
        for number in range(PARTITIONS):
            _, made_of = self.store.get(number, (0, []))
            owned = self.checkpoint.start.ranges.get(number)
            if owned is not None:
                assert made_of == list(range(self.log.next.get(number, 0)))


LEARNING: dict[Event, int] = {
    LearningWorld.other_keeps: 4,
    LearningWorld.other_moves: 4,
    LearningWorld.warm: 4,
    LearningWorld.hand_to_us: 3,
    LearningWorld.call_off: 1,
}
DISTURBED: dict[Event, int] = {
    LearningWorld.other_restarts: 1,
    LearningWorld.reset: 1,
}


def simulate(seed: int, calm: bool, limit: int | None, steps: int) -> LearningWorld:
    chance = random.Random(seed)
    world = LearningWorld(limit)
    base = CALM if calm else ROUGH
    events: list[tuple[str, int]] = [(event.__name__, n) for event, n in base.items()]
    extra = LEARNING if calm else LEARNING | DISTURBED
    events += [(event.__name__, n) for event, n in extra.items()]
    names, weights = zip(*events, strict=True)
    for name in chance.choices(names, weights, k=steps):
        getattr(world, name)(chance.randrange(PARTITIONS))
        if calm:
            world.check_delivered_once()
    world.run_to_the_end()
    return world


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([None, 2, 5]), st.integers(0, 400))
@settings(max_examples=budget(300), deadline=None)
def test_the_state_is_that_of_all_rows_before(
    seed: int, calm: bool, limit: int | None, steps: int
) -> None:
    simulate(seed, calm, limit, steps)


def test_the_simulation_does_replay_and_compare() -> None:
    worlds = [simulate(seed, seed % 2 == 0, 5, 300) for seed in range(20)]
    assert sum(world.replayed for world in worlds) > 100
    assert sum(world.compared for world in worlds) > 100


def owning(messages_done: int) -> LearningWorld:
    """The query owns partition 0, so much of it is done, and the service knows it."""
    world = LearningWorld(None)
    world.grant(0)
    for _ in range(messages_done // 3):
        world.publish(0)
        world.ask()
        world.finish_batch()
    world.ask()
    world.settle()
    assert world.queue.partitions[0].position == str(messages_done)
    return world


def test_a_state_goes_on_when_its_partition_was_released_and_comes_back() -> None:
    world = owning(3)
    for _ in range(2):
        world.revoke(0)
        world.ask()
        world.settle()
        assert world.view == {}
        world.ask()
        world.grant(0)
        world.ask()
    assert not world.in_flight, "nothing is to be restored"
    world.publish(0)
    world.ask()
    world.finish_batch()
    (one,) = world.checkpoint.start.ranges.values()
    assert (one.epoch, one.state_of, world.replayed) == (3, 1, 0)


def test_a_state_is_ahead_when_its_partition_was_taken_while_it_was_in_flight() -> None:
    world = owning(3)
    world.publish(0)
    world.ask()
    world.plan_slices()
    world.revoke(0)
    world.deadline_without_successor(0)
    world.finish_batch()
    world.run_to_the_end()
    assert world.store[0] == (2, list(range(6)))
    assert world.replayed == 1


def test_a_state_is_ahead_when_its_partition_was_taken_before_the_service_knew() -> None:
    world = owning(3)
    world.publish(0)
    world.ask()
    world.finish_batch()
    world.ask()
    world.revoke(0)
    world.deadline_without_successor(0)
    world.run_to_the_end()
    assert world.store[0] == (2, list(range(6)))
    assert world.replayed == 1
