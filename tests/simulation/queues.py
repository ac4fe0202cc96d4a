"""The rules for the whole queue in one transaction: promises 5, 6, 8 and 9.

Each raises `Violation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.judge.violation import Violation
from tests.simulation import groups, order, pairs, pauses
from tests.simulation.account import OVER, Account, Transaction, takes
from tests.simulation.deadlines import ACCURACY

# On a slow connection, another replica may learn the database's time so much later.
APART_SECONDS = 1.0


def check_owners(known: Account, tx: Transaction) -> None:
    """A flow that left owns nothing."""
    for row in tx.partitions:
        if row.owner is not None and row.owner not in known.flows:
            raise Violation(1, f"p{row.number} belongs to {row.owner}, which has left")


def check_status(
    known: Account, tx: Transaction, old: Mapping[str, Any], old_partitions: Mapping[int, Any]
) -> None:
    queue = known.queue
    # The end of a partition triggers nothing, so a dynamic queue may be Ready with any spread.
    settled = known.owned() if known.dynamic else known.balanced()
    if queue["status"] == "Ready" and not settled:
        raise Violation(9, "the queue is Ready, but not balanced")
    if not any(map(takes, known.flows.values())):
        held = [id for id, row in known.flows.items() if row.held_until is not None]
        idle = [row.number for row in known.partitions.values() if row.state == "unassigned"]
        if held and idle:
            raise Violation(9, f"{held} are held back, and nobody else takes {idle}")
    if queue["status"] != "Rebalancing":
        for row in known.partitions.values():
            if row.state in ("warming", "revoking"):
                raise Violation(5, f"p{row.number} is {row.state}, but {queue['status']}")
    if queue["status"] == "Holddown":
        _check_holddown(known, tx, old)
    if not old or old["status"] != "Holddown" or queue["status"] != "Rebalancing":
        return
    # It was over, a rebalance was requested, a pair began, or it was settled and the next trigger
    # took no holddown.
    due = old["holddown_until"] + known.went_back(old)
    early = known.deadlines.decided(tx.now) < due - ACCURACY and not known.asked.rebalance()
    without = len(tx.revisions) > 1 and 0 in known.values("rebalance_delay", old)
    several = len(tx.revisions) > 1 and any(row.draining for row in known.flows.values())
    if early and not (without or several or pairs.begun(tx, old_partitions)):
        raise Violation(8, "a holddown ended early")


def _check_holddown(known: Account, tx: Transaction, old: Mapping[str, Any]) -> None:
    since, until = known.queue["since"], known.queue["holddown_until"]
    if old and old["status"] == "Holddown":
        moved = known.went_back(old)
        if (
            abs(old["since"] + moved - since) <= ACCURACY
            and abs(old["holddown_until"] + moved - until) <= ACCURACY
        ):
            return
        # The next holddown begins later, except after a small step of the clock or on a slow
        # connection.
        stepped = known.deadlines.decided(tx.now) - tx.now
        late = since + stepped > old["since"] + moved - APART_SECONDS
        if len(tx.revisions) == 1 or not late:
            raise Violation(8, f"a holddown was extended to {until}")
    took = until - since
    known.deadlines.granted_seconds += took
    if all(abs(took - s) > ACCURACY for s in known.values("rebalance_delay", old)):
        raise Violation(8, f"a holddown takes {took:.3f} s")


def check_handoffs(
    known: Account,
    tx: Transaction,
    old: Mapping[str, Any],
    old_flows: Mapping[str, Any],
    old_partitions: Mapping[int, Any],
) -> None:
    """6. The smallest number of handoffs counts from the last change."""
    begun = []
    released = False
    for row in tx.partitions:
        was = old_partitions.get(row.number)
        if was is None or was.state not in ("owned", "warming"):
            continue
        if row.state == "revoking" and row.epoch == was.epoch:
            begun += [was] if known.leads(row.number) else []
        elif row.epoch > was.epoch and row.handed_over == "graceful":
            # A draining owner released it before it was revoked.
            begun += [was] if known.leads(row.number) else []
        elif row.state == "unassigned" or row.state in OVER:
            released = True
    several = len(tx.revisions) > 1
    changed = (
        released
        or not old
        or _flows_differ(known, old_flows)
        or any(known.queue[name] != old[name] for name in (*_SETTINGS, "pins"))
        or (old["status"] != "Rebalancing" and known.queue["status"] == "Rebalancing")
        # What paired while others waited is balanced with them from now on.
        or (pairs.waits(old) and not pairs.waits(known.queue))
        or (several and (tx.left or known.asked.resize() or _changed_between(known)))
    )
    if several and changed:
        # Several decisions: each had to accept the handoffs that the one before began.
        known.made, known.least = 0, known.fewest(())
        return
    if changed:
        known.made, known.least = 0, known.fewest(begun)
    known.made += len(begun)
    if known.made > known.least:
        numbers = [row.number for row in begun]
        text = f"{known.made} handoffs where {known.least} would do, now of {numbers}"
        raise Violation(6, text)


def _changed_between(known: Account) -> bool:
    """Whether a setting may have had another value within a transaction."""
    settings = any(known.asked.values(name) - {known.queue[name]} for name in _SETTINGS)
    return settings or known.asked.pins()


def _flows_differ(known: Account, old_flows: Mapping[str, Any]) -> bool:
    return {(id, row.draining, row.held_until) for id, row in known.flows.items()} != {
        (id, row.draining, row.held_until) for id, row in old_flows.items()
    }


def _shown(seconds: float | None) -> datetime | None:
    """A time as a view has it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def check_views(known: Account) -> None:
    """A flow whose view changes is told so under a new revision."""
    resize = known.queue["resize_seen"] if known.queue["ordered_resize"] else None
    views: dict[str, list[Any]] = {
        id: [row.draining, _shown(row.held_until), resize] for id, row in known.flows.items()
    }
    for number in sorted(known.partitions):
        row = known.partitions[number]
        if row.owner in views and not groups.is_let_go(row):
            revoking = row.state == "revoking"
            state = "revoking" if revoking else "retiring" if row.retiring else "owned"
            deadline = _shown(row.deadline) if revoking else None
            held = (number, row.epoch, state, row.handed_over, deadline)
            pause = pauses.shown(pauses.holding(known.queue, number))
            views[row.owner].append((*held, *order.barrier(known, number), pause))
        if row.warm and row.successor is not None:
            seen = (number, row.epoch, "warming", None, _shown(row.deadline), *order.FREE, None)
            if row.successor in views:
                views[row.successor].append(seen)
    for id, view in views.items():
        revision = known.flows[id].view_revision
        if known.views.setdefault((id, revision), view) != view:
            raise Violation(5, f"the view of {id} changed within revision {revision}")


_SETTINGS = (
    "partition_count",
    "access_type",
    "max_concurrent_handoffs",
    "rebalance_delay",
    "max_handoff_time",
    "max_warmup_time",
)
