"""The rules for one partition in one transaction: promises 1 to 5 and 8.

Each is given the row before and after it, and raises `Violation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.judge.violation import Violation
from tests.simulation import lineage
from tests.simulation.account import OVER, Account, Transaction
from tests.simulation.deadlines import ACCURACY


def check_partition(
    known: Account,
    tx: Transaction,
    old: Any,
    new: Any,
    old_flows: Mapping[str, Any],
    queue: Mapping[str, Any],
) -> None:
    number, rise = new.number, new.epoch - old.epoch
    if rise < 0 or rise > len(tx.revisions):
        raise Violation(1, f"p{number} went from epoch {old.epoch} to {new.epoch}")
    if number in tx.reset and rise == 0:
        raise Violation(2, f"the position of p{number} was set within epoch {old.epoch}")
    if rise == 0:
        _check_same_epoch(known, tx, old, new)
    else:
        _check_grant(known, tx, old, new, old_flows, queue)
    ended = old.state == "warming" and new.state == "revoking" and rise == 0
    if ended and new.successor == old.successor:
        _check_warmup_end(known, tx, old, new, old_flows, queue)
    if known.dynamic and new.state in OVER:
        if old.state not in OVER:
            lineage.check_finished(known, old, new)
    elif new.state == "removed" and old.state != "removed":
        _check_removal(known, old, new)


def follow(known: Account, tx: Transaction, row: Any, queue: Mapping[str, Any]) -> None:
    moving = _TIMES.get(row.state)
    known.deadlines.follow(row, tx.now, known.values(moving, queue) if moving else ())


def _check_removal(known: Account, old: Any, new: Any) -> None:
    if ("finish", old.owner, new.number, old.epoch) in known.said and new.epoch == old.epoch:
        return
    if not known.asked.discard(new.number):
        raise Violation(3, f"p{new.number} was removed, and {old.owner} was not finished")
    known.lanes[new.number].rough.add(new.epoch + 1)


def _check_same_epoch(known: Account, tx: Transaction, old: Any, new: Any) -> None:
    number = new.number
    if new.owner is not None and new.owner != old.owner:
        raise Violation(1, f"p{number} went from {old.owner} to {new.owner} in one epoch")
    if old.state == "revoking" and new.state in ("owned", "warming"):
        raise Violation(1, f"a revoke of p{number} was taken back in epoch {new.epoch}")
    if old.owner is None or new.owner is not None or new.state in OVER:
        return
    if new.next_handed_over == "graceful":
        _check_released(known, old)
    elif (
        not known.has_left(tx, old.owner)
        and not known.discarded_between(tx, number)
        and not _finished(known, old)
    ):
        raise Violation(5, f"p{number} lost its owner {old.owner} without a handoff")


def _finished(known: Account, old: Any) -> bool:
    """Whether the owner has finished a retiring partition; a growth may add it again at once."""
    return old.retiring and ("finish", old.owner, old.number, old.epoch) in known.said


def _check_grant(
    known: Account,
    tx: Transaction,
    old: Any,
    new: Any,
    old_flows: Mapping[str, Any],
    queue: Mapping[str, Any],
) -> None:
    number, how = new.number, new.handed_over if new.owner is not None else None
    if how not in ("initial", "graceful"):
        known.lanes[number].rough.add(new.epoch)
    taker = old_flows.get(new.owner)
    if taker is not None and taker.draining and new.owner != old.owner:
        raise Violation(6, f"p{number} was granted to {new.owner}, which is draining")
    owner = known.flows.get(new.owner)
    if owner is not None and owner.held_until is not None:
        raise Violation(6, f"p{number} was granted to {new.owner}, which is held back")
    # If the partition retires again, or its position is set, the owner continues under a new epoch.
    again = new.retiring and not old.retiring
    again = again or (len(tx.revisions) > 1 and known.asked.resize())
    raised = number in tx.reset or (again and new.owner == old.owner)
    bound = old.owner is not None and not known.has_left(tx, old.owner)
    if new.epoch - old.epoch > 1:
        # No consumer was told of the epochs between, so no consumer can have released under one.
        if how in ("initial", "graceful"):
            raise Violation(4, f"p{number} came to epoch {new.epoch}, and is called {how}")
        if bound and not raised and not _may_lose(known, tx, old):
            raise Violation(5, f"p{number} was taken from {old.owner} in epoch {old.epoch}")
        return
    if how == "forced" and not raised and bound:
        _check_forced(known, tx, old, queue)
    if how == "graceful" and old.owner is not None:
        _check_released(known, old)
    if how == "orphaned" and bound and not known.discarded_between(tx, number):
        raise Violation(5, f"p{number} was taken from {old.owner}, which is bound")
    first = old.epoch == 0 or old.state == "removed" or old.next_handed_over == "initial"
    if how == "initial" and not first and new.owner != old.owner:
        raise Violation(4, f"p{number} epoch {new.epoch} is not the initial one")
    if how == "replaced":
        before = known.owners.get(number, old.epoch)
        if before is not None and known.instances[before] != known.instances[new.owner]:
            raise Violation(4, f"p{number} was held by {before}, not by {new.owner} restarted")


def _may_lose(known: Account, tx: Transaction, old: Any) -> bool:
    """Whether a bound owner may have lost a partition to another flow within the transaction."""
    due = known.deadlines.due(old.number)
    over = old.state == "revoking" and known.deadlines.decided(tx.now) >= due - ACCURACY
    released = ("release", old.owner, old.number, old.epoch) in known.said
    return over or released or known.discarded_between(tx, old.number)


def _check_forced(known: Account, tx: Transaction, old: Any, queue: Mapping[str, Any]) -> None:
    due = known.deadlines.due(old.number)
    if old.state != "revoking":
        # Only if the handoff time is zero.
        if min(known.values("max_handoff_time", queue)) > 0:
            text = f"p{old.number} was forced from {old.owner} without a revoke"
            raise Violation(8, text)
    elif known.deadlines.decided(tx.now) < due - ACCURACY:
        early = due - tx.now
        raise Violation(8, f"p{old.number} was forced {early:.3f} s before its deadline")


def _check_released(known: Account, old: Any) -> None:
    if ("release", old.owner, old.number, old.epoch) not in known.said:
        text = f"p{old.number} was let go as if {old.owner} had released epoch {old.epoch}"
        raise Violation(2, text)


def _check_warmup_end(
    known: Account,
    tx: Transaction,
    old: Any,
    new: Any,
    old_flows: Mapping[str, Any],
    queue: Mapping[str, Any],
) -> None:
    owner: Any = known.flows.get(old.owner)
    drain_deadline = None if owner is None else owner.drain_deadline
    decided = known.deadlines.decided(tx.now)
    if drain_deadline is not None and drain_deadline <= decided:
        return
    if known.deadlines.due(old.number) <= decided + ACCURACY:
        return
    if _successor_in_passing(tx, old_flows):
        return
    if 0 in known.values("max_warmup_time", queue):
        # The warm-up was called off, and the next handoff of this transaction has none.
        return
    if ("ready", new.successor, new.number, new.epoch) not in known.said:
        raise Violation(2, f"the warm-up of p{new.number} ended, {new.successor} not ready")


def _successor_in_passing(tx: Transaction, old_flows: Mapping[str, Any]) -> bool:
    """Whether another flow may have been the successor within this transaction, before it left or
    drained.

    If that flow does not warm up, its handoff is revoked at once, and a revoke is never taken back.
    The next successor, perhaps the earlier one, then takes the partition without a warm-up.
    """
    rows = {**old_flows, **{row.id: row for row in tx.flows}}
    drained = {
        row.id
        for row in tx.flows
        if row.draining and not (row.id in old_flows and old_flows[row.id].draining)
    }
    return any(not rows[name].warmup for name in drained | set(tx.left) if name in rows)


_TIMES = {"warming": "max_warmup_time", "revoking": "max_handoff_time"}
