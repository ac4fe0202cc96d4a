"""What a micro-batch reads and where a partition goes on: pure functions of offset and view.

*Done* means: in the sink, by Spark's commit log. When Spark asks for the next offset after `start`,
all of `start` is done and nothing is in flight (docs, *Spark*). Whether what was done under an
epoch counts for the epoch under which the partition is held now is a rule of the ledger
(`counterpoise.flow.ledger`, 4).

From it follows the rule for planning again after a crash: a slice is read if the grant continues
its epoch, and skipped if it is known to be superseded. When it is not known (the flow is binding)
it is read: reading too much is fenced at the commit and in the sink, skipping too much would lose
messages.

History that restores state (docs, *Warm-up*) is planned beside that. What a partition that is held
lacks comes before anything new of it and is work like any other. What one lacks that is only
coming gets what the work leaves of a micro-batch, and at least a tenth beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from counterpoise.flow.ledger import continues
from counterpoise.flow.view import Key, Owned
from counterpoise.logs import Bounds, Log
from counterpoise.spark.plan.history import (
    FindFloor,
    Portions,
    Restore,
    earliest,
    portions,
    stages,
)
from counterpoise.spark.plan.offsets import Offset, Range, Replay, Slice

View = Mapping[int, Owned]

# How much history a micro-batch has at most where the user has set no limit.
REPLAYED_MESSAGES = 20_000
NO_HISTORY = Portions()


def is_ours(planned: Slice, view: View) -> bool:
    """Whether the partition of this slice is held, and the slice counts for it."""
    held = view.get(planned.partition)
    return held is not None and continues(planned.epoch, held)


def done(start: Offset, held: Owned, skipped: Collection[Key] = ()) -> str | None:
    """Up to where the partition is done by ourselves, or None: then the service's word counts."""
    one = start.ranges.get(held.partition)
    if one is None or (held.partition, one.epoch) in skipped or not continues(one.epoch, held):
        return None
    return one.end


@dataclass(frozen=True)
class Question:
    """How far to read from `positions` (None: from where the queue's `start` says).

    `latest`: what None means. At most `max_messages` and about `max_bytes` of values in all, and no
    further than `targets`, if there are any. `restores`: whose state is to be restored; what of it
    is held is in `positions` as well.
    """

    positions: Mapping[int, str | None]
    latest: bool = False
    max_messages: int | None = None
    targets: Mapping[int, str] | None = None
    max_bytes: int | None = None
    restores: tuple[Restore, ...] = ()

    @property
    def partitions(self) -> list[int]:
        """All that the log is to be asked about."""
        return sorted({*self.positions, *(one.partition for one in self.restores)})


@dataclass(frozen=True)
class Answer:
    """Read [begins, ends), and replay `history`.

    `bounds`: what the log said, at `asked_at` (monotonic) or later. `ahead`: left out, because the
    log says that the partition ends before its position; (position, end). `beyond`: those whose
    position lies behind their target.
    """

    question: Question
    bounds: Bounds
    begins: Mapping[int, str]
    ends: Mapping[int, str]
    asked_at: float = 0.0
    history: Portions = NO_HISTORY
    ahead: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    beyond: frozenset[int] = frozenset()


def answer_to(
    question: Question,
    log: Log,
    bounds: Bounds,
    asked_at: float = 0.0,
    find_floor: FindFloor = earliest,
) -> Answer:
    """What to read, now that the log has said where its partitions start and end.

    A position below its partition's start stays as it is: whether what is missing was discarded on
    purpose is seen on reading. A partition that ends before its position is left out: a log may say
    so for a while and be right again (docs, *Logs*). Raises InvalidPosition. Asks nothing of the
    log unless bytes are limited, or by `find_floor`; then LogUnavailable too.
    """
    undecided = bounds.ends if question.latest else bounds.starts
    begins = {
        number: undecided[number] if position is None else position
        for number, position in question.positions.items()
    }
    within = bounds
    beyond: frozenset[int] = frozenset()
    targets = question.targets
    if targets is not None:
        # Negative: there is something to read. Null: what was to be read is done.
        left = {n: log.compare(begin, targets[n]) for n, begin in begins.items() if n in targets}
        begins = {n: begins[n] for n, compared in left.items() if compared}
        beyond = frozenset(n for n, compared in left.items() if compared > 0)
        within = replace(bounds, ends={n: _lower(log, bounds.ends[n], targets[n]) for n in begins})
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


def _with_history(answer: Answer, log: Log, within: Bounds, find_floor: FindFloor) -> Answer:
    """The answer where state is to be restored: of a partition that is held and lacks history,
    that is read instead of what is new."""
    question, bounds, begins = answer.question, answer.bounds, answer.begins
    # Where the log ends before the position, what is there of the history is not all of it.
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
    # What is only coming comes after.
    most = question.max_messages or REPLAYED_MESSAGES
    read = {n: begin for n, begin in work.items() if begin != ends[n]}
    load = sum(log.backlog(read, replace(bounds, ends={**bounds.ends, **ends})).values())
    beside = {n: lacking[n] for n in sorted(coming & lacking.keys())}
    history_ends = _ends(
        {n: one.begin for n, one in beside.items()},
        max(most - load, most // 10, 1),
        # How many bytes the work has is not known; it has some.
        question.max_bytes // 10 if question.max_bytes and load else question.max_bytes,
        replace(bounds, ends={**bounds.ends, **{n: one.target for n, one in beside.items()}}),
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


def _lower(log: Log, a: str, b: str) -> str:
    return a if log.compare(a, b) <= 0 else b


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
) -> Offset | None:
    """The offset after `start`, or None when there is nothing to read.

    Reads [begins, ends) of the partitions named. What is held and not read now keeps its range;
    what is not held any more is dropped: nothing of it is in flight. `tenures`: of those whose
    state is not named by the epoch. `replays` are added; a chain is kept until its partition's
    first range.
    """
    ranges: dict[int, Range] = {}
    fresh = False
    for number, held in view.items():
        begin, end = begins.get(number), ends.get(number)
        if begin is not None and end is not None and begin != end:
            tenure = (tenures or {}).get(number, held.epoch)
            ranges[number] = Range(held.epoch, begin, end, tenure if tenure != held.epoch else None)
            fresh = True
            continue
        before = start.ranges.get(number)
        if before is not None and continues(before.epoch, held):
            ranges[number] = before
    if not fresh and not replays:
        return None
    chains = {n: one for n, one in start.replays.items() if n not in ranges}
    return Offset(start.queue, ranges, instance, log, {**chains, **(replays or {})})


@dataclass(frozen=True, slots=True)
class Sorted:
    """Slices to read, with the epoch they are held under now, and slices that are superseded."""

    read: Sequence[Slice]
    skipped: Sequence[Slice]


def sort_out(planned: Iterable[Slice], view: View | None) -> Sorted:
    """Which of the planned slices are still ours. `view` None: not known, so all are read."""
    if view is None:
        return Sorted(list(planned), [])
    read: list[Slice] = []
    skipped: list[Slice] = []
    for one in planned:
        if is_ours(one, view):
            epoch = view[one.partition].epoch
            # Its state is still that of the epoch it was planned under.
            tenure = one.tenure if epoch == one.epoch else one.state_of
            read.append(replace(one, epoch=epoch, tenure=tenure))
        else:
            skipped.append(one)
    return Sorted(read, skipped)


def pack(planned: Sequence[Slice], most: int) -> list[tuple[Slice, ...]]:
    """The slices in at most `most` groups of about equal work; a partition is never divided.

    Where positions are numbers their distance is taken for the work, else each slice counts one.
    """
    if not planned:
        return []
    groups: list[list[Slice]] = [[] for _ in range(max(1, min(most, len(planned))))]
    loads = [0] * len(groups)
    for weight, one in sorted(
        ((_weight(one), one) for one in planned), key=lambda item: (-item[0], item[1].partition)
    ):
        lightest = min(range(len(groups)), key=lambda index: (loads[index], index))
        groups[lightest].append(one)
        loads[lightest] += weight
    return [tuple(sorted(group, key=lambda one: one.partition)) for group in groups]


def _weight(one: Slice) -> int:
    if one.start.isdecimal() and one.end.isdecimal():
        return max(1, int(one.end) - int(one.start))
    return 1
