"""The positions of consumers in a log: valid ones, ones within reach, and the trims below them.

**What a position is.** The service never compares positions of consumers, but it keeps them for
others: the next owner reads from there, and the upkeep trims up to there. A text that is no
position would end every later consumer of its partition, so none is stored. For a log of a kind
that the service does not know only the length of the text is limited (by the API). Whatever
uses stored positions leaves out those that are none all the same, until an administrator sets
others. A position is stored as the log gives it, without leading zeros:
consumers find out whether a partition is at its end by comparing two texts.

**Positions far beyond the end of their partition are refused** (`Reach`). Nobody has read up to
there, so such a position is a mistake of the owner (a time, a position of another log) or meant to
harm. Stored, it would stop every later consumer of the partition until the log has grown that far,
and then it would pass over all that was published meanwhile; in Redis the upkeep would take it for
a sign of lost messages and continue the partition above it.

Commits are frequent, and to ask the log at each would cost as much as the commit. So a position is
compared with the end that is known, and the log is asked only when the position is more than FAR
above it: once in FAR messages of a partition. Ends only grow, so an end of before refuses nothing
that the log has. A position that is nearer is stored, also if it is beyond the end: consumers raise
`PositionAhead`, and `counterpoise lag` and `doctor` say so. A log that does not answer refuses
nothing: consumers may reach it where the service cannot. It is asked again after SILENT_SECONDS.

**Trims.** `trim_floor` has the positions below which a log may be trimmed.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.core.errors import Invalid
from broker.logs.ports import Logs
from broker.pieces import pieces
from counterpoise.logs.address import kind_of
from counterpoise.logs.numbered import TOO_LARGE, position_number
from counterpoise.logs.ranges import HashRange

# Whatever the kind, these are positions.
_SURELY = re.compile("0|[1-9][0-9]{0,14}")
FAR = 100_000
SILENT_SECONDS = 60.0
# About 40 MB if all have 4,096 partitions that reach beyond FAR.
_MOST_QUEUES = 1000
_TOO_LARGE = 10**19
# Above every position of a log.
PASSED = 2**62


def number_of(log: str, position: str) -> int | None:
    """A position of a log of a known kind as a number; None: it is none."""
    kind = kind_of(log)
    assert kind is not None, log
    return position_number(position, TOO_LARGE[kind])


def refuse_invalid(log: str, positions: Mapping[str, str]) -> None:
    """Raises Invalid if one of these cannot be a position of the log. Keys: names of fields."""
    kind = kind_of(log)
    if kind is None:
        return
    wrong = [field for field, at in positions.items() if str(number_of(log, at)) != at]
    if wrong:
        shown = positions[wrong[0]]
        shown = shown if len(shown) <= 50 else f"{shown[:50]}…"
        raise Invalid(
            f"{shown!r} is not a position of this queue's log; its positions are decimal numbers "
            f"below {TOO_LARGE[kind]}. Send the position of the next message to read, as the log "
            "gives it.",
            [(field, f"is not a decimal number below {TOO_LARGE[kind]}") for field in wrong],
        )


@dataclass(slots=True)
class _Known:
    """Of one queue: ends that its log has told, by partition, and when it may be asked again."""

    ends: dict[int, int] = field(default_factory=dict)
    silent_until: float = 0.0


class Positioned(Protocol):
    """What names a partition and a position in it; None: no position, or no number yet."""

    @property
    def partition(self) -> int | None: ...
    @property
    def position(self) -> str | None: ...


class Reach:
    """The ends of partitions, as far as one replica knows them."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._known: dict[str, _Known] = {}

    def is_doubtful(self, queue_id: str, item: Positioned) -> bool:
        """Whether the item's position is to be checked on its own: it may be none, or more than FAR
        above the known end. Usually there is none.
        """
        if (position := item.position) is None:
            return False
        if not _SURELY.fullmatch(position):
            return True
        known, number = self._known.get(queue_id), item.partition
        end = 0 if known is None or number is None else known.ends.get(number, 0)
        return int(position) > end + FAR

    def is_near(self, queue_id: str, partition: int, position: str) -> bool:
        """Whether the position is at most FAR above the known end, or is no number."""
        number = position_number(position, _TOO_LARGE)
        if number is None or number <= FAR:
            return True
        known = self._known.get(queue_id)
        return known is not None and number <= known.ends.get(partition, 0) + FAR

    async def beyond(
        self, queue_id: str, log: str, positions: Mapping[int, str]
    ) -> Mapping[int, str]:
        """The ends of those partitions whose positions are more than FAR beyond them.

        The log is asked, unless it did not answer a moment ago.
        """
        known = self._known.pop(queue_id, None) or _Known()
        if len(self._known) >= _MOST_QUEUES:
            del self._known[next(iter(self._known))]
        self._known[queue_id] = known
        now = asyncio.get_running_loop().time()
        if now < known.silent_until:
            return {}
        spans = await self._logs.spans(log, positions)
        if not spans:
            known.silent_until = now + SILENT_SECONDS
            return {}
        beyond: dict[int, str] = {}
        for number, position in positions.items():
            if (span := spans.get(number)) is not None:
                known.ends[number] = int(span.end)
                if int(position) > int(span.end) + FAR:
                    beyond[number] = span.end
        return beyond


def trim_floor(
    committed: Iterable[Mapping[int, int | None]], keep_messages: int = 0
) -> dict[int, int]:
    """The position below which each partition may be trimmed, from the commits of all readers.

    One mapping {partition: position} for each queue that reads the log. A partition without a
    commit of one of them (absent or None) is not trimmed; without a reader no partition is (the
    contract, *Logs*). The last `keep_messages` that all have processed stay.
    """
    floor: dict[int, int] | None = None
    for positions in committed:
        known = {partition: at for partition, at in positions.items() if at is not None}
        if floor is None:
            floor = known
        else:
            floor = {
                partition: min(position, known[partition])
                for partition, position in floor.items()
                if partition in known
            }
    return {
        partition: position - keep_messages
        for partition, position in (floor or {}).items()
        if position >= keep_messages
    }


async def with_passed(
    positions: Mapping[int, int | None], ranges: Mapping[int, HashRange]
) -> dict[int, int | None]:
    """A dynamic queue's positions, with those of partitions that it has finished and removed.

    `positions` has the partitions that the queue has now, `ranges` all that the log ever had. A
    partition that the queue does not have was removed, or is not reported yet. A queue learns of a
    partition only after its parents, and keeps one until all its children are finished. So for each
    hash the latest partition (highest number) that the queue has tells: what is before it is over.
    No message of a removed partition is kept for this queue: it never reads there again.
    """
    there = map(ranges.get, sorted(positions, reverse=True))
    firsts, latest = _latest([one for one in there if one is not None])
    found = dict(positions)
    async for some in pieces([*ranges.items()]):
        for number, one in some:
            if number not in positions and latest[bisect_right(firsts, one.first) - 1] > number:
                found[number] = PASSED
    return found


def _latest(by_number: Sequence[HashRange]) -> tuple[list[int], list[int]]:
    """From each hash of the first list on, the highest number of a range that has it; else -1.

    `by_number`: the ranges, the highest number first.
    """
    firsts = sorted({0, *(edge for one in by_number for edge in (one.first, one.last + 1))})
    place = {first: index for index, first in enumerate(firsts)}
    latest = [-1] * len(firsts)
    # Where the next piece lies, from each on, that no higher number has taken.
    free = list(range(len(firsts) + 1))

    def next_free(index: int) -> int:
        while free[index] != index:
            free[index] = free[free[index]]
            index = free[index]
        return index

    for one in by_number:
        index = next_free(place[one.first])
        while firsts[index] <= one.last:
            latest[index] = one.partition
            free[index] = index + 1
            index = next_free(index)
    return firsts, latest
