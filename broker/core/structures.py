"""Collections of the core that know nothing of queues: a journal, a heap and a ranking.

- **`Journal`: taking back changes of a queue.** Every change of a queue goes through its journal,
  which can undo back to any mark. Two places rely on it: `decide` takes back a decision that fails
  or changes nothing, and the coordinator takes back a turn whose commit failed. Undoing costs as
  much as the changes did, whatever the size of the queue.
- **`Heap`: the smallest of what changes, without a pass over all of it.** An entry is pushed when
  it begins to hold, and is not searched for when it no longer holds: `first` skips it when it has
  come to the top. So an entry may be there twice, and an old one may stay for a while. Undoing a
  change pushes what it takes back.
- **`Ranking`: flows in the order in which the greedy balance takes from them and gives to them.** A
  ranking knows how many partitions count for each flow. It finds the flow with the fewest and the
  flow with the most without a pass over all flows, ties to the earliest bound (the contract,
  *Balance*, *Determinism*). Flows are known by their bind number, their place in the order of
  binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeAlias, TypeVar

_Set: TypeAlias = set[Any]  # within the class, `set` is its method


class Journal:
    """The changes since the last `forget`, newest last."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # (owner, attribute, old value), (owner, undo, arguments) or (undo, None, arguments).
        self._entries: list[tuple[Any, str | Callable[..., object] | None, Any]] = []

    def set(self, owner: Any, /, **values: Any) -> None:
        """Sets attributes, remembering the old values."""
        for attribute, value in values.items():
            self._entries.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, value)

    def changed(self, owner: Any, undo: Callable[..., object], *arguments: Any) -> None:
        """Remembers that `owner` was changed otherwise, which `undo(owner, *arguments)` undoes."""
        self._entries.append((owner, undo, arguments))

    def note(self, owner: Any) -> None:
        """Remembers that something kept beside `owner` changes, so that `changed_since` names
        it.
        """
        self.changed(owner, _nothing)

    def did(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Remembers how to undo a change that was made otherwise."""
        self._entries.append((undo, None, arguments))

    def put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Sets a key of a dictionary."""
        if key in mapping:
            self.did(mapping.__setitem__, key, mapping[key])
        else:
            self.did(mapping.pop, key)
        mapping[key] = value

    def drop(self, mapping: dict[Any, Any], key: Any) -> None:
        """Removes a key of a dictionary; nothing if it is not there.

        Undoing puts the key at the end of the dictionary: no caller may depend on the order.
        """
        if key in mapping:
            self.did(mapping.__setitem__, key, mapping.pop(key))

    def add(self, members: _Set, member: Any) -> None:
        """Adds to a set."""
        if member not in members:
            members.add(member)
            self.did(members.discard, member)

    def discard(self, members: _Set, member: Any) -> None:
        """Removes from a set."""
        if member in members:
            members.discard(member)
            self.did(members.add, member)

    def mark(self) -> int:
        """The present moment, for `undo` and `changed_since`."""
        return len(self._entries)

    def undo(self, mark: int) -> None:
        """Takes back every change since `mark`."""
        entries = self._entries
        while len(entries) > mark:
            target, how, value = entries.pop()
            if how is None:
                target(*value)
            elif isinstance(how, str):
                setattr(target, how, value)
            else:
                how(target, *value)

    def changed_since(self, mark: int) -> Iterator[Any]:
        """The objects that were changed or noted since `mark`; with repetitions."""
        for target, how, _ in self._entries[mark:]:
            if how is not None:
                yield target

    def forget(self) -> None:
        """Makes all changes final."""
        self._entries.clear()


def _nothing(_owner: Any) -> None:
    """Undoes what was only noted."""


T = TypeVar("T", int, tuple[float, int])
# As many old entries as there are others, and so many more, may be in a heap.
_SPARE = 64


class Heap(Generic[T]):
    """Entries of which some hold no more."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[T] = []

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

    def trim(self, holding: int, anew: Callable[[], Iterable[T]]) -> None:
        """Makes the heap anew of the entries that hold if it has grown far beyond their number."""
        if len(self._entries) > 2 * holding + _SPARE:
            self._entries = sorted(anew())

    def __contains__(self, entry: T) -> bool:
        return entry in self._entries


class Ranking:
    """Counts by bind number, bucketed by count.

    Each bucket is a heap of bind numbers; stale entries are skipped when met.
    """

    __slots__ = ("_bind_numbers", "_buckets", "_high", "_low", "_sizes", "counts")

    # What one partition more changes where a flow stands (its *level*, here its count).
    stride = 1
    # Whether no flow may have one more (`shares`).
    is_full = False

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._buckets: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._bind_numbers: list[int] = []
        self._low = 0
        self._high = 0

    def put(self, bind_number: int, count: int) -> None:
        """Enters a flow, or changes its count."""
        old = self.counts.get(bind_number)
        if old == count:
            return
        if old is None:
            if not self.counts:
                self._low = self._high = count
            heappush(self._bind_numbers, bind_number)
            if len(self._bind_numbers) > 2 * len(self.counts) + 16:
                self._bind_numbers = sorted({*self.counts, bind_number})
        else:
            self._leave(old)
        self.counts[bind_number] = count
        bucket = self._buckets.get(count)
        if bucket is None:
            self._sizes[count], self._buckets[count] = 1, [bind_number]
        else:
            size = self._sizes[count] = self._sizes[count] + 1
            heappush(bucket, bind_number)
            if len(bucket) > 2 * size + 16:
                bucket[:] = {entry for entry in bucket if self.counts.get(entry) == count}
                heapify(bucket)
        if count < self._low:
            self._low = count
        if count > self._high:
            self._high = count

    def add(self, bind_number: int, difference: int) -> None:
        """Changes a flow's count by `difference`."""
        self.put(bind_number, self.counts[bind_number] + difference)

    def remove(self, bind_number: int) -> None:
        """Takes a flow out of the ranking."""
        self._leave(self.counts.pop(bind_number))

    def _leave(self, count: int) -> None:
        left = self._sizes[count] - 1
        if left:
            self._sizes[count] = left
        else:
            del self._sizes[count], self._buckets[count]

    @property
    def low(self) -> int:
        """The smallest count; the ranking must not be empty."""
        while self._low not in self._sizes:
            self._low += 1
        return self._low

    @property
    def high(self) -> int:
        """The largest count; the ranking must not be empty."""
        while self._high not in self._sizes:
            self._high -= 1
        return self._high

    @property
    def spread(self) -> int:
        """The largest minus the smallest count, 0 without flows."""
        return self.high - self.low if self.counts else 0

    @property
    def is_even(self) -> bool:
        """Whether every flow is within its share: the counts differ by at most one."""
        return not self.counts or self.high - self.low <= 1

    def levels(self) -> dict[int, int]:
        """Where each flow stands."""
        return dict(self.counts)

    def even_levels(self) -> tuple[int, int]:
        """The lowest and the highest level after a balance without a partition more or less; the
        ranking must not be empty."""
        floor = sum(self.counts.values()) // len(self.counts)
        return floor, floor + 1

    def targets(self, total: int) -> tuple[Mapping[int, int], AbstractSet[int], int]:
        """What so many partitions are shared out to: the floor of each flow's share, the flows that
        may have one more, and how many of these are to have it."""
        floor, ceilings = divmod(total, len(self.counts))
        return dict.fromkeys(self.counts, floor), self.counts.keys(), ceilings

    def fewest(self) -> int:
        """The bind number of the flow with the fewest partitions, the earliest bound of several."""
        return self._first(self.low)

    def most(self) -> int:
        """The bind number of the flow with the most partitions, the earliest bound of several."""
        return self._first(self.high)

    def earliest(self) -> int:
        """The bind number of the earliest-bound flow; the ranking must not be empty."""
        while self._bind_numbers[0] not in self.counts:
            heappop(self._bind_numbers)
        return self._bind_numbers[0]

    def _first(self, count: int) -> int:
        bucket = self._buckets[count]
        while self.counts.get(bucket[0]) != count:
            heappop(bucket)
        return bucket[0]

    def copy(self) -> Ranking:
        """An independent ranking with the same counts; takes time in proportion to the number of
        flows.
        """
        copy = Ranking()
        for bind_number, count in self.counts.items():
            copy.put(bind_number, count)
        return copy


class TentativeCounts:
    """Changes of a ranking that can be taken back."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._changes: dict[int, int] = {}

    def add(self, bind_number: int, difference: int) -> None:
        """Changes a flow's count by `difference`."""
        self._ranking.add(bind_number, difference)
        self._changes[bind_number] = self._changes.get(bind_number, 0) + difference

    def take_back(self) -> None:
        """The counts are as before."""
        for bind_number, difference in self._changes.items():
            self._ranking.add(bind_number, -difference)
        self._changes.clear()
