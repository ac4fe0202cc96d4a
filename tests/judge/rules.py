"""The rules of the judge; `tests.judge` lists the promises.

Each rule takes one fact at a time, in the order in which they happened, and returns the violations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from tests.judge.violation import DUPLICATE, FORGOTTEN, ORDER, OWNERS, STALE, Violation


@dataclass(slots=True)
class Owners:
    """1: an epoch of a partition has one owner."""

    by_epoch: dict[tuple[int, int], str] = field(default_factory=dict)

    def claim(self, partition: int, epoch: int, owner: str) -> list[Violation]:
        """This consumer owns the partition in this epoch."""
        known = self.by_epoch.setdefault((partition, epoch), owner)
        if known == owner:
            return []
        text = f"{known} and {owner} own p{partition} in epoch {epoch}"
        return [Violation(1, text, OWNERS)]

    def get(self, partition: int, epoch: int) -> str | None:
        return self.by_epoch.get((partition, epoch))


# Whether something excuses that work under the earlier epoch is repeated under the later one.
Excused = Callable[[int, int], bool]


@dataclass(slots=True)
class Lane:
    """3 and 4: what was handled of one partition. Positions count messages, from 0."""

    # The first position that the log keeps.
    first: int = 0
    # All below was handled or discarded.
    prefix: int = 0
    # How many times a message was handled, repetitions included.
    times: int = 0
    # The latest epoch in which a message was handled.
    newest: int = 0
    # The last handled position of each epoch.
    last: dict[int, int] = field(default_factory=dict)
    _beyond: set[int] = field(default_factory=set)

    def was_handled(self, position: int) -> bool:
        return position < self.prefix or position in self._beyond

    def late(self, epoch: int) -> bool:
        """Whether a later epoch has begun."""
        return epoch < self.newest

    def handled(self, epoch: int, position: int, excused: Excused) -> list[Violation]:
        found: list[Violation] = []
        what = f"message {position} in epoch {epoch}"
        again = self.was_handled(position)
        before = self.last.get(epoch)
        if position > self.prefix:
            found.append(Violation(3, f"{what}, but {self.prefix} was not handled", ORDER))
        elif before is not None and position > max(before + 1, self.first):
            found.append(Violation(3, f"{what}, after {before}, with a hole", ORDER))
        for other, last in self.last.items():
            if last < position or (other != epoch and excused(*sorted((epoch, other)))):
                continue
            if other == epoch:
                text = f"{what}, after {last} in the same epoch"
            else:
                text = f"{what}, after {last} in epoch {other}, gracefully"
            found.append(Violation(4, text, DUPLICATE if again else ORDER))
        self.note(epoch, position)
        return found

    def note(self, epoch: int, position: int) -> None:
        """The message was handled, in whatever order."""
        self.last[epoch] = position
        self.newest = max(self.newest, epoch)
        self.times += 1
        self._beyond.add(position)
        while self.prefix in self._beyond:
            self._beyond.remove(self.prefix)
            self.prefix += 1

    def trimmed(self, first: int) -> None:
        """The log keeps nothing below `first`."""
        self.first = max(self.first, first)

    def discarded(self, end: int) -> None:
        """All below `end` was discarded, handled or not."""
        self.first = end
        self.prefix = max(self.prefix, end)
        self._beyond = {position for position in self._beyond if position >= self.prefix}
        while self.prefix in self._beyond:
            self._beyond.remove(self.prefix)
            self.prefix += 1


Place = tuple[int, int]
"""A message: its partition and its position."""


@dataclass(slots=True)
class Keys:
    """4: a message is handled after all that were published before it under its key.

    What is repeated came in this order the first time, and says nothing more about it. So the rule
    needs no excuse: it holds through force and crashes alike.
    """

    published: defaultdict[Hashable, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _keys: dict[Place, tuple[Hashable, int]] = field(default_factory=dict)
    _handled: set[Place] = field(default_factory=set)
    # By key: how many of the first messages are handled.
    _prefix: defaultdict[Hashable, int] = field(default_factory=lambda: defaultdict(int))

    def publish(self, key: Hashable, place: Place) -> None:
        """The next message of this key is here."""
        self._keys[place] = key, len(self.published[key])
        self.published[key].append(place)

    def discard(self, place: Place) -> None:
        """The message need not be handled."""
        self._pass(place)

    def key_of(self, place: Place) -> Hashable | None:
        """The key of the message; None: it has none."""
        return self._keys[place][0] if place in self._keys else None

    def handled(self, place: Place) -> list[Violation]:
        """The message was handled. Messages that were not published are no matter of this rule."""
        if place in self._handled or place not in self._keys:
            return []
        key, nth = self._keys[place]
        first = self._prefix[key]
        self._pass(place)
        if nth == first:
            return []
        partition, position = self.published[key][first]
        what = f"message {place[1]} of p{place[0]} was handled before {position} of p{partition}"
        return [Violation(4, f"{what}, an older one of the key {key}", ORDER)]

    def _pass(self, place: Place) -> None:
        if place not in self._keys:
            return
        self._handled.add(place)
        key, _ = self._keys[place]
        order, first = self.published[key], self._prefix[key]
        while first < len(order) and order[first] in self._handled:
            first += 1
        self._prefix[key] = first


@dataclass(frozen=True, slots=True)
class Known:
    """What had been told when a call was sent."""

    acknowledged: Mapping[int, tuple[int, int]]
    epochs: Mapping[int, int]


@dataclass(slots=True)
class Answers:
    """2 and 7: an answer reflects what was acknowledged before its call was sent."""

    # By partition: the latest acknowledged epoch and position; the latest epoch that was told.
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def known(self) -> Known:
        """What the answer to a call that is sent now must reflect."""
        return Known(dict(self.acknowledged), dict(self.epochs))

    def told(self, partition: int, epoch: int, position: int, known: Known) -> list[Violation]:
        """An answer said that the partition is in this epoch and committed up to `position`."""
        what, found = f"p{partition} was told to be", []
        if epoch < known.epochs.get(partition, 0):
            text = f"{what} in epoch {epoch}, after {known.epochs[partition]}"
            found.append(Violation(1, text, OWNERS))
        since, reached = known.acknowledged.get(partition, (0, 0))
        if position < reached:
            text = f"{what} at {position}, but {reached} was acknowledged in epoch {since}"
            found.append(Violation(7, text, FORGOTTEN))
        self.epochs[partition] = max(self.epochs.get(partition, 0), epoch)
        return found

    def committed(self, partition: int, epoch: int, position: int, known: Known) -> list[Violation]:
        """A commit was answered `ok`."""
        self.released(partition, epoch, position)
        if epoch < known.epochs.get(partition, 0):
            text = f"a commit of p{partition} in epoch {epoch} after {known.epochs[partition]}"
            return [Violation(2, text, STALE)]
        return []

    def released(self, partition: int, epoch: int, position: int) -> None:
        """A release was answered `ok`. It may be repeated when its epoch is over."""
        reached = (epoch, position)
        self.acknowledged[partition] = max(self.acknowledged.get(partition, (0, 0)), reached)
