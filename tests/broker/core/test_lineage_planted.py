"""Bugs of lineage, planted one by one: the random graphs of `test_lineage_sequences` find each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

import broker.core.lineage
import broker.core.loop
import broker.core.reports
from broker.core import records as r
from broker.core.commands import Outcome
from broker.core.graph import Lineage
from broker.core.loop import rebalance
from broker.core.queue import Queue
from broker.core.transitions import Status
from tests.broker.core.test_lineage_sequences import finish_all, play
from tests.broker.core.world import World

# Plays that are tried for each bug; every one of them passes without it.
PLAYS = 60


def played(seed: int) -> None:
    """A random play."""
    rng = random.Random(seed)

    def which() -> int:
        return rng.randrange(8)

    def step() -> tuple[Any, ...]:
        return rng.choice(
            (
                ("bind", False),
                ("leave", which(), "lease_expired"),
                ("release", which()),
                ("split", which(), rng.randrange(4), rng.random() < 0.7),
                ("split", which(), rng.randrange(4), rng.random() < 0.7),
                ("merge", which(), which(), rng.random() < 0.7),
                ("merge", which(), which(), rng.random() < 0.7),
                ("merge", which(), which(), True),
                ("finish", which()),
                ("stale", which()),
                ("repeat", which()),
                ("advance", 5.0),
            )
        )

    world = World.dynamic("r0", "r1", "r2", rebalance_delay=rng.choice((0.0, 5.0)))
    player = play(world, [("bind", False), ("advance", 5.0), *(step() for _ in range(40))])
    finish_all(world, player)


def child_granted_one_parent_early() -> Any:
    real = Lineage.finish

    def finish(self: Lineage, number: int) -> None:
        real(self, number)
        for key in self.nodes[number].children:
            child = self.node_of(key)
            if child is not None and child.pending == 1:
                self._journal.add(self.over, child.number)

    return mock.patch.object(Lineage, "finish", finish)


def finish_without_its_children() -> Any:
    return mock.patch.object(broker.core.reports, "record_children", return_value=Outcome.OK)


def key_is_forgotten_at_removal() -> Any:
    real = Lineage.remove

    def remove(self: Lineage, number: int) -> None:
        key = self.nodes[number].key
        real(self, number)
        self._journal.drop(self.numbers, key)

    return mock.patch.object(Lineage, "remove", remove)


def child_takes_the_holddown() -> Any:
    real = broker.core.lineage.end_waits

    def end_waits(draft: Any) -> Any:
        real(draft)
        return ()

    return mock.patch.object(broker.core.loop, "end_waits", end_waits)


def finish_moves_other_partitions() -> Any:
    real = broker.core.loop.take_up

    def take_up(draft: Any, **given: bool) -> None:
        ended = any(isinstance(record, r.PartitionFinished) for record in draft.records)
        real(draft, **given)
        if ended and draft.queue.status is Status.READY:
            rebalance(draft, "admin")

    return mock.patch.object(broker.core.reports, "take_up", take_up)


def merge_reported_twice_is_two_children() -> Any:
    real = broker.core.lineage.record_children

    def add_children(draft: Any, children: Any) -> Any:
        known = draft.queue.lineage.numbers
        again = tuple(
            c._replace(key=f"{c.key}'", partition=None) if c.key in known else c for c in children
        )
        return real(draft, again)

    return mock.patch.object(broker.core.reports, "record_children", add_children)


def child_goes_to_the_busiest() -> Any:
    real = broker.core.loop.grant_outside

    def most_loaded(queue: Any, ranking: Any) -> Any:
        return queue.flows.by_bind_number[ranking.most()] if ranking.counts else None

    def grant_outside(draft: Any, trigger: str, numbers: Any) -> None:
        with mock.patch.object(Queue, "least_loaded", most_loaded):
            real(draft, trigger, numbers)

    return mock.patch.object(broker.core.loop, "grant_outside", grant_outside)


def finished_parent_is_removed_at_once() -> Any:
    @contextmanager
    def both() -> Iterator[None]:
        def remove(self: Lineage, number: int) -> None:
            self._journal.drop(self.nodes, number)
            self._journal.discard(self.finished, number)

        def removable(self: Lineage, number: int) -> tuple[int, ...]:
            return (number,)

        with (
            mock.patch.object(Lineage, "removable", removable),
            mock.patch.object(Lineage, "remove", remove),
        ):
            yield

    return both()


def stale_epoch_finishes() -> Any:
    real = broker.core.reports._refuse

    def refuse(partition: Any, flow: Any, epoch: int) -> Any:
        return real(partition, flow, max(epoch, partition.epoch))

    return mock.patch.object(broker.core.reports, "_refuse", refuse)


def only_the_first_wait_ends() -> Any:
    def end_waits(draft: Any) -> Any:
        over = draft.queue.lineage.over if draft.queue.lineage else ()
        numbers = tuple(sorted(over)[:1])
        if numbers:
            draft.emit(r.WaitsEnded(numbers, draft.now))
        return numbers

    return mock.patch.object(broker.core.loop, "end_waits", end_waits)


PLANTED: list[Callable[[], Any]] = [
    child_granted_one_parent_early,
    finish_without_its_children,
    key_is_forgotten_at_removal,
    child_takes_the_holddown,
    finish_moves_other_partitions,
    merge_reported_twice_is_two_children,
    child_goes_to_the_busiest,
    finished_parent_is_removed_at_once,
    stale_epoch_finishes,
    only_the_first_wait_ends,
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[], Any]) -> None:
    for seed in range(PLAYS):
        with bug():
            try:
                played(seed)
            except (AssertionError, KeyError) as found:
                print(f"{bug.__name__}: play {seed}, {type(found).__name__}: {str(found)[:80]}")
                return
    raise AssertionError("no play finds it")


@pytest.mark.long
def test_without_a_bug_every_play_passes() -> None:
    for seed in range(PLAYS):
        played(seed)
