"""The greedy balance: who gets what, and which handoffs are worth making.

The rule (the contract, *Balance*): a queue is balanced when the numbers of partitions of its non-draining flows
differ by at most one and draining flows own none. The number of handoffs is the smallest possible: the sum over the
flows of what each holds above its share; shares are the floor or the ceiling of P/F, ceilings to those who hold most,
0 for draining flows. One greedy step, from the flow with the most to the flow with the fewest, repeated until the
spread is at most one, makes exactly that number, because a step never gives to a flow above its share or takes from
one below it. An exclusive queue has a share of everything for the earliest-bound flow and of nothing for the others.

A step looks only at the two ends of a ranking (`ranking`), so its cost does not depend on the number of partitions
or flows. Only a change of flows or settings while partitions are still *warming* looks at all flows and all handoffs
(`revise`): warm-ups are promises that may be taken back, so the minimum is counted anew as if they had not begun,
and those that fit into it stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.core.model import Flow, Handoff, Queue
from broker.core.ranking import Ranking


def is_balanced(queue: Queue) -> bool:
    """Whether there is nothing to grant, nothing under way and nothing to hand off."""
    if queue.handoffs:
        return False
    if not queue.takers:
        return True
    if queue.unowned:
        return False
    if len(queue.leaving) and queue.leaving.high > 0:
        return False
    if queue.exclusive:
        return next(_out_of_place(queue), None) is None
    return queue.ranking.spread <= 1


def taker(queue: Queue, ranking: Ranking) -> Flow | None:
    """The flow that gets the next partition; None if there is no non-draining flow."""
    if not ranking.counts:
        return None
    return queue.first_taker() if queue.exclusive else queue.by_seat[ranking.fewest()]


class Giving:
    """Which handoff to start next. Made for one decision: it remembers what each flow can still give."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._candidates: dict[str, Iterator[int]] = {}
        self._strays = _out_of_place(queue) if queue.exclusive else iter(())

    def next(self) -> tuple[int, Flow] | None:
        """The next partition to hand off and its successor; None if none is needed.

        The caller starts the handoff before it asks again.
        """
        queue = self._queue
        to = taker(queue, queue.ranking)
        if to is None:
            return None
        if len(queue.leaving) and queue.leaving.high > 0:
            return self._from(queue.by_seat[queue.leaving.most()]), to
        if queue.exclusive:
            stray = next(self._strays, None)
            return None if stray is None else (stray, to)
        if queue.ranking.spread <= 1:
            return None
        return self._from(queue.by_seat[queue.ranking.most()]), to

    def _from(self, flow: Flow) -> int:
        candidates = self._candidates.get(flow.id)
        if candidates is None:
            candidates = self._candidates[flow.id] = iter(_giveable(self._queue, flow))
        return next(candidates)


def _giveable(queue: Queue, flow: Flow) -> list[int]:
    """What the flow owns that is not on its way, highest number first; retiring ones only if it is draining."""
    return sorted(
        (
            number
            for number in flow.owned
            if number not in queue.handoffs and (flow.draining or number not in queue.retiring)
        ),
        reverse=True,
    )


def _out_of_place(queue: Queue) -> Iterator[int]:
    """What an exclusive queue must hand to its earliest-bound flow, by order of binding, highest number first."""
    first = queue.first_taker()
    for _, flow in sorted(queue.by_seat.items()):
        if flow is not first and flow.owned and not flow.draining:
            yield from _giveable(queue, flow)


@dataclass(slots=True)
class Revision:
    """What becomes of the warm-ups under way after a change: those not named here go on as they are."""

    called_off: list[int] = field(default_factory=list)
    redirected: list[tuple[int, Flow]] = field(default_factory=list)


def put_back(queue: Queue) -> Ranking:
    """The ranking as if no warm-up had begun: warming partitions count for their owners again."""
    ranking = queue.ranking.copy()
    for handoff in warming(queue):
        if handoff.number in queue.retiring:
            continue
        owner, successor = queue.partitions[handoff.number].owner, handoff.successor
        assert owner is not None
        if successor is not None and not successor.draining:
            ranking.add(successor.seat, -1)
        if not owner.draining:
            ranking.add(owner.seat, 1)
    return ranking


def warming(queue: Queue) -> list[Handoff]:
    """The handoffs whose successors are warming, highest partition first (the order in which they are worth keeping)."""
    return [queue.handoffs[number] for number in sorted(queue.warming, reverse=True)]


def revise(queue: Queue, ranking: Ranking) -> Revision:
    """Which warm-ups to call off or redirect; `ranking` is `put_back` after unowned partitions were granted.

    A warm-up stays if its owner has to give anyway and its successor has room up to its share; if only the former
    holds it goes to another successor; else it is called off.
    """
    revision = Revision()
    if not ranking.counts:
        revision.called_off = [handoff.number for handoff in warming(queue)]
        return revision
    share = _shares(queue, ranking)
    surplus = {seat: max(0, count - share[seat]) for seat, count in ranking.counts.items()}
    room = {seat: max(0, share[seat] - count) for seat, count in ranking.counts.items()}
    astray: list[int] = []
    for handoff in warming(queue):
        owner, successor = queue.partitions[handoff.number].owner, handoff.successor
        assert owner is not None
        retiring = handoff.number in queue.retiring
        if not owner.draining:
            if retiring or not surplus[owner.seat]:
                revision.called_off.append(handoff.number)
                continue
            surplus[owner.seat] -= 1
        fits = successor is not None and not successor.draining
        if fits and not retiring:
            assert successor is not None
            fits = room[successor.seat] > 0
            room[successor.seat] -= fits
        if not fits:
            astray.append(handoff.number)
    for number in astray:
        seat = min(room, key=lambda seat: (-room[seat], seat))
        if room[seat] > 0 and number not in queue.retiring:
            room[seat] -= 1
        revision.redirected.append((number, queue.by_seat[seat]))
    return revision


def _shares(queue: Queue, ranking: Ranking) -> dict[int, int]:
    """What each non-draining flow is to hold in the end, by seat; O(flows log flows)."""
    total = queue.settings.partition_count
    if queue.exclusive:
        first = min(ranking.counts)
        return {seat: total if seat == first else 0 for seat in ranking.counts}
    floor, ceilings = divmod(total, len(ranking))
    by_count = sorted(ranking.counts, key=lambda seat: (ranking.counts[seat], seat), reverse=True)
    return {seat: floor + (place < ceilings) for place, seat in enumerate(by_count)}
