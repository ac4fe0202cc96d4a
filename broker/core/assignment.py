"""The greedy balance: who gets what, and which handoffs are worth making.

The rule (the contract, *Balance*): a queue is balanced when the numbers of partitions of its
non-draining flows differ by at most one and draining flows own none. The number of handoffs is the
smallest possible: the sum over the flows of what each holds above its share; shares are the floor
or the ceiling of P/F, ceilings to those who hold most, 0 for draining flows. One greedy step, from
the flow with the most to the flow with the fewest, repeated until the spread is at most one, makes
exactly that number, because a step never gives to a flow above its share or takes from one below
it. An exclusive queue has a share of everything for the earliest-bound flow and of nothing for the
others.

Where flows have weights or maxima, *levels* take the place of these counts (`shares`). One
partition more is a *stride* of levels. Without weights a level is a count, and the stride is 1.

Pinned partitions go home first (`pins`); they count for their home from the beginning, so the rest
is balanced as if they were there.

Aligned partitions move as a group (the contract, *Aligned logs*). The first of a group stands for
it: here a partition is a group, and those who carry out what is planned do so to all of it.

A step needs only the two ends of a ranking (`structures`), so its cost does not depend on the
number of partitions or flows. Only a change of flows or settings while partitions are still
*warming* goes over all flows and all handoffs (`revise`): warm-ups are promises that may be taken
back, so the minimum is counted anew as if they had not begun, and those that fit into it stay.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.core.model import Flow, Handoff
from broker.core.queue import Queue
from broker.core.structures import Ranking, TentativeCounts


class HandoffPlanner:
    """Which handoffs to start. Made for one decision.

    Each is counted before the next is chosen, and in the end the counts are taken back: the records
    of the handoffs count them.

    A flow may have more than its share and nothing to give yet, because what counts for it is still
    on its way to it (a revoke is not replanned before the partition arrives). Its step is then
    taken on paper only, so that no other flow gives what it will have to give; with many on their
    way those steps are many, so they are counted and not taken one by one (`_steps`). In an
    exclusive queue all flows but the first have steps until they have nothing.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._planned = set[int]()
        self._counts, self._leaving = TentativeCounts(queue.ranking), TentativeCounts(queue.leaving)
        self._rest: Iterator[tuple[int, Flow]] | None = None

    def plan(self, most: int) -> list[tuple[int, Flow, Flow]]:
        """The next handoffs, so many at most: the partition, its owner and its successor."""
        planned = list[tuple[int, Flow, Flow]]()
        if homes := self._queue.pins.homes:
            planned += [self._count(one, homes[one]) for one in self._misplaced()[:most]]
        while len(planned) < most and (chosen := self._next()) is not None:
            number, successor = chosen
            planned.append(self._count(number, successor))
        self._take_back()
        return planned

    def pairs(self, most: int) -> list[tuple[int, Flow, Flow]]:
        """The handoffs of pairs (`pairs`), so many at most, as of `plan`. A pair begins whole."""
        queue, planned = self._queue, list[tuple[int, Flow, Flow]]()
        while (pair := queue.next_pair()) is not None:
            giver, taker = pair
            if len(planned) + queue.leaving.counts[giver.bind_number] > most:
                break
            planned += [self._count(one, queue.pins.homes[one]) for one in self._misplaced(giver)]
            while (number := self._from(giver)) is not None:
                planned.append(self._count(number, taker))
        self._take_back()
        return planned

    def _misplaced(self, owner: Flow | None = None) -> list[int]:
        """The pinned partitions that are to go home (`pins`), of this owner or of all."""
        queue = self._queue
        return [
            number
            for number in sorted(queue.pins.misplaced)
            if number not in queue.handoffs
            and number not in self._planned
            and (holder := queue.partitions[number].owner) is not None
            and owner in (None, holder)
        ]

    def _count(self, number: int, successor: Flow) -> tuple[int, Flow, Flow]:
        """Counts this handoff for what is chosen next."""
        partition = self._queue.partitions[number]
        owner = partition.owner
        assert owner is not None
        self._planned.add(number)
        is_pinned = number in self._queue.pins.homes
        if owner.draining:
            self._leaving.add(owner.bind_number, -1)
        elif not is_pinned:
            self._counts.add(owner.bind_number, -1)
        if not partition.retiring and not is_pinned:
            self._counts.add(successor.bind_number, 1)
        return number, owner, successor

    def _take_back(self) -> None:
        for plan in (self._counts, self._leaving):
            plan.take_back()

    def _next(self) -> tuple[int, Flow] | None:
        """The next partition to hand off and its successor; None if none is needed or can be
        had."""
        queue = self._queue
        if not queue.takers:
            return None
        if self._rest is None:
            leaving = queue.is_drained_from
            if not leaving and (queue.exclusive or queue.ranking.is_even):
                self._rest = self._to_the_first() if queue.exclusive else iter(())
            elif (to := queue.least_loaded(queue.ranking)) is None:
                self._rest = iter(())
            else:
                most = (queue.leaving if leaving else queue.ranking).most()
                giver = queue.flows.by_bind_number[most]
                number = self._from(giver)
                if number is not None:
                    return number, to
                assert not leaving
                self._rest = self._partly_on_paper()
        return next(self._rest, None)

    def _partly_on_paper(self) -> Iterator[tuple[int, Flow]]:
        """What there is to hand off in a balance of which some steps are taken on paper."""
        ranking, stride = self._queue.ranking, self._queue.ranking.stride
        levels = ranking.levels()
        lowest, highest = ranking.even_levels()
        able = self._able(levels, lowest)
        if not able:
            return
        above = sum(-((highest - level) // stride) for level in levels.values() if level > highest)
        below = sum(-((level - lowest) // stride) for level in levels.values() if level < lowest)
        takers = _Receivers(levels, stride)
        for step, number in self._given(levels, able, stride):
            if step >= max(above, below):
                return
            yield number, self._queue.flows.by_bind_number[takers.at(step)]

    def _to_the_first(self) -> Iterator[tuple[int, Flow]]:
        """What there is to hand off in an exclusive queue."""
        first = self._queue.first_taker()
        counts = dict(self._queue.ranking.counts)
        del counts[first.bind_number]
        for _, number in self._given(counts, self._able(counts, 0), 1):
            yield number, first

    def _able(self, levels: dict[int, int], lowest: int) -> set[int]:
        """The bind numbers above this level that have something to give."""
        by_bind_number = self._queue.flows.by_bind_number
        return {
            bind_number
            for bind_number, level in levels.items()
            if level > lowest and self._from(by_bind_number[bind_number]) is not None
        }

    def _given(
        self, levels: dict[int, int], able: set[int], stride: int
    ) -> Iterator[tuple[int, int]]:
        """(step, partition) of the steps in which there is something to give."""
        by_bind_number = self._queue.flows.by_bind_number
        for step, bind_number in _steps(levels, able, stride):
            number = self._from(by_bind_number[bind_number])
            if number is None:
                able.discard(bind_number)
            else:
                yield step, number

    def _from(self, flow: Flow) -> int | None:
        return self._queue.highest_giveable(flow, self._planned)


def _steps(levels: dict[int, int], of: set[int], stride: int) -> Iterator[tuple[int, int]]:
    """(step, bind number) of the steps in which the flows `of` these bind numbers give.

    In every step the flow at the highest level goes down by the stride (ties: the earliest bound)
    until no flow is above 0.

    `levels` is by bind number; no flow receives. Bind numbers may be taken out of `of` on the way.
    """
    order = sorted(levels, key=lambda bind_number: (-levels[bind_number], bind_number))
    # A flow comes to every level below its own that is a number of strides away.
    members: list[list[int]] = [[] for _ in range(stride)]
    step = place = 0
    while place < len(order) and of:
        top = levels[order[place]]
        while place < len(order) and levels[order[place]] == top:
            insort(members[top % stride], order[place])
            place += 1
        # From this level down to the next all these give in order, again and again.
        bottom = max(0, levels[order[place]] if place < len(order) else 0)
        places: list[tuple[int, int]] = []
        around = steps = 0
        for below in range(stride):
            alike = members[(top - below) % stride]
            places += (
                (around + bisect_left(alike, bind_number), bind_number)
                for bind_number in sorted(of)
                if (level := levels[bind_number]) >= top and (level - top + below) % stride == 0
            )
            around += len(alike)
            steps += len(alike) * -((bottom - top + below) // stride)
        for first in range(0, steps, around) if places else ():
            for nth, bind_number in places:
                if bind_number in of and first + nth < steps:
                    yield step + first + nth, bind_number
            if not of:
                return
        step += steps


class _Receivers:
    """Who receives in which step, if in every step the flow at the lowest level goes up by the
    stride (ties: the earliest bound) and nobody gives.
    """

    def __init__(self, levels: dict[int, int], stride: int) -> None:
        self._levels = levels
        self._order = sorted(levels, key=lambda bind_number: (levels[bind_number], bind_number))
        self._members: list[list[int]] = [[] for _ in range(stride)]
        self._around: list[int] = []
        self._place = 0
        self._step = 0
        self._next = 0

    def at(self, step: int) -> int:
        """The bind number of the flow that receives in this step; steps come in order."""
        while not self._around or (self._place < len(self._order) and step >= self._next):
            self._rise()
        return self._around[(step - self._step) % len(self._around)]

    def _rise(self) -> None:
        """To the next level at which there is a flow; from there up to the one after it, all these
        receive in order, again and again."""
        self._step, stride = self._next, len(self._members)
        level = self._level
        while self._place < len(self._order) and self._level == level:
            insort(self._members[level % stride], self._order[self._place])
            self._place += 1
        alike = [self._members[(level + above) % stride] for above in range(stride)]
        self._around = [bind_number for members in alike for bind_number in members]
        if self._place < len(self._order):
            for above, members in enumerate(alike):
                self._next += len(members) * -((level + above - self._level) // stride)

    @property
    def _level(self) -> int:
        return self._levels[self._order[self._place]]


@dataclass(slots=True)
class Revision:
    """What becomes of the warm-ups under way after a change: those not named here go on as they
    are.
    """

    called_off: list[int] = field(default_factory=list)
    redirected: list[tuple[int, Flow]] = field(default_factory=list)


def ranking_without_warmups(queue: Queue) -> Ranking:
    """The ranking as if no warm-up had begun: warming partitions count for their owners again."""
    ranking = queue.ranking.copy()
    for handoff in warming(queue):
        if handoff.number in queue.retiring or handoff.number in queue.pins.homes:
            continue
        owner, successor = queue.partitions[handoff.number].owner, handoff.successor
        assert owner is not None
        if successor is not None:
            ranking.add(successor.bind_number, -1)
        if not owner.draining:
            ranking.add(owner.bind_number, 1)
    return ranking


def warming(queue: Queue) -> list[Handoff]:
    """The handoffs whose successors are warming, highest partition first (the order in which they
    are worth keeping). Of a group it is the first.
    """
    numbers = sorted(filter(queue.leads, queue.handoffs.warming), reverse=True)
    return [queue.handoffs[number] for number in numbers]


def revise(queue: Queue, ranking: Ranking) -> Revision:
    """Which warm-ups to call off or redirect.

    `ranking` is `ranking_without_warmups` after unassigned partitions were granted; in the end it
    counts what is planned. A warm-up stays if its owner has to give anyway and its successor stays
    within its share; if only the former holds it goes to the flow with the fewest; else it is
    called off.
    """
    revision = Revision()
    if not ranking.counts:
        revision.called_off = [handoff.number for handoff in warming(queue)]
        return revision
    shares = _Shares(queue, ranking)
    misplaced: list[int] = []
    for handoff in warming(queue):
        number, successor = handoff.number, handoff.successor
        owner, retiring = queue.partitions[number].owner, handoff.number in queue.retiring
        assert owner is not None
        if (home := queue.pins.homes.get(number)) is not None:
            if home is owner:
                revision.called_off.append(number)
            elif home is not successor:
                revision.redirected.append((number, home))
            continue
        if not owner.draining:
            if retiring or not shares.has_to_give(owner.bind_number):
                revision.called_off.append(number)
                continue
            ranking.add(owner.bind_number, -1)
        if successor is None:
            misplaced.append(number)
        elif retiring:
            pass
        elif shares.has_room(successor.bind_number):
            ranking.add(successor.bind_number, 1)
        else:
            misplaced.append(number)
    for number in misplaced:
        flow = queue.least_loaded(ranking)
        if flow is None:
            revision.called_off.append(number)
            continue
        if number not in queue.retiring:
            ranking.add(flow.bind_number, 1)
        revision.redirected.append((number, flow))
    return revision


class _Shares:
    """What each non-draining flow is to hold in the end: the floor or the ceiling of its share.

    There are as many ceilings as the floors leave over. They belong to flows that hold more than
    their floor; if there are too few of those, to others as well (`_spare`), and if too many, some
    of those have to go down to the floor (`_extra`). Which ones does not matter to the number of
    handoffs, so whoever has a warm-up under way comes first. `ranking` is expected to follow what
    is answered.
    """

    def __init__(self, queue: Queue, ranking: Ranking) -> None:
        self._counts = ranking.counts
        self._first: int | None = ranking.earliest() if queue.exclusive else None
        self._floors, self._with_ceiling, ceilings = ranking.targets(queue.group_count)
        above = sum(self._counts[at] > self._floors[at] for at in self._with_ceiling)
        self._extra = max(0, above - ceilings)
        self._spare = max(0, ceilings - above)

    def has_to_give(self, bind_number: int) -> bool:
        """Whether the flow holds more than its share, of which it then gives one."""
        if self._first is not None:
            return bind_number != self._first
        above = self._counts[bind_number] - self._floors[bind_number]
        has_ceiling = bind_number in self._with_ceiling
        if above == 1 and has_ceiling and self._extra:
            self._extra -= 1
            return True
        return above > has_ceiling

    def has_room(self, bind_number: int) -> bool:
        """Whether one more is within the flow's share, which it then gets."""
        if self._first is not None:
            return bind_number == self._first
        below = self._floors[bind_number] - self._counts[bind_number]
        if below == 0 and bind_number in self._with_ceiling and self._spare:
            self._spare -= 1
            return True
        return below > 0
