"""Deploys: a flow that comes takes over from one that drains (the contract, rule 14).

A deploy replaces consumers one for one. In whichever order it does so, each new flow comes within
`rebalance_delay` of a drain, or a drain follows within `rebalance_delay` of it. Then a flow that
has nothing and a flow that drains are a *pair*: all partitions of the second go to the first, at
once, and no others move. So each partition of a replaced consumer moves once, and the numbers of
partitions that flows hold are what they were before. Nobody has to say that there is a deploy.

- *What waits for a pair* is a flow that has come and a flow that drains, for as long as a holddown
  takes. In a holddown both do so anyway. In a rebalance, changes are taken up at once (rule 10);
  but while a rebalance only waits for handoffs of draining flows to end, the next that comes or
  drains waits as well. It may belong to the same deploy.
- *The first pair ends a holddown.* Others may still wait then for a flow that comes or drains
  later. So the loop has two modes: until `Queue.holddown_until` it hands over pairs alone, and
  grants what nobody owns; from then on it does all that the balance needs.
- *Each pair gives those that wait the whole `rebalance_delay` again*, so that a deploy has the time
  it takes, if the flow that drains was bound before the rebalance began. There are only so many of
  those. So every wait ends, even if new flows replace one another for ever. What has no counterpart
  is balanced in `rebalance_delay` after the last such pair: a flow that adds to the others and one
  that leaves for good take longer amid a deploy, and only then.

*The minimum of handoffs holds.* A pair moves what a drain moves anyway. A flow that pairs while
others wait may come to hold more than its share of all of them; so the minimum counts anew from the
end of a wait.

*By weight* (`shares`), a replacement has the weight and the maximum of the flow that it replaces.
So only flows that are alike in both are a pair.

*Not for a pair* are standbys (more flows than partitions), an exclusive queue, and partitions that
do not fit into `max_concurrent_handoffs` whole. They are balanced as without pairs. In a holddown
with partitions that nobody owns no pair begins, so that an instance that comes back finds its own.
"""

from __future__ import annotations

from broker.core import records as r
from broker.core.assignment import HandoffPlanner
from broker.core.draft import Draft
from broker.core.handoff import begin, room
from broker.core.queue import Queue
from broker.core.transitions import Status


def wait_for_pairs(draft: Draft) -> None:
    """A flow is about to come or to drain: it waits if the loop only ends drains."""
    queue = draft.queue
    delay = queue.settings.rebalance_delay
    if delay > 0 and queue.ends_drains:
        draft.emit(r.PairsFirst(draft.now + delay, queue.takers))


def hand_over_pairs(draft: Draft) -> None:
    """Begins the handoffs of all pairs, in a holddown or in a loop that does nothing else."""
    queue = draft.queue
    in_holddown = queue.status is Status.HOLDDOWN
    if in_holddown and queue.unassigned:
        return
    planned = HandoffPlanner(queue).pairs(room(queue)) if queue.next_pair() is not None else []
    if planned:
        if in_holddown:
            assert queue.trigger is not None
            draft.emit(r.RebalanceStarted(queue.next_rebalance_id, queue.trigger, draft.now))
        begin(draft, planned)
    if queue.status is not Status.REBALANCING:
        return
    until = queue.holddown_until
    if not queue.awaits_pair:
        until = None
    elif in_holddown or any(owner.bound_at <= queue.since for _, owner, _ in planned):
        until = draft.now + queue.settings.rebalance_delay
    if until != queue.holddown_until:
        draft.emit(r.PairsFirst(until, queue.flows_before))


def is_kept(queue: Queue) -> bool:
    """Whether the warm-ups under way stay as they are: all are of draining flows, and what has
    changed may be for others."""
    return queue.holddown_until is not None and all(
        (owner := queue.partitions[number].owner) is not None
        and owner.draining
        and queue.handoffs[number].successor is not None
        for number in queue.handoffs.warming
    )
