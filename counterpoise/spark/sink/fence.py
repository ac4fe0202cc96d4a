"""The fence: how a range may change a partition's high-water. Pure; docs, *The fenced sink*.

The one invariant: everything before `next` is written once, and nothing at or after it. Nothing can
overtake a decision made here between reading the high-water and the commit: a database holds the
row's lock meanwhile, and a lake refuses the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterpoise.logs import InvalidPosition
from counterpoise.spark.errors import SinkGap
from counterpoise.spark.offsets import Slice

Outcome = Literal["written", "repeated", "superseded"]
OnGap = Literal["fail", "accept"]

_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HighWaterKey:
    """Names the high-waters of one sink, queue and log; the partition completes the key."""

    sink: str
    queue_id: str
    log: str
    queue: str


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest epoch that wrote, and the position before which everything is written.

    `next` None: the first range is accepted as it is (nothing was written, or it was forgotten).
    """

    epoch: int
    next: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a range: write its rows from `begin` on, and store `after`.

    `begin` None: write nothing. `after` None: the high-water stays. `gap`: [from, to) was never
    written here and was accepted.
    """

    outcome: Outcome
    begin: str | None
    after: HighWater | None
    gap: tuple[str, str] | None = None


def judge(before: HighWater | None, one: Slice, on_gap: OnGap = "fail") -> Verdict:
    """What the range `one` may do when the high-water is `before`.

    Raises SinkGap if a gap is not accepted; InvalidPosition.
    """
    if before is None or before.next is None:
        if before is not None and one.epoch < before.epoch:
            return Verdict("superseded", None, None)
        return Verdict("written", one.start, HighWater(one.epoch, one.end))
    if one.epoch < before.epoch:
        return Verdict("superseded", None, None)
    if number(one.end) <= number(before.next):
        raised = HighWater(one.epoch, before.next)
        return Verdict("repeated", None, None if raised == before else raised)
    after = HighWater(one.epoch, one.end)
    if number(one.start) <= number(before.next):
        return Verdict("written", before.next, after)
    if on_gap == "fail":
        raise SinkGap(
            f"partition {one.partition}: positions {before.next} to {one.start} have never been "
            f"written by this sink, and epoch {one.epoch} goes on from {one.start}. Another "
            "consumer has processed them without it (or under another name of the sink), the "
            "queue's positions were set forward, or messages were trimmed unread. To go on "
            "without them, give the sink on_gap='accept', or use its forget()"
        )
    return Verdict("written", one.start, after, (before.next, one.start))


def number(position: str) -> int:
    """A position as a number of 64 bits; positions of all logs are. Raises InvalidPosition."""
    if not (position.isascii() and position.isdecimal()) or int(position) > _MOST:
        raise InvalidPosition(f"{position[:100]!r} is not a position: a decimal number is needed")
    return int(position)
