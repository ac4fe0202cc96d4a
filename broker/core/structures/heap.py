"""The smallest of what changes, without a pass over all of it.

An entry is pushed when it begins to hold, and is not looked for when it holds no more: `first`
skips it when it has come to the top. So an entry may be there twice and an old one may stay for a
while. Undoing a change pushes what it takes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", int, tuple[float, int])
# As many old entries as there are others, and so many more, may be in a heap.
_SPARE = 64


class Heap(Generic[T]):
    """Entries of which some hold no more."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[T] = ()) -> None:
        self._entries: list[T] = sorted(entries)

    def push(self, entry: T) -> None:
        """Adds an entry that holds."""
        heappush(self._entries, entry)

    def first(self, holds: Callable[[T], bool]) -> T | None:
        """The smallest entry that holds; None if there is none."""
        entries = self._entries
        while entries:
            if holds(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def smallest(self, most: int, holds: Callable[[T], bool]) -> list[T]:
        """So many of the smallest entries that hold, in order, each once."""
        found: list[T] = []
        while len(found) < most and (entry := self.first(holds)) is not None:
            heappop(self._entries)
            if not found or found[-1] != entry:
                found.append(entry)
        for entry in found:
            heappush(self._entries, entry)
        return found

    def trim(self, holding: int, anew: Callable[[], Iterable[T]]) -> None:
        """Makes the heap anew of the entries that hold if it has grown far beyond their number."""
        if len(self._entries) > 2 * holding + _SPARE:
            self._entries = sorted(anew())

    def __contains__(self, entry: T) -> bool:
        return entry in self._entries
