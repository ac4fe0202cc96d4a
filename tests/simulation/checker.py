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
from itertools import combinations
from typing import Any, TypeVar

OWNED = ("owned", "warming", "revoking")
# No replica served if none stamped for longer.
OUTAGE_SECONDS = 3.0
ACCURACY = 1e-4


class Violation(Exception):
    """A promise was broken. `promise` is its number; 0: the service failed in itself."""

    def __init__(self, promise: int, text: str) -> None:
        super().__init__(f"promise {promise}: {text}")
        self.promise = promise
        self.text = text


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
    """What one transaction changed. `positions` of the partitions named, as they are after it."""

    now: float
    revisions: Sequence[int]
    queue: Mapping[str, Any]
    partitions: Sequence[Any]
    flows: Sequence[Any]
    left: Mapping[str, str]
    renewed: Collection[str]
    positions: Mapping[int, str | None]


@dataclass(slots=True)
class Lane:
    """One partition of the log, and what sinks have seen of it."""

    end: int = 0
    first: int = 0
    processed: set[int] = field(default_factory=set)
    # Everything below was processed, or was discarded.
    prefix: int = 0
    highest: dict[int, int] = field(default_factory=dict)
    # Epochs that began with anything but a graceful handover.
    rough: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Began:
    """What was known when a replica began to answer a call."""

    positions: Mapping[int, int]
    epochs: Mapping[int, int]
    resets: int


class Checker:
    """Watches one queue."""

    def __init__(self, slack_seconds: float) -> None:
        """`slack_seconds`: how late after a deadline an undisturbed service may act."""
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
        self._owners: dict[tuple[int, int], str] = {}
        self._instances: dict[str, str] = {}
        self._views: dict[tuple[str, int], Any] = {}
        self._sent: set[tuple[Any, ...]] = set()
        self._told: set[tuple[str, int, int]] = set()
        self._owed: dict[int, tuple[float, float]] = {}
        self._set_by_admin: set[int] = set()
        self._resets = 0
        self._asked_to_rebalance = False
        self._disturbed_until = 0.0
        self._fewest = 0
        self._made = 0

    # What happened outside

    def disturbed(self, until: float) -> None:
        """Replicas cannot be expected to be in time before `until`."""
        self._disturbed_until = max(self._disturbed_until, until)

    def published(self, partition: int) -> None:
        """One more message."""
        self.lanes[partition].end += 1

    def discarded(self, partition: int) -> None:
        """An administrator had everything thrown away that the partition holds."""
        lane = self.lanes[partition]
        lane.first = lane.end
        lane.prefix = max(lane.prefix, lane.end)

    @_told
    def trimmed(self, partition: int, first: int) -> None:
        """The log keeps nothing below."""
        if first > self.lanes[partition].prefix:
            raise Violation(3, f"p{partition} was trimmed up to {first}, before it was processed")

    def sent(self, *what: Any) -> None:
        """A client (or an administrator) sent this. See `_explained` for the shapes."""
        self._sent.add(what)
        if what[0] == "positions":
            self._set_by_admin.update(what[1])
        elif what[0] == "rebalance":
            self._asked_to_rebalance = True

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
        if self._owners.get((partition, epoch)) != flow:
            owner = self._owners.get((partition, epoch))
            raise Violation(1, f"{what}, which {owner or 'nobody'} owns")
        if position > lane.prefix:
            raise Violation(3, f"{what}, but {lane.prefix} was not processed")
        for other, highest in lane.highest.items():
            if highest >= position:
                rough = any(min(epoch, other) < e <= max(epoch, other) for e in lane.rough)
                if not rough:
                    raise Violation(4, f"{what}, after {highest} in epoch {other}, gracefully")
        lane.highest[epoch] = max(position, lane.highest.get(epoch, -1))
        lane.processed.add(position)
        while lane.prefix in lane.processed:
            lane.prefix += 1

    # What the database holds

    @_told
    def pulsed(self, now: float) -> None:
        """A replica stamped that it serves."""
        began, self.stamped_at = self.stamped_at, now
        if began is None or now - began <= OUTAGE_SECONDS:
            return
        for flow_id, ends in self.leases.items():
            if ends > began:
                self.leases[flow_id] = now + self.flows[flow_id].lease_seconds
        for number, row in self.partitions.items():
            if row.deadline is not None and row.deadline > began and row.handoff_since < now:
                # Whoever decides next owes the handoff the time that nobody served.
                self._owed[number] = (row.handoff_since, row.deadline + now - began)

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
            self._move_to(number, position, old_partitions.get(number))
        for row in tx.partitions:
            old = old_partitions.get(row.number)
            self.partitions[row.number] = row
            if old is not None:
                self._check_partition(tx, old, row, old_flows)
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
            instance = self._instances[flow_id]
            if reason == "replaced" and not any(
                row.instance_id == instance for id, row in self.flows.items() if id != flow_id
            ):
                raise Violation(7, f"{flow_id} was replaced by nobody")
            del self.flows[flow_id], self.leases[flow_id]

    def _move_to(self, number: int, position: str | None, row: Any) -> None:
        old = self.positions.get(number, 0)
        new = 0 if position is None else int(position)
        if new == old:
            return
        self.positions[number] = new
        if number in self._set_by_admin:
            self._resets += 1
            return
        how = f"the position of p{number} went from {old} to {new}"
        if row is None or ("position", row.owner, number, row.epoch, new) not in self._sent:
            raise Violation(2, f"{how}, which its owner did not ask for in this epoch")
        if new < old:
            raise Violation(2, how)
        if new > self.lanes[number].prefix:
            raise Violation(3, f"{how}, but {self.lanes[number].prefix} was not processed")

    def _own(self, row: Any) -> None:
        owner = self._owners.setdefault((row.number, row.epoch), row.owner)
        if owner != row.owner:
            raise Violation(1, f"{owner} and {row.owner} own p{row.number} in epoch {row.epoch}")

    # One partition in one transaction

    def _check_partition(
        self, tx: Transaction, old: Any, new: Any, old_flows: Mapping[str, Any]
    ) -> None:
        number, rise = new.number, new.epoch - old.epoch
        if rise < 0 or rise > len(tx.revisions):
            raise Violation(1, f"p{number} went from epoch {old.epoch} to {new.epoch}")
        if rise == 0:
            self._check_same_epoch(tx, old, new)
        else:
            self._check_grant(tx, old, new, old_flows)
        ended = old.state == "warming" and new.state == "revoking" and rise == 0
        if ended and new.successor == old.successor:
            self._check_warmup_end(tx, old, new)
        finished = ("finish", old.owner, number, old.epoch) in self._sent
        if new.state == "removed" and old.state != "removed" and not finished:
            self.lanes[number].rough.add(new.epoch + 1)
        if len(tx.revisions) == 1:
            self._check_deadline(old, new)
        if new.state not in ("warming", "revoking"):
            self._owed.pop(number, None)

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
        elif old.owner not in tx.left and not self._discarded_between(tx):
            raise Violation(5, f"p{number} lost its owner {old.owner} without a handoff")

    def _check_grant(
        self, tx: Transaction, old: Any, new: Any, old_flows: Mapping[str, Any]
    ) -> None:
        number, how = new.number, new.handed_over if new.owner is not None else None
        if len(tx.revisions) > 1 and new.epoch - old.epoch > 1:
            # Several things at once: what came between was told to nobody.
            self.lanes[number].rough.update(range(old.epoch + 1, new.epoch + 1))
            return
        if how not in ("initial", "graceful"):
            self.lanes[number].rough.add(new.epoch)
        again = new.retiring and not old.retiring
        again = again or len(tx.revisions) > 1
        raised = (number in self._set_by_admin or again) and new.owner == old.owner
        if how == "forced" and not raised and old.owner is not None:
            self._check_forced(tx, old, new)
        if how == "graceful" and old.owner is not None:
            self._check_released(old)
        bound = old.owner is not None and old.owner not in tx.left
        if how == "orphaned" and bound and not self._discarded_between(tx):
            raise Violation(5, f"p{number} was taken from {old.owner}, which is bound")
        first = old.epoch == 0 or old.state == "removed" or old.let_go == "initial"
        if how == "initial" and not first and new.owner != old.owner:
            raise Violation(4, f"p{number} epoch {new.epoch} is not the initial one")
        if how == "replaced":
            before = self._owners.get((number, old.epoch))
            if before is not None and self._instances[before] != self._instances[new.owner]:
                raise Violation(4, f"p{number} was held by {before}, not by {new.owner} restarted")
        known = old_flows.get(new.owner)
        if known is not None and known.draining and new.owner != old.owner:
            raise Violation(6, f"p{number} was granted to {new.owner}, which is draining")

    def _check_deadline(self, old: Any, new: Any) -> None:
        began = (new.state, new.handoff_since) != (old.state, old.handoff_since)
        if new.deadline is None or not began:
            return
        warming = new.state == "warming"
        seconds = self.queue["max_warmup_time" if warming else "max_handoff_time"]
        if abs(new.deadline - new.handoff_since - seconds) > ACCURACY:
            took = new.deadline - new.handoff_since
            raise Violation(8, f"p{new.number} may be {new.state} for {took:.3f} s")

    def _discarded_between(self, tx: Transaction) -> bool:
        """Whether a partition may have been discarded and added again within this transaction."""
        return len(tx.revisions) > 1 and ("discard",) in self._sent

    def _check_forced(self, tx: Transaction, old: Any, new: Any) -> None:
        since, owed = self._owed.get(old.number, (None, 0.0))
        due = max(old.deadline or 0.0, owed if since == old.handoff_since else 0.0)
        if old.state == "warming":
            due = old.deadline + self.queue["max_handoff_time"] if len(tx.revisions) < 2 else 0.0
        elif old.state == "owned" and len(tx.revisions) < 2:
            raise Violation(8, f"p{old.number} was forced from {old.owner} without a revoke")
        if tx.now < due - ACCURACY:
            early = due - tx.now
            raise Violation(8, f"p{old.number} was forced {early:.3f} s before its deadline")

    def _check_released(self, old: Any) -> None:
        if ("release", old.owner, old.number, old.epoch) not in self._sent:
            text = f"p{old.number} was let go as if {old.owner} had released epoch {old.epoch}"
            raise Violation(2, text)

    def _check_warmup_end(self, tx: Transaction, old: Any, new: Any) -> None:
        owner: Any = self.flows.get(old.owner)
        drain_deadline = None if owner is None else owner.drain_deadline
        if old.deadline <= tx.now or (drain_deadline is not None and drain_deadline <= tx.now):
            return
        if len(tx.revisions) > 1 or new.successor is None:
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
        if not old or old["status"] != "Holddown":
            if queue["status"] == "Holddown" and len(tx.revisions) == 1:
                until = queue["since"] + queue["rebalance_delay"]
                if abs(until - queue["holddown_until"]) > ACCURACY:
                    raise Violation(8, f"the holddown ends at {queue['holddown_until']}")
            return
        still = queue["status"] == "Holddown" and len(tx.revisions) == 1
        if still and queue["holddown_until"] != old["holddown_until"]:
            raise Violation(8, "a holddown was extended")
        early = tx.now < old["holddown_until"] - ACCURACY
        if queue["status"] == "Rebalancing" and early and not self._asked_to_rebalance:
            settings = ("partition_count", "access_type")
            if all(queue[name] == old[name] for name in settings) and len(tx.revisions) == 1:
                raise Violation(8, "a holddown ended early")

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
        if self.queue["access_type"] == "exclusive":
            first = min(takers, key=lambda id: self.flows[id].seat)
            return takers[first] == sum(takers.values())
        return max(takers.values()) - min(takers.values()) <= 1

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
        changed = (
            released
            or not old
            or self._flows_differ(old_flows)
            or any(self.queue[name] != old[name] for name in _SETTINGS)
            or (old["status"] != "Rebalancing" and self.queue["status"] == "Rebalancing")
        )
        if len(tx.revisions) > 1:
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
        if self.queue["access_type"] == "exclusive":
            first = min(takers, key=lambda id: self.flows[id].seat)
            return leaving + sum(takers.values()) - takers[first]
        floor, extra = divmod(total, len(takers))
        return leaving + min(
            sum(max(0, held - floor - (id in rich)) for id, held in takers.items())
            for rich in combinations(sorted(takers), extra)
        )

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
        return Began(dict(self.positions), epochs, self._resets)

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
            if began.resets == self._resets:
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
                if began.resets == self._resets and self.positions.get(number, 0) < position:
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
        if self.queue["status"] == "Holddown" and self.queue["holddown_until"] < horizon:
            raise Violation(8, f"a holddown is over for {now - self.queue['holddown_until']:.3f} s")
        for number, row in self.partitions.items():
            if row.deadline is not None and row.deadline < horizon:
                text = f"p{number} is {row.state} {now - row.deadline:.3f} s after its deadline"
                raise Violation(8, text)
        for flow_id, ends in self.leases.items():
            if ends < horizon:
                raise Violation(8, f"{flow_id} is bound {now - ends:.3f} s after its lease")

    # The end

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


_SETTINGS = (
    "partition_count",
    "access_type",
    "max_concurrent_handoffs",
    "rebalance_delay",
    "max_handoff_time",
    "max_warmup_time",
)
