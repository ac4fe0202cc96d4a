"""Aligned partitions: all of a group have one owner (the contract, *Aligned logs*)."""

from __future__ import annotations

from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import Account


def is_let_go(row: Any) -> bool:
    """Whether its owner has released the partition, and not yet the others of its group."""
    return row.owner is not None and row.next_handed_over == "graceful"


def check_owners(known: Account) -> None:
    """After each transaction the partitions of a group have the same owner and state, and go to the
    same successor by the same deadline; those that are let go are not all of it.
    """
    aligned = known.queue["aligned"]
    if aligned == 1:
        return
    rows = [known.partitions[number] for number in sorted(known.partitions)]
    for first in range(0, len(rows), aligned):
        group = rows[first : first + aligned]
        places = {
            (one.owner, one.state, one.retiring, one.successor, one.deadline) for one in group
        }
        if len(places) > 1:
            text = "; ".join(f"p{one.number} {one.state} of {one.owner}" for one in group)
            raise Violation(1, f"a group is not together: {text}")
        if all(map(is_let_go, group)):
            raise Violation(9, f"p{group[0].number} and its group are released, and stay")
