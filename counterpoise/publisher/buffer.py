"""What a publisher has accepted and not delivered: messages that wait, and batches on their way.

Messages wait in *stripes*. With one stripe, one batch at a time is on its way, and everything is in
the order of `publish`. Under load several batches can be on their way at once, each over a
connection of its own (counterpoise.publisher.publisher). Then each partition belongs to one stripe.
A batch is taken from one stripe, and holds it: nothing else is taken from it meanwhile. So two
batches on their way never have messages of the same key, and none waits in the log for the lock of
a partition that the other one has.

If everything that waits fits into one batch, and none is on its way, that batch takes it from all
stripes. So a publisher with little to do sends no more batches than with one stripe.

When the log says that it has other partitions, waiting messages change their stripes, and each
batch that is on its way holds all of them: its messages were chosen by the partitions before.

Nothing here knows threads; the publisher guards it with its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import TypeAlias

from counterpoise.keys import hash_of
from counterpoise.logs import Message
from counterpoise.logs.ranges import Ranges

# The fields of a message, its size, its place in the order of `publish`, and the number that routes
# it. Python's collector leaves alone a plain tuple of such fields after it has met it once. With
# 10,000 messages that wait, it would else take a quarter of a publisher's CPU time.
_Waiting: TypeAlias = tuple[
    bytes, str | None, Mapping[str, str] | None, datetime | None, int, int, int
]
_size_bytes, _ordinal, _number = itemgetter(4), itemgetter(5), itemgetter(6)


@dataclass(frozen=True, slots=True)
class Routing:
    """The log's partition count, or the hash ranges of a dynamic log."""

    partition_count: int
    ranges: Ranges | None = None

    def partition(self, message: Message, number: int) -> int:
        """`number`: the hash of the message's key (`hash_of`), or its turn if it has none."""
        if self.ranges is None:
            return number % self.partition_count
        if message.key is None:
            return self.ranges.nth(number)
        return self.ranges.of_hash(number).partition


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that are appended together; it never changes its messages and sequences.

    `numbers` route the messages (`Routing.partition`). `ordinals` are their places in the order of
    `publish`, and `stripes` are those that the batch holds. Before it is delivered it gets the id
    of a publisher and the sequence of its first message, or `sequences` for all (`AppendBatch`).
    `uncertain`: an attempt may have appended it.
    """

    messages: Sequence[Message]
    numbers: Sequence[int]
    ordinals: Sequence[int] = ()
    stripes: set[int] = field(default_factory=set)
    publisher: str = ""
    first_sequence: int | None = None
    sequences: Sequence[int] | None = None
    uncertain: bool = False


@dataclass(slots=True)
class _Stripe:
    waiting: deque[_Waiting] = field(default_factory=deque)
    size_bytes: int = 0
    # When its first message came, or its last batch was taken.
    since: float = 0.0


class Buffer:
    """The undelivered messages of a publisher."""

    def __init__(self, batch_messages: int, batch_bytes: int, first_turn: int = 0) -> None:
        """A batch has at most `batch_messages`, and `batch_bytes` unless one message has more.

        Messages without a key take turns, beginning with number `first_turn`.
        """
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._turn = first_turn
        self._routing: Routing | None = None
        self._have_stripes(1)
        self._on_their_way: list[Batch] = []
        self.accepted = 0
        self.messages = 0
        self.size_bytes = 0

    @property
    def stripes(self) -> int:
        """How many batches can be on their way at once."""
        return len(self._stripes)

    @property
    def has_full_batch(self) -> bool:
        """Whether as much waits as one batch can have."""
        return self.messages >= self._batch_messages or self.size_bytes >= self._batch_bytes

    @property
    def unconfirmed(self) -> int:
        """How many messages wait or are on their way."""
        return self.messages + sum(len(batch.messages) for batch in self._on_their_way)

    @property
    def confirmed_below(self) -> int:
        """All messages before this place in the order of `publish` are delivered."""
        first = [_ordinal(stripe.waiting[0]) for stripe in self._stripes if stripe.waiting]
        first += [batch.ordinals[0] for batch in self._on_their_way]
        return min(first, default=self.accepted)

    def put(self, message: Message, size_bytes: int, now: float) -> bool:
        """Accept a message. Returns whether a batch can be taken sooner than without it."""
        if message.key is None:
            number, self._turn = self._turn, self._turn + 1
        else:
            number = hash_of(message.key)
        stripe = self._stripes[0] if len(self._stripes) == 1 else self._stripe(message, number)
        waiting = stripe.waiting
        if not waiting:
            stripe.since = now
        waiting.append((*message, size_bytes, self.accepted, number))
        bytes_before = stripe.size_bytes
        stripe.size_bytes += size_bytes
        self.accepted += 1
        self.messages += 1
        self.size_bytes += size_bytes
        count = len(waiting)
        return (
            count == 1
            or count == self._full_messages
            or bytes_before < self._full_bytes <= stripe.size_bytes
        )

    def arrange(self, routing: Routing | None, stripes: int) -> None:
        """Have so many stripes, by these partitions; one while none are known."""
        stripes = 1 if routing is None else stripes
        same = stripes == len(self._stripes) and (stripes == 1 or routing == self._routing)
        self._routing = routing
        if same:
            return
        waiting = sorted((one for stripe in self._stripes for one in stripe.waiting), key=_ordinal)
        since = min((stripe.since for stripe in self._stripes if stripe.waiting), default=0.0)
        self._have_stripes(stripes)
        for one in waiting:
            stripe = self._stripe(_message(one), _number(one))
            stripe.waiting.append(one)
            stripe.size_bytes += _size_bytes(one)
            stripe.since = since
        for batch in self._on_their_way:
            batch.stripes = set(range(stripes))

    def due_in(self, now: float, linger_seconds: float, urgent_below: int) -> float | None:
        """After how many seconds a batch can be taken; None: not before something changes.

        A stripe waits for `linger_seconds` for more messages than its first, unless it has its
        share of a full batch or a message that came before `urgent_below`.
        """
        due = [self._due_in(stripe, now, linger_seconds, urgent_below) for stripe in self._free()]
        return max(0.0, min(due)) if due else None

    def take(self, now: float, linger_seconds: float, urgent_below: int) -> Batch | None:
        """The next batch, which is on its way from now on; None if none is due (`due_in`)."""
        due = [
            stripe
            for stripe in self._free()
            if self._due_in(stripe, now, linger_seconds, urgent_below) <= 0
        ]
        if not due:
            return None
        fits = self.messages <= self._batch_messages and self.size_bytes <= self._batch_bytes
        if fits and not self._on_their_way:
            chosen = set(range(len(self._stripes)))
        else:
            chosen = {min(due, key=lambda number: self._stripes[number].since)}
        taken = [one for number in chosen for one in self._take_from(self._stripes[number], now)]
        if len(chosen) > 1:
            taken.sort(key=_ordinal)
        batch = Batch(
            [*map(_message, taken)], [*map(_number, taken)], [*map(_ordinal, taken)], chosen
        )
        self._on_their_way.append(batch)
        return batch

    def delivered(self, batch: Batch) -> None:
        """The batch is in the log."""
        self._on_their_way.remove(batch)

    def halve(self, batch: Batch) -> tuple[Batch, Batch]:
        """The messages of a batch that has its sequences, as two on their way, one after the other.

        Both hold its stripes.
        """
        assert batch.first_sequence is not None
        middle = len(batch.messages) // 2
        halves = tuple(
            replace(
                batch,
                messages=batch.messages[some],
                numbers=batch.numbers[some],
                ordinals=batch.ordinals[some],
                first_sequence=batch.first_sequence + begin,
            )
            for begin, some in ((0, slice(middle)), (middle, slice(middle, None)))
        )
        place = self._on_their_way.index(batch)
        self._on_their_way[place : place + 1] = halves
        return halves[0], halves[1]

    def _have_stripes(self, stripes: int) -> None:
        """Empty ones. Each is full when it has its share of a full batch."""
        self._stripes = [_Stripe() for _ in range(stripes)]
        self._full_messages = -(-self._batch_messages // stripes)
        self._full_bytes = -(-self._batch_bytes // stripes)

    def _stripe(self, message: Message, number: int) -> _Stripe:
        if self._routing is None:
            return self._stripes[0]
        return self._stripes[self._routing.partition(message, number) % len(self._stripes)]

    def _free(self) -> list[int]:
        """The stripes in which messages wait, and that no batch holds."""
        held = {number for batch in self._on_their_way for number in batch.stripes}
        return [n for n, stripe in enumerate(self._stripes) if stripe.waiting and n not in held]

    def _due_in(self, number: int, now: float, linger_seconds: float, urgent_below: int) -> float:
        stripe = self._stripes[number]
        is_full = (
            len(stripe.waiting) >= self._full_messages or stripe.size_bytes >= self._full_bytes
        )
        if is_full or _ordinal(stripe.waiting[0]) < urgent_below:
            return 0.0
        return stripe.since + linger_seconds - now

    def _take_from(self, stripe: _Stripe, now: float) -> list[_Waiting]:
        waiting = stripe.waiting
        taken = [waiting.popleft() for _ in range(min(len(waiting), self._batch_messages))]
        size_bytes = sum(map(_size_bytes, taken))
        while size_bytes > self._batch_bytes and len(taken) > 1:
            size_bytes -= _size_bytes(taken[-1])
            waiting.appendleft(taken.pop())
        stripe.size_bytes -= size_bytes
        stripe.since = now
        self.messages -= len(taken)
        self.size_bytes -= size_bytes
        return taken


def _message(one: _Waiting) -> Message:
    return Message._make(one[:4])
