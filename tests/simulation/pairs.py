"""Deploys (the contract, rule 14): who takes over from whom, and what waits meanwhile.

A pair is a flow that drains and one that had nothing. All of the first goes to the second, while
nothing else moves. All this is certain only in a transaction of one revision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import MOVING, Account, Transaction, takes
from tests.simulation.deadlines import ACCURACY, AHEAD_SECONDS


def begun(tx: Transaction, old_partitions: Mapping[int, Any]) -> list[Any]:
    """The rows of the partitions whose handoffs begin."""
    return [
        row
        for row in tx.partitions
        if row.state in MOVING
        and (was := old_partitions.get(row.number)) is not None
        and (was.state, was.epoch) == ("owned", row.epoch)
    ]


def waits(queue: Mapping[str, Any]) -> bool:
    """Whether the queue hands over pairs alone."""
    return bool(queue["status"] == "Rebalancing" and queue["holddown_until"] is not None)


def check(
    known: Account, tx: Transaction, old: Mapping[str, Any], old_partitions: Mapping[int, Any]
) -> None:
    if not old or len(tx.revisions) > 1 or known.asked.rebalance():
        return
    queue, until, moves = known.queue, old["holddown_until"], begun(tx, old_partitions)
    is_early = until is not None and (
        known.deadlines.decided(tx.now) < until + known.went_back(old) - ACCURACY
    )
    if queue["status"] == "Rebalancing" and (waits(queue) or is_early):
        _check_moves(known, moves)
    if waits(queue):
        _check_wait(known, tx, old, moves)
    owned = all(row.state != "unassigned" for row in known.partitions.values())
    if waits(queue) or (queue["status"] == "Holddown" and owned):
        _check_none_is_left(known)


def _check_moves(known: Account, moves: list[Any]) -> None:
    """6. Only pairs move, and each whole."""
    new = {row.number for row in moves}
    givers = defaultdict[str, set[str]](set)
    for row in moves:
        if not known.flows[row.owner].draining:
            raise Violation(6, f"p{row.number} of {row.owner} moves, while only pairs should")
        if _load(known, row.successor, new):
            raise Violation(6, f"p{row.number} goes to {row.successor}, which has others")
        if not row.retiring:
            givers[row.successor].add(row.owner)
    for successor, owners in givers.items():
        if len(owners) > 1:
            raise Violation(6, f"{successor} takes over from {sorted(owners)}")
    for owner in {row.owner for row in moves}:
        kept = [
            r.number for r in known.partitions.values() if (r.owner, r.state) == (owner, "owned")
        ]
        if kept:
            raise Violation(6, f"{owner} is half of a pair, and keeps {kept}")


def _check_wait(known: Account, tx: Transaction, old: Mapping[str, Any], moves: list[Any]) -> None:
    """8. What waits does so for a holddown from the last pair on."""
    until = known.queue["holddown_until"]
    if waits(old) and abs(until - old["holddown_until"] - known.went_back(old)) <= ACCURACY:
        return
    most = max(known.values("rebalance_delay", old))
    known.deadlines.granted_seconds += most
    if until > known.deadlines.decided(tx.now) + most + AHEAD_SECONDS:
        raise Violation(8, f"what waits for a pair waits until {until}")
    if waits(old) and not moves:
        raise Violation(8, f"what waits for a pair waits for longer, until {until}")


def _check_none_is_left(known: Account) -> None:
    """9. A pair does not wait."""
    queue = known.queue
    count = queue["partition_count"] // queue["aligned"]
    limited = queue["max_concurrent_handoffs"] is not None
    if limited or queue["access_type"] == "exclusive" or queue["flows_before"] > count:
        return
    idle = [id for id, row in known.flows.items() if takes(row) and not _load(known, id, ())]
    alike = {_asks(known.flows[id]) for id in idle}
    drained = [
        row.number
        for row in known.partitions.values()
        if row.state == "owned"
        and known.flows[row.owner].draining
        and _asks(known.flows[row.owner]) in alike
    ]
    if drained and idle:
        raise Violation(9, f"{idle} have nothing, and {drained} are of flows that drain")


def _asks(row: Any) -> tuple[int, int | None]:
    return row.weight, row.max_partitions


def _load(known: Account, flow_id: str, but: Any) -> int:
    """How many partitions, or groups, count for a flow."""
    return sum(
        (row.successor if row.state in MOVING else row.owner) == flow_id
        for row in known.partitions.values()
        if not row.retiring and known.leads(row.number) and row.number not in but
    )
