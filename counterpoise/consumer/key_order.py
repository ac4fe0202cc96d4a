"""Key order: which message of a partition may begin while others of it are in work.

    Consumer("flights", each=handle, order="key", concurrency=64)

A *window* has the messages of one lane that were read and are not done. The theory for users is in
docs/consumer.md, *Keys in parallel*.

1. **A key has one message that may begin.** It is the lowest of its key that is not done: ready, in
   hand, paused after a failure, or in quarantine. The others of the key stand behind it. A message
   without a key has no other.
2. **The lowest first.** Of those that are ready, the lowest begins. So the position moves on, and
   few ranges are left above it.
3. **The window is tiled.** A message stands for all positions from the end of the one before up to
   its own end, so holes between positions belong to it. What is done is therefore a set of ranges
   (`DoneAbove`), and the position is where the first of them ends that begins at it.
4. **While there are as many ranges as allowed, only the lowest message may begin.** To finish it
   adds no range. It is the first of its key by rule 1, so it can begin, and the bound ends nothing
   for ever.
5. **What failed stays.** It waits for its next attempt (after a pause, or a delay of `Retry`), and
   only its key waits with it. The position stays before it, so nothing is stored elsewhere. The
   count of its attempts is this owner's: it begins anew with the next one, and after a drop.
6. **What is dropped is read again from the position on**, once nothing is in hand. What is done
   above is left out then, as it is by the next owner.

Lanes guard it by their lock. Positions are whole numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from counterpoise.consumer.message import Failure, Message
from counterpoise.flow.done_above import DoneAbove
from counterpoise.logs import LogError
from counterpoise.logs.numbered import position_number

# Beyond the positions of every log.
TOO_LARGE = 2**63


@dataclass(eq=False, slots=True)
class Keyed:
    """A message of a window. It stands for the positions from `begin` up to `end`."""

    message: Message
    begin: int
    end: int
    size_bytes: int
    failure: Failure | None = None
    in_hand: bool = False
    quarantined: bool = False


def whole_number(position: str) -> int:
    """The position as a number. Raises LogError for one of a log that has others."""
    number = position_number(position, TOO_LARGE)
    if number is None:
        raise LogError(
            f'order="key" needs positions that are whole numbers, and this log has {position!r}: '
            'consume it with order="partition"'
        )
    return number


class KeyWindow:
    """The messages of a lane that are not done. See the module's docstring."""

    def __init__(self, above: DoneAbove) -> None:
        """`above`: what was done when the lane began, and is from now on."""
        self.above = above
        # Of the lowest message that is not done; None before the first read.
        self.position: int | None = None
        self.quarantined: list[Keyed] = []
        # Of each key that has one, the messages behind the one that may begin.
        self._behind: dict[str, deque[Keyed]] = {}
        # Heaps, with positions because messages do not compare.
        self._ready: list[tuple[int, Keyed]] = []
        self._paused: list[tuple[float, int, Keyed]] = []

    def add(
        self, start: str, messages: Iterable[tuple[Message, int]], read_to: str
    ) -> Sequence[Keyed]:
        """Add the messages of [start, read_to), each with its size in bytes. Returns those that are
        to be handled.
        """
        given = list(messages)
        begin, last = whole_number(start), whole_number(read_to)
        if self.position is None:
            self.position = begin
        ends = [int(message.position) for message, _ in given[1:]] + [last]
        added: list[Keyed] = []
        if not given:
            self.above.add(begin, last)
        for (message, size_bytes), end in zip(given, ends, strict=False):
            at = int(message.position)
            if at < self.position or self.above.covers(at):
                self.above.add(begin, end)
            else:
                added.append(one := Keyed(message, begin, end, size_bytes))
                self._line_up(one)
            begin = end
        self.position = self.above.take(self.position)
        return added

    def _line_up(self, one: Keyed) -> None:
        key = one.message.key
        if key is None:
            self._make_ready(one)
        elif (behind := self._behind.get(key)) is not None:
            behind.append(one)
        else:
            self._behind[key] = deque()
            self._make_ready(one)

    def _make_ready(self, one: Keyed) -> None:
        heappush(self._ready, (one.begin, one))

    @property
    def set_aside(self) -> int:
        """How many messages wait to be tried again, or behind such a one of their key."""
        # Any thread may ask.
        return self._with_those_behind([one for _, _, one in self._paused])

    @property
    def stopped(self) -> int:
        """How many messages wait in quarantine, or behind such a one of their key."""
        return self._with_those_behind([one for one in self.quarantined if not one.in_hand])

    def _with_those_behind(self, ones: Sequence[Keyed]) -> int:
        keys = [one.message.key for one in ones]
        return len(keys) + sum(len(self._behind.get(key, ())) for key in keys if key is not None)

    def may_begin(self, most_ranges: int) -> bool:
        """Whether a message may begin while at most so many ranges are wanted (rule 4)."""
        if not self._ready:
            return False
        return len(self.above) < most_ranges or self._ready[0][0] == self.position

    def take(self) -> Keyed:
        """The lowest message that is ready. It is in hand then."""
        _, one = heappop(self._ready)
        one.in_hand = True
        return one

    def done(self, begin: int, end: int) -> int:
        """These positions are done, also if the window was cleared since. Returns the position."""
        assert self.position is not None, "nothing was read"
        self.above.add(begin, end)
        self.position = self.above.take(self.position)
        return self.position

    def finish(self, one: Keyed) -> None:
        """The message is done: the next of its key is ready."""
        key = one.message.key
        if key is None:
            return
        if behind := self._behind[key]:
            self._make_ready(behind.popleft())
        else:
            del self._behind[key]

    def give_back(self, one: Keyed, not_before: float) -> None:
        """The message is not done; it is ready again at `not_before` (`lease_time`), 0.0: now."""
        one.in_hand = False
        if one.quarantined:
            return
        if not_before:
            heappush(self._paused, (not_before, one.begin, one))
        else:
            self._make_ready(one)

    def quarantine(self, one: Keyed) -> None:
        """Begin no message of its key any more. It is in hand."""
        one.quarantined = True
        self.quarantined.append(one)

    def resume(self) -> bool:
        """Try the keys in quarantine again; False without any."""
        resumed, self.quarantined = self.quarantined, []
        for one in resumed:
            one.quarantined, one.failure = False, None
            if not one.in_hand:
                self._make_ready(one)
        return bool(resumed)

    def call_due(self, now: float) -> float | None:
        """Messages whose pause is over are ready. Returns when the next pause ends."""
        while self._paused and self._paused[0][0] <= now:
            self._make_ready(heappop(self._paused)[2])
        return self._paused[0][0] if self._paused else None

    def clear(self) -> None:
        """Drop all messages. Those in hand may still be `done`."""
        self._behind.clear()
        self._ready.clear()
        self._paused.clear()
        self.quarantined.clear()
