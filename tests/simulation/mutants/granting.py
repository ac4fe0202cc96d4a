"""Bugs in binds, grants and handoffs."""

from __future__ import annotations

import broker.core.decisions
import broker.core.handoff
import broker.core.loop
import broker.core.pairs
import broker.core.placement
import broker.core.replay
import broker.core.reports
import broker.core.resizing
from broker.calls.queues import QueueCalls
from broker.core import records as r
from broker.core.assignment import HandoffPlanner
from broker.core.draft import Draft
from broker.core.queue import Queue
from broker.core.transitions import Status
from tests.simulation.mutants.mutant import Changes
from tests.simulation.stand_ins import replaced

# Binds


def bound_together_without_a_balance() -> Changes:
    """Flows that bind together are bound, and nothing is decided for them."""
    real = broker.core.decisions._join

    def join(draft, before, **given):
        if draft.queue.takers - before == 1:
            real(draft, before, **given)

    return [(broker.core.decisions, "_join", join)]


def handoff_takes_longer() -> Changes:
    def revoke(draft, numbers, *, ready):
        deadline = draft.now + draft.queue.settings.max_handoff_time + 1.0
        draft.emit(r.WarmupsEnded(tuple(numbers), ready, deadline, draft.now))

    return [(broker.core.handoff, "revoke", revoke), (broker.core.loop, "revoke", revoke)]


# Grants and handoffs


def revoke_taken_back() -> Changes:
    real = broker.core.loop._grant_all

    def grant_all(draft, ranking):
        for number in sorted(draft.queue.handoffs.without_successor):
            draft.emit(r.HandoffsCalledOff((number,)))
        real(draft, ranking)

    return [(broker.core.loop, "_grant_all", grant_all)]


def granted_to_the_draining() -> Changes:
    real = Draft.drawn_up

    def drawn_up(self, partition, flow, handed_over, *, by_handoff=False):
        draining = [flow for flow in self.queue.flows.values() if flow.draining]
        to = draining[0] if draining and partition.owner is None else flow
        return real(self, partition, to, handed_over, by_handoff=by_handoff)

    return [(Draft, "drawn_up", drawn_up)]


def too_many_moves() -> Changes:
    """A handoff is begun although the spread is one."""
    real = broker.core.loop._grant_all

    def grant_all(draft, ranking):
        real(draft, ranking)
        queue = draft.queue
        if queue.handoffs or queue.exclusive or queue.ranking.spread != 1 or queue.leaving.counts:
            return
        giver = queue.flows.by_bind_number[queue.ranking.most()]
        able = sorted(giver.owned - queue.retiring)
        if able and len(draft.records) > 1:
            taker = queue.flows.by_bind_number[queue.ranking.fewest()]
            moves = (r.Move(able[0], giver.id, taker.id),)
            until = draft.now + queue.settings.max_handoff_time
            draft.emit(r.RevokesStarted(moves, until, draft.now))

    return [(broker.core.loop, "_grant_all", grant_all)]


def others_move_with_a_pair() -> Changes:
    real = broker.core.pairs.hand_over_pairs

    def hand_over_pairs(draft):
        real(draft)
        queue = draft.queue
        if queue.status is Status.REBALANCING and queue.holddown_until is not None:
            planned = HandoffPlanner(queue).plan(broker.core.handoff.room(queue))
            broker.core.handoff.begin(draft, planned)

    return [(broker.core.loop, "hand_over_pairs", hand_over_pairs)]


def what_waits_for_a_pair_waits_anew() -> Changes:
    """With everything that happens, and not with each pair."""
    real = broker.core.pairs.hand_over_pairs

    def hand_over_pairs(draft):
        real(draft)
        queue = draft.queue
        if queue.status is Status.REBALANCING and queue.holddown_until is not None:
            until = draft.now + queue.settings.rebalance_delay
            draft.emit(r.PairsFirst(until, queue.flows_before))

    return [(broker.core.loop, "hand_over_pairs", hand_over_pairs)]


def unsettled_is_ready() -> Changes:
    real, next_handoff = vars(Queue)["is_balanced"].fget, HandoffPlanner._next

    def nearly(queue):
        return not queue.exclusive and not queue.leaving.counts and queue.ranking.spread <= 2

    def is_balanced(queue):
        idle = not queue.handoffs and not queue.unassigned and queue.takers > 0
        return real(queue) or (idle and nearly(queue))

    def next_unless_nearly(self):
        return None if nearly(self._queue) else next_handoff(self)

    return [
        (Queue, "is_balanced", property(is_balanced)),
        (HandoffPlanner, "_next", next_unless_nearly),
    ]


def retires_again_in_its_epoch() -> Changes:
    """Found by the simulation: a delayed `finished` is accepted, and messages are lost."""

    def retire(draft, numbers):
        draft.emit(r.PartitionsRetired(numbers))

    return [(broker.core.resizing, "_retire", retire)]


def latest_is_asked_too_late() -> Changes:
    """The queue starts at the end that its log has after the creation."""
    real = QueueCalls.create

    async def create(self, spec, *caller):
        made = await real(self, spec, *caller)
        ends = await self._logs.positions(made.log, "latest")
        for stored in self._store.database.queues.values():
            stored.positions.update({int(n): (at, None) for n, at in ends.items()})
        return made

    return [(QueueCalls, "create", create)]


# Aligned partitions


def granted_in_part() -> Changes:
    """A partition is granted as soon as it is released, and not with its group."""

    def group(self, number):
        return range(number, number + 1)

    real = broker.core.reports._release

    def release(draft, *arguments):
        with replaced((Queue, "group", group)):
            return real(draft, *arguments)

    return [(broker.core.reports, "_release", release)]


def orphans_are_granted_one_by_one() -> Changes:
    """What nobody owns goes to the flow with the fewest partitions, whatever its group."""

    def grant(draft, numbers, ranking):
        with replaced((Queue, "group", lambda self, number: range(number, number + 1))):
            real(draft, numbers, ranking)

    real = broker.core.loop._grant
    return [
        (Queue, "unassigned_leads", lambda self: sorted(self.unassigned)),
        (broker.core.loop, "_grant", grant),
    ]


def ready_in_part() -> Changes:
    """The warm-up of a group ends with the first partition that is ready."""

    def warmed(draft, number):
        broker.core.handoff.revoke(draft, draft.queue.group(number), ready=True)

    return [(broker.core.reports, "_warmed", warmed)]


# The budget of moves


def held_back_takes() -> Changes:
    """A flow that is held back gets partitions like the others."""

    def rank(queue, flow):
        queue.journal.did(queue.ranking.remove, flow.bind_number)
        queue.ranking.put(flow.bind_number, flow.load)

    real = broker.core.placement._rank

    def rank_all(queue, flow):
        (real if flow.held_until is None else rank)(queue, flow)

    return [(broker.core.placement, "_rank", rank_all)]


def moves_do_not_count() -> Changes:
    return [(broker.core.replay, "_count_moves", lambda queue, moves, at: None)]


def nobody_is_held_back() -> Changes:
    return [(broker.core.decisions, "held_until", lambda *arguments: None)]


def held_back_for_ever() -> Changes:
    """Who is held back joins only if nobody else is left."""
    return [(broker.core.decisions, "admit", lambda draft, flows: None)]
