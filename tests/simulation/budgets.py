"""The budget of moves (the contract, *A budget of moves*): what counts, and who is held back.

What the service has counted is in the queue's row. Here it is compared with the handoffs that
begin, and with the flows that join. Both are certain only in a transaction of one revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import Account, Transaction, takes


def check_counted(known: Account, tx: Transaction, old_partitions: Mapping[int, Any]) -> None:
    """What a key begins to take from others counts."""
    if len(tx.revisions) > 1:
        return
    taken = Counter[str]()
    for row in tx.partitions:
        before = old_partitions.get(row.number)
        if before is None or before.state != "owned" or row.epoch > before.epoch:
            continue
        taker, owner = known.flows.get(row.successor), known.flows.get(row.owner)
        if taker is None or owner is None or owner.draining or taker.key_id == owner.key_id:
            continue
        if taker.key_id is not None:
            taken[taker.key_id] += 1
    for key, count in taken.items():
        level = known.queue["moved"].get(key, (0.0, 0.0))[0]
        if level < count:
            raise Violation(6, f"{key} took {count} partitions, and {level} of them count")


def check_joined(
    known: Account, tx: Transaction, old_flows: Mapping[str, Any], most: int | None
) -> None:
    """Who binds for the first time is held back if its key has no move left of its `most` for each
    partition, unless nobody else would take what is idle.
    """
    new = [row for row in tx.flows if row.id not in old_flows]
    if most is None or len(tx.revisions) > 1 or len(new) != 1:
        return
    one = new[0]
    before = [id for id, instance in known.instances.items() if instance == one.instance_id]
    if one.key_id is None or one.held_until is not None or before != [one.id]:
        return
    if not any(takes(row) for row in known.flows.values() if row.id != one.id):
        return
    level = known.queue["moved"].get(one.key_id, (0.0, 0.0))[0]
    if level and level + 1 > max(1, most * known.queue["partition_count"]):
        raise Violation(6, f"{one.id} joined, and its key has taken {level} partitions")
