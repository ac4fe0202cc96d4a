"""Maxima of consumers, from the rows (docs/placement.md): promises 6 and 9.

A flow gets no partition above its `max_partitions`. What no flow may take stays without an owner,
the highest numbers, and the queue's row says how many partitions that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import Account, Transaction, takes


def check(
    known: Account, tx: Transaction, old: Mapping[str, Any], old_partitions: Mapping[int, Any]
) -> None:
    _check_said(known)
    if not any(row.max_partitions for row in known.flows.values()):
        return
    resized = known.asked.resize() or known.queue["partition_count"] != old.get("partition_count")
    if not resized:
        _check_room(known, old_partitions)
    if known.queue["status"] == "Ready" and not known.is_full():
        _check_room(known, {})
    if len(tx.revisions) == 1:
        _check_left(known, tx, old_partitions)


def _check_said(known: Account) -> None:
    """9. The queue says how many partitions are more than its flows take."""
    said, beyond = known.queue["over_capacity"], known.over_capacity()
    if said != beyond:
        raise Violation(9, f"{said} partitions are said to be more than flows take, not {beyond}")


def _check_room(known: Account, before: Mapping[int, Any]) -> None:
    """6. No flow comes to have more than its maximum. A resize may give partitions back to a flow
    above it, so what it had `before` is no more than that."""
    had, has = known.loads(before.values()), known.loads(known.partitions.values())
    for id, row in known.flows.items():
        most = known.most(row)
        if most is not None and takes(row) and has[id] > max(most, had[id]):
            raise Violation(6, f"{id} has {has[id]} partitions or groups, and takes {most}")


def _check_left(known: Account, tx: Transaction, old_partitions: Mapping[int, Any]) -> None:
    """6. The highest of those that wait for an owner are left."""
    granted = [
        row.number
        for row in tx.partitions
        if row.owner is not None
        and not row.retiring
        and row.number in old_partitions
        and old_partitions[row.number].state == "unassigned"
    ]
    left = [
        number
        for number, row in known.partitions.items()
        if row.state == "unassigned" and number in old_partitions
        if old_partitions[number].state == "unassigned" and not row.retiring
    ]
    if granted and left and min(left) < max(granted):
        raise Violation(6, f"p{max(granted)} was granted, and p{min(left)} has no owner")


def unsettled(known: Account) -> str | None:
    """When all is settled: whether anything is without an owner that a flow could have."""
    rows, beyond = known.partitions.items(), known.over_capacity()
    idle = [number for number, row in rows if row.state == "unassigned"]
    # What retires waits with them: flows have room in the balance, or none.
    counted = [number for number in idle if not known.partitions[number].retiring]
    if len(counted) > beyond or (idle and not beyond):
        return f"{idle} have no owner, and {beyond} are more than flows take"
    return None
