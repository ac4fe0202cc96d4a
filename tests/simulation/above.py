"""Work above the position, from facts alone (the contract, *Work above the position*).

Consumers of such a queue work on different keys of a partition at once, each key in order. A commit
says what is processed above its position. The rules, by promise:

2. What is stored of that is what the owner has sent in this epoch, with this position.
3. It names processed messages only. So none is lost, below the position or above it.
4. Within an epoch the messages of a key come in their order, and none comes twice. A message comes
   again under a later epoch only after a handover that was not graceful, and only if it was not
   recorded as done when that epoch began: it was in work, or done after the last commit.
7. Views tell what is stored, and what was acknowledged is stored.

That a key is in order across partitions, `order.py` holds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.judge.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

Range = tuple[int, int]
Stored = tuple[int, str | None]
"""A position, and what is done above it."""


def ranges_of(text: str | None) -> list[Range]:
    """The ranges that a text names, each with its end: `7+2,1+3` is 7 to 8 and 10 to 12."""
    found, at = [], 0
    for item in () if text is None else text.split(","):
        distance, length = map(int, item.split("+"))
        found.append((at + distance, at + distance + length))
        at += distance + length
    return found


def is_done(stored: Stored, position: int) -> bool:
    """Whether the message counts as processed."""
    below, text = stored
    return position < below or any(begin <= position < end for begin, end in ranges_of(text))


class Above:
    """What was stored, and what was processed when."""

    def __init__(self) -> None:
        # Of each partition all that was ever stored, in order.
        self.stored: defaultdict[int, list[Stored]] = defaultdict(lambda: [(0, None)])
        # What was stored when an epoch began.
        self._granted: dict[tuple[int, int], Stored] = {}
        # The epochs in which each message was processed, by partition and position.
        self._epochs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        # Of each key the last message of an epoch: partition, epoch, key.
        self._last: dict[tuple[int, int, Any], int] = {}

    def store(self, number: int, position: int, text: str | None) -> None:
        """The partition has these now."""
        if self.stored[number][-1] != (position, text):
            self.stored[number].append((position, text))

    def own(self, number: int, epoch: int) -> None:
        """The partition is in this epoch, after all that was stored before."""
        self._granted.setdefault((number, epoch), self.stored[number][-1])

    def granted_with_some(self) -> int:
        """How many epochs began with something done above the position."""
        return sum(text is not None for _, text in self._granted.values())

    def check_stored(
        self, known: Checker, number: int, position: int, text: str | None, row: Any
    ) -> None:
        """2 and 3. Its owner, by the row of before, has stored these."""
        if self.stored[number][-1] == (position, text):
            return
        how = f"p{number} has {text} done above {position}"
        if row is None or ("above", row.owner, number, row.epoch, position, text) not in known.said:
            raise Violation(2, f"{how}, which its owner did not ask for in this epoch")
        lane = known.lanes[number]
        for begin, end in ranges_of(text):
            for at in range(max(begin, position), end):
                if not lane.was_handled(at):
                    raise Violation(3, f"{how}, but {at} was not processed")
        self.store(number, position, text)

    def check_written(
        self, known: Checker, number: int, epoch: int, position: int, what: str
    ) -> None:
        """4. A message was processed."""
        if is_done(self._granted[number, epoch], position):
            raise Violation(4, f"{what}, which was recorded as done before")
        before = self._epochs[number, position]
        for earlier in before:
            if earlier == epoch:
                raise Violation(4, f"{what}, twice")
            if not known.lanes[number].excused(*sorted((earlier, epoch))):
                raise Violation(4, f"{what}, after epoch {earlier}, gracefully")
        before.append(epoch)
        key = known.order.keys.key_of((number, position))
        if key is not None:
            last = self._last.get((number, epoch, key), -1)
            if position < last:
                raise Violation(4, f"{what}, after {last} of its key {key}")
            self._last[number, epoch, key] = position

    def check_told(self, flow: str, number: int, stored: Stored, since: int) -> None:
        """7. A view says what was stored at some time since the first so many were."""
        if stored not in self.stored[number][since - 1 :]:
            raise Violation(7, f"{flow} was told {stored} of p{number}, which is not stored")

    def check_acknowledged(self, what: str, number: int, stored: Stored) -> None:
        """7. A commit of these was acknowledged."""
        now = self.stored[number][-1]
        for begin, end in ranges_of(stored[1]):
            for at in range(begin, end):
                if not is_done(now, at):
                    raise Violation(7, f"{what} with {stored[1]} is fine, but {at} is not stored")
