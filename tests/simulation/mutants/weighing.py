"""Bugs in weights and maxima."""

from __future__ import annotations

from dataclasses import replace

from broker.core import records as r
from broker.core import replay, shares
from broker.core.shares import Shares, WeightedRanking
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


def maximum_is_passed_when_nobody_has_room() -> Changes:
    """What is more than all flows take is granted all the same, by level."""
    return [(WeightedRanking, "is_full", False)]


def what_is_over_is_not_shared() -> Changes:
    """What a flow with a maximum does not take is not shared among the others."""
    real = shares.share_out

    def share_out(total, demands):
        by_weight = real(total, {at: one._replace(most=None) for at, one in demands.items()})
        floors, whole = dict(by_weight.floors), set(by_weight.whole)
        for at, one in demands.items():
            if one.most is not None and floors[at] >= one.most:
                floors[at] = one.most
                whole.add(at)
        return Shares(total, real(total, demands).taken, floors, frozenset(whole))

    return [(shares, "share_out", share_out)]
