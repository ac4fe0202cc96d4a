"""Known bugs to plant in the product, one at a time: the simulation must find each.

A mutant says what to put in the place of which attribute while a run lasts. They are the mistakes
that are easily made in a system like this, most of them in one line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import broker.core.administering
import broker.core.assignment
import broker.core.binding
import broker.core.handoff
import broker.core.loop
import broker.core.rebalancer
import broker.core.working
from broker.calls.flows import FlowCalls
from broker.calls.queues import QueueCalls
from broker.calls.updates import UpdateCalls
from broker.core import commands as c
from broker.core.assignment import Giving
from broker.core.draft import Draft
from broker.core.state import records as r
from broker.core.state.deadlines import Deadlines
from broker.core.state.model import HandedOver
from broker.core.state.queue import Queue
from broker.core.state.transitions import (
    PARTITION_TRANSITIONS,
    QUEUE_TRANSITIONS,
    PartitionEvent,
    QueueEvent,
    State,
    Status,
)
from broker.mailbox.clock import StoreClock
from broker.mailbox.coordinator import Coordinator
from broker.mailbox.replica import Replica
from broker.mailbox.turns import Turn
from broker.store.ports import Conflict, Expiry, Outage, Pulse
from counterpoise.flow.core import FlowCore
from tests.simulation.world import replaced
from tests.twin.database import MemoryDatabase

Changes = list[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A bug: what it is, what is to be changed, and what the tables of transitions would have to
    allow for it to be possible at all.
    """

    name: str
    changes: Callable[[], Changes]
    allows: tuple[tuple[dict[Any, Any], Any, Any], ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The product has the bug."""
        for table, pair, state in self.allows:
            table[pair] = state
        try:
            with replaced(*self.changes()):
                yield
        finally:
            for table, pair, _ in self.allows:
                del table[pair]


def _unchecked(self: MemoryDatabase, commit: Any, stored: Any) -> None:
    """In the place of the database's constraints."""


# Epochs


def _forced_keeps_the_epoch() -> Changes:
    real = Draft.drawn_up

    def drawn_up(self, partition, flow, handed_over, by_handoff=False):
        grant = real(self, partition, flow, handed_over, by_handoff)
        forced = handed_over == HandedOver.FORCED
        return grant._replace(epoch=partition.epoch) if forced else grant

    # The real database would refuse it; here the checker is to.
    return [(Draft, "drawn_up", drawn_up), (MemoryDatabase, "_check", _unchecked)]


def _epoch_off_by_one() -> Changes:
    real = MemoryDatabase._commit_position

    def commit_position(self, item):
        stored = self.queues.get(item.queue_id)
        values = stored.partitions.get(item.partition) if stored else None
        if values is not None and item.epoch == values.epoch - 1 and values.owner is not None:
            item = replace(item, epoch=values.epoch, flow_id=values.owner)
        return real(self, item)

    return [(MemoryDatabase, "_commit_position", commit_position)]


def _release_without_epoch() -> Changes:
    real = broker.core.working._refuse

    def refuse(partition, flow, epoch):
        return real(partition, flow, partition.epoch if partition.owner is flow else epoch)

    return [(broker.core.working, "_refuse", refuse)]


def _ready_from_anybody() -> Changes:
    """The epoch of a ready is not looked at, nor who says so."""

    def refuse_ready(queue, flow, item):
        partition = queue.find(item.partition)
        if partition is not None and partition.state is State.WARMING:
            return None
        return c.Outcome.NOT_WARMING and c.Result(item.partition, c.Outcome.NOT_WARMING)

    return [(broker.core.working, "_refuse_ready", refuse_ready)]


# Commits


def _told_before_committed() -> Changes:
    real = Coordinator.read

    async def read(self, look, *, fresh=False):
        if self._queue is not None and self._uncommitted and not fresh:
            return look(self._queue)
        return await real(self, look, fresh=fresh)

    return [(Coordinator, "read", read)]


def _commit_not_fenced() -> Changes:
    real = MemoryDatabase.commit

    def commit(self, commit):
        stored = self.queues.get(commit.queue.id)
        if stored is not None:
            commit.seen = stored.row["revision"]
        real(self, commit)

    return [
        (MemoryDatabase, "commit", commit),
        (MemoryDatabase, "_check", _unchecked),
    ]


def _failed_commit_is_kept() -> Changes:
    return [(Turn, "take_back", lambda self: None)]


def _answers_from_the_past() -> Changes:
    """An answer that needs no commit is given without asking whether others have committed."""
    real = Coordinator._replay_missed

    async def replay_missed(self, queue):
        conflict = isinstance(sys.exc_info()[1], Conflict)
        if self._uncommitted and not conflict:
            return False
        return await real(self, queue)

    return [(Coordinator, "_replay_missed", replay_missed)]


# Positions


def _position_passed_over() -> Changes:
    real = Turn._release

    def release(self, ask, command, behind):
        ask.released = {
            number: position if position is None else str(int(position) + 1)
            for number, position in ask.released.items()
        }
        return real(self, ask, command, behind)

    return [(Turn, "_release", release)]


def _release_forgets_the_position() -> Changes:
    real = Turn.finish

    def finish(self, late_seconds):
        commit = real(self, late_seconds)
        commit.writes = ()
        return commit

    return [(Turn, "finish", finish)]


def _seq_ignored() -> Changes:
    real = MemoryDatabase._may_write

    def may_write(self, stored, number, epoch, flow_id, seq):
        return real(self, stored, number, epoch, flow_id, None)

    return [(MemoryDatabase, "_may_write", may_write)]


def _seq_ignored_after_a_reset() -> Changes:
    """What was set once excuses nothing that happens afterwards."""
    [(_, _, unordered)] = _seq_ignored()
    real, real_commit = MemoryDatabase._may_write, MemoryDatabase.commit

    def committing(self, commit):
        real_commit(self, commit)
        self.was_set = getattr(self, "was_set", False) or bool(commit.positions)

    def may_write(self, *what):
        return (unordered if getattr(self, "was_set", False) else real)(self, *what)

    return [(MemoryDatabase, "commit", committing), (MemoryDatabase, "_may_write", may_write)]


# Time


def _old_timer_fires() -> Changes:
    """A deadline that was set for an earlier handoff of a partition ends a later one."""

    def holds(self, entry):
        return entry[1] in self._handoffs

    return [(Deadlines, "_holds", holds)]


def _leases_run_in_an_outage() -> Changes:
    def pulse(self, gap_seconds):
        now, began = self.clock(), self.stamped_at
        if began is not None and now - began > gap_seconds:
            self.outages.append(Outage(next(self.outage_ids), began, now - began))
        self.stamped_at, self.gap_seconds = now, gap_seconds
        return Pulse(now, self.outages[-1] if self.outages else None)

    return [(MemoryDatabase, "pulse", pulse)]


def _deadlines_run_in_an_outage() -> Changes:
    async def move_deadlines(self, turn):
        return None

    return [(Coordinator, "_move_deadlines", move_deadlines)]


def _late_commit_is_taken() -> Changes:
    """Was in the product: a deadline runs from the decision, however long the commit takes."""
    real = Turn.finish

    return [(Turn, "finish", lambda self, late_seconds: real(self, 3600.0))]


def _only_the_last_outage_counts() -> Changes:
    """Was in the product: of several outages before a commit the earlier ones were forgotten."""

    async def move_deadlines(self, turn):
        outage = self._clock.outage
        if outage is not None and outage.id > turn.queue.outage_seen:
            turn.decide(c.MoveDeadlines(outage.id, outage.began, outage.seconds))

    return [(Coordinator, "_move_deadlines", move_deadlines)]


def _clock_back_not_noticed() -> Changes:
    """Was in the product: a stamp in the future is as good as a fresh one."""
    real = MemoryDatabase.pulse

    def pulse(self, gap_seconds):
        if self.stamped_at is not None:
            self.stamped_at = min(self.stamped_at, self.clock())
        return real(self, gap_seconds)

    return [(MemoryDatabase, "pulse", pulse)]


def _deadlines_do_not_go_back() -> Changes:
    """Leases follow a clock that went back, holddowns and handoffs do not."""
    real = Turn.decide

    def decide(self, command):
        if isinstance(command, c.MoveDeadlines) and command.seconds < 0:
            command = replace(command, seconds=1e-9)
        return real(self, command)

    return [(Turn, "decide", decide)]


def _time_from_before_a_step() -> Changes:
    """Who has not looked since decides on a queue that has moved."""

    async def keep_time(self, outage_seen):
        return None

    return [(Coordinator, "_keep_time", keep_time)]


def _frozen_replica_trusts_its_clock() -> Changes:
    """What is due is done by a clock that nobody looked at since, and leases by it too."""
    fresh = property(lambda self: self._asked_at is not None)

    def expiries(self, queue_id):
        now = self.clock()
        bound = [flow for flow in self._flows_of(queue_id) if flow.reason is None]
        over = tuple(flow.values.id for flow in bound if flow.lease_expires_at <= now)
        others = (flow.lease_expires_at for flow in bound if flow.lease_expires_at > now)
        return Expiry(over, min(others, default=None))

    async def look(self, store):
        if self._asked_at is None:
            return await real(self, store)
        return Pulse(self.now(), self.outage)

    real = StoreClock.look
    return [
        (StoreClock, "fresh", fresh),
        (StoreClock, "look", look),
        (MemoryDatabase, "expiries", expiries),
        (MemoryDatabase, "_over", lambda self, flow: flow.lease_expires_at <= self.clock()),
    ]


def _expiry_not_fenced() -> Changes:
    real = MemoryDatabase.commit

    def commit(self, commit):
        commit.expired = frozenset()
        real(self, commit)

    return [(MemoryDatabase, "commit", commit)]


def _holddown_extended() -> Changes:
    real = broker.core.binding.bind

    def bind(command, draft):
        status = draft.queue.status
        real(command, draft)
        queue = draft.queue
        if status is Status.HOLDDOWN and queue.status is Status.HOLDDOWN:
            until = draft.now + queue.settings.rebalance_delay
            draft.emit(r.HolddownStarted("bind", until, queue.flows_before, draft.now))

    decisions = {**broker.core.rebalancer._DECISIONS, c.Bind: bind}
    return [(broker.core.rebalancer, "_DECISIONS", decisions)]


def _late_bind_replaces() -> Changes:
    return [(broker.core.binding, "_is_overtaken", lambda command, bound: False)]


def _no_sweep() -> Changes:
    """Only what a replica hears and its own alarms bring it forward."""

    async def sweep(self):
        await self.clock.look(self.store)

    return [(Replica, "_sweep", sweep)]


def _not_looked_at_again() -> Changes:
    """The shell decides and forgets when it is to look again."""
    real = Turn.decide

    def decide(self, command):
        answer = real(self, command)
        self.wake_at = None
        return answer

    return [(Turn, "decide", decide)]


# Slices


def _rest_is_dropped() -> Changes:
    """What has no room in a slice is not done at all."""
    return [(Draft, "cut_off", lambda self: setattr(self, "room", 0))]


def _cut_is_not_stored() -> Changes:
    """Only replicas that live know that there is more to do."""
    real = Turn.finish

    def finish(self, late_seconds):
        commit = real(self, late_seconds)
        if self.rest:
            commit.next_deadline = self.queue.deadlines.first()
        return commit

    return [(Turn, "finish", finish)]


def _handoff_takes_longer() -> Changes:
    def revoke(draft, numbers, *, ready):
        deadline = draft.now + draft.queue.settings.max_handoff_time + 1.0
        draft.emit(r.WarmupsEnded(numbers, ready, deadline, draft.now))

    return [(broker.core.handoff, "revoke", revoke), (broker.core.working, "revoke", revoke)]


# Who gets what


def _revoke_taken_back() -> Changes:
    real = broker.core.loop._grant_all

    def grant_all(draft, ranking):
        for number in sorted(draft.queue.stranded):
            draft.emit(r.HandoffsCalledOff((number,)))
        real(draft, ranking)

    return [(broker.core.loop, "_grant_all", grant_all)]


def _granted_to_the_draining() -> Changes:
    real = Draft.drawn_up

    def drawn_up(self, partition, flow, handed_over, by_handoff=False):
        draining = [flow for flow in self.queue.flows.values() if flow.draining]
        to = draining[0] if draining and partition.owner is None else flow
        return real(self, partition, to, handed_over, by_handoff)

    return [(Draft, "drawn_up", drawn_up)]


def _too_many_moves() -> Changes:
    """A handoff is begun although the spread is one."""
    real = broker.core.loop._start_handoffs

    def start_handoffs(draft):
        real(draft)
        queue = draft.queue
        if queue.handoffs or queue.exclusive or queue.ranking.spread != 1 or queue.leaving.counts:
            return
        giver = queue.by_seat[queue.ranking.most()]
        able = sorted(giver.owned - queue.retiring)
        if able and len(draft.records) > 1:
            moves = (r.Move(able[0], giver.id, queue.by_seat[queue.ranking.fewest()].id),)
            until = draft.now + queue.settings.max_handoff_time
            draft.emit(r.RevokesStarted(moves, until, draft.now))

    return [(broker.core.loop, "_start_handoffs", start_handoffs)]


def _unsettled_is_ready() -> Changes:
    real, next_handoff = broker.core.assignment.is_balanced, Giving.next

    def nearly(queue):
        return not queue.exclusive and not queue.leaving.counts and queue.ranking.spread <= 2

    def is_balanced(queue):
        idle = not queue.handoffs and not queue.unassigned and queue.takers > 0
        return real(queue) or (idle and nearly(queue))

    def next_unless_nearly(self):
        return None if nearly(self._queue) else next_handoff(self)

    return [
        (broker.core.loop, "is_balanced", is_balanced),
        (Giving, "next", next_unless_nearly),
    ]


def _retires_again_in_its_epoch() -> Changes:
    """Was found by the simulation: a delayed `finished` passes, and messages are lost."""

    def retire(draft, numbers):
        draft.emit(r.PartitionsRetired(numbers))

    return [(broker.core.administering, "_retire", retire)]


def _latest_is_where_the_first_reader_looks() -> Changes:
    """Was in the product: who takes over before the first commit begins at a later end."""

    async def ends(self, log, owner):
        return {}

    real = MemoryDatabase.create

    def create(self, commit):
        real(self, replace(commit, first_positions={}))

    return [(QueueCalls, "_ends", ends), (MemoryDatabase, "create", create)]


def _latest_is_asked_too_late() -> Changes:
    """The queue begins where its log ends after it was created."""
    real = QueueCalls.create

    async def create(self, spec):
        made = await real(self, spec)
        ends = await self._logs.positions(made.log, "latest")
        for stored in self._store.database.queues.values():
            stored.positions.update({int(n): (at, None) for n, at in ends.items()})
        return made

    return [(QueueCalls, "create", create)]


def _added_partitions_begin_at_the_end() -> Changes:
    """What is published to them before they are granted is lost."""
    real = Turn.decide

    def decide(self, command):
        answer = real(self, command)
        self._first_positions.clear()
        return answer

    return [(Turn, "decide", decide)]


# Clients


def _older_view_taken() -> Changes:
    """The latest answer counts, also if it was made before one that is known."""

    def take(self, update, now):
        if update.flow_id == self.bound.flow_id and update.revision != self.view.revision:
            self._show(update, now)

    return [(FlowCore, "_take", take)]


def _waiting_flow_is_not_woken() -> Changes:
    """Whose view has changed is not told until it asks, and then by what the replica knows."""
    real = UpdateCalls._newer

    async def newer(self, coordinator, flow_id, after, at_least=0, fresh=False):
        return await real(self, coordinator, flow_id, after, 0, fresh)

    return [
        (UpdateCalls, "_newer", newer),
        (Replica, "_wake", lambda self, queue_id, notices: None),
        (Coordinator, "catch_up", lambda self: None),
    ]


# Who goes on working


def _commits_wait_while(waits: Callable[[Queue, str], bool]) -> Changes:
    real = FlowCalls.commit

    async def commit(self, name, flow_id, seq, items):
        loop: Any = asyncio.get_running_loop()
        coordinator = await self._queues.replica.coordinator(name)
        while (queue := coordinator.queue) is not None and flow_id in queue.flows:
            if not waits(queue, flow_id):
                break
            await loop.sleep(0.1)
        return await real(self, name, flow_id, seq, items)

    return [(FlowCalls, "commit", commit)]


def _commits_wait_for_handoffs() -> Changes:
    """Whoever is to lose one partition commits nothing until that is over."""
    return _commits_wait_while(
        lambda queue, flow_id: any(n in queue.handoffs for n in queue.flows[flow_id].owned)
    )


def _commits_wait_for_rebalance() -> Changes:
    """The world stops until everything is where it belongs."""
    return _commits_wait_while(lambda queue, flow_id: queue.status is Status.REBALANCING)


_CALLED_OFF = ((State.REVOKING, PartitionEvent.CALLED_OFF), State.OWNED)
_EXTENDED = ((Status.HOLDDOWN, QueueEvent.HOLDDOWN_STARTED), Status.HOLDDOWN)

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("forced handoff keeps the epoch", _forced_keeps_the_epoch),
        Mutant("commit of the epoch before is accepted", _epoch_off_by_one),
        Mutant("release accepted without its epoch", _release_without_epoch),
        Mutant("ready accepted from anybody", _ready_from_anybody),
        Mutant("told before it is committed", _told_before_committed),
        Mutant("commit not fenced by the revision", _commit_not_fenced),
        Mutant("decisions of a failed commit are kept", _failed_commit_is_kept),
        Mutant("a refusal comes from the past", _answers_from_the_past),
        Mutant("position passed over at a handoff", _position_passed_over),
        Mutant("release forgets the position", _release_forgets_the_position),
        Mutant("a delayed retry moves a position back", _seq_ignored),
        Mutant("a delayed retry counts after positions were set", _seq_ignored_after_a_reset),
        Mutant("timer of an old handoff fires", _old_timer_fires),
        Mutant("leases run while nobody serves", _leases_run_in_an_outage),
        Mutant("handoff deadlines run while nobody serves", _deadlines_run_in_an_outage),
        Mutant("a late commit is taken", _late_commit_is_taken),
        Mutant("only the last of several outages is given back", _only_the_last_outage_counts),
        Mutant("a clock that goes back is not noticed", _clock_back_not_noticed),
        Mutant("deadlines do not go back with the clock", _deadlines_do_not_go_back),
        Mutant("the time from before a step is used after it", _time_from_before_a_step),
        Mutant("a frozen replica trusts its clock", _frozen_replica_trusts_its_clock),
        Mutant("expiry not fenced by the lease", _expiry_not_fenced),
        Mutant(
            "holddown extended by further binds",
            _holddown_extended,
            ((QUEUE_TRANSITIONS, *_EXTENDED),),
        ),
        Mutant("a late bind replaces a later one", _late_bind_replaces),
        Mutant("no sweep", _no_sweep),
        Mutant("a queue is not looked at again when it is due", _not_looked_at_again),
        Mutant("the rest of a decision is dropped", _rest_is_dropped),
        Mutant("the rest of a decision dies with its replica", _cut_is_not_stored),
        Mutant("a handoff takes longer than allowed", _handoff_takes_longer),
        Mutant(
            "a revoke is taken back", _revoke_taken_back, ((PARTITION_TRANSITIONS, *_CALLED_OFF),)
        ),
        Mutant("a leaver's partitions go to a draining flow", _granted_to_the_draining),
        Mutant("one handoff too many", _too_many_moves),
        Mutant("Ready with a spread of two", _unsettled_is_ready),
        Mutant("a partition retires again in its epoch", _retires_again_in_its_epoch),
        Mutant("latest is where the first reader looks", _latest_is_where_the_first_reader_looks),
        Mutant("latest is asked when the queue is there", _latest_is_asked_too_late),
        Mutant("added partitions begin at the end", _added_partitions_begin_at_the_end),
        Mutant("a client takes an older view", _older_view_taken),
        Mutant("a flow that waits is not woken", _waiting_flow_is_not_woken),
        Mutant("commits wait for the handoffs of their flow", _commits_wait_for_handoffs),
        Mutant("commits wait for the rebalance to end", _commits_wait_for_rebalance),
    )
}
