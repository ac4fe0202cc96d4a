"""The order of keys when partitions change: ordered resizes, splits and merges (promise 4).

The log's own facts are the cuts of its resizes and the partitions that it sealed. From these and
from what the sinks have seen follows what may be processed. Each key has a hash, and its messages
are in partition `hash mod count`, or in the unsealed partition with that hash in its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from tests.judge import rules
from tests.judge.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.account import Account, Transaction
    from tests.simulation.checker import Checker

# A view names at most so many partitions for which one waits.
MOST_NAMED = 10

Barrier = tuple[str | None, bool, bool]
"""Of a partition in a view: its cut, whether that is reached, whether the partition waits there."""

FREE: Barrier = (None, False, False)


class Readers:
    """The accounts of several queues that read one log: each is told what happens there."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self._checkers = tuple(checkers)

    def published(self, partition: int, key: int | None = None) -> None:
        for checker in self._checkers:
            checker.published(partition, key)

    def resized(self, number: int, before: int, count: int, cuts: Mapping[int, int]) -> None:
        for checker in self._checkers:
            checker.resized(number, before, count, cuts)

    def sealed(self, ends: Mapping[int, int], children: Sequence[int]) -> None:
        for checker in self._checkers:
            checker.sealed(ends, children)

    def discarded(self, partition: int) -> None:
        for checker in self._checkers:
            checker.discarded(partition)

    def trimmed(self, partition: int, first: int) -> None:
        for checker in self._checkers:
            checker.trimmed(partition, first)


class Order:
    """What the log has cut and sealed."""

    def __init__(self) -> None:
        self.keys = rules.Keys()
        self.resize = self.resized_from = self.resized_to = 0
        self.cuts: dict[int, int] = {}
        # By partition: its final end, those that come after it, and those that it comes after.
        self.ends: dict[int, int] = {}
        self.children: dict[int, tuple[int, ...]] = {}
        self.parents: dict[int, tuple[int, ...]] = {}

    def resized(self, number: int, before: int, count: int, cuts: Mapping[int, int]) -> None:
        self.resize, self.resized_from, self.resized_to = number, before, count
        self.cuts = dict(cuts)

    def sealed(self, ends: Mapping[int, int], children: Sequence[int]) -> None:
        self.ends.update(ends)
        self.children.update(dict.fromkeys(ends, tuple(children)))
        self.parents.update(dict.fromkeys(children, tuple(ends)))

    def others(self, number: int) -> Sequence[int]:
        """The other partitions of before the resize that may have a key in common with this one."""
        if not self.resize or number >= self.resized_to:
            return ()
        step = gcd(self.resized_from, self.resized_to)
        return [n for n in range(number % step, self.resized_from, step) if n != number]

    def cut(self, number: int) -> int:
        return self.cuts.get(number, 0)


def check_written(known: Account, partition: int, position: int, what: str) -> None:
    """A message was processed: all that has to come before it was processed before."""
    order, lanes = known.order, known.lanes
    for violation in order.keys.handled((partition, position)):
        raise violation
    if order.resize and position >= order.cut(partition):
        for other in order.others(partition):
            if lanes[other].prefix < order.cut(other):
                text = f"{what}, past its cut {order.cut(partition)}, but p{other}"
                raise Violation(
                    4, f"{text} is processed up to {lanes[other].prefix}, not {order.cut(other)}"
                )
    for parent in order.parents.get(partition, ()):
        if lanes[parent].prefix < order.ends[parent]:
            raise Violation(4, f"{what}, but its parent p{parent} is not processed")


def is_reached(known: Account, number: int) -> bool:
    """Whether everything before the cut counts as processed, by what is committed."""
    cut, row = known.order.cut(number), known.partitions.get(number)
    if row is None or row.state == "removed" or known.lanes[number].first >= cut:
        return True
    return known.positions.get(number, 0) >= cut


def must_wait(known: Account, number: int) -> bool:
    """Whether the partition must not go on at its position, by what is committed."""
    order, queue = known.order, known.queue
    if not order.resize or number >= order.resized_to:
        return False
    if known.positions.get(number, 0) < order.cut(number):
        return False
    if queue["resize_seen"] < order.resize or queue["cuts_due"] is not None:
        return True
    return not all(is_reached(known, other) for other in order.others(number))


def check_rows(known: Account, tx: Transaction, old: Mapping[str, Any]) -> None:
    """What the queue says of cuts is what the log has cut, and is said of processed messages."""
    queue, order = known.queue, known.order
    barriers = queue["barriers"]
    if not queue["ordered_resize"]:
        return
    if barriers is not None and barriers["resize"] == order.resize:
        _check_cut(known)
        for row in tx.partitions:
            if row.cut is None or row.number >= max(order.resized_from, order.resized_to):
                continue
            if int(row.cut) != order.cut(row.number):
                raise Violation(
                    4, f"p{row.number} was cut at {order.cuts[row.number]}, not {row.cut}"
                )
            if row.cut_reached and row.number < order.resized_from:
                _check_reached(known, row.number)
    settled = queue["resize_seen"] == order.resize and barriers is None
    if settled and old and (old["barriers"] is not None or old["resize_seen"] < order.resize):
        for number in range(order.resized_from):
            _check_reached(known, number)


def _check_cut(known: Account) -> None:
    """A partition whose cut is not known does not wait."""
    order = known.order
    for number, row in known.partitions.items():
        if row.cut is None and number < max(order.resized_from, order.resized_to):
            raise Violation(4, f"p{number} has no cut, and barriers are in force")


def _check_reached(known: Account, number: int) -> None:
    if not is_reached(known, number):
        position, cut = known.positions.get(number, 0), known.order.cut(number)
        raise Violation(4, f"p{number} is said to have reached its cut {cut}, but is at {position}")


def barrier(known: Account, number: int) -> Barrier:
    """What a view says of the partition, by the rows."""
    barriers = known.queue["barriers"]
    if barriers is None:
        return FREE
    before, after = barriers["resized_from"], barriers["resized_to"]
    if number >= max(before, after):
        return FREE
    row, waits = known.partitions[number], False
    if number < after:
        waits = any(
            known.partitions[other].cut_reached is False
            for other in range(number % gcd(before, after), before, gcd(before, after))
            if other != number and other in known.partitions
        )
    reached = number >= before or row.cut_reached is not False
    return FREE if reached and not waits else (row.cut, reached, waits)


def unsettled(known: Account) -> str | None:
    """What is left of a resize."""
    queue = known.queue
    if not queue["ordered_resize"]:
        return None
    if queue["barriers"] is not None or queue["cuts_due"] is not None:
        return f"the resize is not settled: {queue['barriers']}, due {queue['cuts_due']}"
    if queue["resize_seen"] < known.order.resize:
        return f"the queue knows resize {queue['resize_seen']}, the log {known.order.resize}"
    return None
