"""The checker's own account of the queue, from the facts that it was told.

The rules of one partition (`hands.py`) and of the queue (`queues.py`) read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.judge import balance, rules
from tests.simulation.asked import Asked
from tests.simulation.deadlines import Deadlines
from tests.simulation.order import Order

# Partitions that are over, and those that take no part in the balance.
OVER = ("finished", "removed")
APART = ("waiting", *OVER)
# Partitions that are handed off.
MOVING = ("warming", "revoking")


@dataclass(slots=True)
class Transaction:
    """The changes of one transaction. `positions` of these partitions, after it; `reset`: the
    partitions among them whose position an administrator has set; `above`: what is processed above
    the positions. `children`: new partitions of a
    dynamic queue with their keys and the keys of their parents; `removed`: those that are gone.
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
    children: Mapping[int, tuple[str, Sequence[str]]] = field(default_factory=dict)
    removed: Collection[int] = ()
    above: Mapping[int, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class Lane(rules.Lane):
    """One partition of the log, and what the sinks have seen of it."""

    end: int = 0
    # Epochs that began with a handover that was not graceful.
    rough: set[int] = field(default_factory=set)

    def excused(self, earlier: int, later: int) -> bool:
        """Whether a handover between these epochs was not graceful."""
        return any(earlier < epoch <= later for epoch in self.rough)


class Account:
    """The rows after the last transaction, and what consumers and administrators said and did."""

    def __init__(self) -> None:
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
        self.owners = rules.Owners()
        self.instances: dict[str, str] = {}
        self.views: dict[tuple[str, int], Any] = {}
        # What clients have sent, see `Checker.sent`.
        self.said: set[tuple[Any, ...]] = set()
        # Outages and steps back of the clock, in the order in which they were noticed.
        self.outages: list[tuple[float, float]] = []
        # By partition: the last transaction that set its position for an administrator.
        self.reset_by: dict[int, int] = {}
        # What the log has cut and sealed; of a dynamic queue the keys, and what was removed.
        self.order = Order()
        self.keys: dict[int, str] = {}
        self.removed: set[int] = set()
        # Handoffs since the last change: the smallest possible number, and how many began.
        self.least = self.made = 0

    def went_back(self, old: Mapping[str, Any]) -> float:
        """By how much the clock went back in the outages that this transaction took over."""
        return back(self.outages[old.get("outage_seen", 0) : self.queue["outage_seen"]])

    def values(self, name: str, queue: Mapping[str, Any]) -> set[Any]:
        """The possible values of a setting within a transaction; `queue`: the row before it."""
        return {queue.get(name), self.queue.get(name)} | self.asked.values(name)

    def discarded_between(self, tx: Transaction, number: int) -> bool:
        """Whether a partition may have been discarded and added again within this transaction."""
        return len(tx.revisions) > 1 and self.asked.discard(number)

    def has_left(self, tx: Transaction, flow_id: str) -> bool:
        """Whether the flow left with this transaction or before it."""
        return flow_id in tx.left or flow_id in self.gone

    @property
    def dynamic(self) -> bool:
        return bool(self.queue["partitioning"] == "dynamic")

    def leads(self, number: int) -> bool:
        """Whether the partition stands for its group, where groups are counted."""
        return bool(number % self.queue["aligned"] == 0)

    def owned(self) -> bool:
        """Whether each partition that takes part has an owner that takes."""
        takers = [id for id, row in self.flows.items() if takes(row)]
        rows = (row for row in self.partitions.values() if row.state not in APART)
        return not takers or self.is_full() or all(row.owner in takers for row in rows)

    def balanced(self) -> bool:
        """*Balance*, counted from the rows."""
        takers = {id: 0 for id, row in self.flows.items() if takes(row)}
        if not takers or self.is_full():
            return True
        for row in self.partitions.values():
            if row.state in APART:
                continue
            if row.owner not in takers:
                return False
            takers[row.owner] += not row.retiring and self.leads(row.number)
        return balance.is_balanced(takers, only=self.only(takers), asks=self.asks(takers))

    def asks(self, takers: Collection[str]) -> balance.Asks | None:
        """What these flows were bound with; None if with nothing."""
        rows = ((id, self.flows[id]) for id in takers)
        asks = {id: balance.Ask(row.weight, self.most(row)) for id, row in rows}
        return None if all(ask == balance.Ask() for ask in asks.values()) else asks

    def most(self, row: Any) -> int | None:
        """How many partitions, or groups, a flow takes; None: any number."""
        most = row.max_partitions
        return None if most is None else most // self.queue["aligned"]

    def over_capacity(self) -> int:
        """How many partitions are more than all flows together take."""
        asks = self.asks([id for id, row in self.flows.items() if takes(row)])
        room, aligned = None if asks is None else balance.room(asks), self.queue["aligned"]
        if not asks or room is None:
            return 0
        return max(0, self.queue["partition_count"] // aligned - room) * int(aligned)

    def is_full(self) -> bool:
        """Whether partitions are more than all flows take, and each has all that it takes."""
        if not self.over_capacity():
            return False
        has = self.loads(self.partitions.values())
        return all(has[id] >= (self.most(row) or 0) for id, row in self.flows.items() if takes(row))

    def loads(self, rows: Iterable[Any]) -> Counter[str]:
        """How many of these partitions, or groups, count for each flow."""
        return Counter(
            row.successor if row.state in MOVING else row.owner
            for row in rows
            if row.state not in APART and not row.retiring and self.leads(row.number)
        )

    def only(self, takers: Collection[str]) -> str | None:
        """The flow that must own all partitions, if access is exclusive."""
        exclusive = self.queue["access_type"] == "exclusive"
        return min(takers, key=lambda id: self.flows[id].bind_number) if exclusive else None

    def fewest(self, begun: Collection[Any]) -> int:
        """The smallest number of handoffs from here on.

        `begun`: earlier rows of the partitions whose handoffs this transaction began; they count as
        if it had not.
        """
        takers = {id: 0 for id, row in self.flows.items() if takes(row)}
        if not takers:
            return 0
        undone = {row.number: row for row in begun}
        total = leaving = 0
        for number, after in self.partitions.items():
            row = undone.get(number, after)
            if after.state in APART or not self.leads(number):
                continue
            owner = row.owner if row.owner in self.flows else None
            total += not after.retiring
            on_its_way = row.state == "revoking"
            if owner is not None and owner not in takers and not on_its_way:
                leaving += 1
            holder = row.successor if on_its_way else owner
            if not after.retiring and holder in takers:
                takers[holder] += 1
        least = balance.fewest_handoffs(
            takers, total, only=self.only(takers), asks=self.asks(takers)
        )
        return leaving + least


def takes(row: Any) -> bool:
    """Whether a bound flow takes part in the balance."""
    return not row.draining and row.held_until is None


def back(outages: Iterable[tuple[float, float]]) -> float:
    """By how much the clock went back in these outages; zero or negative."""
    return sum(min(0.0, ended - began) for began, ended in outages)
