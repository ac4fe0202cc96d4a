"""Windows of event time, and when they are closed. Pure; docs, *Aggregates*.

Each partition of the queue has a *clock*: the largest event time of its rows so far, by position.
Its *bound* is that time less the delay that the user allows. A row is *late* for a window that ends
at or before the bound of its own partition. So whether a row is late depends on the rows before it
in its partition, and on nothing else: not on micro-batches, owners, handoffs or other partitions.

One wrong time must not end an aggregate. So a row whose time is too far ahead of the database's
clock counts in its window, but does not move the clock. This alone depends on when the row was
written. It does no harm: the row, its effect on the clock and the fence are one transaction, so a
repetition finds either the outcome or no trace of it. And a clock that moves less closes less.

The *low watermark* is the lowest bound of all partitions of the queue. Windows that end at or
before it are closed. Rows of no partition can come to them any more, because each of those rows
would be late. So a partition without rows, or one that lags, holds all windows open.

A partition that has been still for longer than the user's limit does not hold them any longer: it
is *passed*. Then its own bound is raised to the low watermark (the *floor* of its clock), in the
same transaction, so the rule above stays true. A partition that has ended is passed likewise.

The one invariant: the low watermark is at most the bound of every partition, and never falls.
Therefore a window is closed once, and no partial is added to a closed one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

MICROSECONDS = 1_000_000
FOREVER = (1 << 63) - 1
"""The end of the one window of rows that are not divided by time."""
AHEAD_SECONDS = 3600.0
CALENDAR = range(-62_135_596_800 * MICROSECONDS, 253_402_300_800 * MICROSECONDS)
"""The times from the year 1 to 9999, which Python and PostgreSQL have."""


def ahead_of(seconds: float | None) -> int:
    """The setting `ahead_seconds` in microseconds. Raises ValueError."""
    if seconds is not None and not seconds >= 0:
        raise ValueError("ahead_seconds is at least 0, or None: without limit")
    return FOREVER if seconds is None or seconds == math.inf else round(seconds * MICROSECONDS)


@dataclass(frozen=True)
class Windows:
    """Windows over the column `time`, each `size_seconds` long, one beginning every `slide_seconds`
    (default: as long as they are), counted from 1970 in UTC.

    `delay_seconds`: how much later than its successors a row of a partition may come.
    `ahead_seconds`: a row whose time is further ahead (docs, *Aggregates* and *Processors*: of
    what) does not close windows; None: without limit.
    """

    time: str
    size_seconds: float
    slide_seconds: float | None = None
    delay_seconds: float = 0.0
    ahead_seconds: float | None = AHEAD_SECONDS
    size: int = field(init=False, repr=False)
    slide: int = field(init=False, repr=False)
    delay: int = field(init=False, repr=False)
    ahead: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        slide = self.size_seconds if self.slide_seconds is None else self.slide_seconds
        if not (0 < slide <= self.size_seconds and self.delay_seconds >= 0):
            raise ValueError(
                "windows need 0 < slide_seconds <= size_seconds and delay_seconds >= 0"
            )
        for name, seconds in (
            ("size", self.size_seconds),
            ("slide", slide),
            ("delay", self.delay_seconds),
        ):
            object.__setattr__(self, name, round(seconds * MICROSECONDS))
        object.__setattr__(self, "ahead", ahead_of(self.ahead_seconds))

    def have(self, time: int) -> bool:
        """Whether the calendar has the bounds of all windows with this time."""
        return time - self.size in CALENDAR and time + self.size in CALENDAR

    def of(self, time: int) -> Iterator[tuple[int, int]]:
        """The windows [start, end) that contain this time, the latest first. Microseconds."""
        start = time // self.slide * self.slide
        while start + self.size > time:
            yield start, start + self.size
            start -= self.slide


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a partition; times in microseconds.

    `latest`: None before its first row. `floor`: None until it was passed. `still`: it has been
    still for longer than the user's limit, or has ended.
    """

    partition: int
    latest: int | None = None
    floor: int | None = None
    still: bool = False

    def bound(self, delay: int) -> int | None:
        """Windows that end at or before it get no more rows of this partition; None: all may."""
        if self.latest is None:
            return self.floor
        reached = self.latest - delay
        return reached if self.floor is None else max(reached, self.floor)


@dataclass(frozen=True, slots=True)
class Assigned:
    """Rows by index with a window of theirs: `(index, start, end)`. `latest`: of the clock after.

    `untimed`: the number of rows without a time (of the calendar), which belong to no window.
    """

    kept: Sequence[tuple[int, int, int]]
    late: Sequence[tuple[int, int, int]]
    latest: int | None
    untimed: int


def assign(times: Iterable[int | None], windows: Windows, clock: Clock, now: int) -> Assigned:
    """The windows of the rows of one partition, in the order of their positions.

    `now`: the present in microseconds; rows too far ahead of it do not move the clock.
    """
    kept: list[tuple[int, int, int]] = []
    late: list[tuple[int, int, int]] = []
    latest, untimed = clock.latest, 0
    bound = clock.bound(windows.delay)
    for index, time in enumerate(times):
        if time is None or not windows.have(time):
            untimed += 1
            continue
        if (latest is None or time > latest) and time <= now + windows.ahead:
            latest = time
            bound = Clock(clock.partition, latest, clock.floor).bound(windows.delay)
        for start, end in windows.of(time):
            (kept if bound is None or end > bound else late).append((index, start, end))
    return Assigned(kept, late, latest, untimed)


@dataclass(frozen=True, slots=True)
class LowWatermark:
    """The low watermark (None: nothing is closed yet), and the partitions to pass for it."""

    low: int | None
    passed: frozenset[int] = frozenset()


def advance(clocks: Sequence[Clock], delay: int, before: int | None = None) -> LowWatermark:
    """The low watermark of these clocks, at least `before`.

    If all partitions are still, it is the highest of their bounds.
    """
    bounds = {clock.partition: clock.bound(delay) for clock in clocks}
    holding = [bounds[clock.partition] for clock in clocks if not clock.still]
    known = [bound for bound in (holding or bounds.values()) if bound is not None]
    if not known or (holding and len(known) < len(holding)):
        return LowWatermark(before)
    low = min(known) if holding else max(known)
    if before is not None and low <= before:
        return LowWatermark(before)
    behind = (one.partition for one in clocks if one.still and _below(bounds[one.partition], low))
    return LowWatermark(low, frozenset(behind))


def _below(bound: int | None, low: int) -> bool:
    return bound is None or bound < low
