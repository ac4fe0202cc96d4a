"""How long each handoff has, from facts alone (the contract, *One handoff* and *Flow*).

An owner that is told to let go has `max_handoff_time` from then on. It is told by the transaction
that says so, never before; so its time may not run out because the transaction took long. And of
the time in which nobody served every handoff gets back all, however often that was before somebody
could write it down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tests.simulation.violation import Violation

ACCURACY = 1e-4
MOVING = ("warming", "revoking")
# Between a decision and its transaction no more time may pass, else it is decided anew.
LATE_SECONDS = 1.01
# After one that came too late the next may take longer: a database that is always late works too.
PATIENT_SECONDS, PATIENCE_SECONDS = 8.01, 10.0


@dataclass(slots=True)
class _Handoff:
    """`deadlines`: with none, with the first, with the first two... of its outages given back;
    `given`: how many of them the rows have.
    """

    state: str
    since: float
    deadlines: list[float]
    given: int = 0

    def lose(self, began: float, ended: float) -> None:
        """What is over before an outage, or begins after it, loses no time by it."""
        if self.deadlines[-1] > began and self.since < ended:
            self.deadlines.append(self.deadlines[-1] + ended - began)


class Deadlines:
    """The handoffs under way by the number of the partition."""

    def __init__(self) -> None:
        # How often several outages came before one transaction.
        self.several_outages = 0
        # How long all that began may take, one after another; what began at a time counts once.
        self.granted_seconds = 0.0
        self._latest: dict[str, float] = {}
        self._handoffs: dict[int, _Handoff] = {}
        self._outages: list[tuple[float, float]] = []
        self._patient_until = 0.0

    def outage(self, began: float, ended: float) -> None:
        """Nobody served in between."""
        self._outages.append((began, ended))
        for handoff in self._handoffs.values():
            owed = len(handoff.deadlines) - 1 > handoff.given
            handoff.lose(began, ended)
            self.several_outages += owed and handoff.deadlines[-1] > began

    def came_late(self, now: float) -> None:
        """A transaction was refused because it came too late."""
        self._patient_until = now + PATIENCE_SECONDS

    def due(self, number: int) -> float:
        """The deadline with all that is to be given back."""
        handoff = self._handoffs.get(number)
        return handoff.deadlines[-1] if handoff is not None else 0.0

    def follow(self, row: Any, now: float, allowed_seconds: Collection[float]) -> None:
        """The row after a transaction; `allowed_seconds`: how long what begins may take."""
        if row.state not in MOVING:
            self._handoffs.pop(row.number, None)
            return
        known = self._handoffs.get(row.number)
        if known is not None and (known.state, known.since) == (row.state, row.handoff_since):
            self._goes_on(row, known)
        else:
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
        if -late > LATE_SECONDS:
            raise Violation(8, f"p{row.number} is {row.state} {-late:.3f} s from now")
        if row.handoff_since > self._latest.get(row.state, 0.0):
            self._latest[row.state] = row.handoff_since
            self.granted_seconds += took
        handoff = _Handoff(row.state, row.handoff_since, [row.deadline])
        for outage in self._outages:
            handoff.lose(*outage)
        self._handoffs[row.number] = handoff

    def _goes_on(self, row: Any, known: _Handoff) -> None:
        for given in range(known.given, len(known.deadlines)):
            if abs(row.deadline - known.deadlines[given]) <= ACCURACY:
                known.given = given
                return
        moved = row.deadline - known.deadlines[known.given]
        owed = known.deadlines[-1] - known.deadlines[known.given]
        raise Violation(
            8, f"the deadline of p{row.number} moved by {moved:.3f} s, but outages took {owed:.3f}"
        )
