"""What a micro-batch reads and where a partition continues: pure functions of offset and view.

*Done* means: in the sink, by Spark's commit log. When Spark asks for the next offset after `start`,
all of `start` is done and nothing is in flight (docs, *Spark*). The ledger decides whether work
under an earlier epoch counts for the epoch under which the partition is held now
(`counterpoise.flow.ledger`, 4).

The rule for planning again after a crash follows: a slice is read if the grant continues its epoch,
and skipped if it is known to be superseded. While that is unknown (the flow is binding), it is
read. A slice that is read in vain is fenced at the commit and in the sink. A slice that is skipped
in error would lose messages.

History that restores state (docs, *Warm-up*) is planned too. A held partition reads its missing
history before new messages; this history counts as work. A warming partition gets the rest of the
micro-batch that the work leaves, and at least a tenth on top of the work.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING

from counterpoise.flow import barriers
from counterpoise.flow.ledger import continues
from counterpoise.flow.view import Owned
from counterpoise.logs import Bounds, InvalidPosition, Log
from counterpoise.spark.offsets import Offset, Range, Replay, Slice, divided, place_of
from counterpoise.spark.source.history import (
    FindFloor,
    Portions,
    Restore,
    earliest,
    lower,
    portions,
    stages,
)

if TYPE_CHECKING:
    from counterpoise.spark.options import SourceOptions

View = Mapping[int, Owned]

# The limit of history in a micro-batch when the user has set no limit.
REPLAYED_MESSAGES = 20_000
NO_HISTORY = Portions()


def is_ours(planned: Slice, view: View) -> bool:
    """Whether the partition of this slice is held, and the slice counts for it."""
    held = view.get(planned.partition)
    return held is not None and continues(planned.epoch, held)


def is_untouched(epoch: int, start: str, held: Owned) -> bool:
    """Whether nobody has processed the partition since it was held under `epoch`, from `start` on:
    its lease has ended, and the next grant is this one, or the position is still where it was.
    """
    if held.handed_over not in ("orphaned", "replaced"):
        return False
    return held.epoch == epoch + 1 or held.position in (None, start)


@dataclass(frozen=True)
class Question:
    """How far to read from `positions` (None: the start of the partition).

    The answer has at most `max_messages` and about
    `max_bytes` of values in all, nothing past `targets`, if given, and nothing past the cuts at
    which partitions of the `view` have to wait. `restores`: the states to restore; `positions`
    includes those of held partitions.
    """

    positions: Mapping[int, str | None]
    max_messages: int | None = None
    targets: Mapping[int, str] | None = None
    max_bytes: int | None = None
    restores: tuple[Restore, ...] = ()
    view: Mapping[int, Owned] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        """All partitions that the log is asked about."""
        return sorted({*self.positions, *(one.partition for one in self.restores)})

    def serves(self, other: Question) -> bool:
        """Whether its answer is one to `other`, too: the same, but perhaps of less."""
        messages, size = other.max_messages, other.max_bytes
        less = _is_within(self.max_messages, messages) and _is_within(self.max_bytes, size)
        return less and replace(self, max_messages=messages, max_bytes=size) == other

    def is_small_for(self, other: Question) -> bool:
        """Whether it asks for less than half of what `other` asks for."""
        if self.max_messages is None:
            return False
        return other.max_messages is None or 2 * self.max_messages < other.max_messages


def _is_within(limit: int | None, other: int | None) -> bool:
    return other is None or (limit is not None and limit <= other)


@dataclass(frozen=True)
class Answer:
    """Read [begins, ends), and replay `history`.

    `bounds`: the log's answer, at `asked_at` (monotonic) or later. `ahead`: partitions left out
    because the log says that they end before their position; (position, end). `invalid`: partitions
    left out because their position is none of the log. `beyond`: partitions whose position lies
    past their target.
    """

    question: Question
    bounds: Bounds
    begins: Mapping[int, str]
    ends: Mapping[int, str]
    asked_at: float = 0.0
    history: Portions = NO_HISTORY
    ahead: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    invalid: Mapping[int, str] = field(default_factory=dict)
    beyond: frozenset[int] = frozenset()

    def next_question(self) -> Question | None:
        """What is asked once all of this is read, if nothing changes; None: hard to say."""
        question = self.question
        if question.restores:
            return None
        read = {n: end for n, end in self.ends.items() if self.begins[n] != end}
        return replace(question, positions={**question.positions, **read})

    @property
    def leaves_messages(self) -> bool:
        """Whether the log has more messages than are read."""
        return any(end != self.bounds.ends.get(number) for number, end in self.ends.items())

    @property
    def somebody_waits(self) -> bool:
        """Whether others wait until these messages are read: they restore a state, or lie before
        the cut of a resize or the end of a partition (retiring, or sealed by a split or merge).
        """
        bounds, cuts = self.bounds, self.bounds.cuts
        return bool(self.question.restores) or any(
            bounds.is_final(number) or (number in cuts and int(begin) < int(cuts[number]))
            for number, begin in self.begins.items()
        )

    @property
    def at_ends(self) -> Mapping[int, str]:
        """The ends of the partitions to read, if all wait there for messages; else nothing."""
        question, ends = self.question, self.bounds.ends
        waits = {n: begin for n, begin in self.begins.items() if begin == ends[n]}
        may_grow = self.bounds.sealed.keys().isdisjoint(waits)
        whole = len(waits) + len(self.invalid) == len(question.positions)
        ends_itself = question.targets is not None or question.restores
        return waits if may_grow and whole and not ends_itself else {}


def answer_to(
    question: Question,
    log: Log,
    bounds: Bounds,
    asked_at: float = 0.0,
    find_floor: FindFloor = earliest,
) -> Answer:
    """What to read, now that the starts and ends of the partitions are known.

    A position below its partition's start stays: the reading task finds out whether the missing
    messages were discarded on purpose. A partition that ends before its position is left out: a log
    may say so for a while and recover (docs, *Logs*). So is one whose position is none (an older
    service stored any text), unless there are targets: then it raises InvalidPosition. Accesses
    the log only if bytes are limited, or by `find_floor`; then it may raise LogUnavailable too.
    """
    if question.targets is None:
        invalid = _invalid(question, log)
        if invalid:
            return replace(
                answer_to(_without(question, invalid), log, bounds, asked_at, find_floor),
                question=question,
                invalid=invalid,
            )
    begins = {
        number: bounds.starts[number] if position is None else position
        for number, position in question.positions.items()
    }
    # A micro-batch stops at the cut of an ordered resize.
    within = barriers.within(bounds, question.view, begins)
    beyond: frozenset[int] = frozenset()
    targets = question.targets
    if targets is not None:
        # Negative: there are messages to read. Zero: all up to the target is read.
        left = {n: log.compare(begin, targets[n]) for n, begin in begins.items() if n in targets}
        begins = {n: begins[n] for n, compared in left.items() if compared}
        beyond = frozenset(n for n, compared in left.items() if compared > 0)
        within = replace(bounds, ends={n: lower(log, within.ends[n], targets[n]) for n in begins})
    ahead = {
        number: (begin, bounds.ends[number])
        for number, begin in begins.items()
        if log.compare(begin, bounds.ends[number]) > 0
    }
    begins = {n: begin for n, begin in begins.items() if n not in ahead and n not in beyond}
    answer = Answer(question, bounds, begins, {}, asked_at, ahead=ahead, beyond=beyond)
    if question.restores:
        return _with_history(answer, log, within, find_floor)
    ends = _ends(begins, question.max_messages, question.max_bytes, within, log)
    return replace(answer, ends=ends)


def _invalid(question: Question, log: Log) -> dict[int, str]:
    """The positions that are none of the log, by partition."""
    targets = {one.partition: one.target for one in question.restores}
    found: dict[int, str] = {}
    for number, position in [*question.positions.items(), *targets.items()]:
        if position is None:
            continue
        try:
            log.compare(position, position)
        except InvalidPosition:
            found[number] = position
    return found


def _without(question: Question, partitions: Collection[int]) -> Question:
    return replace(
        question,
        positions={n: at for n, at in question.positions.items() if n not in partitions},
        restores=tuple(one for one in question.restores if one.partition not in partitions),
    )


def _with_history(answer: Answer, log: Log, within: Bounds, find_floor: FindFloor) -> Answer:
    """The answer with states to restore.

    A held partition that lacks history reads it instead of new messages."""
    question, bounds, begins = answer.question, answer.bounds, answer.begins
    # A log that ends before the target does not have all the history.
    restores = [
        one for one in question.restores if log.compare(one.target, bounds.ends[one.partition]) <= 0
    ]
    found = stages(restores, log, bounds, find_floor)
    lacking = {n: one for n, one in found.items() if log.compare(one.begin, one.target) < 0}
    coming = {one.partition for one in restores if not one.granted}
    held = {n: one for n, one in lacking.items() if n not in coming and n in begins}
    work = {**begins, **{n: one.begin for n, one in held.items()}}
    work_ends = {**within.ends, **{n: one.target for n, one in held.items()}}
    within = replace(within, ends=work_ends)
    ends = _ends(work, question.max_messages, question.max_bytes, within, log)
    # Warming partitions come after the held ones.
    most = question.max_messages or REPLAYED_MESSAGES
    read = {n: begin for n, begin in work.items() if begin != ends[n]}
    load = sum(log.backlog(read, replace(bounds, ends={**bounds.ends, **ends})).values())
    coming_history = {n: lacking[n] for n in sorted(coming & lacking.keys())}
    history_ends = _ends(
        {n: one.begin for n, one in coming_history.items()},
        max(most - load, most // 10, 1),
        # The size of the work in bytes is unknown, but not zero.
        question.max_bytes // 10 if question.max_bytes and load else question.max_bytes,
        replace(
            bounds, ends={**bounds.ends, **{n: one.target for n, one in coming_history.items()}}
        ),
        log,
    )
    history = portions(restores, found, {**history_ends, **{n: ends[n] for n in held}}, log)
    return replace(
        answer,
        begins={n: begin for n, begin in begins.items() if n not in held},
        ends={n: end for n, end in ends.items() if n not in held},
        history=history,
    )


def _ends(
    begins: Mapping[int, str],
    max_messages: int | None,
    max_bytes: int | None,
    within: Bounds,
    log: Log,
) -> Mapping[int, str]:
    if not begins or (max_messages is None and max_bytes is None):
        return {number: within.ends[number] for number in begins}
    most = sys.maxsize if max_messages is None else max_messages
    return log.limit(begins, most, within, max_bytes=max_bytes)


def plan(
    start: Offset,
    view: View,
    begins: Mapping[int, str],
    ends: Mapping[int, str],
    instance: str,
    log: str,
    *,
    tenures: Mapping[int, int] | None = None,
    replays: Mapping[int, Replay] | None = None,
    renews: bool = False,
) -> Offset | None:
    """The offset after `start`, or None when there is nothing to read.

    Reads [begins, ends) of the named partitions. A held partition that is not read now keeps its
    range; under a new epoch it gets an empty one, so that the epoch after that continues it too.
    `renews`: that alone is worth an offset. A partition that is not held any more is dropped:
    nothing of it is in flight. `tenures`: of partitions whose state is not named by the epoch.
    `replays` are added; a chain stays until the first range of its partition.
    """
    ranges: dict[int, Range] = {}
    fresh = False
    for number, held in view.items():
        begin, end = begins.get(number), ends.get(number)
        if begin is not None and end is not None and begin != end:
            ranges[number] = _range(held, begin, end, (tenures or {}).get(number, held.epoch))
            fresh = True
            continue
        before = start.ranges.get(number)
        if before is None or not continues(before.epoch, held):
            continue
        if before.epoch == held.epoch:
            ranges[number] = before
        else:
            ranges[number] = _range(held, before.end, before.end, before.state_of)
            fresh = fresh or renews
    if not fresh and not replays:
        return None
    chains = {n: one for n, one in start.replays.items() if n not in ranges}
    return Offset(start.queue, ranges, instance, log, {**chains, **(replays or {})})


def _range(held: Owned, begin: str, end: str, tenure: int) -> Range:
    return Range(held.epoch, begin, end, tenure if tenure != held.epoch else None)


@dataclass(frozen=True, slots=True)
class SortedSlices:
    """Slices to read, with the epoch of the present grant, and superseded slices."""

    read: Sequence[Slice]
    skipped: Sequence[Slice]


def sort_out(
    planned: Iterable[Slice], view: View | None, *, keeps_state: bool = False
) -> SortedSlices:
    """Which of the planned slices still count. `view` None: unknown, so all are read.

    For a query that `keeps_state`, also those that nobody else can have processed.
    """
    if view is None:
        return SortedSlices(list(planned), [])
    read: list[Slice] = []
    skipped: list[Slice] = []
    for one in planned:
        held = view.get(one.partition)
        untouched = keeps_state and held is not None and is_untouched(one.epoch, one.start, held)
        if untouched or is_ours(one, view):
            epoch = view[one.partition].epoch
            # The state is still that of the epoch under which it was planned.
            tenure = one.tenure if epoch == one.epoch else one.state_of
            read.append(replace(one, epoch=epoch, tenure=tenure))
        else:
            skipped.append(one)
    return SortedSlices(read, skipped)


def pack(
    planned: Sequence[Slice],
    most: int,
    *,
    least: int | None = None,
    max_messages: int | None = None,
) -> list[tuple[Slice, ...]]:
    """The slices in groups of about equal work, one for each task: at most `most` of them.

    With `least`, or `max_messages` of a group, there may be more groups, and a partition is divided
    among several, about evenly. Else it never is. Positions count as messages: where they have
    holes, a group has fewer. The work of a slice is the distance of its positions if they are
    numbers, otherwise one.
    """
    total = sum(map(_weight, planned))
    largest = max_messages or total
    if least is not None and len(planned) < least:
        largest = min(largest, max(1, total // least))
    pieces = [
        piece for one in planned for piece in divided(one, -(-_weight(one) // max(1, largest)))
    ]
    groups: list[list[Slice]] = [[] for _ in range(min(max(most, least or 1), len(pieces)))]
    # By their loads, the lightest first.
    loads = [(0, index) for index in range(len(groups))]
    for weight, one in sorted(
        ((_weight(one), one) for one in pieces), key=lambda item: (-item[0], item[1].partition)
    ):
        load, index = loads[0]
        if load and load + weight > largest:
            index = len(groups)
            groups.append([])
            heappush(loads, (weight, index))
        else:
            heapreplace(loads, (load + weight, index))
        groups[index].append(one)
    return [tuple(sorted(group, key=place_of)) for group in groups]


def tasks_of(
    planned: Sequence[Slice], cores: int, options: SourceOptions
) -> list[tuple[Slice, ...]]:
    """The slices of each task, as the options have it; `cores`: the limit without them."""
    return pack(
        planned,
        cores,
        least=options.min_partitions,
        max_messages=options.max_records_per_partition,
    )


def _weight(one: Slice) -> int:
    if one.start.isdecimal() and one.end.isdecimal():
        return max(1, int(one.end) - int(one.start))
    return 1
