"""The nine promises of the contract (*What must never happen*), from facts alone.

Nothing of the product is imported here. The checker is told what everybody could see: rows as they
are after each transaction of the database (objects with the columns as attributes), what clients
sent and what replicas answered, what was published and what reached a sink, and the database's
time. It keeps its own account of all this, and raises `Violation` at the first fact that does not
fit. Positions are numbers here: the next message to process of a partition, the first one is 0.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.judge import balance, rules
from tests.judge.violation import Violation
from tests.simulation.asked import Asked
from tests.simulation.deadlines import ACCURACY, Deadlines
from tests.simulation.progress import Progress

OWNED = ("owned", "warming", "revoking")
# No replica served if none stamped for longer.
OUTAGE_SECONDS = 3.0
# Whoever works goes on only when calls that got lost are given up: so long after a disturbance.
WORK_SECONDS = 1.5


F = TypeVar("F", bound=Callable[..., Any])


def _told(method: F) -> F:
    """The first violation is kept, and nobody who tells the checker something is troubled by it."""

    @functools.wraps(method)
    def wrapped(self: Checker, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Violation as violation:
            if self.found is None:
                self.found = violation
                self.on_violation(violation)

    return wrapped  # type: ignore[return-value]


@dataclass(slots=True)
class Transaction:
    """What one transaction changed. `positions` of the partitions named, as they are after it;
    `reset`: those of them that an administrator has set.
    """

    now: float
    revisions: Sequence[int]
    queue: Mapping[str, Any]
    partitions: Sequence[Any]
    flows: Sequence[Any]
    left: Mapping[str, str]
    renewed: Collection[str]
    positions: Mapping[int, str | None]
    reset: Collection[int]


@dataclass(slots=True)
class Lane(rules.Lane):
    """One partition of the log, and what sinks have seen of it."""

    end: int = 0
    # Epochs that began with anything but a graceful handover.
    rough: set[int] = field(default_factory=set)

    def excused(self, earlier: int, later: int) -> bool:
        """Whether a handover between these epochs was not graceful."""
        return any(earlier < epoch <= later for epoch in self.rough)


@dataclass(frozen=True, slots=True)
class Began:
    """What was known when a replica began to answer a call."""

    positions: Mapping[int, int]
    epochs: Mapping[int, int]
    transactions: int


class Checker:
    """Watches one queue."""

    def __init__(self, slack_seconds: float, pause_seconds: float) -> None:
        """`slack_seconds`: how late after a deadline an undisturbed service may act;
        `pause_seconds`: how long an undisturbed consumer at work may do nothing in a partition.
        """
        self.slack_seconds = slack_seconds
        self.found: Violation | None = None
        self.on_violation: Callable[[Violation], object] = lambda violation: None
        self.revision = 0
        self.queue: Mapping[str, Any] = {}
        self.partitions: dict[int, Any] = {}
        self.flows: dict[str, Any] = {}
        self.gone: dict[str, str] = {}
        self.positions: dict[int, int] = {}
        self.leases: dict[str, float] = {}
        self.stamped_at: float | None = None
        self.lanes: defaultdict[int, Lane] = defaultdict(Lane)
        self.transactions = 0
        self.asked = Asked()
        self.deadlines = Deadlines()
        self._progress = Progress(pause_seconds)
        self._owners = rules.Owners()
        self._instances: dict[str, str] = {}
        self._views: dict[tuple[str, int], Any] = {}
        self._sent: set[tuple[Any, ...]] = set()
        self._told: set[tuple[str, int, int]] = set()
        # Times in which nobody served, or from which the clock went back, as they were noticed.
        self._outages: list[tuple[float, float]] = []
        # The last transaction that set a partition's position as an administrator asked.
        self._reset_by: dict[int, int] = {}
        self._disturbed_until = self._hindered_until = 0.0
        self._fewest = 0
        self._made = 0

    # What happened outside

    def disturbed(self, until: float) -> None:
        """Replicas cannot be expected to be in time before `until`."""
        self._disturbed_until = max(self._disturbed_until, until)
        self.hindered(until + WORK_SECONDS)

    def hindered(self, until: float) -> None:
        """Nobody can be expected to get on with his work before `until`."""
        self._hindered_until = max(self._hindered_until, until)

    def published(self, partition: int) -> None:
        """One more message."""
        self.lanes[partition].end += 1

    def discarded(self, partition: int) -> None:
        """An administrator had everything thrown away that the partition holds."""
        lane = self.lanes[partition]
        lane.discarded(lane.end)

    @_told
    def trimmed(self, partition: int, first: int) -> None:
        """The log keeps nothing below."""
        if first > self.lanes[partition].prefix:
            raise Violation(3, f"p{partition} was trimmed up to {first}, before it was processed")
        self.lanes[partition].trimmed(first)

    def sent(self, *what: Any) -> None:
        """A client sent this: `release`, `finish`, `ready` with the flow, the partition and the
        epoch, `position` with the position too, `unbind` with the flow.
        """
        self._sent.add(what)

    @_told
    def granted(self, process: str, partition: int, epoch: int) -> None:
        """A program was told that it owns a partition."""
        if (process, partition, epoch) in self._told:
            raise Violation(4, f"{process} was told twice of p{partition} epoch {epoch}")
        self._told.add((process, partition, epoch))

    @_told
    def wrote(self, flow: str, partition: int, epoch: int, position: int) -> None:
        """A message has reached a sink."""
        lane = self.lanes[partition]
        what = f"{flow} wrote p{partition} message {position} in epoch {epoch}"
        owner = self._owners.get(partition, epoch)
        if owner != flow:
            raise Violation(1, f"{what}, which {owner or 'nobody'} owns")
        if lane.late(epoch) and not lane.excused(epoch, lane.newest):
            raise Violation(4, f"{what}, after epoch {lane.newest} had begun, gracefully")
        for violation in lane.handled(epoch, position, lane.excused):
            raise Violation(violation.promise, f"{flow} wrote p{partition} {violation.text}")

    # What the database holds

    @_told
    def pulsed(self, now: float) -> None:
        """A replica stamped that it serves."""
        began, self.stamped_at = self.stamped_at, now
        if began is None or abs(now - began) <= OUTAGE_SECONDS:
            return
        self._outages.append((began, now))
        for flow_id, ends in self.leases.items():
            # If the clock went back, the end of a lease does not tell who was alive.
            if ends > began or now < began:
                self.leases[flow_id] = now + self.flows[flow_id].lease_seconds
        self.deadlines.outage(began, now)

    def clock_set(self, seconds: float, now: float) -> None:
        """The database's clock was set by so much: what else is kept by it here follows."""
        self._disturbed_until += seconds
        self._hindered_until += seconds
        self._progress.clock_set(seconds)
        self.deadlines.clock_set(seconds, now)

    def _went_back(self, old: Mapping[str, Any]) -> float:
        """By how much the clock went back, as far as the queue did not know before."""
        return _back(self._outages[old.get("outage_seen", 0) : self.queue["outage_seen"]])

    def came_late(self, now: float) -> None:
        """A transaction was refused: it came too long after what it begins was decided."""
        self.deadlines.came_late(now)

    @_told
    def renewed(self, flow_ids: Iterable[str], now: float) -> None:
        """Calls of these flows have reached the database."""
        for flow_id in flow_ids:
            if flow_id in self.leases:
                self.leases[flow_id] = now + self.flows[flow_id].lease_seconds

    @_told
    def committed_positions(self, positions: Mapping[int, str | None]) -> None:
        """Positions were committed on their own."""
        for number, position in positions.items():
            self._move_to(number, position, self.partitions[number])

    @_told
    def committed(self, tx: Transaction) -> None:
        """A transaction that changed the queue."""
        self.transactions += 1
        expected = list(range(self.revision + 1, self.revision + 1 + len(tx.revisions)))
        if list(tx.revisions) != expected or not expected:
            raise Violation(7, f"revisions {tx.revisions} follow revision {self.revision}")
        self.revision = expected[-1]
        queue, self.queue = self.queue, tx.queue
        old_flows, old_partitions = dict(self.flows), dict(self.partitions)
        self._enter_flows(tx)
        for number, position in tx.positions.items():
            if number in tx.reset:
                self._reset(number, position)
            else:
                self._move_to(number, position, old_partitions.get(number))
        unfenced = set(tx.reset) - {row.number for row in tx.partitions}
        if unfenced:
            raise Violation(2, f"the positions of {sorted(unfenced)} were set within an epoch")
        for row in tx.partitions:
            old = old_partitions.get(row.number)
            self.partitions[row.number] = row
            if old is not None:
                self._check_partition(tx, old, row, old_flows, queue)
            self._follow(tx, row, queue)
            if row.owner is not None:
                self._own(row)
        self._leave(tx)
        for row in tx.partitions:
            if row.owner is not None and row.owner not in self.flows:
                raise Violation(1, f"p{row.number} belongs to {row.owner}, which has left")
        self._check_status(tx, queue)
        self._check_handoffs(tx, queue, old_flows, old_partitions)
        self._check_views()

    def _enter_flows(self, tx: Transaction) -> None:
        for row in tx.flows:
            if row.id not in self.flows:
                if row.id in self.gone:
                    raise Violation(1, f"{row.id} has come back")
                self._instances[row.id] = row.instance_id
                self.leases[row.id] = tx.now + row.lease_seconds
            self.flows[row.id] = row
        self.renewed(tx.renewed, tx.now)

    def _leave(self, tx: Transaction) -> None:
        for flow_id, reason in tx.left.items():
            self.gone[flow_id] = reason
            if flow_id not in self.flows:
                continue
            if reason == "lease_expired" and tx.now < self.leases[flow_id]:
                left = self.leases[flow_id] - tx.now
                raise Violation(7, f"{flow_id} expired {left:.3f} s before its lease was over")
            if reason == "unbound" and ("unbind", flow_id) not in self._sent:
                raise Violation(7, f"{flow_id} was unbound, and nobody asked for it")
            if reason == "replaced":
                self._check_replaced(self.flows[flow_id])
            del self.flows[flow_id], self.leases[flow_id]

    def _check_replaced(self, old: Any) -> None:
        others = (row for row in self.flows.values() if row.id != old.id)
        new = next((row for row in others if row.instance_id == old.instance_id), None)
        if new is None:
            raise Violation(7, f"{old.id} was replaced by nobody")
        if new.binder == old.binder and new.attempt <= old.attempt:
            raise Violation(7, f"{old.id} was replaced by an earlier bind of its own")

    def _move_to(self, number: int, position: str | None, row: Any) -> None:
        old = self.positions.get(number, 0)
        new = 0 if position is None else int(position)
        if new == old:
            return
        self.positions[number] = new
        how = f"the position of p{number} went from {old} to {new}"
        if row is None or ("position", row.owner, number, row.epoch, new) not in self._sent:
            raise Violation(2, f"{how}, which its owner did not ask for in this epoch")
        if new < old:
            raise Violation(2, how)
        if new > self.lanes[number].prefix:
            raise Violation(3, f"{how}, but {self.lanes[number].prefix} was not processed")

    def _reset(self, number: int, position: str | None) -> None:
        new = 0 if position is None else int(position)
        if not self.asked.position(number, new):
            raise Violation(2, f"the position of p{number} was set to {new}, unasked")
        if new > self.lanes[number].prefix:
            processed = self.lanes[number].prefix
            raise Violation(3, f"p{number} was set to {new}, but {processed} was not processed")
        self.positions[number] = new
        self._reset_by[number] = self.transactions

    def _own(self, row: Any) -> None:
        for violation in self._owners.claim(row.number, row.epoch, row.owner):
            raise violation

    # One partition in one transaction

    def _check_partition(
        self,
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
            self._check_same_epoch(tx, old, new)
        else:
            self._check_grant(tx, old, new, old_flows, queue)
        ended = old.state == "warming" and new.state == "revoking" and rise == 0
        if ended and new.successor == old.successor:
            self._check_warmup_end(tx, old, new)
        if new.state == "removed" and old.state != "removed":
            self._check_removal(old, new)

    def _follow(self, tx: Transaction, row: Any, queue: Mapping[str, Any]) -> None:
        moving = _TIMES.get(row.state)
        self.deadlines.follow(row, tx.now, self._values(moving, queue) if moving else ())

    def _values(self, name: str, queue: Mapping[str, Any]) -> set[Any]:
        """What a setting may have been within a transaction; `queue`: as before it."""
        return {queue.get(name), self.queue.get(name)} | self.asked.values(name)

    def _check_removal(self, old: Any, new: Any) -> None:
        if ("finish", old.owner, new.number, old.epoch) in self._sent and new.epoch == old.epoch:
            return
        if not self.asked.discard(new.number):
            raise Violation(3, f"p{new.number} was removed, and {old.owner} was not finished")
        self.lanes[new.number].rough.add(new.epoch + 1)

    def _check_same_epoch(self, tx: Transaction, old: Any, new: Any) -> None:
        number = new.number
        if new.owner is not None and new.owner != old.owner:
            raise Violation(1, f"p{number} went from {old.owner} to {new.owner} in one epoch")
        if old.state == "revoking" and new.state in ("owned", "warming"):
            raise Violation(1, f"a revoke of p{number} was taken back in epoch {new.epoch}")
        if old.owner is None or new.owner is not None or new.state == "removed":
            return
        if new.let_go == "graceful":
            self._check_released(old)
        elif old.owner not in tx.left and not self._discarded_between(tx, number):
            raise Violation(5, f"p{number} lost its owner {old.owner} without a handoff")

    def _check_grant(
        self,
        tx: Transaction,
        old: Any,
        new: Any,
        old_flows: Mapping[str, Any],
        queue: Mapping[str, Any],
    ) -> None:
        number, how = new.number, new.handed_over if new.owner is not None else None
        if how not in ("initial", "graceful"):
            self.lanes[number].rough.add(new.epoch)
        known = old_flows.get(new.owner)
        if known is not None and known.draining and new.owner != old.owner:
            raise Violation(6, f"p{number} was granted to {new.owner}, which is draining")
        # Retiring again, or its position set, the owner goes on under a new epoch.
        again = new.retiring and not old.retiring
        again = again or (len(tx.revisions) > 1 and self.asked.resize())
        raised = number in tx.reset or (again and new.owner == old.owner)
        bound = old.owner is not None and old.owner not in tx.left
        if new.epoch - old.epoch > 1:
            # Of the epochs between nobody was told, so nobody can have let go of one.
            if how in ("initial", "graceful"):
                raise Violation(4, f"p{number} came to epoch {new.epoch}, and is called {how}")
            if bound and not raised and not self._may_lose(tx, old):
                raise Violation(5, f"p{number} was taken from {old.owner} in epoch {old.epoch}")
            return
        if how == "forced" and not raised and old.owner is not None:
            self._check_forced(tx, old, queue)
        if how == "graceful" and old.owner is not None:
            self._check_released(old)
        if how == "orphaned" and bound and not self._discarded_between(tx, number):
            raise Violation(5, f"p{number} was taken from {old.owner}, which is bound")
        first = old.epoch == 0 or old.state == "removed" or old.let_go == "initial"
        if how == "initial" and not first and new.owner != old.owner:
            raise Violation(4, f"p{number} epoch {new.epoch} is not the initial one")
        if how == "replaced":
            before = self._owners.get(number, old.epoch)
            if before is not None and self._instances[before] != self._instances[new.owner]:
                raise Violation(4, f"p{number} was held by {before}, not by {new.owner} restarted")

    def _discarded_between(self, tx: Transaction, number: int) -> bool:
        """Whether a partition may have been discarded and added again within this transaction."""
        return len(tx.revisions) > 1 and self.asked.discard(number)

    def _may_lose(self, tx: Transaction, old: Any) -> bool:
        """Whether an owner that is bound may have lost a partition to somebody in passing."""
        due = self.deadlines.due(old.number)
        over = old.state == "revoking" and self.deadlines.decided(tx.now) >= due - ACCURACY
        released = ("release", old.owner, old.number, old.epoch) in self._sent
        return over or released or self._discarded_between(tx, old.number)

    def _check_forced(self, tx: Transaction, old: Any, queue: Mapping[str, Any]) -> None:
        due = self.deadlines.due(old.number)
        if old.state != "revoking":
            # Only if there is no time at all for it.
            if min(self._values("max_handoff_time", queue)) > 0:
                text = f"p{old.number} was forced from {old.owner} without a revoke"
                raise Violation(8, text)
        elif self.deadlines.decided(tx.now) < due - ACCURACY:
            early = due - tx.now
            raise Violation(8, f"p{old.number} was forced {early:.3f} s before its deadline")

    def _check_released(self, old: Any) -> None:
        if ("release", old.owner, old.number, old.epoch) not in self._sent:
            text = f"p{old.number} was let go as if {old.owner} had released epoch {old.epoch}"
            raise Violation(2, text)

    def _check_warmup_end(self, tx: Transaction, old: Any, new: Any) -> None:
        owner: Any = self.flows.get(old.owner)
        drain_deadline = None if owner is None else owner.drain_deadline
        decided = self.deadlines.decided(tx.now)
        if drain_deadline is not None and drain_deadline <= decided:
            return
        if self.deadlines.due(old.number) <= decided + ACCURACY:
            return
        if ("ready", new.successor, new.number, new.epoch) not in self._sent:
            raise Violation(2, f"the warm-up of p{new.number} ended, {new.successor} not ready")

    # The queue

    def _check_status(self, tx: Transaction, old: Mapping[str, Any]) -> None:
        queue = self.queue
        if queue["status"] == "Ready" and not self.balanced():
            raise Violation(9, "the queue is Ready, but not balanced")
        if queue["status"] != "Rebalancing":
            for row in self.partitions.values():
                if row.state in ("warming", "revoking"):
                    raise Violation(5, f"p{row.number} is {row.state}, but {queue['status']}")
        if queue["status"] == "Holddown":
            self._check_holddown(tx, old)
        if not old or old["status"] != "Holddown" or queue["status"] != "Rebalancing":
            return
        # It was over, somebody asked, or it was settled and what came then takes no holddown.
        due = old["holddown_until"] + self._went_back(old)
        early = self.deadlines.decided(tx.now) < due - ACCURACY and not self.asked.rebalance()
        without = len(tx.revisions) > 1 and 0 in self._values("rebalance_delay", old)
        if early and not without:
            raise Violation(8, "a holddown ended early")

    def _check_holddown(self, tx: Transaction, old: Mapping[str, Any]) -> None:
        since, until = self.queue["since"], self.queue["holddown_until"]
        if old and old["status"] == "Holddown":
            moved = self._went_back(old)
            if (
                abs(old["since"] + moved - since) <= ACCURACY
                and abs(old["holddown_until"] + moved - until) <= ACCURACY
            ):
                return
            # The next one begins later, but for a small step of the clock.
            stepped = self.deadlines.decided(tx.now) - tx.now
            if len(tx.revisions) == 1 or since + stepped <= old["since"] + moved:
                raise Violation(8, f"a holddown was extended to {until}")
        took = until - since
        self.deadlines.granted_seconds += took
        if all(abs(took - s) > ACCURACY for s in self._values("rebalance_delay", old)):
            raise Violation(8, f"a holddown takes {took:.3f} s")

    def balanced(self) -> bool:
        """*Balance*, counted from the rows."""
        takers = {id: 0 for id, row in self.flows.items() if not row.draining}
        if not takers:
            return True
        for row in self.partitions.values():
            if row.state == "removed":
                continue
            if row.owner not in takers:
                return False
            takers[row.owner] += not row.retiring
        return balance.is_balanced(takers, only=self._only(takers))

    def _only(self, takers: Collection[str]) -> str | None:
        """Who is to own all, if access is exclusive."""
        exclusive = self.queue["access_type"] == "exclusive"
        return min(takers, key=lambda id: self.flows[id].seat) if exclusive else None

    def _check_handoffs(
        self,
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
                begun.append(was)
            elif row.epoch > was.epoch and row.handed_over == "graceful":
                # A draining owner let go before it was asked to.
                begun.append(was)
            elif row.state in ("unassigned", "removed"):
                released = True
        several = len(tx.revisions) > 1
        changed = (
            released
            or not old
            or self._flows_differ(old_flows)
            or any(self.queue[name] != old[name] for name in _SETTINGS)
            or (old["status"] != "Rebalancing" and self.queue["status"] == "Rebalancing")
            or (several and (tx.left or self.asked.resize() or self._changed_between()))
        )
        if several and changed:
            # Several decisions: what the first began the next had to take as it was.
            self._made, self._fewest = 0, self.fewest(())
            return
        if changed:
            self._made, self._fewest = 0, self.fewest(begun)
        self._made += len(begun)
        if self._made > self._fewest:
            numbers = [row.number for row in begun]
            text = f"{self._made} handoffs where {self._fewest} would do, now of {numbers}"
            raise Violation(6, text)

    def _changed_between(self) -> bool:
        """Whether a setting may have had another value within a transaction."""
        return any(self.asked.values(name) - {self.queue[name]} for name in _SETTINGS)

    def _flows_differ(self, old_flows: Mapping[str, Any]) -> bool:
        return {(id, row.draining) for id, row in self.flows.items()} != {
            (id, row.draining) for id, row in old_flows.items()
        }

    def fewest(self, begun: Collection[Any]) -> int:
        """The smallest number of handoffs from here; `begun`: rows as before of those that this
        transaction began, which count as if it had not.
        """
        takers = {id: 0 for id, row in self.flows.items() if not row.draining}
        if not takers:
            return 0
        undone = {row.number: row for row in begun}
        total = leaving = 0
        for number, after in self.partitions.items():
            row = undone.get(number, after)
            if after.state == "removed":
                continue
            owner = row.owner if row.owner in self.flows else None
            total += not after.retiring
            on_its_way = row.state == "revoking"
            if owner is not None and owner not in takers and not on_its_way:
                leaving += 1
            holder = row.successor if on_its_way else owner
            if not after.retiring and holder in takers:
                takers[holder] += 1
        return leaving + balance.fewest_handoffs(takers, total, only=self._only(takers))

    def _check_views(self) -> None:
        """Who has to be told something is told under a new revision."""
        views: dict[str, list[Any]] = {id: [row.draining] for id, row in self.flows.items()}
        for number in sorted(self.partitions):
            row = self.partitions[number]
            if row.owner is not None:
                revoking = row.state == "revoking"
                state = "revoking" if revoking else "retiring" if row.retiring else "owned"
                deadline = row.deadline if revoking else None
                views[row.owner].append((number, row.epoch, state, row.handed_over, deadline))
            if row.warm and row.successor is not None:
                seen = (number, row.epoch, "warming", None, row.deadline)
                if row.successor in views:
                    views[row.successor].append(seen)
        for id, view in views.items():
            revision = self.flows[id].view_revision
            if self._views.setdefault((id, revision), view) != view:
                raise Violation(5, f"the view of {id} changed within revision {revision}")

    # What replicas answer

    def began(self) -> Began:
        """A replica begins to answer a call."""
        epochs = {number: row.epoch for number, row in self.partitions.items()}
        return Began(dict(self.positions), epochs, self.transactions)

    def _reset_since(self, number: int, began: Began) -> bool:
        return self._reset_by.get(number, 0) > began.transactions

    @_told
    def showed(self, update: Any, began: Began) -> None:
        """A replica tells a flow its view."""
        flow, revision = update.flow_id, update.revision
        view = self._views.get((flow, revision))
        if view is None:
            raise Violation(7, f"{flow} was told of revision {revision}, which is not committed")
        told = [update.draining]
        for seen in update.partitions:
            number, epoch = seen.partition, seen.epoch
            told.append((number, epoch, seen.state, seen.handed_over, seen.deadline))
            position = 0 if seen.position is None else int(seen.position)
            if not self._reset_since(number, began):
                least, most = began.positions.get(number, 0), self.positions.get(number, 0)
                if not least <= position <= most:
                    raise Violation(3, f"{flow} was told p{number} at {position}, not {least}")
        if told != view:
            raise Violation(5, f"{flow} was told {told} at revision {revision}, but it is {view}")

    @_told
    def answered(self, kind: str, flow: str, items: Sequence[Any], results: Any, began: Began):
        """A replica answers a commit, release or ready, item by item.

        `items`: (partition, epoch, position or None).
        """
        for (number, epoch, position), result in zip(items, results, strict=True):
            row = self.partitions.get(number)
            if result.outcome != "ok":
                continue
            what = f"{flow} was told that its {kind} of p{number} in epoch {epoch}"
            if kind == "commit":
                if epoch < began.epochs.get(number, 0):
                    raise Violation(2, f"{what} is fine, but the epoch was over")
                stored = self.positions.get(number, 0)
                if stored < position and not self._reset_since(number, began):
                    raise Violation(7, f"{what} at {position} is fine, but it is not stored")
            elif kind == "release" and row is not None and (row.epoch, row.owner) == (epoch, flow):
                raise Violation(7, f"{what} is fine, but it is still the owner")

    @_told
    def bound(self, flow: str) -> None:
        """A bind was answered."""
        if flow not in self._instances:
            raise Violation(7, f"{flow} was told that it is bound, which is not stored")

    @_told
    def unbound(self, flow: str) -> None:
        """An unbind was answered."""
        if flow in self.flows:
            raise Violation(7, f"{flow} was told that it has left, but it is bound")

    @_told
    def refused(self, flow: str, code: str) -> None:
        """A call of a flow was refused."""
        if code in ("flow_gone", "flow_not_found") and flow in self.flows:
            raise Violation(7, f"{flow} was told {code}, but it is bound")

    # The clock

    @_told
    def worked(self, now: float, able: Collection[str]) -> None:
        """5. See `Progress`; said every now and then, before anything is wrong with these flows."""
        if self._hindered_until + self._progress.bound_seconds < now:
            self._progress.look(
                now, self._hindered_until, self.partitions, self.positions, self.lanes, able
            )

    @_told
    def tick(self, now: float) -> None:
        """8. Nothing outlives its deadline while a replica serves."""
        quiet = self._disturbed_until
        if now < quiet or not self.queue:
            return
        # Who was disturbed, or lost an alarm with a dead replica, has the sweep.
        late = self.slack_seconds + (1.2 if now < quiet + 5.0 else 0.0)
        horizon = now - late
        if quiet > horizon:
            return
        if self.queue["status"] == "Holddown":
            noticed = self._outages[self.queue["outage_seen"] :]
            until = self.queue["holddown_until"] + _back(noticed)
            if until < horizon:
                raise Violation(8, f"a holddown is over for {now - until:.3f} s")
        for number, row in self.partitions.items():
            if row.deadline is not None and (due := self.deadlines.due(number)) < horizon:
                text = f"p{number} is {row.state} {now - due:.3f} s after its deadline"
                raise Violation(8, text)
        for flow_id, ends in self.leases.items():
            if ends < horizon:
                raise Violation(8, f"{flow_id} is bound {now - ends:.3f} s after its lease")

    # The end

    def granted_seconds(self) -> float:
        """How long the holddowns and handoffs so far may have taken, one after another."""
        return self.deadlines.granted_seconds

    def under_way_seconds(self) -> float:
        """How long the leases, the holddown and the handoffs under way may take at the most."""
        ends = [
            self.deadlines.due(number)
            for number, row in self.partitions.items()
            if row.deadline is not None
        ]
        noticed = self._outages[self.queue["outage_seen"] :]
        ends += [(self.queue["holddown_until"] or 0.0) + _back(noticed)]
        now = self.stamped_at or 0.0
        leases = [row.lease_seconds for row in self.flows.values()]
        return max(leases, default=0.0) + max(0.0, max(ends) - now)

    def backlog(self) -> int:
        """How many messages there are to process, in the partition with the most."""
        left = (lane.end - self.positions.get(n, 0) for n, lane in self.lanes.items())
        return max(left, default=0)

    def unsettled(self) -> tuple[int, str] | None:
        """What is still to be done when nothing goes wrong any more, and the promise that is broken
        if it stays so; None: nothing.
        """
        if self.queue["status"] != "Ready":
            return 9, f"the queue is {self.queue['status']}"
        if not self.balanced():
            return 9, "the queue is not balanced"
        for number, row in self.partitions.items():
            if row.state != "removed" and (row.retiring or row.owner is None):
                return 9, f"p{number} is {'retiring' if row.retiring else row.state}"
        for number, lane in self.lanes.items():
            if lane.prefix < lane.end:
                return 3, f"message {lane.prefix} of p{number} was not processed"
            row = self.partitions[number]
            if row.state != "removed" and self.positions.get(number, 0) < lane.end > lane.first:
                return 9, f"the position of p{number} is {self.positions.get(number, 0)}"
        return None


def _back(outages: Iterable[tuple[float, float]]) -> float:
    """By how much the clock went back in these; not positive."""
    return sum(min(0.0, ended - began) for began, ended in outages)


_TIMES = {"warming": "max_warmup_time", "revoking": "max_handoff_time"}
_SETTINGS = (
    "partition_count",
    "access_type",
    "max_concurrent_handoffs",
    "rebalance_delay",
    "max_handoff_time",
    "max_warmup_time",
)
