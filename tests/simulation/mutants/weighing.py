"""Bugs in weights."""

from __future__ import annotations

from dataclasses import replace

from broker.core import records as r
from broker.core import replay
from broker.core.shares import WeightedRanking
from tests.simulation.mutants.mutant import Changes


def forgotten_when_bound() -> Changes:
    """A flow is bound, and its weight does not get into the queue."""
    real = replay._CHANGES[r.FlowBound]

    def bound(queue, record):
        real(queue, replace(record, weight=1))
        queue.flows[record.flow_id].weight = record.weight

    return [(replay, "_CHANGES", {**replay._CHANGES, r.FlowBound: bound})]


def ends_one_step_early() -> Changes:
    """By weight, a rebalance ends one handoff early."""
    return [(WeightedRanking, "is_even", property(lambda self: self.spread <= 4))]
