"""The result of a campaign: how often each fault occurred, and which promises held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.stage import LEASE_SECONDS
from tests.judge.judge import Verdict

# A run of this length must play each kind of fault.
COMPLETE_SECONDS = 300.0


class Done(NamedTuple):
    """How often something was done, and how often of these while all replicas were up."""

    times: int = 0
    all_up: int = 0


class Loss(NamedTuple):
    """How long after their end killed consumers were seen to have partitions, and whether the
    machine was overloaded meanwhile.
    """

    seconds: float
    overloaded: bool


@dataclass
class Result:
    """What was done, which promises held, and how soon killed consumers lost their partitions."""

    seconds: float
    verdict: Verdict = field(default_factory=Verdict)
    faults: dict[str, Done] = field(default_factory=dict)
    lost_after: list[Loss] = field(default_factory=list)

    def faults_table(self) -> str:
        """A row for each kind."""
        rows = [
            f"{each.times:>5}  {each.all_up:>8}  {name}"
            for name, each in sorted(self.faults.items())
        ]
        return "\n".join(["times   both up  what (both up: while no replica was dead)", *rows])

    def table(self) -> str:
        """The promises."""
        slowest = max((each.seconds for each in self.lost_after), default=0.0)
        overloaded = sum(each.overloaded for each in self.lost_after)
        return (
            f"{self.verdict.table()}\n\n"
            f"killed consumers lost their partitions within {slowest:.2f} s at most"
            f" (lease {LEASE_SECONDS:g} s, killed {len(self.lost_after)} times,"
            f" {overloaded} of these on an overloaded machine)"
        )

    def complaints(self) -> list[str]:
        """The reasons why the run does not pass; none: it passes."""
        found = []
        if not self.verdict.kept:
            found.append(f"PROMISES BROKEN\n{self.verdict.examples()}")
        if not self.lost_after:
            found.append("no consumer was killed, so nobody knows how soon they lose partitions")
        if any(
            each.seconds > LEASE_SECONDS + 1 and not each.overloaded for each in self.lost_after
        ):
            found.append("a killed consumer kept partitions for longer than its lease and a second")
        if self.missing and self.seconds >= COMPLETE_SECONDS:
            found.append(f"did not occur: {', '.join(self.missing)}")
        return found

    @property
    def played(self) -> list[str]:
        """The kinds of faults that have occurred."""
        return [name for name, each in self.faults.items() if each.times]

    @property
    def missing(self) -> list[str]:
        """The kinds of faults that have not occurred."""
        return [name for name, each in self.faults.items() if not each.times]
