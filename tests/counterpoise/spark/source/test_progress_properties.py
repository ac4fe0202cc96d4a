"""Any events between queue, query and sink: nothing is skipped, and after a graceful handover
nothing is repeated.

The simulation is a query as Spark runs it (ask, plan, write-ahead log, read, sink, commit log, ask
again), which can crash between any two steps and is started again from its checkpoint; a queue that
grants, revokes, hands over by force, forgets and gives back; and another consumer. The sink is
fenced as in docs, *Spark* (epoch and next position by partition), and fails on a gap. After any
events, letting the query run to the end must bring every message to the sink.

A failure names its seed and number of steps; `simulate(seed, calm, limit, steps)` replays it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from counterpoise.flow.view import Owned
from counterpoise.spark.offsets import Offset, Slice, offset_of, slices
from counterpoise.spark.source.planning import Question, answer_to, sort_out
from counterpoise.spark.source.progress import Progress
from counterpoise.wire import CommitItem, ReleaseItem
from tests.budgets import budget
from tests.counterpoise.spark.doubles import NumberLog, Queue

PARTITIONS = 3


@dataclass
class FencedSink:
    """Stores each message once: a row per partition (epoch, next), in the same transaction."""

    epoch: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)

    def write(self, partition: int, epoch: int, start: int, end: int) -> bool:
        for position in range(start, end):
            key = (partition, position)
            self.delivered[key] = self.delivered.get(key, 0) + 1
        if epoch < self.epoch.get(partition, 0):
            return False
        assert start <= self.next.get(partition, 0), f"gap before {start} of {partition}"
        self.epoch[partition] = epoch
        self.next[partition] = max(end, self.next.get(partition, 0))
        return True


@dataclass
class Checkpoint:
    """Spark's checkpoint: the planned offsets, and how many batches are committed."""

    planned: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0

    @property
    def start(self) -> Offset:
        last = self.planned[self.committed - 1] if self.committed else Offset("q").to_json()
        return offset_of(last, "q")

    @property
    def in_flight(self) -> list[Slice]:
        if len(self.planned) == self.committed:
            return []
        return slices(self.start, offset_of(self.planned[-1], "q"))


class World:
    """`me` is the query; `other` is the other consumer, which does its work all at once."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.log = NumberLog(PARTITIONS)
        self.queue = Queue.of(PARTITIONS)
        self.sink = FencedSink()
        self.checkpoint = Checkpoint()
        self.progress = Progress()
        self.bound = True
        # The unwritten part of the planned batch; None before Spark asked for its slices.
        self.reading: list[Slice] | None = None
        # What tasks of a dead process may still write.
        self.undead: list[Slice] = []

    # ------------------------------------------------------------------ the queue

    def publish(self, number: int) -> None:
        self.log.publish(number, 3)

    def grant(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner is None and self.bound:
            one.grant("me")

    def revoke(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "me" and self.bound:
            one.state = "revoking"

    def other_works(self, number: int, graceful: bool = True) -> None:
        one = self.queue.partitions[number]
        if one.owner is None:
            one.grant("other")
        if one.owner != "other":
            return
        start = int(one.position or "0")
        end = min(start + 2, self.log.next.get(number, 0))
        assert self.sink.write(number, one.epoch, start, end)
        if graceful:
            one.position = str(end)
        one.leave("graceful" if graceful else "orphaned")

    def other_dies(self, number: int) -> None:
        """After it wrote and before it commits."""
        self.other_works(number, graceful=False)

    def deadline(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "me" and one.state == "revoking":
            one.grant("other", "forced")

    def deadline_without_successor(self, number: int) -> None:
        one = self.queue.partitions[number]
        if one.owner == "me" and one.state == "revoking" and self.bound:
            one.grant("me", "forced")

    def lease_expires(self, _: int) -> None:
        """The flow is gone; the query learns of it and has no partitions until it binds again."""
        if self.bound:
            self.bound = False
            self.lose_all(remember=True)

    def bind_again(self, _: int = 0) -> None:
        if not self.bound:
            self.bound = True
            self.give_back()

    def lose_all(self, remember: bool) -> None:
        for one in self.queue.partitions.values():
            if one.owner == "me":
                one.leave("orphaned", remember)

    def give_back(self) -> None:
        """Rule 12: partitions that are still unassigned come back as `replaced`."""
        for one in self.queue.partitions.values():
            if one.owner is None and one.left == "me":
                one.grant("me", "replaced")

    def holddown_ends(self, _: int) -> None:
        for one in self.queue.partitions.values():
            one.left = None

    # ------------------------------------------------------------------ the query

    @property
    def view(self) -> dict[int, Owned]:
        return dict(self.queue.view("me")) if self.bound else {}

    def ask(self, _: int = 0, *, released_meanwhile: bool = False, journaled: bool = True) -> None:
        if self.checkpoint.in_flight:
            return
        asked = self.view
        self.progress.finished(self.checkpoint.start, asked)
        if released_meanwhile:
            self.settle()
        positions = self.progress.wanted(asked)
        question = Question(positions, self.limit)
        answer = answer_to(question, self.log, self.log.bounds(list(positions)))
        planned = self.progress.plan(answer, asked, self.view, "me")
        if planned is None or not journaled:
            return
        revoking = {n for n, held in self.view.items() if held.state == "revoking"}
        assert revoking.isdisjoint(one.partition for one in slices(self.checkpoint.start, planned))
        document = json.loads(json.dumps(planned.to_json()))
        assert offset_of(document, "q") == planned
        self.checkpoint.planned.append(document)
        self.reading = None

    def ask_and_release(self, _: int) -> None:
        self.ask(released_meanwhile=True)

    def ask_in_vain(self, _: int) -> None:
        """Spark asks, and asks again from the same start."""
        self.ask(journaled=False)

    def plan_slices(self, _: int = 0) -> None:
        if not self.checkpoint.in_flight or self.reading is not None:
            return
        before, after = self.checkpoint.start, offset_of(self.checkpoint.planned[-1], "q")
        # An unbound flow knows nothing, so nothing is skipped.
        sorted_out = sort_out(slices(before, after), self.view if self.bound else None)
        self.progress.replaying(before, after)
        self.progress.skip(sorted_out.skipped)
        for one in sorted_out.skipped:
            now = self.queue.partitions[one.partition]
            ours = now.owner == "me" and now.handed_over == "replaced"
            assert not (ours and now.epoch == one.epoch + 1), "skipped although it is ours again"
        self.reading = list(sorted_out.read)

    def write_one(self, _: int = 0) -> None:
        if self.reading:
            one = self.reading.pop(0)
            self.sink.write(one.partition, one.epoch, int(one.start), int(one.end))

    def commit_batch(self, _: int = 0) -> None:
        if self.reading == []:
            self.checkpoint.committed = len(self.checkpoint.planned)
            self.reading = None

    def finish_batch(self, _: int = 0) -> None:
        self.plan_slices()
        while self.reading:
            self.write_one()
        self.commit_batch()

    def settle(self, _: int = 0, *, answered: bool = True) -> None:
        """Commit and release what is due; the answer may be lost."""
        if not self.bound:
            return
        todo = self.progress.todo(self.view)
        in_flight = {one.partition for one in self.checkpoint.in_flight}
        items: list[CommitItem | ReleaseItem] = [*todo.releases, *todo.commits]
        for item in items:
            released = isinstance(item, ReleaseItem)
            assert not (released and item.partition in in_flight), "released in flight"
            reached = self.sink.next.get(item.partition, 0)
            assert item.position is None or int(item.position) <= reached, "ahead of the sink"
            outcome = self.tell(item)
            if answered:
                self.progress.answered(item, outcome)

    def tell(self, item: CommitItem | ReleaseItem) -> str:
        if isinstance(item, ReleaseItem):
            return self.queue.release("me", item)
        return self.queue.commit("me", item)

    def settle_unanswered(self, _: int) -> None:
        self.settle(answered=False)

    def crash(self, fast: bool) -> None:
        """The query dies; it is started again before its lease ends (`fast`) or after."""
        if fast and self.bound:
            for one in self.queue.partitions.values():
                if one.owner == "me" and one.state == "revoking":
                    one.leave("orphaned")
                elif one.owner == "me":
                    one.grant("me", "replaced")
        self.lose_all(remember=False)
        self.bound = True
        self.give_back()
        self.undead.extend(self.reading or [])
        self.progress = Progress()
        self.reading = None

    def undead_write(self, _: int) -> None:
        if self.undead:
            one = self.undead.pop()
            self.sink.write(one.partition, one.epoch, int(one.start), int(one.end))

    def crash_fast(self, _: int) -> None:
        self.crash(fast=True)

    def crash_slow(self, _: int) -> None:
        self.crash(fast=False)

    # ------------------------------------------------------------------ promises

    def check_delivered_once(self) -> None:
        twice = [key for key, times in self.sink.delivered.items() if times > 1]
        assert not twice, f"delivered twice: {twice}"

    def run_to_the_end(self) -> None:
        """Give the query all partitions and let it work until there is nothing left."""
        self.bind_again()
        for one in self.queue.partitions.values():
            if one.owner == "other":
                one.leave("orphaned")
            if one.owner is None:
                one.grant("me")
            one.state = "owned"
        for _ in range(1000):
            self.finish_batch()
            self.settle()
            self.ask()
            if not self.checkpoint.in_flight:
                break
        self.settle()
        for number, one in self.queue.partitions.items():
            published = self.log.next.get(number, 0)
            assert self.sink.next.get(number, 0) == published
            assert all((number, at) in self.sink.delivered for at in range(published))
            assert int(one.position or "0") == published


CALM: dict[Callable[[World, int], None], int] = {
    World.publish: 4,
    World.grant: 4,
    World.revoke: 2,
    World.other_works: 2,
    World.ask: 4,
    World.ask_and_release: 2,
    World.plan_slices: 2,
    World.write_one: 3,
    World.commit_batch: 4,
    World.finish_batch: 2,
    World.settle: 4,
}
ROUGH = CALM | {
    World.ask_in_vain: 1,
    World.settle_unanswered: 1,
    World.other_dies: 1,
    World.deadline: 1,
    World.deadline_without_successor: 1,
    World.lease_expires: 1,
    World.bind_again: 2,
    World.holddown_ends: 1,
    World.crash_fast: 1,
    World.crash_slow: 1,
    World.undead_write: 1,
}


def simulate(seed: int, calm: bool, limit: int | None, steps: int) -> World:
    """So many random steps, then to the end; every promise is checked on the way."""
    chance = random.Random(seed)
    world = World(limit)
    events = CALM if calm else ROUGH
    for event in chance.choices(list(events), list(events.values()), k=steps):
        event(world, chance.randrange(PARTITIONS))
        if calm:
            world.check_delivered_once()
    world.run_to_the_end()
    if calm:
        world.check_delivered_once()
    return world


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([None, 2, 5]), st.integers(0, 300))
@settings(max_examples=budget(400), deadline=None)
def test_nothing_is_skipped_and_graceful_means_once(
    seed: int, calm: bool, limit: int | None, steps: int
) -> None:
    simulate(seed, calm, limit, steps)
