"""The rules for partitions that begin, wait, end and go (the contract, *Lineage*).

What comes after what is the log's own fact (`order.py`). Each rule raises `Violation`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import APART, OVER, Account, Transaction


def check_begins(known: Account, tx: Transaction, old: Any, row: Any) -> None:
    """A row of a dynamic queue that is new, or has ended its wait."""
    order, number = known.order, row.number
    if number in known.removed:
        raise Violation(7, f"p{number} was removed, and is there again")
    if number in tx.children:
        key, parents = tx.children[number]
        known.keys[number] = key
        wanted = {known.keys.get(parent) for parent in order.parents.get(number, ())}
        if set(parents) != wanted:
            raise Violation(3, f"p{number} follows {parents}, but in the log {wanted}")
    if row.state in OVER or row.state == "waiting":
        return
    if old is not None and old.state != "waiting":
        return
    for parent in order.parents.get(number, ()):
        if not is_over(known, parent):
            state = known.partitions[parent].state
            raise Violation(4, f"p{number} is {row.state}, but its parent p{parent} is {state}")


def is_over(known: Account, number: int) -> bool:
    """Whether the partition is finished, by the rows."""
    row = known.partitions.get(number)
    return row is not None and row.state in OVER


def check_finished(known: Account, old: Any, new: Any) -> None:
    """An owner has processed the partition to its sealed end, and named its children."""
    number, order = new.number, known.order
    if ("finish", old.owner, number, old.epoch) not in known.said or new.epoch != old.epoch:
        raise Violation(3, f"p{number} is finished, and {old.owner} did not say so")
    if number not in order.ends:
        raise Violation(3, f"p{number} is finished, and its log has not ended")
    position = known.positions.get(number, 0)
    if position != order.ends[number]:
        raise Violation(3, f"p{number} is finished at {position}, not {order.ends[number]}")
    missing = [child for child in order.children[number] if child not in known.partitions]
    if missing:
        raise Violation(3, f"p{number} is finished, and its children {missing} are not known")


def check_graph(known: Account, tx: Transaction) -> None:
    """What is over and what waits, after the whole transaction."""
    order = known.order
    for number in tx.removed:
        known.removed.add(number)
    for number, row in known.partitions.items():
        if row.state not in OVER and row.state != "waiting":
            continue
        children = order.children.get(number, ())
        open_children = [child for child in children if not is_over(known, child)]
        if row.state == "removed" and open_children:
            raise Violation(7, f"p{number} was removed before its children {open_children} ended")
        if row.state == "finished" and not open_children:
            raise Violation(9, f"p{number} is kept, and all after it have ended")
        parents = order.parents.get(number, ())
        if row.state == "waiting" and all(is_over(known, p) for p in parents):
            raise Violation(9, f"p{number} waits, and all its parents {parents} have ended")


def check_count(known: Account) -> None:
    """P is the number of the partitions that take part in the balance."""
    part = sum(row.state not in APART for row in known.partitions.values())
    if known.queue["partition_count"] != part:
        raise Violation(7, f"P is {known.queue['partition_count']}, but there are {part}")


def unsettled(known: Account, numbers: Collection[int]) -> str | None:
    """What the queue does not know yet, or is still waiting for. `numbers`: those of the log."""
    for number in sorted(numbers):
        row = known.partitions.get(number)
        if row is None:
            return f"p{number} is not known"
        if row.state == "waiting":
            return f"p{number} is waiting"
        if number in known.order.ends and row.state not in OVER:
            return f"p{number} has ended in the log and is {row.state}"
    return None
