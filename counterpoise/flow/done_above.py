"""What is done of a partition above its position, as ranges of positions.

An owner that handles different keys at once finishes messages out of their order. Its position is
that of the lowest message that is not done, and the ranges above say what is done already (the
contract, *Work above the position*). A range [begin, end) is the messages of these positions;
positions may have holes, so a message stands for all from its position up to the next message.

Ranges are apart and in order: two that meet become one. So there are at most as many as messages
that are not done below the highest one that is.

The text is short because of distances, and true whatever the position is: it begins with a
position, so one that is older than the position names some that are below it, and no other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from counterpoise.wire import MOST_DONE_ABOVE


class DoneAbove:
    """Ranges of positions. Not thread-safe."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    @classmethod
    def of_text(cls, text: str | None) -> DoneAbove:
        """As `text` made it; None: nothing. Raises ValueError for another text."""
        found = cls()
        at = 0
        for item in () if text is None else text.split(","):
            distance, plus, length = item.partition("+")
            if not (plus and distance.isdecimal() and length.isdecimal() and int(length)):
                raise ValueError(f"{text!r} does not say what is done above a position")
            begin = at + int(distance)
            at = begin + int(length)
            found.add(begin, at)
        return found

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._begins)

    @property
    def end(self) -> int:
        """Where the last range ends; 0 without any."""
        return self._ends[-1] if self._ends else 0

    def add(self, begin: int, end: int) -> None:
        """[begin, end) is done, too."""
        if begin >= end:
            return
        # Those that it meets become one with it.
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def take(self, position: int) -> int:
        """The lowest position from `position` on that is not done. Forgets what is below it."""
        passed = bisect_right(self._begins, position)
        if passed:
            position = max(position, self._ends[passed - 1])
            del self._begins[:passed], self._ends[:passed]
        return position

    def forget(self, position: str) -> None:
        """Forget the ranges below the position."""
        passed = bisect_right(self._ends, int(position))
        del self._begins[:passed], self._ends[:passed]

    def covers(self, position: int) -> bool:
        """Whether the message at this position is done."""
        before = bisect_right(self._begins, position)
        return before > 0 and position < self._ends[before - 1]

    def count(self, position: int) -> int:
        """The most messages from `position` on that are done."""
        ranges = zip(self._begins, self._ends, strict=True)
        return sum(end - max(begin, position) for begin, end in ranges if end > position)

    def text(self, position: str | None, most: int = MOST_DONE_ABOVE) -> str | None:
        """The ranges above `position` in at most `most` characters, the lowest first; None: there
        are none. Ranges for which there is no room are left out: they are done again after a crash.
        """
        items: list[str] = []
        at, above, room = 0, int(position or 0), most + 1
        for begin, end in zip(self._begins, self._ends, strict=True):
            if end <= above:
                continue
            item = f"{begin - at}+{end - begin}"
            room -= len(item) + 1
            if room < 0:
                break
            items.append(item)
            at = end
        return ",".join(items) or None
