"""The watchdog: who is stuck does not keep its lease, and who stood still begins nothing stale.

Two things can stop a consumer without ending it:

- **A message that is not done** in `max_processing_seconds`: a lock, a call without a time limit,
  an endless loop. The flow's own thread would renew the lease for ever, and nobody would work on
  those partitions. So the watchdog says *do not renew* (`may_renew`), and no message is begun.
  Within the lease the partitions, all of this consumer's, go to others.
- **The whole process stands still** (stopped, swapped out, its machine suspended) for longer than
  the lease. It renewed nothing and was told nothing meanwhile.

In both cases, when the consumer can go on, what it believes to own may be somebody else's. It would
be fenced at the commit, but it would have been handled. So it begins no message (`may_work`)
until a call that renewed the lease has been *sent after* that moment: its answer tells the truth.
A service that is away does not have this effect: who is merely cut off goes on.

A worker that is stuck cannot be ended from outside. When its message is done after all, that is
not counted: the grant is over. Times are by the monotonic clock and arguments.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass


@dataclass(eq=False)
class Hand:
    """What one worker is doing. Only that worker writes; the watchdog reads."""

    thread_id: int = 0
    # When the message (or batch) in hand was begun, 0.0 while there is none.
    since: float = 0.0
    place: tuple[int, int, str] | None = None

    def report(self, now: float) -> str:
        """For people: who is stuck, for how long, and where in the program."""
        frame = sys._current_frames().get(self.thread_id)
        where = "".join(traceback.format_stack(frame)) if frame is not None else "  not known"
        partition, epoch, position = self.place or ("?", "?", "?")
        return (
            f"partition {partition} epoch {epoch} position {position} has been handled for "
            f"{now - self.since:.1f} s: the lease is not renewed any more, and others take over. "
            f"The program stands at:\n{where.rstrip()}"
        )


class Watchdog:
    """Looked after by one thread that calls `look` a few times a second."""

    def __init__(
        self, lease_seconds: float, max_processing_seconds: float | None, now: float
    ) -> None:
        self._lease_seconds = lease_seconds
        self._max_processing_seconds = max_processing_seconds
        self._looked_at = now
        # What is known of the partitions must be told again, by a call sent after this time.
        self._doubts_since: float | None = None
        self._stuck: Hand | None = None
        self.hands: list[Hand] = []
        self.stuck_hands = 0

    def hand(self) -> Hand:
        """A new worker's."""
        hand = Hand()
        self.hands.append(hand)
        return hand

    def stuck_at(self, now: float) -> Hand | None:
        """The hand that has been at one message for too long, if any."""
        return next((hand for hand in self.hands if self._is_stuck(hand, now)), None)

    def _is_stuck(self, hand: Hand, now: float) -> bool:
        since, longest = hand.since, self._max_processing_seconds
        return longest is not None and since > 0 and now - since > longest

    def stood_still(self, now: float) -> bool:
        """Whether nobody has looked for longer than the lease: this process did not run."""
        return now - self._looked_at > self._lease_seconds

    def may_renew(self, now: float) -> bool:
        """Whether the lease may be renewed."""
        return self.stuck_at(now) is None

    def may_work(self, now: float) -> bool:
        """Whether a message may be begun."""
        return self._doubts_since is None and not self.stood_still(now)

    def look(self, now: float, renewed_at: float | None) -> Hand | None:
        """Find out what has happened; returns the hand that is newly stuck.

        `renewed_at`: when the latest call that renewed the lease was sent.
        """
        if self.stood_still(now):
            self._doubts_since = now
        self._looked_at = now
        stuck, before = self.stuck_at(now), self._stuck
        self._stuck = stuck
        self.stuck_hands = sum(self._is_stuck(hand, now) for hand in self.hands)
        if stuck is not None or before is not None:
            self._doubts_since = now
        elif renewed_at is not None and renewed_at > (self._doubts_since or now):
            self._doubts_since = None
        return stuck if before is None else None

    @property
    def doubtful(self) -> bool:
        """Whether the service has to be asked what is still ours."""
        return self._doubts_since is not None and self._stuck is None

    @property
    def stuck(self) -> bool:
        """Whether a hand was stuck when it was last looked at."""
        return self._stuck is not None
