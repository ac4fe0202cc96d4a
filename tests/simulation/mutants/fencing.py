"""Bugs in epochs, commits and positions."""

from __future__ import annotations

import sys
from dataclasses import replace

import broker.core.reports
from broker.core import commands as c
from broker.core.draft import Draft
from broker.core.model import HandedOver
from broker.core.transitions import State
from broker.replica.coordinator import Coordinator
from broker.replica.transaction import Transaction
from broker.store.ports import Conflict
from broker.testing.database import MemoryDatabase
from tests.simulation.mutants.mutant import Changes, unchecked

# Epochs


def forced_keeps_the_epoch() -> Changes:
    real = Draft.drawn_up

    def drawn_up(self, partition, flow, handed_over, *, by_handoff=False):
        grant = real(self, partition, flow, handed_over, by_handoff=by_handoff)
        forced = handed_over == HandedOver.FORCED
        return grant._replace(epoch=partition.epoch) if forced else grant

    # The real database would refuse it; here the checker must find it.
    return [(Draft, "drawn_up", drawn_up), (MemoryDatabase, "_check", unchecked)]


def epoch_off_by_one() -> Changes:
    real = MemoryDatabase._commit_position

    def commit_position(self, item, *more):
        stored = self.queues.get(item.queue_id)
        values = stored.partitions.get(item.partition) if stored else None
        if values is not None and item.epoch == values.epoch - 1 and values.owner is not None:
            item = replace(item, epoch=values.epoch, flow_id=values.owner)
        return real(self, item, *more)

    return [(MemoryDatabase, "_commit_position", commit_position)]


def release_without_epoch() -> Changes:
    real = broker.core.reports._refuse

    def refuse(partition, flow, epoch):
        return real(partition, flow, partition.epoch if partition.owner is flow else epoch)

    return [(broker.core.reports, "_refuse", refuse)]


def ready_from_anybody() -> Changes:
    """Neither the epoch of a ready nor its sender is checked."""

    def refuse_ready(queue, flow, item):
        partition = queue.partitions.get(item.partition)
        if partition is not None and partition.state is State.WARMING:
            return None
        return c.Outcome.NOT_WARMING and c.Result(item.partition, c.Outcome.NOT_WARMING)

    return [(broker.core.reports, "_refuse_ready", refuse_ready)]


# Commits


def told_before_committed() -> Changes:
    real = Coordinator.read

    async def read(self, look, *, fresh=False):
        if self._queue is not None and self._uncommitted and not fresh:
            return look(self._queue)
        return await real(self, look, fresh=fresh)

    return [(Coordinator, "read", read)]


def commit_not_fenced() -> Changes:
    real = MemoryDatabase.commit

    def commit(self, commit):
        stored = self.queues.get(commit.queue.id)
        if stored is not None:
            commit.seen = stored.row["revision"]
        return real(self, commit)

    return [
        (MemoryDatabase, "commit", commit),
        (MemoryDatabase, "_check", unchecked),
    ]


def failed_commit_is_kept() -> Changes:
    return [(Transaction, "take_back", lambda self: None)]


def answers_from_the_past() -> Changes:
    """An answer without a commit is given without checking for commits of other replicas."""
    real = Coordinator._replay_missed

    async def replay_missed(self, queue):
        conflict = isinstance(sys.exc_info()[1], Conflict)
        if self._uncommitted and not conflict:
            return False
        return await real(self, queue)

    return [(Coordinator, "_replay_missed", replay_missed)]


# Positions


def position_passed_over() -> Changes:
    real = Transaction._release

    def release(self, ask, command, *others):
        ask.released = {
            number: position if position is None else str(int(position) + 1)
            for number, position in ask.released.items()
        }
        return real(self, ask, command, *others)

    return [(Transaction, "_release", release)]


def release_forgets_the_position() -> Changes:
    real = Transaction.finish

    def finish(self, *arguments):
        commit = real(self, *arguments)
        commit.writes = ()
        return commit

    return [(Transaction, "finish", finish)]


def seq_ignored() -> Changes:
    real = MemoryDatabase._may_write

    def may_write(self, stored, number, epoch, flow_id, seq):
        return real(self, stored, number, epoch, flow_id, None)

    return [(MemoryDatabase, "_may_write", may_write)]


def seq_ignored_after_a_reset() -> Changes:
    """After positions were set once, the seq of later commits is ignored."""
    [(_, _, unordered)] = seq_ignored()
    real, real_commit = MemoryDatabase._may_write, MemoryDatabase.commit

    def committing(self, commit):
        real_commit(self, commit)
        self.was_set = getattr(self, "was_set", False) or bool(commit.positions)

    def may_write(self, *what):
        return (unordered if getattr(self, "was_set", False) else real)(self, *what)

    return [(MemoryDatabase, "commit", committing), (MemoryDatabase, "_may_write", may_write)]
