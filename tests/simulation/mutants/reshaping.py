"""Bugs in ordered resizes, and in partitions that split, merge and end."""

from __future__ import annotations

import asyncio
from typing import Any

import broker.calls.cuts
import broker.core.cuts
import broker.core.decisions
import broker.core.lineage
import broker.core.rebalancer
import broker.core.reports
import counterpoise.flow.barriers
from broker.calls.cuts import CutCalls
from broker.core.barriers import Barriers
from broker.core.graph import Lineage
from broker.logs.names import builtin_name
from broker.replica.transaction import Transaction
from broker.testing.database import MemoryDatabase
from tests.simulation.mutants.mutant import Changes, unchecked
from tests.world.log import Log, Logs

# Ordered resizes


def cut_before_the_lock() -> Changes:
    """The log asks for its ends, and then begins the transaction of its resize."""
    real = Logs.set_partition_count

    async def set_partition_count(self, log, partition_count, revision, owner, discard=()):
        known = self.the(log)
        ends = dict(known.ends)
        loop: Any = asyncio.get_running_loop()
        await loop.sleep(0.1)
        known.before = ends
        await real(self, log, partition_count, revision, owner, discard)

    real_cut = Log._cut

    def cut(self, count, ends):
        real_cut(self, count, getattr(self, "before", ends))

    return [(Logs, "set_partition_count", set_partition_count), (Log, "_cut", cut)]


def old_count_accepted() -> Changes:
    """The log takes messages that were routed with the count of before."""
    real = Log._accepts

    def accepts(self, hashes, numbers, routing):
        return self.ranges is None or real(self, hashes, numbers, routing)

    return [(Log, "_accepts", accepts)]


def gcd_is_min() -> Changes:
    """Partitions wait for those of their class modulo the smaller count."""
    classes = property(lambda self: min(self.resized_from, self.resized_to))
    return [(Barriers, "classes", classes)]


def barrier_lifted_one_early() -> Changes:
    """The last message before the cut need not be processed."""
    real = broker.calls.cuts._number

    def number(position):
        return real(position) + 1 if position is not None else -1

    return [(broker.calls.cuts, "_number", number)]


def newer_cut_passed() -> Changes:
    """A consumer stops only where the service says so, which may have died before it could."""

    def stop_of(owned, resize, cuts):
        return owned.cut if owned.waits_for else None

    return [(counterpoise.flow.barriers, "stop_of", stop_of)]


def next_resize_does_not_wait() -> Changes:
    """A resize is taken before the last one is settled."""

    def refuse_unsettled(queue, which=None):
        pass

    return [
        (broker.core.cuts, "refuse_unsettled", refuse_unsettled),
        (broker.calls.cuts, "refuse_unsettled", refuse_unsettled),
    ]


def reached_by_the_owner() -> Changes:
    """What the owner of a log has processed counts for all who read it."""
    real = CutCalls.cuts_of

    async def cuts_of(self, coordinator, log, positions):
        async def of_the_owner(owner):
            return await real(self, owner, log, positions)

        return await self._queues.on(builtin_name(log), of_the_owner)

    return [(CutCalls, "cuts_of", cuts_of)]


def no_barriers_after_a_reset() -> Changes:
    """Positions are set to before the cuts, and nothing waits."""
    return [(broker.core.cuts, "positions_set", lambda command, draft: None)]


# Partitions that split, merge and end


def granted_one_parent_early() -> Changes:
    """A child of two parents is granted when the first of them has ended."""
    real = Lineage.finish

    def finish(self, number):
        children = [self.node_of(key) for key in self.nodes[number].children]
        real(self, number)
        for child in children:
            if child is not None and child.number in self.waiting - self.over:
                self._journal.add(self.over, child.number)

    return [(Lineage, "finish", finish)]


def finished_without_children() -> Changes:
    """The end of a partition is committed, its children are to follow."""
    real = broker.core.lineage.record_children

    def add_children(draft, children):
        return real(draft, children[:1])

    return [(broker.core.reports, "record_children", add_children)]


def key_forgotten() -> Changes:
    """Nothing is remembered of removed partitions, so an unknown parent is taken for one."""
    real, real_add = Lineage.remove, broker.core.lineage.record_children

    def remove(self, number):
        key = self.nodes[number].key
        real(self, number)
        self._journal.drop(self.numbers, key)
        self._journal.discard(self.taken, number)

    def add_children(draft, children):
        known = draft.queue.lineage.numbers
        news = {child.key for child in children}
        return real_add(
            draft,
            tuple(
                child._replace(
                    parents=tuple(key for key in child.parents if key in known or key in news)
                )
                for child in children
            ),
        )

    return [
        (Lineage, "remove", remove),
        (broker.core.decisions, "record_children", add_children),
        (broker.core.reports, "record_children", add_children),
        (MemoryDatabase, "_check", unchecked),
    ]


def removed_before_its_children() -> Changes:
    """A finished partition goes at once."""
    return [
        (Lineage, "removable", lambda self, number: (number,)),
        (Lineage, "remove", _removed_at_once(Lineage.remove)),
    ]


def _removed_at_once(real: Any) -> Any:
    def remove(self, number):
        node = self.nodes[number]
        is_open, node.open = node.open, 0
        real(self, number)
        node.open = is_open

    return remove


def finished_is_kept() -> Changes:
    """Finished partitions stay for ever."""
    return [(Lineage, "removable", lambda self, number: ())]


def old_range_accepted() -> Changes:
    """The log takes messages that were routed by ranges of before."""
    real = Log._accepts

    def accepts(self, hashes, numbers, routing):
        return self.ranges is not None or real(self, hashes, numbers, routing)

    return [(Log, "_accepts", accepts)]


def position_of_a_report_is_dropped() -> Changes:
    """Was in the product: children that are known already are acknowledged, their parent's position
    is not stored."""
    return [(Transaction, "unrecorded", property(lambda self: ()))]
