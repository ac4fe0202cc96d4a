"""Pauses, from facts alone (promise 10): what holds, what may end one, who begins work.

A pause is a value of the queue's row: by partition, the queue's own under an empty name, each with
its begin, its end and its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.account import OVER, Account, Transaction

# A pause may be ended by the clock of a replica that is so much ahead.
EARLY_SECONDS = 1e-6


def holding(queue: Mapping[str, Any], number: int) -> Any:
    """The pause that holds for a partition: of its own and the queue's the one that ends last."""
    pauses = queue.get("pauses") or {}
    both = [pauses[name] for name in (str(number), "") if name in pauses]
    return max(both, key=_end, default=None)


def _end(pause: Any) -> float:
    until = pause[1]
    return inf if until is None else float(until)


def shown(pause: Any) -> tuple[Any, ...] | None:
    """A pause as a view has it."""
    if pause is None:
        return None
    since, until, reason = pause
    return _time(since), _time(until), reason


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def check_changed(
    known: Account, tx: Transaction, old: Mapping[str, Any], old_partitions: Mapping[int, Any]
) -> None:
    """A pause comes and goes for a reason. The reasons of a transaction with several decisions are
    those of any of them."""
    before, after = old.get("pauses") or {}, known.queue.get("pauses") or {}
    now = known.deadlines.decided(tx.now) + EARLY_SECONDS
    for name in before.keys() - after.keys():
        row = known.partitions.get(int(name)) if name else None
        over = bool(name) and (row is None or row.state in OVER or known.asked.discard(int(name)))
        if not (over or known.asked.pause("resume", name) or _end(before[name]) <= now):
            raise Violation(10, f"the pause of {name or 'the queue'} is lost")
    ended = {row.number for row in tx.partitions if row.state in OVER}.union(tx.removed)
    for name in after.keys() - before.keys():
        inherited = bool(name) and not ended.isdisjoint(known.order.parents.get(int(name), ()))
        if not (inherited or known.asked.pause("pause", name)):
            raise Violation(10, f"{name or 'the queue'} was paused, and nobody asked for it")


def check_begun(known: Account, flow: str, revision: int, number: int, what: str) -> None:
    """`revision`: that of the view by which the process works."""
    view = known.views.get((flow, revision))
    for seen in () if view is None else view[3:]:
        if seen[0] == number and seen[2] != "warming" and seen[-1] is not None:
            raise Violation(10, f"{what}, which its view of revision {revision} says is paused")


def check_over(known: Account, horizon: float) -> None:
    """No pause outlives its end."""
    for name, pause in (known.queue.get("pauses") or {}).items():
        if _end(pause) < horizon:
            raise Violation(10, f"the pause of {name or 'the queue'} outlives its end")
