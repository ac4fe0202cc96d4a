"""Pauses: what an administrator holds still (docs, *Placement*).

A pause holds for one partition or for the whole queue. It begins at once and ends when it is
resumed, or by itself at `until`. The rules:

- **A pause changes nothing of placement.** A paused partition has an owner as usual, counts as
  usual and is handed off as usual. So nothing here reads or writes the balance, no pause is a
  trigger, and no handoff waits for one.
- **Two pauses do not know each other.** A partition is paused while its own pause holds or that of
  the queue. Resuming one leaves the other. Views show the one that ends last.
- **A pause is the partition's, not its owner's.** It is stored with the queue. So it holds over
  handoffs, failures, replaced flows, restarts and restores, until somebody ends it.
- **It ends with its partition.** A number that is used again begins without a pause. The children
  of a partition that is finished while it is paused inherit the pause, because they have its keys.
  Before that they wait for their parent anyway, so resuming the parent is enough.
- **`until` is a time of the database's clock**, as the administrator gave it. No outage moves it.

Pausing again replaces `until` and `reason`; `since` stays. Both calls may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple


class Pause(NamedTuple):
    """Since when, until when (None: until it is resumed) and why. Times are Unix seconds."""

    since: float
    until: float | None = None
    reason: str | None = None

    @property
    def end(self) -> float:
        return inf if self.until is None else self.until


def last(pauses: Iterable[Pause | None]) -> Pause | None:
    """The pause that ends last, the first of several; None without any."""
    return max((one for one in pauses if one is not None), key=lambda one: one.end, default=None)


class QueuePauses:
    """The pauses of one queue. Only `replay` changes them.

    `of`: by partition; None is the key of the whole queue's own.
    """

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int | None, Pause] = {}

    def __bool__(self) -> bool:
        return bool(self.of)

    @property
    def whole(self) -> Pause | None:
        """The queue's own pause."""
        return self.of.get(None)

    @property
    def numbers(self) -> list[int]:
        """The partitions that have a pause of their own, lowest first."""
        return sorted(number for number in self.of if number is not None)

    def holding(self, number: int) -> Pause | None:
        """The pause that holds for this partition, of two the one that ends last; None: it is not
        paused."""
        return last((self.of.get(number), self.whole)) if self.of else None

    def next_end(self) -> float | None:
        """When the next pause ends by itself."""
        return min((one.until for one in self.of.values() if one.until is not None), default=None)

    def due(self, now: float) -> tuple[list[int], bool]:
        """What has to end now: the partitions with pauses of their own, and whether the queue's."""
        over = {key for key, one in self.of.items() if one.end <= now}
        return [number for number in self.numbers if number in over], None in over
