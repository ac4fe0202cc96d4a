"""How long each handoff may take, from facts alone (the contract, *One handoff* and *Flow*).

After a revoke the owner has `max_handoff_time`. The transaction of the revoke tells it, never
anything earlier; so the owner must not lose time because that transaction took long. And every
handoff gets back the time in which no replica served, however often that happened before a replica
could write it down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tests.judge.violation import Violation

ACCURACY = 1e-4
MOVING = ("warming", "revoking")
# The longest time between a decision and its transaction; after more time it is decided again.
LATE_SECONDS = 1.01
# How far a replica's time may be ahead of the database's, on a slow way to it.
AHEAD_SECONDS = 1.5
# After a transaction that came too late, the next one may take longer: so a slow database works
# too.
PATIENT_SECONDS, PATIENCE_SECONDS = 8.01, 10.0
# A step of the clock below the first goes unnoticed. A replica that has not looked since may use
# the time before a step for so long (the second).
SMALL_STEP_SECONDS, UNNOTICED_SECONDS = 3.01, 5.0


@dataclass(slots=True)
class _Handoff:
    """The expected and the stored times of one handoff.

    `times`: begin and deadline, with none, the first, the first two... of its outages given back.
    `given`: how many of these outages the rows include.
    """

    state: str
    times: list[tuple[float, float]]
    given: int = 0

    @property
    def deadline(self) -> float:
        """The deadline with all outages given back."""
        return self.times[-1][1]

    def lose(self, began: float, ended: float) -> None:
        """An outage costs a handoff no time if the handoff ended before it or began after it."""
        since, deadline = self.times[-1]
        if deadline > began and since < ended:
            self.times.append((since, deadline + ended - began))

    def go_back(self, seconds: float) -> None:
        """The clock went back (`seconds` are negative), and both times of the handoff with it."""
        since, deadline = self.times[-1]
        self.times.append((since + seconds, deadline + seconds))

    def place(self, row: Any) -> int | None:
        """How many outages the row includes; None: it is another handoff, or it is wrong in another
        way.
        """
        for given in range(self.given, len(self.times)):
            since, deadline = self.times[given]
            if (
                abs(row.deadline - deadline) <= ACCURACY
                and abs(row.handoff_since - since) <= ACCURACY
            ):
                return given
        return None


class Deadlines:
    """The handoffs under way, by partition number."""

    def __init__(self) -> None:
        # How often there were several outages before one transaction.
        self.several_outages = 0
        # How long all handoffs so far may take one after another; those that began together count
        # once.
        self.granted_seconds = 0.0
        self._latest: dict[str, float] = {}
        self._handoffs: dict[int, _Handoff] = {}
        self._outages: list[tuple[float, float]] = []
        self._patient_until = self._set_until = 0.0
        self._ahead_seconds = 0.0

    def clock_set(self, seconds: float, now: float) -> None:
        """The clock was set. Until replicas look again, they may decide by the time as it was."""
        self._patient_until += seconds
        self._latest = {state: since + seconds for state, since in self._latest.items()}
        if -SMALL_STEP_SECONDS < seconds < 0:
            # No replica will notice, and what begins by the new clock seems to be from before them.
            self._outages = [(began + seconds, ended + seconds) for began, ended in self._outages]
        ahead = self._ahead_seconds if now - seconds < self._set_until else 0.0
        self._ahead_seconds = max(0.0, ahead - seconds, -seconds)
        self._set_until = now + UNNOTICED_SECONDS

    def decided(self, now: float) -> float:
        """The latest time that the decision of a transaction of now may have used.

        If the clock has just gone back, that is the time before the step.
        """
        return now + self._ahead_seconds if now < self._set_until else now

    def outage(self, began: float, ended: float) -> None:
        """No replica served in between; if `ended` is before `began`, the clock went back."""
        if ended < began:
            # Times before the step are those of another clock.
            self._outages = [(began, ended)]
            for handoff in self._handoffs.values():
                handoff.go_back(ended - began)
            return
        self._outages.append((began, ended))
        for handoff in self._handoffs.values():
            owed = len(handoff.times) - 1 > handoff.given
            handoff.lose(began, ended)
            self.several_outages += owed and handoff.deadline > began

    def came_late(self, now: float) -> None:
        """A transaction was refused because it came too late."""
        self._patient_until = now + PATIENCE_SECONDS

    def due(self, number: int) -> float:
        """The deadline with all outages given back."""
        handoff = self._handoffs.get(number)
        return handoff.deadline if handoff is not None else 0.0

    def follow(self, row: Any, now: float, allowed_seconds: Collection[float]) -> None:
        """The row after a transaction; `allowed_seconds`: the possible durations of a handoff that
        begins.
        """
        if row.state not in MOVING:
            self._handoffs.pop(row.number, None)
            return
        known = self._handoffs.get(row.number)
        if known is not None and known.state == row.state and _goes_on(row, known):
            return
        self._begins(row, now, allowed_seconds)

    def _begins(self, row: Any, now: float, allowed_seconds: Collection[float]) -> None:
        took = row.deadline - row.handoff_since
        if all(abs(took - seconds) > ACCURACY for seconds in allowed_seconds):
            raise Violation(8, f"p{row.number} may be {row.state} for {took:.3f} s")
        late = now - row.handoff_since
        most = PATIENT_SECONDS if now < self._patient_until else LATE_SECONDS
        if row.state == "revoking" and late > most:
            text = f"{row.owner} is told to let go of p{row.number} {late:.3f} s after its time"
            raise Violation(8, f"{text} began to run")
        handoff = _Handoff(row.state, [(row.handoff_since, row.deadline)])
        for began, ended in self._outages:
            if ended >= began:
                handoff.lose(began, ended)
            elif -late > UNNOTICED_SECONDS and row.handoff_since > began - AHEAD_SECONDS:
                # It was decided by the time before this step. (Below `began`, it was by the time
                # after it, before another one.)
                handoff.go_back(ended - began)
        ahead = handoff.times[-1][0] - now
        # A warm-up may be decided by a time from before a step. A revoke must not be.
        passes = now < self._set_until and (row.state == "warming" or ahead < SMALL_STEP_SECONDS)
        if ahead > AHEAD_SECONDS and not passes:
            raise Violation(8, f"p{row.number} is {row.state} {ahead:.3f} s from now")
        if row.handoff_since > self._latest.get(row.state, 0.0):
            self._latest[row.state] = row.handoff_since
            self.granted_seconds += took
        self._handoffs[row.number] = handoff


def _goes_on(row: Any, known: _Handoff) -> bool:
    """Whether the row is still of the same handoff."""
    given = known.place(row)
    if given is not None:
        known.given = given
        return True
    since, deadline = known.times[known.given]
    if abs(row.handoff_since - since) > ACCURACY:
        return False
    owed = known.deadline - deadline
    raise Violation(
        8,
        f"the deadline of p{row.number} moved by {row.deadline - deadline:.3f} s, "
        f"but outages took {owed:.3f}",
    )
