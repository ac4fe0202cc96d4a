"""Bugs in pins."""

from __future__ import annotations

from broker.core import records as r
from broker.core import replay
from tests.simulation.mutants.mutant import Changes


def lost_at_a_handoff() -> Changes:
    """A pin is over when the partition has come home."""
    real = replay._CHANGES[r.Granted]

    def granted(queue, record):
        real(queue, record)
        for grant in record.grants:
            if grant.by_handoff:
                queue.journal.drop(queue.pins.of, grant.partition)

    return [(replay, "_CHANGES", {**replay._CHANGES, r.Granted: granted})]


def waits_for_another_change() -> Changes:
    """A pin does not take effect when its consumer binds, but with the next other change."""
    return [(replay, "_OF_PINS", replay._OF_PINS - {r.FlowBound, r.FlowsAdmitted})]
