"""How partitions and flows of a queue change places, and what the balance counts of it.

- *A partition counts* for the successor that it is on its way to, else for its owner; retiring ones
  do not count. Of aligned partitions the first counts for its group.
- `Queue.ranking` orders the bound, non-draining flows by what counts for them; `Queue.leaving`
  orders the draining ones by what can still be taken from them, retiring partitions included.
- A flow that is held back has nothing, and is in neither.
- While a flow with a weight or a maximum is bound, or a pin is in force, `Queue.ranking` is one by
  weight (`shares`).
- A pinned partition counts for its home, whoever owns it (`pins`).

Partitions change hands in `_move`, `_name`, `_retire` and `_settle` alone. Each is undone by the
same change back, so what follows from it (counts, heaps, deadlines, the sets of flows) is never
remembered, but derived again.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import neg
from typing import Any

from broker.core.model import Flow, Handoff, Partition
from broker.core.pins import homes
from broker.core.queue import Queue
from broker.core.shares import WeightedRanking
from broker.core.structures import Ranking
from broker.core.transitions import (
    LIFE_TRANSITIONS,
    PARTITION_TRANSITIONS,
    Life,
    LifeEvent,
    PartitionEvent,
    State,
)

_WITH_OWNER = (State.OWNED, State.WARMING, State.REVOKING)
_WITH_HANDOFF = (State.WARMING, State.REVOKING)


# Partitions


def place(
    queue: Queue,
    partition: Partition,
    event: PartitionEvent,
    *,
    owner: Flow | None = None,
    handoff: Handoff | None = None,
    at: float | None = None,
    **marks: Any,
) -> None:
    """Moves a partition to the state that `event` leads to, with this owner and handoff, and keeps
    every count.

    `at` is since when nobody owns it, if nobody does; `marks` are attributes of the partition that
    change with it.
    """
    number, before = partition.number, partition.owner
    state = PARTITION_TRANSITIONS[partition.state, event]
    assert (owner is not None) is (state in _WITH_OWNER)
    assert (handoff is not None) is (state in _WITH_HANDOFF)
    known, since = queue.handoffs.get(number), queue.unassigned.get(number)
    # Many have none, and there are very many of these calls.
    marked = {name: getattr(partition, name) for name in marks} if marks else marks
    queue.journal.changed(partition, _move, queue, partition.state, before, known, since, marked)
    _move(partition, queue, state, owner, handoff, at, marks)


def redirect(queue: Queue, handoff: Handoff, successor: Flow | None) -> None:
    """Gives a handoff another successor."""
    queue.journal.changed(handoff, _name, queue, handoff.named)
    _name(handoff, queue, successor)


def set_deadline(queue: Queue, handoff: Handoff, deadline: float) -> None:
    """Changes the deadline of a handoff."""
    partition = queue.partitions[handoff.number]
    queue.journal.note(partition)
    queue.journal.did(queue.handoffs.push, handoff)
    queue.journal.set(handoff, deadline=deadline)
    queue.handoffs.push(handoff)


def change_life(queue: Queue, partition: Partition, event: LifeEvent) -> None:
    """Takes a partition out of the balance, or back into it; `place` removes and adds it."""
    retiring = LIFE_TRANSITIONS[partition.life, event] is Life.RETIRING
    if retiring is partition.retiring:
        return
    queue.journal.changed(partition, _retire, queue, partition.retiring)
    _retire(partition, queue, retiring)


def add_partition(queue: Queue, partition: Partition) -> None:
    """Adds a partition that never was, without an owner or waiting."""
    queue.journal.put(queue.partitions, partition.number, partition)
    queue.journal.note(partition)
    if partition.state is State.UNASSIGNED:
        queue.journal.put(queue.unassigned, partition.number, None)


def forget_partition(queue: Queue, number: int) -> None:
    """Drops a partition that was removed for good."""
    queue.journal.drop(queue.partitions, number)
    queue.journal.drop(queue.handoffs.warmed, number)


def _move(
    partition: Partition,
    queue: Queue,
    state: State,
    owner: Flow | None,
    handoff: Handoff | None,
    since: float | None,
    marks: Mapping[str, Any],
) -> None:
    """Gives a partition this state, owner and handoff; the rest as for `place`."""
    number, before = partition.number, partition.owner
    counted = _shift(queue, partition, -1)
    partition.state, partition.owner = state, owner
    for name, value in marks.items():
        setattr(partition, name, value)
    if owner is not before:
        if before is not None:
            before.owned.discard(number)
        if owner is not None:
            owner.owned.add(number)
    if handoff is None:
        queue.handoffs.pop(number, None)
    elif queue.handoffs.get(number) is not handoff:
        queue.handoffs[number] = handoff
        queue.handoffs.push(handoff)
    if state is State.UNASSIGNED:
        queue.unassigned[number] = since
    else:
        queue.unassigned.pop(number, None)
        if state is State.OWNED and owner is not None:
            _offer(queue, owner, number)
    _count(queue, partition, counted)
    if queue.pins.homes:
        _find_misplaced(queue, partition)
    if before is not None and before.draining:
        _rank_leaving(queue, before)


def _name(handoff: Handoff, queue: Queue, successor: Flow | None) -> None:
    """Gives a handoff another successor."""
    partition = queue.partitions[handoff.number]
    counted = _shift(queue, partition, -1)
    handoff.named = successor
    _count(queue, partition, counted)


def _retire(partition: Partition, queue: Queue, retiring: bool) -> None:
    """Takes a partition out of the balance, or back into it."""
    counted = _shift(queue, partition, -1)
    partition.retiring = retiring
    _change(queue.retiring, partition.number, retiring)
    _count(queue, partition, counted)
    if partition.owner is not None:
        _offer(queue, partition.owner, partition.number)


def settle_pins(queue: Queue) -> None:
    """Flows, partitions or pins have changed, and which pins are in force may have with them."""
    found = homes(queue)
    for number in sorted(queue.pins.homes.keys() | found.keys()):
        before, home = queue.pins.homes.get(number), found.get(number)
        if home is not before:
            partition = queue.partitions[number]
            queue.journal.did(_settle, partition, queue, before)
            _settle(partition, queue, home)
    _choose_ranking(queue)


def _settle(partition: Partition, queue: Queue, home: Flow | None) -> None:
    """The partition has this home from now on, or none."""
    number = partition.number
    counted = _shift(queue, partition, -1)
    before = queue.pins.homes.pop(number, None)
    if before is not None:
        before.pinned -= 1
    if home is not None:
        queue.pins.homes[number] = home
        home.pinned += 1
    elif partition.owner is not None:
        _offer(queue, partition.owner, number)
    _find_misplaced(queue, partition)
    if isinstance(queue.ranking, WeightedRanking):
        queue.ranking.forget_shares()
    _count(queue, partition, counted)


def _find_misplaced(queue: Queue, partition: Partition) -> None:
    home = queue.pins.homes.get(partition.number)
    _change(queue.pins.misplaced, partition.number, home not in (None, partition.owner))


def _offer(queue: Queue, flow: Flow, number: int) -> None:
    """The flow may have this partition to give."""
    if queue.leads(number):
        flow.offers.push(-number)
    flow.offers.trim(len(flow.owned), lambda: map(neg, filter(queue.leads, flow.owned)))


# Flows


def enter(queue: Queue, flow: Flow) -> None:
    """Adds a flow. It replaces the flow of its bind number, if there is one, which the rankings
    forget at once.
    """
    flows, journal = queue.flows, queue.journal
    predecessor = flows.by_bind_number.get(flow.bind_number)
    if predecessor is not None:
        _unrank(queue, predecessor)
    journal.put(flows, flow.id, flow)
    journal.put(flows.by_instance, flow.instance, flow)
    journal.put(flows.by_bind_number, flow.bind_number, flow)
    if flow.bind_number >= queue.next_bind_number:
        journal.set(queue, next_bind_number=flow.bind_number + 1)
    _count_of_key(queue, flow, 1)
    if flow.held_until is not None:
        journal.put(flows.held, flow.id, flow)
    if flow.is_weighted:
        journal.put(flows.weighted, flow.id, flow)
        _choose_ranking(queue)
    _rank(queue, flow)


def leave(queue: Queue, flow: Flow) -> None:
    """Takes out a flow. What it owns and awaits is taken from it next."""
    flows, journal = queue.flows, queue.journal
    journal.drop(flows, flow.id)
    _count_of_key(queue, flow, -1)
    journal.drop(flows.held, flow.id)
    if flows.by_instance.get(flow.instance) is flow:
        journal.drop(flows.by_instance, flow.instance)
    _unrank(queue, flow)
    if flows.by_bind_number.get(flow.bind_number) is flow:
        journal.drop(flows.by_bind_number, flow.bind_number)
    if flow.is_weighted:
        journal.drop(flows.weighted, flow.id)
        _choose_ranking(queue)


def _choose_ranking(queue: Queue) -> None:
    """Ranks by weight while a flow has a weight, a maximum or a pin, else by count."""
    by_weight = bool(queue.flows.weighted or queue.pins.homes)
    if by_weight is isinstance(queue.ranking, WeightedRanking):
        return
    ranking = WeightedRanking(queue.groups_to_share, queue.demand) if by_weight else Ranking()
    for bind_number, count in queue.ranking.counts.items():
        ranking.put(bind_number, count)
    queue.journal.set(queue, ranking=ranking)


def _count_of_key(queue: Queue, flow: Flow, difference: int) -> None:
    """The flow's key has one more flow, or one fewer."""
    if flow.key_id is None:
        return
    count = queue.flows.of_key.get(flow.key_id, 0) + difference
    if count:
        queue.journal.put(queue.flows.of_key, flow.key_id, count)
    else:
        queue.journal.drop(queue.flows.of_key, flow.key_id)


def admit(queue: Queue, flow: Flow) -> None:
    """The flow is held back no longer."""
    queue.journal.drop(queue.flows.held, flow.id)
    queue.journal.set(flow, held_until=None)
    _rank(queue, flow)


def set_draining(queue: Queue, flow: Flow, deadline: float | None) -> None:
    """Moves the flow from those that take to those that leave."""
    if flow.held_until is not None:
        admit(queue, flow)
    _unrank(queue, flow)
    queue.journal.set(flow, draining=True, drain_deadline=deadline)
    _rank(queue, flow)
    for number in flow.owned & queue.retiring:
        _offer(queue, flow, number)


# The counts


def _rank(queue: Queue, flow: Flow) -> None:
    """Enters the flow in its ranking, if it has one."""
    if flow.held_until is not None:
        return
    ranking, count = queue.ranking, flow.load
    if flow.draining:
        ranking, count = queue.leaving, _givable(queue, flow)
    queue.journal.did(ranking.remove, flow.bind_number)
    ranking.put(flow.bind_number, count)


def _unrank(queue: Queue, flow: Flow) -> None:
    """Takes the flow out of its ranking, if it has one."""
    ranking = queue.leaving if flow.draining else queue.ranking
    if flow.held_until is None and queue.flows.by_bind_number.get(flow.bind_number) is flow:
        queue.journal.did(ranking.put, flow.bind_number, ranking.counts[flow.bind_number])
        ranking.remove(flow.bind_number)


def _count(queue: Queue, partition: Partition, before: Flow | None) -> None:
    """The partition has changed; `before` is what `_shift` returned before that."""
    after = _shift(queue, partition, 1)
    # In a graceful handoff the successor gets what counted for it already.
    if after is not before:
        if before is not None:
            _load(queue, before, -1)
        if after is not None:
            _load(queue, after, 1)


def _shift(queue: Queue, partition: Partition, sign: int) -> Flow | None:
    """Takes the partition out of all counts (-1) before it changes, and puts it into them (1) after
    it, but for the load of the flow that it counts for; returns that flow.
    """
    number, owner = partition.number, partition.owner
    handoff = queue.handoffs.get(number)
    if handoff is not None:
        assert owner is not None
        owner.outgoing += sign
        named = handoff.named
        if named is not None:
            _change(named.incoming, number, sign > 0)
        if partition.state is State.WARMING:
            _change(queue.handoffs.warming, number, sign > 0)
        elif named is None:
            _change(queue.handoffs.without_successor, number, sign > 0)
    if owner is not None and owner.draining:
        _rank_leaving(queue, owner)
    if partition.retiring or not queue.leads(number):
        return None
    if queue.pins.homes and (home := queue.pins.homes.get(number)) is not None:
        return home
    return owner if handoff is None else handoff.named


def _load(queue: Queue, flow: Flow, difference: int) -> None:
    flow.load += difference
    if not flow.draining and queue.flows.by_bind_number.get(flow.bind_number) is flow:
        queue.ranking.put(flow.bind_number, flow.load)


def _rank_leaving(queue: Queue, flow: Flow) -> None:
    if queue.flows.by_bind_number.get(flow.bind_number) is flow:
        queue.leaving.put(flow.bind_number, _givable(queue, flow))


def _givable(queue: Queue, flow: Flow) -> int:
    """What can still be taken from a draining flow."""
    return (len(flow.owned) - flow.outgoing) // queue.settings.aligned


def _change(members: set[int], number: int, there: bool) -> None:
    (members.add if there else members.discard)(number)
