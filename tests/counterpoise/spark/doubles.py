"""Doubles for the source's peers: a log of numbers, and a queue with a simplified broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.port import Successor
from counterpoise.wire import ChildrenItem, CommitItem, ReleaseItem


class NumberLog(PostgresLog):
    """The arithmetic of the built-in log over ends that a test sets; it holds no messages."""

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count
        self.incarnation = "log-1"
        self.starts: dict[int, int] = {}
        self.next: dict[int, int] = {}
        # Of a dynamic log.
        self.keys: dict[int, str] = {}
        self.sealed: dict[int, tuple[Successor, ...]] = {}

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        return Bounds(
            self.partition_count,
            self.incarnation,
            {number: str(self.starts.get(number, 0)) for number in partitions},
            {number: str(self.next.get(number, 0)) for number in partitions},
            {number: key for number, key in self.keys.items() if number in partitions},
            {number: after for number, after in self.sealed.items() if number in partitions},
        )

    def publish(self, partition: int, count: int) -> None:
        self.next[partition] = self.next.get(partition, 0) + count


@dataclass
class Partition:
    """The broker's state of one partition. `owner` names a consumer or is None."""

    number: int
    epoch: int = 0
    owner: str | None = None
    state: str = "owned"
    position: str | None = None
    handed_over: str = "initial"
    let_go: str = "initial"
    # The last consumer whose flow left, while its instance may get the partition back (rule 12).
    left: str | None = None
    # The consumer that warms up for it while the owner keeps working.
    learner: str | None = None

    def grant(self, owner: str, handed_over: str | None = None) -> None:
        self.epoch += 1
        self.handed_over = handed_over or self.let_go
        self.owner, self.state, self.left, self.learner = owner, "owned", None, None

    def leave(self, how: str, remember: bool = False) -> None:
        self.left = self.owner if remember else None
        self.owner, self.state, self.let_go = None, "owned", how

    def seen(self) -> Owned:
        return Owned(self.number, self.epoch, self.state, self.position, self.handed_over)


@dataclass
class Queue:
    """Partitions and their owners, fenced by epoch like the real one."""

    partitions: dict[int, Partition] = field(default_factory=dict)
    # Whether the consumers drain: then they may release all their partitions.
    draining: bool = False
    # What was reported of sealed partitions.
    reported: list[ChildrenItem] = field(default_factory=list)

    @classmethod
    def of(cls, count: int) -> Queue:
        return cls({number: Partition(number) for number in range(count)})

    def view(self, owner: str) -> Mapping[int, Owned]:
        return {n: one.seen() for n, one in self.partitions.items() if one.owner == owner}

    def warming(self, learner: str) -> Mapping[int, Warming]:
        return {
            n: Warming(n, one.epoch, one.position)
            for n, one in self.partitions.items()
            if one.learner == learner and one.owner not in (None, learner)
        }

    def commit(self, owner: str, item: CommitItem | ReleaseItem) -> str:
        outcome = self._fence(owner, item)
        if outcome == "ok" and item.position is not None:
            self.partitions[item.partition].position = item.position
        return outcome

    def release(self, owner: str, item: ReleaseItem) -> str:
        outcome = self._fence(owner, item)
        one = self.partitions.get(item.partition)
        if outcome != "ok" or one is None:
            return outcome
        if one.state not in ("revoking", "retiring") and not self.draining:
            return "not_revoking"
        if item.position is not None:
            one.position = item.position
        one.leave("graceful")
        if item.finished:
            del self.partitions[item.partition]
        return "ok"

    def children(self, owner: str, item: ChildrenItem) -> str:
        """Finished, and what comes after it; a child begins when its last parent has ended."""
        outcome = self._fence(owner, item)
        if outcome == "ok":
            assert item.finished
            del self.partitions[item.partition]
            self.reported.append(item)
        return outcome

    def _fence(self, owner: str, item: CommitItem | ReleaseItem | ChildrenItem) -> str:
        one = self.partitions.get(item.partition)
        if one is None:
            return "no_such_partition"
        if item.epoch < one.epoch:
            return "stale_epoch"
        return "ok" if one.owner == owner and item.epoch == one.epoch else "not_owner"
