"""The rebalance loop (the contract, *The rebalance loop*, *One handoff*), and what sets it going.

Every step is a record, applied to the draft at once, so the next step sees what this one did.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import records as r
from broker.core.assignment import HandoffPlanner, ranking_without_warmups, revise
from broker.core.draft import Draft
from broker.core.handoff import begin, force, redirect, revoke, room
from broker.core.lineage import TRIGGER as LINEAGE
from broker.core.lineage import end_waits
from broker.core.model import Flow
from broker.core.pairs import hand_over_pairs, is_kept
from broker.core.queue import Queue
from broker.core.structures import Ranking, TentativeCounts
from broker.core.transitions import State, Status


def hold_down(draft: Draft, trigger: str, flows_before: int) -> None:
    """Begins the holddown that a trigger takes in a Ready queue (rules 1, 4, 8 and 11)."""
    queue = draft.queue
    delay = queue.settings.rebalance_delay
    if delay > 0:
        draft.emit(r.HolddownStarted(trigger, draft.now + delay, flows_before, draft.now))
        _pairs_first(draft)
    else:
        rebalance(draft, trigger)


def rebalance(draft: Draft, trigger: str) -> None:
    """Rebalancing at once, whatever the status (rules 8 to 10)."""
    queue = draft.queue
    if queue.status is not Status.REBALANCING:
        # The one that began the holddown stays the trigger.
        first = queue.trigger or trigger
        draft.emit(r.RebalanceStarted(queue.next_rebalance_id, first, draft.now))
    elif queue.holddown_until is not None:
        draft.emit(r.PairsFirst(None, queue.flows_before))
    loop(draft, changed=True)


def take_up(draft: Draft, *, changed: bool = True) -> None:
    """Something happened: the holddown may settle (rule 7), a running loop takes it up (rule 10).

    `changed`: as of `loop`.
    """
    queue = draft.queue
    if queue.status is Status.REBALANCING:
        loop(draft, changed=changed)
        return
    _end_waits(draft)
    if queue.status is Status.READY and queue.flows.weighted:
        _fill(draft)
    if queue.status is Status.HOLDDOWN and queue.takers == queue.flows_before:
        assert queue.trigger is not None
        if queue.unassigned:
            grant_outside(draft, queue.trigger, queue.unassigned_leads())
        if queue.is_balanced:
            draft.emit(r.HolddownSettled(draft.now))
            return
    if queue.status is Status.HOLDDOWN:
        _pairs_first(draft)


def _fill(draft: Draft) -> None:
    """A flow that had its maximum may have room again, as a partition of a dynamic queue has ended:
    it gets what no flow could take."""
    queue = draft.queue
    if queue.unassigned and queue.takers:
        grant_outside(draft, LINEAGE, queue.unassigned_leads())
    if not queue.is_settled:
        hold_down(draft, "pin" if queue.pins.misplaced else "drain", queue.takers)


def rebalance_if_replaced(draft: Draft, before: Flow, flow: Flow, *, at_once: bool) -> None:
    """A flow has replaced another one (rule 12), which was draining perhaps: then it has joined."""
    queue, joined = draft.queue, before.draining
    if queue.is_balanced if joined or before.asks != flow.asks else queue.is_settled:
        return
    if at_once:
        rebalance(draft, "replaced")
    else:
        hold_down(draft, "replaced", queue.takers - joined)


def grant_outside(draft: Draft, trigger: str, numbers: Iterable[int]) -> None:
    """Grants of rules 3 and 7: at once, without a rebalance, in the history under an entry of their
    own."""
    queue, waiting = draft.queue, [*numbers]
    goes_home = any(number in queue.pins.homes for number in waiting)
    if goes_home or queue.least_loaded(queue.ranking) is not None:
        draft.outside(trigger)
        _grant(draft, waiting, queue.ranking)
    draft.granted()


def loop(draft: Draft, *, changed: bool) -> None:
    """One pass of the rebalance loop; the next follows whenever something finishes or changes.

    `changed`: flows or settings did, so warm-ups under way may not be what is needed any more.
    """
    queue = draft.queue
    _end_waits(draft)
    if queue.handoffs.warming and (changed or queue.unassigned) and not is_kept(queue):
        _revise(draft)
    else:
        _grant_all(draft, queue.ranking)
    if queue.is_balanced:
        draft.emit(r.RebalanceFinished(draft.now))
    elif queue.holddown_until is not None:
        _pairs_first(draft)
    else:
        begin(draft, HandoffPlanner(queue).plan(room(queue)))


def _pairs_first(draft: Draft) -> None:
    """Hands over pairs; then, if nobody waits for one any more, all that the balance needs, as for
    pins. Warm-ups that were kept for the sake of those who waited (`is_kept`) may go elsewhere.
    """
    queue = draft.queue
    waited = queue.status is Status.REBALANCING
    hand_over_pairs(draft)
    if queue.status is Status.REBALANCING and queue.holddown_until is None:
        if waited and queue.handoffs.warming:
            _revise(draft)
        begin(draft, HandoffPlanner(queue).plan(room(queue)))


def end_due(draft: Draft) -> None:
    """Ends the handoffs and the warm-ups whose deadlines have come."""
    queue, now = draft.queue, draft.now
    ended = [
        number
        for bind_number in queue.leaving.counts
        if (flow := queue.flows.by_bind_number[bind_number]).drain_deadline is not None
        and flow.drain_deadline <= now
        for number in sorted(filter(queue.leads, flow.owned & queue.handoffs.warming))
    ]
    due = [handoff for handoff in queue.handoffs.due(now) if queue.leads(handoff.number)]
    forced = [h for h in due if queue.partitions[h.number].state is State.REVOKING]
    ended += [h.number for h in due if queue.partitions[h.number].state is State.WARMING]
    if ended:
        revoke(draft, _groups(queue, dict.fromkeys(ended)), ready=False)
    alone = sorted(handoff.number for handoff in forced if handoff.successor is None)
    ranking = ranking_without_warmups(queue) if alone and queue.handoffs.warming else queue.ranking
    for number in alone:
        _name_successor(draft, number, ranking)
    force(draft, forced)


def _end_waits(draft: Draft) -> None:
    """Partitions whose parents are all finished wait no longer. In a running rebalance the loop
    grants them, else they are granted at once; without a flow that takes they have no owner."""
    queue = draft.queue
    if (numbers := end_waits(draft)) and queue.status is not Status.REBALANCING:
        grant_outside(draft, LINEAGE, numbers)


def _grant_all(draft: Draft, ranking: Ranking) -> None:
    """Grants what nobody owns, and names successors for partitions in `revoking` that lost theirs.

    A revoke is never taken back, so a partition that lost its successor goes on like one that
    nobody owns; its present owner may be the one to get it.
    """
    queue = draft.queue
    if not queue.takers:
        return
    _grant(draft, queue.unassigned_leads(), ranking)
    for number in sorted(filter(queue.leads, queue.handoffs.without_successor)):
        _name_successor(draft, number, ranking)


def _name_successor(draft: Draft, number: int, ranking: Ranking) -> None:
    """Gives a partition in `revoking` to its home, else to the flow with the fewest partitions, if
    there is one."""
    queue = draft.queue
    home = queue.pins.homes.get(number)
    flow = home or queue.least_loaded(ranking)
    if flow is None:
        return
    redirects = tuple(r.Redirect(each, flow.id) for each in queue.group(number))
    draft.emit(r.HandoffsRedirected(redirects, None, draft.now))
    if ranking is not queue.ranking and number not in queue.retiring and home is None:
        ranking.add(flow.bind_number, 1)


def _grant(draft: Draft, numbers: Iterable[int], ranking: Ranking) -> None:
    """Grants unassigned partitions, given lowest number first, each to its home, else to the flow
    with the fewest partitions, while a flow may have one more."""
    queue, homes = draft.queue, draft.queue.pins.homes
    grants = list[r.Grant]()
    planned = TentativeCounts(ranking)
    for number in numbers:
        home = homes.get(number) if homes else None
        flow = home or queue.least_loaded(ranking)
        if flow is None:
            continue
        for each in queue.group(number):
            partition = queue.partitions[each]
            grants.append(draft.drawn_up(partition, flow, partition.next_handed_over))
        if number not in queue.retiring and home is None:
            planned.add(flow.bind_number, 1)
    if ranking is queue.ranking:
        # The record counts them.
        planned.take_back()
    draft.grant_all(grants)


def _revise(draft: Draft) -> None:
    """Grants and successors as if no warm-up had begun, then keeps the warm-ups that fit (see
    `assignment`)."""
    queue = draft.queue
    ranking = ranking_without_warmups(queue)
    _grant_all(draft, ranking)
    revision = revise(queue, ranking)
    for number in revision.called_off:
        draft.emit(r.HandoffsCalledOff(tuple(queue.group(number))))
    for number, flow in revision.redirected:
        for each in queue.group(number):
            redirect(draft, each, flow)


def _groups(queue: Queue, numbers: Iterable[int]) -> list[int]:
    """All partitions of the groups of these."""
    return [each for number in numbers for each in queue.group(number)]
