"""One queue for tests: commands by name, a clock that the test moves, and the oracle at every step.

    orders = World(partitions=4)
    orders.bind("A")
    orders.advance(5)
    assert orders.owned("A") == [0, 1, 2, 3]

Each command is decided, undone, decided again, undone, replayed from its records, and replayed once
more from the records as JSON. So every test of the core also tests that `decide` is a function,
that undoing is exact and that replay gives the same queue.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.model import Partition, Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide, follow
from broker.core.stored import from_json, to_json
from broker.core.transitions import Status
from tests.broker.core.lineage_oracle import LineageOracle
from tests.broker.core.oracle import Oracle, snapshot


class World:
    """A queue of `partitions` partitions named orders at time 0, and a second one that only replays
    records."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        checked: bool = True,
        roots: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """With `roots` the queue is dynamic."""
        self.now = 0.0
        self.checked = checked
        self.oracle = Oracle()
        self.lineage: LineageOracle | None = None
        self.entries: list[r.Entry] = []
        self.queue, self._twin = (
            Queue("id", "orders", Settings(partition_count=partitions, **settings), 0.0)
            for _ in range(2)
        )
        if roots:
            first = tuple(r.Child(number, key, ()) for number, key in enumerate(roots))
            over = r.WaitsEnded(tuple(range(len(roots))), 0.0)
            self._begin(r.ChildrenAdded(first, 0.0), over)
        else:
            self._begin(r.PartitionsAdded(0, partitions, 0.0))
        for queue in (self.queue, self._twin):
            queue.growing = False

    @classmethod
    def dynamic(cls, *roots: str, **settings: Any) -> World:
        """A dynamic queue with these first partitions, checked by an oracle of its own."""
        world = cls(0, roots=roots, partitioning="dynamic", **settings)
        world.lineage = LineageOracle(roots)
        return world

    @classmethod
    def owning(cls, owned: dict[str, list[int]], *, warmup: bool = False, **settings: Any) -> World:
        """A queue that is Ready, with flows bound in this order that own these partitions, all in
        epoch 1."""
        numbers = sorted(n for numbers in owned.values() for n in numbers)
        assert numbers == list(range(len(numbers)))
        world = cls(len(numbers), **settings)
        records: list[r.Record] = [
            r.FlowBound(name, f"i-{name}", f"c-{name}", bind_number, 10.0, warmup, 0.0)
            for bind_number, name in enumerate(owned)
        ]
        grants = [
            r.Grant(number, None, name, 1, "initial", None, False)
            for name, numbers in owned.items()
            for number in numbers
        ]
        records += [r.GrantedOutside(1, "bind", 0.0), r.Granted(tuple(grants), 0.0)]
        world._begin(*records)
        for grant in grants:
            world.oracle.owners.claim(grant.partition, 1, grant.flow_id)
        return world

    @property
    def records(self) -> list[r.Record]:
        """All records so far."""
        return [record for entry in self.entries for record in entry.records]

    # Commands

    def do(self, command: c.Command) -> Decision:
        """Decides the command and commits the result."""
        queue = self.queue
        if not self.checked:
            decision = decide(queue, command, self.now)
            queue.journal.forget()
            self.entries += decision.entries
            return decision
        before, mark = snapshot(queue), queue.journal.mark()
        decision = decide(queue, command, self.now)
        decided = snapshot(queue)
        if queue.status is Status.REBALANCING:
            assert queue.next_deadline() is not None, "nothing ends this rebalance"
        _check_changes_are_known(before, queue, decision)
        queue.journal.undo(mark)
        assert snapshot(queue) == before, "undoing left traces"
        assert decide(queue, command, self.now) == decision, "decide is not a function"
        assert snapshot(queue) == decided, "decide is not a function"
        queue.journal.undo(mark)
        followed = follow(queue, decision.entries)
        assert snapshot(queue) == decided, "deciding is not replaying"
        assert (followed.notices, followed.wake_at) == (decision.notices, decision.wake_at)
        queue.journal.forget()
        self.entries += decision.entries
        follow(self._twin, [_from_store(entry) for entry in decision.entries])
        self._twin.journal.forget()
        assert snapshot(self._twin) == decided, "replay gave another queue"
        if self.lineage is None:
            self.oracle.check(before, queue, decided, command, decision, self.now)
        else:
            self.lineage.check(before, queue, command, decision, self.now)
        return decision

    def _begin(self, *records: r.Record) -> None:
        """The present state, before the first command."""
        entry = r.Entry(self.queue.revision + 1, 0.0, records)
        for queue in (self.queue, self._twin):
            follow(queue, [entry])
            queue.journal.forget()
        self.entries.append(entry)

    def bind(
        self, name: str, instance: str | None = None, *, warmup: bool = False, **binds: Any
    ) -> Decision:
        """A consumer binds; by default the instance and the client are named after it."""
        values = {"instance_id": f"i-{name}", "client_name": f"c-{name}"}
        if instance is not None:
            values["instance_id"] = instance
        return self.do(
            c.Bind(flow_id=name, lease_seconds=10.0, warmup=warmup, **{**values, **binds})
        )

    def unbind(self, name: str, reason: str = "unbound") -> Decision:
        return self.do(c.Unbind(name, reason))

    def expire(self, name: str) -> Decision:
        return self.do(c.Unbind(name, "lease_expired"))

    def drain(self, name: str, timeout_seconds: float | None = None) -> Decision:
        return self.do(c.Drain(name, timeout_seconds))

    def release(
        self, name: str, *numbers: int, epoch: int | None = None, finished: bool = False
    ) -> list[str]:
        """Releases partitions, by default in their present epochs; returns the outcomes."""
        items = tuple(
            c.ReleaseItem(n, self._epoch(n) if epoch is None else epoch, finished=finished)
            for n in numbers
        )
        return [str(result.outcome) for result in self.do(c.Release(name, items)).answer]

    def report(
        self,
        name: str,
        key: str,
        *children: c.NewChild,
        finished: bool = False,
        epoch: int | None = None,
    ) -> str:
        """Reports what comes after a partition; returns the outcome."""
        assert self.queue.lineage is not None
        number = self.queue.lineage.numbers[key]
        epoch = self._epoch(number) if epoch is None else epoch
        item = c.ChildrenItem(number, epoch, children, finished)
        [result] = self.do(c.Children(name, (item,))).answer
        return str(result.outcome)

    def keys(self, name: str) -> list[str]:
        """The keys of the partitions that a flow owns, lowest number first."""
        assert self.queue.lineage is not None
        return [self.queue.lineage.nodes[number].key for number in self.owned(name)]

    def state_of(self, key: str) -> str:
        """The state of the partition of this key; `removed` if only the key is remembered."""
        assert self.queue.lineage is not None
        node = self.queue.lineage.node_of(key)
        return "removed" if node is None else self.state(node.number)

    def ready(self, name: str, *numbers: int, epoch: int | None = None) -> list[str]:
        """Reports the state of partitions as restored; returns the outcomes."""
        items = tuple(c.ReadyItem(n, self._epoch(n) if epoch is None else epoch) for n in numbers)
        return [str(result.outcome) for result in self.do(c.Ready(name, items)).answer]

    def change(self, *, discard: bool = False, **changes: Any) -> Decision:
        return self.do(c.Change(changes, discard))

    def resize(self, partition_count: int, *, discard: bool = False) -> Decision:
        return self.change(partition_count=partition_count, discard=discard)

    def pause(
        self,
        *numbers: int,
        until: float | None = None,
        seconds: float | None = None,
        reason: str | None = None,
    ) -> Decision:
        """Pauses partitions, without any the queue."""
        return self.do(c.PausePartitions(numbers, until, seconds, reason))

    def resume(self, *numbers: int) -> Decision:
        return self.do(c.ResumePartitions(numbers))

    def pin(self, number: int, client_name: str, reason: str | None = None) -> Decision:
        return self.do(c.PinPartition(number, client_name, reason))

    def unpin(self, number: int) -> Decision:
        return self.do(c.UnpinPartition(number))

    def rebalance_now(self) -> Decision:
        return self.do(c.RebalanceNow())

    def raise_epochs(self, *numbers: int) -> Decision:
        return self.do(c.RaiseEpochs(numbers))

    def wait(self, seconds: float) -> None:
        """Lets time pass while no replica serves: no timer runs."""
        self.now += seconds

    def advance(self, seconds: float = 0.0) -> None:
        """Lets time pass; each timer runs when it is due."""
        until = self.now + seconds
        while (due := self.queue.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(c.Advance())
        self.now = until

    def settle(self) -> int:
        """Lets time pass until no timer is left, without any client answering. Returns how many
        ran."""
        times = 0
        while (due := self.queue.next_deadline()) is not None:
            self.now = max(self.now, due)
            self.do(c.Advance())
            times += 1
            assert times < 10_000, "this does not end"
        return times

    # The state

    @property
    def status(self) -> str:
        return str(self.queue.status)

    @property
    def trigger(self) -> str | None:
        return self.queue.trigger

    def partition(self, number: int) -> Partition:
        return self.queue.partitions[number]

    def owner(self, number: int) -> str | None:
        owner = self.queue.partitions[number].owner
        return owner.id if owner else None

    def owned(self, name: str) -> list[int]:
        return sorted(self.queue.flows[name].owned)

    def owners(self) -> dict[str, list[int]]:
        """The partitions of each flow, by order of binding."""
        flows = sorted(self.queue.flows.values(), key=lambda flow: flow.bind_number)
        return {flow.id: sorted(flow.owned) for flow in flows}

    def epoch(self, number: int) -> int:
        return self.queue.partitions[number].epoch

    def state(self, number: int) -> str:
        return str(self.queue.partitions[number].state)

    def handed_over(self, number: int) -> str | None:
        return self.queue.partitions[number].handed_over

    def successor(self, number: int) -> str | None:
        handoff = self.queue.handoffs.get(number)
        return handoff.successor.id if handoff and handoff.successor else None

    def deadline(self, number: int) -> float:
        return self.queue.handoffs[number].deadline

    def on_their_way(self) -> dict[int, tuple[str, str | None]]:
        """The state and the successor of every partition that is being handed off."""
        return {n: (self.state(n), self.successor(n)) for n in sorted(self.queue.handoffs)}

    def unassigned(self) -> list[int]:
        return sorted(self.queue.unassigned)

    def _epoch(self, number: int) -> int:
        partition = self.queue.partitions.get(number)
        return partition.epoch if partition else 0


def _from_store(entry: r.Entry) -> r.Entry:
    """The entry as it is read after it was written as JSON."""
    stored = json.loads(json.dumps([to_json(record) for record in entry.records]))
    return replace(entry, records=tuple(map(from_json, stored)))


def _stored(value: Any) -> Any:
    """Without what follows from the flow that is named."""
    return value if not isinstance(value, dict) else {**value, "successor": None}


def _check_changes_are_known(before: dict[str, Any], queue: Queue, decision: Decision) -> None:
    """The effects must name every changed partition and flow, as only named rows are written."""
    changed = {flow.id for flow in decision.effects.flows}
    after = snapshot(queue)
    known = {partition["number"]: partition for partition in before["partitions"]}
    for partition in after["partitions"]:
        number = partition["number"]
        old = known.get(number)
        kept = [
            _stored(state[name].get(number))
            for state in (before, after)
            for name in ("handoffs", "unassigned", "warmed")
        ]
        if old != partition or kept[:3] != kept[3:]:
            assert number in decision.effects.partitions, f"partition {number} is not named"
    stored = ("draining", "drain_deadline", "held_until", "view_revision", "bind_number", "warmup")
    for flow_id, flow in after["flows"].items():
        old = before["flows"].get(flow_id)
        if old is None or any(old[name] != flow[name] for name in stored):
            assert flow_id in changed, f"flow {flow_id} is not named"
