"""The ten promises of the contract (*What must never happen*), from facts alone.

Nothing of the product is imported here. The checker is told what is visible from outside: rows
after each transaction of the database (objects with the columns as attributes), what clients sent
and replicas answered, what was published and what reached a sink, and the database's time. It keeps
its own account of all this, and raises `Violation` at the first fact that does not fit. Positions
are numbers here: the next message to process of a partition, starting at 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.judge.violation import Violation
from tests.simulation import (
    above,
    budgets,
    groups,
    hands,
    lineage,
    maxima,
    order,
    pairs,
    pauses,
    queues,
)
from tests.simulation.account import Transaction, back
from tests.simulation.ending import Ending
from tests.simulation.progress import Progress

OWNED = ("owned", "warming", "revoking")
# If no replica stamped for longer than this, none served.
OUTAGE_SECONDS = 3.0
# A consumer continues only when its lost calls are given up: so long after a disturbance.
WORK_SECONDS = 1.5


F = TypeVar("F", bound=Callable[..., Any])


def _told(method: F) -> F:
    """The first violation is kept and not raised, so that it does not disturb the caller."""

    @functools.wraps(method)
    def wrapped(self: Checker, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Violation as violation:
            if self.found is None:
                self.found = violation
                self.on_violation(violation)

    return wrapped  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Began:
    """What was known when a replica began to answer a call."""

    positions: Mapping[int, int]
    epochs: Mapping[int, int]
    transactions: int
    # How often something was stored of each partition.
    stored: Mapping[int, int]


class Checker(Ending):
    """Watches one queue."""

    def __init__(
        self,
        slack_seconds: float,
        pause_seconds: float,
        moves: int | None = None,
        *,
        by_key: bool = False,
    ) -> None:
        """`slack_seconds`: how late after a deadline an undisturbed service may act;
        `pause_seconds`: how long an undisturbed consumer may do nothing in a partition that has
        messages; `moves`: the budget of a key, for each partition; `by_key`: consumers work on
        different keys of a partition at once.
        """
        super().__init__()
        self.slack_seconds = slack_seconds
        self.found: Violation | None = None
        self.on_violation: Callable[[Violation], object] = lambda violation: None
        self._progress = Progress(pause_seconds)
        self._moves = moves
        self.above = above.Above() if by_key else None
        self._told: set[tuple[str, int, int]] = set()
        # The end of the log when the queue was about to be created.
        self._ended: dict[int, int] = {}
        self._disturbed_until = self._hindered_until = 0.0

    # Outside the service

    def disturbed(self, until: float) -> None:
        """Replicas cannot be expected to be in time before `until`."""
        self._disturbed_until = max(self._disturbed_until, until)
        self.hindered(until + WORK_SECONDS)

    def hindered(self, until: float) -> None:
        """No process can be expected to make progress before `until`."""
        self._hindered_until = max(self._hindered_until, until)

    def published(self, partition: int, key: int | None = None) -> None:
        """One more message; `key`: the hash of its key."""
        if key is not None:
            self.order.keys.publish(key, (partition, self.lanes[partition].end))
        self.lanes[partition].end += 1

    def resized(self, number: int, before: int, count: int, cuts: Mapping[int, int]) -> None:
        """The log was resized, and ended there."""
        if self.queue and self.queue["ordered_resize"]:
            self.order.resized(number, before, count, cuts)

    def sealed(self, ends: Mapping[int, int], children: Sequence[int]) -> None:
        """Partitions were split or merged in the log."""
        self.order.sealed(ends, children)

    def creating(self) -> None:
        """The queue is about to be created; it starts at the end of its log."""
        self._ended = {number: lane.end for number, lane in self.lanes.items()}

    def discarded(self, partition: int) -> None:
        """For an administrator, all messages of the partition were discarded."""
        self._drop(partition, self.lanes[partition].end)

    def _drop(self, partition: int, end: int) -> None:
        """No message below `end` has to be processed."""
        self.lanes[partition].discarded(end)
        if self.above is not None:
            for position in range(end):
                self.order.keys.discard((partition, position))

    @_told
    def trimmed(self, partition: int, first: int) -> None:
        """The log keeps nothing below `first`."""
        if first > self.lanes[partition].prefix:
            raise Violation(3, f"p{partition} was trimmed up to {first}, before it was processed")
        self.lanes[partition].trimmed(first)

    def sent(self, *what: Any) -> None:
        """A client sent this: `release`, `finish`, `ready` with the flow, the partition and the
        epoch, `position` with the position too, `above` also with what is processed above it,
        `unbind` with the flow.
        """
        self.said.add(what)

    @_told
    def granted(self, process: str, partition: int, epoch: int) -> None:
        """A program was told that it owns a partition."""
        if (process, partition, epoch) in self._told:
            raise Violation(4, f"{process} was told twice of p{partition} epoch {epoch}")
        self._told.add((process, partition, epoch))

    @_told
    def began_work(self, flow: str, revision: int, partition: int, position: int) -> None:
        """A process whose view has this revision begins with a message."""
        what = f"{flow} begins with p{partition} message {position}"
        pauses.check_begun(self, flow, revision, partition, what)

    def failed(self, partition: int) -> None:
        """A message was tried in vain: its owner does something, and tries it again."""
        self.lanes[partition].times += 1

    @_told
    def wrote(self, flow: str, partition: int, epoch: int, position: int) -> None:
        """A message has reached a sink."""
        lane = self.lanes[partition]
        what = f"{flow} wrote p{partition} message {position} in epoch {epoch}"
        owner = self.owners.get(partition, epoch)
        if owner != flow:
            raise Violation(1, f"{what}, which {owner or 'nobody'} owns")
        if lane.late(epoch) and not lane.excused(epoch, lane.newest):
            raise Violation(4, f"{what}, after epoch {lane.newest} had begun, gracefully")
        if self.above is not None:
            self.above.check_written(self, partition, epoch, position, what)
            lane.note(epoch, position)
        else:
            for violation in lane.handled(epoch, position, lane.excused):
                raise Violation(violation.promise, f"{flow} wrote p{partition} {violation.text}")
        order.check_written(self, partition, position, what)

    # In the database

    @_told
    def pulsed(self, now: float) -> None:
        """A replica stamped that it serves."""
        began, self.stamped_at = self.stamped_at, now
        if began is None or abs(now - began) <= OUTAGE_SECONDS:
            return
        self.outages.append((began, now))
        for flow_id, ends in self.leases.items():
            # If the clock went back, the ends of leases do not show which flows were alive.
            if ends > began or now < began:
                self.leases[flow_id] = now + self.flows[flow_id].lease_seconds
        self.deadlines.outage(began, now)

    def clock_set(self, seconds: float, now: float) -> None:
        """The database's clock was set by so much; the checker's own times move with it."""
        self._disturbed_until += seconds
        self._hindered_until += seconds
        self._progress.clock_set(seconds)
        self.deadlines.clock_set(seconds, now)

    def came_late(self, now: float) -> None:
        """A transaction was refused: it came too long after its decision."""
        self.deadlines.came_late(now)

    @_told
    def renewed(self, flow_ids: Iterable[str], now: float) -> None:
        """Calls of these flows have reached the database."""
        for flow_id in flow_ids:
            if flow_id in self.leases:
                self.leases[flow_id] = now + self.flows[flow_id].lease_seconds

    @_told
    def committed_positions(
        self, positions: Mapping[int, str | None], above: Mapping[int, str | None]
    ) -> None:
        """Positions were committed, without a decision."""
        for number, position in positions.items():
            row = self.partitions[number]
            self._move_to(number, position, row)
            self._keep(number, above.get(number), row)

    def _keep(self, number: int, text: str | None, row: Any) -> None:
        if self.above is not None:
            self.above.check_stored(self, number, self.positions.get(number, 0), text, row)

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
            if not queue:
                self._begin(number, position)
            elif number in tx.reset:
                self._reset(number, position, tx.above.get(number))
            else:
                self._move_to(number, position, old_partitions.get(number))
                self._keep(number, tx.above.get(number), old_partitions.get(number))
        unfenced = set(tx.reset) - {row.number for row in tx.partitions}
        if unfenced:
            raise Violation(2, f"the positions of {sorted(unfenced)} were set within an epoch")
        gone = [
            old_partitions[number]._replace(state="removed", owner=None, successor=None, warm=None)
            for number in tx.removed
        ]
        rows = [*tx.partitions, *gone]
        self.partitions.update({row.number: row for row in rows})
        for row in rows:
            old = old_partitions.get(row.number)
            if self.dynamic:
                lineage.check_begins(self, tx, old, row)
            if old is not None:
                hands.check_partition(self, tx, old, row, old_flows, queue)
            hands.follow(self, tx, row, queue)
            if row.owner is not None:
                self._own(row)
        self._leave(tx)
        order.check_rows(self, tx, queue)
        if self.dynamic:
            lineage.check_graph(self, tx)
            lineage.check_count(self)
        groups.check_owners(self)
        queues.check_owners(self, tx)
        queues.check_status(self, tx, queue, old_partitions)
        pairs.check(self, tx, queue, old_partitions)
        maxima.check(self, tx, queue, old_partitions)
        queues.check_handoffs(self, tx, queue, old_flows, old_partitions)
        queues.check_views(self)
        pauses.check_changed(self, tx, queue, old_partitions)
        budgets.check_counted(self, tx, old_partitions)
        budgets.check_joined(self, tx, old_flows, self._moves)

    def _enter_flows(self, tx: Transaction) -> None:
        for row in tx.flows:
            if row.id not in self.flows:
                if row.id in self.gone:
                    raise Violation(1, f"{row.id} has come back")
                self.instances[row.id] = row.instance_id
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
            if reason == "unbound" and ("unbind", flow_id) not in self.said:
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

    def _begin(self, number: int, position: str | None) -> None:
        """A new queue begins here; nothing below has to be processed."""
        new, lane = 0 if position is None else int(position), self.lanes[number]
        if not self._ended.get(number, 0) <= new <= lane.end:
            text = f"p{number} begins at {new}, but its log ended at {self._ended.get(number, 0)}"
            raise Violation(3, f"{text} when the queue was asked for, and at {lane.end} then")
        self.positions[number] = new
        self._drop(number, new)
        if self.above is not None:
            self.above.store(number, new, None)

    def _move_to(self, number: int, position: str | None, row: Any) -> None:
        old = self.positions.get(number, 0)
        new = 0 if position is None else int(position)
        if new == old:
            return
        self.positions[number] = new
        how = f"the position of p{number} went from {old} to {new}"
        if row is None or ("position", row.owner, number, row.epoch, new) not in self.said:
            raise Violation(2, f"{how}, which its owner did not ask for in this epoch")
        if new < old:
            raise Violation(2, how)
        if new > self.lanes[number].prefix:
            raise Violation(3, f"{how}, but {self.lanes[number].prefix} was not processed")

    def _reset(self, number: int, position: str | None, above: str | None) -> None:
        new = 0 if position is None else int(position)
        if not self.asked.position(number, new):
            raise Violation(2, f"the position of p{number} was set to {new}, unasked")
        if new > self.lanes[number].prefix:
            processed = self.lanes[number].prefix
            raise Violation(3, f"p{number} was set to {new}, but {processed} was not processed")
        if above is not None:
            raise Violation(3, f"p{number} was set to {new}, and keeps {above} as done above it")
        self.positions[number] = new
        self.reset_by[number] = self.transactions
        if self.above is not None:
            self.above.store(number, new, None)

    @property
    def last_reset(self) -> int:
        """The last transaction in which positions were set, by its number; 0 for none."""
        return max(self.reset_by.values(), default=0)

    def _own(self, row: Any) -> None:
        for violation in self.owners.claim(row.number, row.epoch, row.owner):
            raise violation
        if self.above is not None:
            self.above.own(row.number, row.epoch)

    # Answers of replicas

    def began(self) -> Began:
        """A replica begins to answer a call."""
        epochs = {number: row.epoch for number, row in self.partitions.items()}
        stored = {} if self.above is None else self.above.stored
        count = {number: len(of) for number, of in stored.items()}
        return Began(dict(self.positions), epochs, self.transactions, count)

    def _reset_since(self, number: int, began: Began) -> bool:
        return self.reset_by.get(number, 0) > began.transactions

    @_told
    def showed(self, update: Any, began: Began) -> None:
        """A replica tells a flow its view."""
        flow, revision = update.flow_id, update.revision
        view = self.views.get((flow, revision))
        if view is None:
            raise Violation(7, f"{flow} was told of revision {revision}, which is not committed")
        told: list[Any] = [update.draining, update.held_until, update.resize]
        for seen in update.partitions:
            number, epoch = seen.partition, seen.epoch
            barrier = (seen.cut, bool(seen.reached_cut), bool(seen.waits_for))
            pause = seen.paused and (seen.paused.since, seen.paused.until, seen.paused.reason)
            held = (number, epoch, seen.state, seen.handed_over, seen.deadline)
            told.append((*held, *barrier, pause))
            position = 0 if seen.position is None else int(seen.position)
            if not self._reset_since(number, began):
                least, most = began.positions.get(number, 0), self.positions.get(number, 0)
                if not least <= position <= most:
                    raise Violation(3, f"{flow} was told p{number} at {position}, not {least}")
            if self.above is not None and seen.state != "warming":
                stored = position, seen.done_above
                self.above.check_told(flow, number, stored, began.stored.get(number, 1))
        if told != view:
            raise Violation(5, f"{flow} was told {told} at revision {revision}, but it is {view}")

    @_told
    def answered(
        self,
        kind: str,
        flow: str,
        item: tuple[int, int, int, str | None],
        result: Any,
        began: Began,
    ) -> None:
        """A replica has answered an item of a commit, release, ready, or report of children.

        `item`: partition, epoch, position (0: none), what is done above it.
        """
        if result.outcome != "ok":
            return
        number, epoch, position, text = item
        row = self.partitions.get(number)
        what = f"{flow} was told that its {kind} of p{number} in epoch {epoch}"
        if kind == "commit":
            if epoch < began.epochs.get(number, 0):
                raise Violation(2, f"{what} is fine, but the epoch was over")
            stored = self.positions.get(number, 0)
            if stored < position and not self._reset_since(number, began):
                raise Violation(7, f"{what} at {position} is fine, but it is not stored")
            if self.above is not None and not self._reset_since(number, began):
                self.above.check_acknowledged(what, number, (position, text))
        elif (
            kind in ("release", "children")
            and row is not None
            and (row.epoch, row.owner) == (epoch, flow)
            and not groups.is_let_go(row)
        ):
            raise Violation(7, f"{what} is fine, but it is still the owner")

    @_told
    def bound(self, flow: str) -> None:
        """A bind was answered."""
        if flow not in self.instances:
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
        """5. See `Progress`; called regularly, before anything goes wrong with these flows."""
        if self._hindered_until + self._progress.bound_seconds < now:
            self._progress.look(
                now,
                self._hindered_until,
                self.partitions,
                self.positions,
                self.lanes,
                able,
                self._must_wait,
            )

    def _must_wait(self, number: int) -> bool:
        """Whether nothing of the partition is to be processed now."""
        return order.must_wait(self, number) or pauses.holding(self.queue, number) is not None

    @_told
    def tick(self, now: float) -> None:
        """8. Nothing outlives its deadline while a replica serves."""
        quiet = self._disturbed_until
        if now < quiet or not self.queue:
            return
        # After a disturbance, or an alarm lost with a dead replica, the sweep acts instead.
        late = self.slack_seconds + (1.2 if now < quiet + 5.0 else 0.0)
        horizon = now - late
        if quiet > horizon:
            return
        if self.queue["holddown_until"] is not None:
            noticed = self.outages[self.queue["outage_seen"] :]
            until = self.queue["holddown_until"] + back(noticed)
            if until < horizon:
                raise Violation(8, f"a holddown is over for {now - until:.3f} s")
        for number, row in self.partitions.items():
            if row.deadline is None:
                continue
            due = self.deadlines.due(number)
            if due < horizon:
                text = f"p{number} is {row.state} {now - due:.3f} s after its deadline"
                raise Violation(8, text)
        pauses.check_over(self, horizon)
        for flow_id, ends in self.leases.items():
            if ends < horizon:
                raise Violation(8, f"{flow_id} is bound {now - ends:.3f} s after its lease")
