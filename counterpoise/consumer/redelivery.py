"""Delayed redelivery: a failed message is set aside, and tried again later.

    Consumer("flights", each=handle, on_poison=Retry("flights-retry", after_seconds=[60, 600]))

A message that fails is *set aside*: the position passes it, the other keys of its partition go on,
and it is tried again after each delay. Later messages of its key are set aside behind it, so the
order of each key holds. After the last delay the policy `then` decides.

Where the messages that are set aside live
------------------------------------------
A position says that all messages before it are done, so it cannot say that one of them is not. To
keep the position behind the oldest one would be simple, but a handover would then repeat all that
was handled after it, an hour of messages with a delay of an hour. So they live in the *retry
queue*, an ordinary queue with a log of its own. It is a log of records of what the owners of the
source partitions did:

- **message**: set aside, with key, value and headers, and where it comes from;
- **failed**: tried again in vain, with the number of tries and the time of the next one;
- **done**: handled, or passed by `then`.

A record names the *place* of its message (queue with its id, incarnation of its log, partition,
position) and the epoch of the owner. What is set aside is a function of the *set* of records, in
whatever order they are read: a place is set aside while its newest `message` has a higher epoch
than its newest `done`. (An owner comes to a place once in its epoch. So a `message` of a higher
epoch was written by an owner that has read the place again.) So a repeated record does no harm.

1. **The owner of the source partition is the only one that sets aside, tries again and is done.**
   It does both in one thread at a time, as it handles the partition (`lanes`). So it knows in
   memory which keys are held.
2. **A record is durable before anything is built on it.** `message` is in the log before the
   position passes the message. `done` is in the log before the next message of the key is begun,
   and before the partition is released. So a kill at any moment loses nothing. It repeats what was
   handled and not yet recorded or committed, as every kill does.
3. **A new owner reads the retry queue before it begins any message of the partition.** Whatever its
   predecessor has set aside is there. So after a graceful handoff nothing is repeated, and no key
   is overtaken.
4. **In a key the order is that of the positions.** After a kill the next owner reads again from the
   committed position. A message whose key is held is set aside again, in its place. What is set
   aside from that position on is not tried before it was read again. So the messages of a key come
   again one after another, as they do without redelivery.
5. **An ordered resize keeps the order here, too.** A key may get another partition then, whose
   owner must not overtake what the owner of the old one has set aside. A message belongs to an
   *era*, the number of the last resize before it. It waits while a message of its key and of a
   lower era is set aside in *another* partition. The new owner learns of it in time: a partition
   passes its cut only after others have reached theirs, and they have set aside before. So the
   retry queue is read again when a barrier has moved, before anything else is begun. It is read
   from time to time while a key is held from there, and the other keys go on meanwhile. Eras
   decide, so no two partitions wait for each other.
6. **A partition with messages set aside is not finished.** After a split, a merge or a smaller
   partition count it stays until they are done, and so what comes after it waits.

The bounds: a consumer keeps the messages of its partitions in memory, at most as many and as large
as it reads ahead; then the partition waits until one is done.

`retry_queue` reads and keeps the retry queue. What is not covered, *Trying again later* in
docs/consumer.md says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cmp_to_key
from typing import NamedTuple

from counterpoise.consumer.message import Failure, Message, Ownership
from counterpoise.flow.view import Owned
from counterpoise.logs.rows import Columns, Rows, microseconds_of

Compare = Callable[[str, str], int]


class MessagePlace(NamedTuple):
    """Where a message comes from. `queue_id`: a queue that was deleted and made again has another
    one, and its epochs begin anew. `incarnation`: of its log.
    """

    queue: str
    queue_id: str
    incarnation: str
    partition: int
    position: str


@dataclass(eq=False)
class SetAside:
    """One message that is set aside.

    `epoch`: of its newest record `message`. `attempts`: how often it was tried. `delays`: how
    many delays have begun; 0: it waits behind earlier messages of its key and was not tried yet.
    `due`: when it is tried next, in seconds of `lease_time`; 0.0: as soon as it is the first of its
    key. `era`: see the module's docstring. `error` is the text of the last error.
    """

    place: MessagePlace
    epoch: int
    key: str | None
    value: bytes
    headers: Mapping[str, str]
    published_at: datetime
    attempts: int = 0
    delays: int = 0
    era: int = 0
    due: float = 0.0
    error: str = ""
    # It was tried for the last time and failed so, but `then` could not store it yet.
    failure: Exception | None = None
    # It is done, but the record of that could not be written yet.
    done: bool = False

    @property
    def size_bytes(self) -> int:
        """Its size in memory, about."""
        headers = sum(len(name) + len(text) for name, text in self.headers.items())
        return len(self.value) + len(self.key or "") + headers

    def message(self, owned: Ownership) -> Message:
        """The message for a handler, under the present grant of its partition."""
        return Message(
            owned.partition,
            owned.epoch,
            self.place.position,
            self.key,
            self.value,
            self.headers,
            self.published_at,
            owned,
        )

    def rows(self) -> Rows:
        """The message as it was read. Raises ValueError if its position is no number."""
        return Rows(
            Columns(
                self.place.partition,
                [int(self.place.position)],
                [microseconds_of(self.published_at)],
                [None if self.key is None else self.key.encode()],
                [self.value],
                [[*self.headers.items()]],
            )
        )


class Redelivery:
    """The messages of one grant that are set aside. Used by the worker that handles the partition.

    `next_due` and `count` may be read by any thread. `held_elsewhere` has the keys of which other
    partitions have messages set aside, each with the lowest era (rule 5).
    """

    def __init__(
        self,
        queue_id: str,
        incarnation: str,
        compare: Compare,
        found: Iterable[SetAside] = (),
    ) -> None:
        """`queue_id` and `incarnation` are the present ones of the queue and of its log, which also
        compares positions; `found`: what the owners before have set aside, in the order of records.
        `plan` says how far the partition is done.
        """

        def order(a: SetAside, b: SetAside) -> int:
            # What is left of an earlier log or queue is older; this log cannot compare it.
            newer = self._is_present(a.place) - self._is_present(b.place)
            both = self._is_present(a.place) and self._is_present(b.place)
            return compare(a.place.position, b.place.position) if both else newer

        self._order, self._compare = cmp_to_key(order), compare
        self._queue_id, self._incarnation = queue_id, incarnation
        self._done: str | None = None
        self._by_key: dict[str | MessagePlace, list[SetAside]] = {}
        self._places: set[MessagePlace] = set()
        self.size_bytes = 0
        self.count = 0
        self.held_elsewhere: Mapping[str, int] = {}
        # Of these the record could not be confirmed, and why they are set aside. If it is there,
        # the next owner finds them set aside: so they have to be, also if their key comes free.
        self.doubted: dict[MessagePlace, Failure | None] = {}
        # It is known that memory has room for no more.
        self.is_full = False
        # When the next message is to be tried (`lease_time`); None: there is none.
        self.next_due: float | None = None
        for one in found:
            self._insert(one)
        self.plan()

    @property
    def holds_some(self) -> bool:
        """Whether there may be keys that must wait."""
        return self.count > 0 or bool(self.held_elsewhere or self.doubted)

    def must_wait(self, key: str | None, place: MessagePlace, owned: Owned) -> bool:
        """Whether the message is set aside already, or one of its key that it must not overtake.

        `owned` is how its partition is held.
        """
        if not self.holds_some:
            return False
        known = self.has(place) or place in self.doubted
        return known or self.holds(key) or self._waits(key, self.era(place, owned))

    def holds(self, key: str | None) -> bool:
        """Whether a message of this key is set aside."""
        return key is not None and key in self._by_key

    def era(self, place: MessagePlace, owned: Owned) -> int:
        """The number of the last resize before the message, as the view of its partition has it."""
        if owned.resize is None:
            return 0
        before = owned.cut is not None and self._compare(place.position, owned.cut) < 0
        return owned.resize - before

    def has(self, place: MessagePlace) -> bool:
        """Whether the message of this place is set aside."""
        return place in self._places

    def due(self, now: float) -> SetAside | None:
        """The message to be tried next: the first of its key, and due; None if there is none."""
        first = min(self._first(), key=lambda one: one.due, default=None)
        return first if first is not None and first.due <= now else None

    def add(self, one: SetAside) -> None:
        """Its record is written, and it is set aside from now on."""
        self._insert(one)
        self.doubted.pop(one.place, None)
        self.plan()

    def remove(self, one: SetAside) -> None:
        """It is done, and so says the retry queue."""
        name = _name(one)
        self._by_key[name].remove(one)
        if not self._by_key[name]:
            del self._by_key[name]
        self._places.discard(one.place)
        self.size_bytes -= one.size_bytes
        self.plan()

    def plan(self, done: str | None = None) -> None:
        """Compute `next_due` and `count` again, after a change: also of how far the partition is
        done, or of `held_elsewhere`. No other worker uses it meanwhile.
        """
        if done is not None:
            self._done = done
        self.next_due = min((one.due for one in self._first()), default=None)
        self.count = len(self._places)

    def _first(self) -> Iterator[SetAside]:
        """The first of each key, unless it is to be read again or waits for another partition."""
        return (
            one
            for one, *_ in self._by_key.values()
            if self._is_passed(one.place) and not self._waits(one.key, one.era)
        )

    def has_passed(self) -> bool:
        """Whether the position has passed some: only those are tried, so only they make room."""
        return any(self._is_passed(place) for place in self._places)

    def _is_present(self, place: MessagePlace) -> bool:
        return (place.queue_id, place.incarnation) == (self._queue_id, self._incarnation)

    def _is_passed(self, place: MessagePlace) -> bool:
        if not self._is_present(place):
            return True
        return self._done is not None and self._compare(place.position, self._done) < 0

    def _waits(self, key: str | None, era: int) -> bool:
        return key is not None and self.held_elsewhere.get(key, era) < era

    def _insert(self, one: SetAside) -> None:
        of_key = self._by_key.setdefault(_name(one), [])
        of_key.append(one)
        of_key.sort(key=self._order)
        self._places.add(one.place)
        self.size_bytes += one.size_bytes


def _name(one: SetAside) -> str | MessagePlace:
    return one.place if one.key is None else one.key
