"""The barriers of one resize: which partitions wait, for which others, and up to where."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import gcd

from broker.core.structures.journal import Journal


class Barriers:
    """The cuts of the resize number `resize`, until all are reached; see the package for the rule.

    `next` is the first partition of which the cut is still to be told, None when all are known. No
    partition waits before that. `cuts` are those of the queue's partitions, `unreached` the old
    partitions that are not processed up to theirs.
    """

    __slots__ = ("_left", "cuts", "next", "resize", "resized_from", "resized_to", "unreached")

    def __init__(self, resize: int, resized_from: int, resized_to: int) -> None:
        self.resize = resize
        self.resized_from = resized_from
        self.resized_to = resized_to
        self.next: int | None = 0
        self.cuts: dict[int, str] = {}
        self.unreached: set[int] = set()
        # By class: how many partitions are unreached.
        self._left: dict[int, int] = {}

    @property
    def in_force(self) -> bool:
        """Whether all cuts are known."""
        return self.next is None

    @property
    def settled(self) -> bool:
        """Whether all cuts are known and reached."""
        return self.in_force and not self.unreached

    @property
    def classes(self) -> int:
        """How many classes there are: partitions of one class may have keys in common."""
        return gcd(self.resized_from, self.resized_to)

    def waits(self, number: int) -> bool:
        """Whether the partition may not be processed past its cut."""
        return self._waiting(number) > 0

    def _waiting(self, number: int) -> int:
        """For how many partitions it waits."""
        if not self.in_force or number >= self.resized_to or number not in self.cuts:
            return 0
        return self._left.get(number % self.classes, 0) - (number in self.unreached)

    def waits_for(self, number: int, most: int) -> tuple[int, ...]:
        """The lowest partitions for which it waits, at most so many."""
        if not self.waits(number):
            return ()
        others = (other for other in self._of_class(number) if other != number)
        return tuple(islice((other for other in others if other in self.unreached), most))

    def _of_class(self, number: int) -> Iterator[int]:
        """The partitions before the resize of the class of this one."""
        return iter(range(number % self.classes, self.resized_from, self.classes))

    def waiting(self) -> int:
        """How many partitions wait."""
        return sum(self.waits(number) for number in self.cuts)

    def tell(self, journal: Journal, number: int, cut: str, reached: bool) -> None:
        """The partition has this cut."""
        journal.put(self.cuts, number, cut)
        if not reached and number < self.resized_from:
            journal.add(self.unreached, number)
            self._count(journal, number, 1)

    def restore(self, journal: Journal, number: int, cut: str, reached: bool) -> None:
        """As `tell`, from a store, which may still have the cut of an earlier resize."""
        told = self.next is None or number < self.next
        if told and number < max(self.resized_from, self.resized_to):
            self.tell(journal, number, cut, reached)

    def reach(self, journal: Journal, number: int) -> list[int]:
        """The partition is processed up to its cut; the partitions for which that changes anything.

        Those are the partition itself, and those that do not wait any more. Nothing if it was so
        before.
        """
        if number not in self.unreached:
            return []
        journal.discard(self.unreached, number)
        self._count(journal, number, -1)
        left = self._left.get(number % self.classes, 0)
        if not self.in_force or left > 1:
            return [number]
        if left == 1:
            # The last one waits for itself alone: it goes on.
            return [number, next(o for o in self._of_class(number) if o in self.unreached)]
        new = range(number % self.classes, self.resized_to, self.classes)
        return [number, *(other for other in new if other != number)]

    def _count(self, journal: Journal, number: int, difference: int) -> None:
        residue = number % self.classes
        left = self._left.get(residue, 0) + difference
        if left:
            journal.put(self._left, residue, left)
        else:
            journal.drop(self._left, residue)
