"""The rebalance loop (the contract, *The rebalance loop*, *One handoff*), and what sets it going.

Every step is a record, applied to the draft at once, so the next step sees what this one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import groupby

from broker.core import records as r
from broker.core.assignment import (
    HandoffPlanner,
    ranking_without_warmups,
    revise,
)
from broker.core.departing import ends_with_owner, is_giving_back, settle, take_from_gone
from broker.core.draft import Draft
from broker.core.handoff import force, is_ready, is_to_be_revised, redirect, revoke
from broker.core.lineage import TRIGGER as LINEAGE
from broker.core.lineage import end_waits
from broker.core.model import Flow, Handoff
from broker.core.queue import Queue
from broker.core.structures import Ranking, TentativeCounts
from broker.core.transitions import State, Status


def hold_down(draft: Draft, trigger: str, flows_before: int) -> None:
    """Begins the holddown that a trigger takes in a Ready queue (rules 1, 4, 8 and 11)."""
    queue = draft.queue
    delay = queue.settings.rebalance_delay
    # What rule 3 grants at once does not wait for the end of another's holddown.
    granting = draft.resumes and draft.granting not in (None, "replaced", LINEAGE)
    if delay > 0 and not granting:
        draft.emit(r.HolddownStarted(trigger, draft.now + delay, flows_before, draft.now))
    else:
        rebalance(draft, trigger)


def rebalance(draft: Draft, trigger: str) -> None:
    """Rebalancing at once, whatever the status (rules 8 to 10)."""
    queue = draft.queue
    if queue.status is not Status.REBALANCING:
        # The one that began the holddown stays the trigger.
        first = queue.trigger or trigger
        draft.emit(r.RebalanceStarted(queue.next_rebalance_id, first, draft.now))
    loop(draft, changed=True)


def take_up(draft: Draft, *, changed: bool = True, happened: bool = True) -> None:
    """Something happened: the holddown may settle (rule 7), a running loop takes it up (rule 10).

    If not, what an earlier decision left is done.
    """
    queue = draft.queue
    if queue.status is Status.REBALANCING:
        loop(draft, changed=changed)
        return
    draft.is_cut_off = False
    draft.changed = draft.changed or happened or draft.granting is not None
    settle(draft)
    if draft.granting not in (None, LINEAGE) and not draft.is_cut_off:
        grant_outside(draft, draft.granting, unassigned(draft))
    if queue.lineage is not None and not draft.is_cut_off:
        end_waits(draft)
    if draft.is_cut_off:
        return
    if queue.status is Status.READY and draft.resumes:
        rebalance_if_replaced(draft, joined=False)
    changed, draft.changed = draft.changed, False
    if changed and queue.status is Status.HOLDDOWN and queue.takers == queue.flows_before:
        assert queue.trigger is not None
        if queue.unassigned:
            grant_outside(draft, queue.trigger, unassigned(draft))
        if queue.is_balanced:
            draft.emit(r.HolddownSettled(draft.now))


def rebalance_if_replaced(draft: Draft, *, joined: bool, at_once: bool = False) -> None:
    """A flow that was draining may have been replaced by one that is not (rule 12): it has
    `joined`."""
    queue = draft.queue
    ready = queue.is_balanced if joined else queue.is_settled
    if draft.is_cut_off or ready:
        return
    if at_once:
        rebalance(draft, "replaced")
    else:
        hold_down(draft, "replaced", queue.takers - 1)


def unassigned(draft: Draft) -> list[int]:
    """The partitions to grant, lowest number first: one more than there is room for, if there
    are."""
    return draft.queue.lowest_unassigned(draft.room + 1)


def grant_outside(draft: Draft, trigger: str, numbers: Sequence[int]) -> None:
    """Grants of rules 3 and 7: at once, without a rebalance, in the history under an entry of their
    own."""
    if draft.queue.takers:
        draft.outside(trigger)
        _grant(draft, numbers, draft.queue.ranking)
    draft.granted()


def loop(draft: Draft, *, changed: bool) -> None:
    """One pass of the rebalance loop; the next follows whenever something finishes or changes.

    `changed`: flows or settings did, so warm-ups under way may not be what is needed any more.
    """
    queue = draft.queue
    draft.is_cut_off = False
    draft.changed = draft.changed or changed
    settle(draft)
    if queue.lineage is not None and not draft.is_cut_off:
        end_waits(draft)
    if draft.is_cut_off:
        return
    if is_to_be_revised(draft):
        _revise(draft)
    else:
        _grant_all(draft, queue.ranking)
        draft.changed = draft.changed and draft.is_cut_off
    if draft.resumes and not draft.is_cut_off:
        _end_ready(draft)
    if queue.is_balanced:
        draft.emit(r.RebalanceFinished(draft.now))
    elif not draft.is_cut_off:
        _start_handoffs(draft)


def end_due(draft: Draft) -> None:
    """Ends the handoffs and the warm-ups whose deadlines have come, as far as there is room.

    Handoffs end whatever else there is to do, for their partitions are paused. Of a flow that is
    gone, only their partitions are taken first. Where that leaves no successor, and the next one
    depends on what else was theirs, all of that is done first.

    Warm-ups pause nothing; while others may come to be planned in their place, they end after that.
    """
    queue, now = draft.queue, draft.now
    planned = not is_to_be_revised(draft)
    ended = [
        number
        for bind_number in queue.leaving.counts
        if (flow := queue.by_bind_number[bind_number]).drain_deadline is not None
        and flow.drain_deadline <= now
        and planned
        for number in sorted(filter(queue.leads, flow.owned & queue.warming))
    ]

    def may_end(handoff: Handoff) -> bool:
        if not queue.leads(handoff.number):
            return False
        return planned or queue.partitions[handoff.number].state is State.REVOKING

    due = queue.deadlines.due(now, draft.room, may_end)
    ended += [h.number for h in due if queue.partitions[h.number].state is State.WARMING]
    forced = [h for h in due if queue.partitions[h.number].state is State.REVOKING]
    if ended and draft.budget > 0:
        revoke(draft, _groups(queue, [*dict.fromkeys(ended)][: draft.room]), ready=False)
    forced = forced[: draft.room]
    if queue.gone:
        forced = [handoff for handoff in forced if not ends_with_owner(draft, handoff.number)]
    alone = sorted(handoff.number for handoff in forced if handoff.successor is None)
    depends = is_giving_back(queue) or (queue.gone and queue.warming)
    if alone and depends and not take_from_gone(draft):
        return
    ranking = ranking_without_warmups(queue) if alone and queue.warming else queue.ranking
    for number in alone:
        _name_successor(draft, number, ranking)
    for handoff in forced:
        force(draft, handoff)


def _grant_all(draft: Draft, ranking: Ranking) -> None:
    """Grants what nobody owns, and names successors for partitions in `revoking` that lost theirs.

    A revoke is never taken back, so a partition that lost its successor goes on like one that
    nobody owns; its present owner may be the one to get it.
    """
    queue = draft.queue
    if queue.unassigned:
        _grant(draft, unassigned(draft), ranking)
    if not queue.takers:
        return
    for number in nsmallest(draft.room + 1, filter(queue.leads, queue.without_successor)):
        if draft.budget <= 0:
            draft.is_cut_off = True
            return
        _name_successor(draft, number, ranking)


def _name_successor(draft: Draft, number: int, ranking: Ranking) -> None:
    """Gives a partition in `revoking` to the flow with the fewest partitions, if there is one."""
    queue = draft.queue
    flow = queue.least_loaded(ranking)
    if flow is None:
        return
    redirects = tuple(r.Redirect(each, flow.id) for each in queue.group(number))
    draft.emit(r.HandoffsRedirected(redirects, None, draft.now))
    if ranking is not queue.ranking and number not in queue.retiring:
        ranking.add(flow.bind_number, 1)


def _grant(draft: Draft, numbers: Sequence[int], ranking: Ranking) -> None:
    """Grants unassigned partitions, given lowest number first, each to the flow with the fewest
    partitions, as far as there is room."""
    queue = draft.queue
    if not ranking.counts:
        return
    grants = list[r.Grant]()
    planned = TentativeCounts(ranking)
    for number in numbers[: draft.room]:
        flow = queue.least_loaded(ranking)
        assert flow is not None
        for each in queue.group(number):
            partition = queue.partitions[each]
            grants.append(draft.drawn_up(partition, flow, partition.next_handed_over))
        if number not in queue.retiring:
            planned.add(flow.bind_number, 1)
    if ranking is queue.ranking:
        # The record counts them.
        planned.take_back()
    is_cut_off = len(numbers) > draft.room
    if grants:
        draft.emit(r.Granted(tuple(grants), draft.now))
    draft.is_cut_off = draft.is_cut_off or is_cut_off


def _revise(draft: Draft) -> None:
    """Grants and successors as if no warm-up had begun, then keeps the warm-ups that fit (see
    `assignment`)."""
    queue = draft.queue
    ranking = ranking_without_warmups(queue)
    _grant_all(draft, ranking)
    if draft.is_cut_off:
        return
    draft.changed = False
    revision = revise(queue, ranking)
    for number in revision.called_off:
        draft.emit(r.HandoffsCalledOff(tuple(queue.group(number))))
    for number, flow in revision.redirected:
        for each in queue.group(number):
            redirect(draft, each, flow)


def _end_ready(draft: Draft) -> None:
    """Ends the warm-ups whose successors became ready while it was not known which are needed."""
    queue, room = draft.queue, draft.room
    leads = sorted(filter(queue.leads, queue.warming))
    ready = [n for n in leads if all(is_ready(queue, each) for each in queue.group(n))]
    if ready[:room]:
        revoke(draft, _groups(queue, ready[:room]), ready=True)
    if ready[room:]:
        draft.is_cut_off = True


def _groups(queue: Queue, numbers: Iterable[int]) -> list[int]:
    """All partitions of the groups of these."""
    return [each for number in numbers for each in queue.group(number)]


def _start_handoffs(draft: Draft) -> None:
    """Starts handoffs until the balance needs no more or `max_concurrent_handoffs` are under
    way."""
    queue, now, room = draft.queue, draft.now, draft.room
    settings = queue.settings
    most, wanted = settings.max_concurrent_handoffs, room + 1
    if most is not None:
        wanted = min(wanted, max(0, most - len(queue.handoffs) // settings.aligned))
    planned = HandoffPlanner(queue).plan(wanted)
    for warm, some in groupby(planned[:room], partial(_is_warm, draft)):
        moves = tuple(
            r.Move(each, owner.id, successor.id)
            for number, owner, successor in some
            for each in queue.group(number)
        )
        if warm:
            draft.emit(r.WarmupsStarted(moves, now + settings.max_warmup_time, now))
        else:
            draft.emit(r.RevokesStarted(moves, now + settings.max_handoff_time, now))
    if len(planned) > room:
        draft.is_cut_off = True


def _is_warm(draft: Draft, planned: tuple[int, Flow, Flow]) -> bool:
    """Whether a handoff begins with a warm-up."""
    _, owner, successor = planned
    cut_short = owner.drain_deadline is not None and owner.drain_deadline <= draft.now
    return successor.warmup and not cut_short and draft.queue.settings.max_warmup_time > 0
