"""The watchdog: a stuck consumer loses its lease, and one that has paused begins no stale work.

Two things can stop a consumer without ending it:

- **A message takes longer than `max_processing_seconds`**: a lock, a call without a time limit, an
  endless loop. The flow's own thread would renew the lease for ever, and these partitions would
  make no progress. So the watchdog stops renewing (`may_renew`), and no message is begun. Within
  the lease all partitions of this consumer go to others.
- **The whole process stands still** for longer than the lease: it was stopped or swapped out, or
  the machine slept. Meanwhile it renewed nothing and was told nothing.

In both cases another consumer may own the partitions when this one continues. Its work would be
fenced at the commit, but the messages would have been handled. So it begins no message (`may_work`)
while its flow is in doubt (`Flow.in_doubt`): until a call that renewed the lease has been sent
after that, whose answer is current. The worker itself asks, before each message: the threads that
look regularly wait for timers, and a machine that wakes up may run the worker first. An unavailable
service does not have this effect: a consumer that is only cut off continues.

A stuck worker cannot be ended from outside. If its message is done in the end, it does not count,
because the grant is over. Times are of `lease_time` and are arguments.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(eq=False)
class Activity:
    """The message that a worker handles. Only that worker writes it; the watchdog reads it.

    Or messages that wait for an event loop, since it was last called in vain; then `place` is None.
    """

    thread_id: int = 0
    # When the present message (or batch) was begun; 0.0: there is none.
    since: float = 0.0
    place: tuple[int, int, str] | None = None
    # What handles it, if that is a coroutine.
    coroutine: Any = None

    def report(self, now: float) -> str:
        """A report for people: the stuck message, its duration, and the place in the program."""
        stack = traceback.StackSummary.extract(self._frames())
        where = "".join(stack.format()).rstrip() or "  not known"
        if self.place is None:
            stuck = "messages have waited for the event loop"
        else:
            partition, epoch, position = self.place
            stuck = f"partition {partition} epoch {epoch} position {position} has been handled"
        return (
            f"{stuck} for {now - self.since:.1f} s: the lease is not renewed any more, and others "
            f"take over. The program is at:\n{where}"
        )

    def _frames(self) -> Iterator[tuple[FrameType, int]]:
        """Where the program is: in a coroutine that waits, else in the thread."""
        waits = self.coroutine
        if getattr(waits, "cr_frame", None) is not None and not waits.cr_running:
            while (frame := getattr(waits, "cr_frame", None)) is not None:
                yield frame, frame.f_lineno
                waits = waits.cr_await
        elif (frame := sys._current_frames().get(self.thread_id)) is not None:
            yield from reversed([*traceback.walk_stack(frame)])


class Watchdog:
    """One thread calls `look` a few times a second."""

    def __init__(self, in_doubt: Callable[[], bool], max_processing_seconds: float | None) -> None:
        """`in_doubt`: whether others may own the partitions of the flow's view."""
        self._in_doubt = in_doubt
        self._max_processing_seconds = max_processing_seconds
        self._stuck: Activity | None = None
        self.activities: list[Activity] = []
        self.stuck_count = 0

    def activity(self) -> Activity:
        """The activity of a new worker."""
        activity = Activity()
        self.activities.append(activity)
        return activity

    def stuck_at(self, now: float) -> Activity | None:
        """The activity of a worker that has handled one message for too long, if any."""
        return next(
            (activity for activity in self.activities if self._is_stuck(activity, now)), None
        )

    def _is_stuck(self, activity: Activity, now: float) -> bool:
        since, longest = activity.since, self._max_processing_seconds
        return longest is not None and since > 0 and now - since > longest

    def may_renew(self, now: float) -> bool:
        """Whether the lease may be renewed."""
        return self.stuck_at(now) is None

    def may_work(self) -> bool:
        """Whether a message may be begun."""
        return self._stuck is None and not self._in_doubt()

    def look(self, now: float) -> Activity | None:
        """Check all workers. Returns the activity that is newly stuck, if any."""
        stuck, before = self.stuck_at(now), self._stuck
        self._stuck = stuck
        self.stuck_count = sum(self._is_stuck(activity, now) for activity in self.activities)
        return stuck if before is None else None

    @property
    def doubtful(self) -> bool:
        """Whether the service must confirm which partitions are still owned."""
        return self._stuck is None and self._in_doubt()

    @property
    def stuck(self) -> bool:
        """Whether a worker was stuck at the last `look`."""
        return self._stuck is not None
