"""The database of the in-memory store: rows and encoded records, no shared objects.

Each method is one transaction: it does not wait between reading and writing, and it raises before
it writes anything. The rules that the real database enforces by constraints are assertions here
(`check`), so that the simulation meets them too. The history is chosen as in
`broker.store.reading`; the rows of keys, sessions and the audit, and those of announced trims, are
tables of their own.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from broker.core.access import ALL_QUEUES, matches
from broker.core.commands import Outcome, Result
from broker.core.queue import Queue
from broker.core.records import Entry
from broker.core.stored import ShownEntry
from broker.core.transitions import State
from broker.store.conditions import Condition
from broker.store.measurements import Measurement
from broker.store.ports import (
    Act,
    AuditRow,
    Commit,
    Conflict,
    Expiry,
    FlowRow,
    FlowsBound,
    KeyRow,
    KeySummary,
    Lease,
    LeaseRenewed,
    LogTrimmed,
    NamedFlow,
    NameTaken,
    Outage,
    Overdue,
    PositionCommit,
    PositionOutcomes,
    Positions,
    PositionSuperseded,
    Pulse,
    QueueGone,
    QueueRow,
    SessionRow,
    Stored,
    WentBack,
)
from broker.store.reading import QueueRows, restore
from broker.store.rows import (
    FlowValues,
    LineageValues,
    PartitionValues,
    decode,
    decode_shown,
    encode,
    first_writes,
    flow_values,
    partition_values,
    queue_row,
    queue_values,
)
from broker.store.trims import End, Trimming

OWNED_STATES = (State.OWNED, State.WARMING, State.REVOKING)


@dataclass(slots=True)
class StoredFlow:
    """A row of flows."""

    queue_id: str
    values: FlowValues
    token_hash: bytes
    lease_expires_at: float
    reason: str | None = None
    left_at: float | None = None
    conditions: tuple[Condition, ...] = ()
    conditions_seq: int | None = None


@dataclass(slots=True)
class StoredQueue:
    """The rows of a queue, its partitions and records."""

    row: dict[str, Any]
    partitions: dict[int, PartitionValues] = field(default_factory=dict)
    positions: dict[int, tuple[str | None, int | None]] = field(default_factory=dict)
    done_above: dict[int, str | None] = field(default_factory=dict)
    lineage: dict[str, LineageValues] = field(default_factory=dict)
    entries: list[tuple[Entry, bytes]] = field(default_factory=list)


def check(commit: Commit, stored: StoredQueue, flows: Mapping[str, StoredFlow]) -> None:
    """What the constraints of the real database refuse, so that the simulation meets it too."""
    _hold(commit.queue.revision >= stored.row["revision"], "a revision goes back")
    bound = {
        flow.values.id: flow.values
        for flow in flows.values()
        if flow.queue_id == commit.queue.id and not flow.reason
    }
    for flow in commit.flows:
        values = flow_values(flow)
        known = flows.get(flow.id)
        _hold(known is None or known.reason is None, "a flow comes back")
        _hold(known is None or flow.id not in commit.token_hashes, "a flow is made twice")
        before = bound.get(flow.id, values)
        _hold(values.view_revision >= before.view_revision, "a view goes back")
        bound[flow.id] = values
    numbers = {values.number for values in stored.lineage.values()}
    for child in commit.children:
        _hold(child.key not in stored.lineage, "a key is another partition's")
        _hold(child.partition not in numbers, "a number is another partition's")
    left = [values for id, values in bound.items() if id not in commit.left]
    _hold(len({values.bind_number for values in left}) == len(left), "a bind number is taken twice")
    _hold(
        len({(values.key_id, values.instance_id) for values in left}) == len(left),
        "an instance is twice",
    )
    for partition in commit.partitions:
        after = partition_values(commit.queue, partition)
        _check_partition(stored.partitions.get(after.number), after)


def _check_partition(before: PartitionValues | None, after: PartitionValues) -> None:
    owned = after.state in OWNED_STATES
    _hold(owned is (after.owner is not None), "an owner without its state, or the reverse")
    moving = after.state in (State.WARMING, State.REVOKING)
    _hold(moving is (after.deadline is not None), "a handoff without its state, or the reverse")
    if before is not None:
        _hold(after.epoch >= before.epoch, "an epoch goes back")
        other = after.owner is not None and after.owner != before.owner
        _hold(not other or after.epoch > before.epoch, "another owner in the same epoch")


def _hold(condition: bool, violation: str) -> None:
    """Raises AssertionError: only a defect can break a constraint."""
    if not condition:
        raise AssertionError(violation)


# The transactions


class Listener(Protocol):
    """A replica that is notified of changes."""

    def heard(self, speaker: object, queue_ids: Sequence[str]) -> None:
        """`speaker` has notified of changes of these queues."""


class MemoryDatabase:
    """The state that replicas share, with the methods of `ports.Store`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.queues: dict[str, StoredQueue] = {}
        self.key_tables = KeyTables()
        self.trims = TrimTable()
        # By queue, in the order of the rounds.
        self.measurements: dict[str, list[Measurement]] = {}
        self.measured_at: int | None = None
        # By the ids of queues and slots.
        self.commit_ages: dict[tuple[str, int], Sequence[int]] = {}
        # Which replica mirrors, and until when; the group, the text and the begin of failures.
        self.mirrored_by: tuple[str, float] | None = None
        self.mirror_failures: dict[str, tuple[str, str, float]] = {}
        self.flows: dict[str, StoredFlow] = {}
        self.stamped_at: float | None = None
        self.gap_seconds = 3.0
        self.outages: list[Outage] = []
        self.outage_ids = itertools.count(1)
        self.listeners: list[Listener] = []
        # Flows, and partitions as (queue, number), that some transaction has locked.
        self.held_flows: set[str] = set()
        self.held_partitions: set[tuple[str, int]] = set()

    # Serving

    def pulse(self, gap_seconds: float) -> Pulse:
        now, began = self.clock(), self.stamped_at
        if began is not None and abs(now - began) > gap_seconds:
            self.outages.append(Outage(next(self.outage_ids), began, now - began))
            for flow in self.flows.values():
                if flow.reason is None and (flow.lease_expires_at > began or now < began):
                    flow.lease_expires_at = now + flow.values.lease_seconds
        self.stamped_at, self.gap_seconds = now, gap_seconds
        return Pulse(now, self.outages[-1] if self.outages else None)

    def _over(self, flow: StoredFlow) -> bool:
        """Whether the lease is over: its time has come, and replicas served all the while."""
        now = self.clock()
        served = self.stamped_at is not None and now - self.stamped_at <= self.gap_seconds
        return flow.reason is None and served and flow.lease_expires_at <= now

    # Queues

    def _queue(self, queue_id: str) -> StoredQueue:
        queue = self.queues.get(queue_id)
        if queue is None:
            raise QueueGone(queue_id)
        return queue

    def _flows_of(self, queue_id: str) -> Iterable[StoredFlow]:
        return [flow for flow in self.flows.values() if flow.queue_id == queue_id]

    def _bound(self, flow_ids: Sequence[str]) -> Iterable[StoredFlow]:
        flows = self.flows
        return [flows[id] for id in flow_ids if id in flows and flows[id].reason is None]

    def find(self, name: str) -> str | None:
        queues = self.queues.items()
        return next((id for id, queue in queues if queue.row["name"] == name), None)

    def create(self, commit: Commit) -> None:
        if self.find(commit.queue.name) is not None or commit.queue.id in self.queues:
            raise NameTaken(commit.queue.name)
        stored = StoredQueue(queue_values(commit.queue, None))
        self._write(commit, stored)
        self.queues[commit.queue.id] = stored

    def delete(
        self, queue_id: str, *, force: bool, act: Act | None = None, end: End | None = None
    ) -> None:
        self._queue(queue_id)
        flows = self._flows_of(queue_id)
        if not force and any(flow.reason is None for flow in flows):
            raise FlowsBound(queue_id)
        if end is not None:
            self.trims.end(end)
        del self.queues[queue_id]
        self.key_tables.record(() if act is None else (act,), self.clock())
        for flow in flows:
            del self.flows[flow.values.id]

    def list(
        self, limit: int, after: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> Sequence[QueueRow]:
        queues = sorted(self.queues.items(), key=lambda item: str(item[1].row["name"]))
        return [
            self._queue_row(queue_id, queue)
            for queue_id, queue in queues
            if (after is None or queue.row["name"] > after)
            and matches(tuple(patterns), queue.row["name"])
        ][:limit]

    def _queue_row(self, queue_id: str, stored: StoredQueue) -> QueueRow:
        bound = [flow for flow in self._flows_of(queue_id) if flow.reason is None]
        active = sum(flow.values.active for flow in bound)
        return queue_row(queue_id, stored.row, len(bound), active)

    def revisions(self, queue_ids: Sequence[str]) -> Mapping[str, int]:
        queues = self.queues
        return {id: queues[id].row["revision"] for id in queue_ids if id in queues}

    def load(self, queue_id: str) -> Queue:
        stored = self._queue(queue_id)
        bound = [flow.values for flow in self._flows_of(queue_id) if flow.reason is None]
        partitions = [stored.partitions[number] for number in sorted(stored.partitions)]
        rows = QueueRows(
            orjson.loads(orjson.dumps(stored.row)),
            sorted(bound, key=lambda values: values.bind_number),
            partitions,
            [*stored.lineage.values()],
        )
        return restore(queue_id, rows)

    # Records

    def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        return [
            Entry(
                entry.revision,
                entry.at,
                decode(orjson.loads(records)),
                entry.rebalance_id,
                entry.commit_id,
            )
            for entry, records in self._after(queue_id, revision)[:limit]
        ]

    def changes_after(self, queue_id: str, revision: int, limit: int) -> Sequence[ShownEntry]:
        return list(map(shown_entry, self._after(queue_id, revision)[:limit]))

    def _after(self, queue_id: str, revision: int) -> Sequence[tuple[Entry, bytes]]:
        stored = self._queue(queue_id)
        found = [entry for entry in stored.entries if entry[0].revision > revision]
        missed_count = stored.row["revision"] - revision
        if missed_count < 0:
            raise WentBack(revision)
        if len(found) != missed_count:
            raise KeyError(revision)
        return found

    def history(
        self, queue_id: str, limit: int, before: int | None, most_entries: int
    ) -> Sequence[int]:
        entries = self.queues[queue_id].entries if queue_id in self.queues else []
        return with_their_causes([entry for entry, _ in entries], limit, before, most_entries)

    def entries_at(self, queue_id: str, revisions: Sequence[int]) -> Sequence[ShownEntry]:
        entries = self.queues[queue_id].entries if queue_id in self.queues else []
        return [shown_entry(one) for one in entries if one[0].revision in revisions]

    def flows_named(self, flow_ids: Sequence[str]) -> Mapping[str, NamedFlow]:
        rows = ((id, self.flows.get(id)) for id in flow_ids)
        return {
            id: NamedFlow(
                row.values.client_name, row.left_at if row.reason == "lease_expired" else None
            )
            for id, row in rows
            if row is not None
        }

    def purge(self, flows_before: float, records_before: float) -> None:
        for flow_id, flow in list(self.flows.items()):
            if flow.left_at is not None and flow.left_at < flows_before:
                del self.flows[flow_id]
        for stored in self.queues.values():
            stored.entries = [
                entry
                for entry in stored.entries
                if entry[0].at >= records_before or entry[0].revision == stored.row["revision"]
            ]
        self.outages = [
            outage
            for outage in self.outages
            if outage.began >= records_before or outage is self.outages[-1]
        ]

    # Commits

    def commit(self, commit: Commit) -> Positions:
        stored = self._queue(commit.queue.id)
        if stored.row["revision"] != commit.seen:
            raise Conflict(commit.queue.id)
        flows = self.flows
        bound = {id: flows[id] for id in commit.expired if id in flows and not flows[id].reason}
        renewed = commit.expired - {id for id, flow in bound.items() if self._over(flow)}
        if renewed:
            raise LeaseRenewed(frozenset(renewed))
        superseded = {
            write.partition
            for write in first_writes(commit.writes).values()
            if not self._may_write(stored, write.partition, write.epoch, write.flow_id, write.seq)
        }
        if superseded:
            raise PositionSuperseded(frozenset(superseded))
        if commit.valid is not None and not commit.valid[0] <= self.clock() <= commit.valid[1]:
            raise Overdue(commit.queue.id)
        self._write(commit, stored)
        answered = {one.number for one in commit.partitions} | {
            one.partition for one in commit.writes
        }
        answered |= commit.positions.keys() | commit.first_positions.keys() | commit.shown
        answered |= commit.passed.keys()
        return self.positions(commit.queue.id, sorted(answered))

    def _may_write(
        self, stored: StoredQueue, number: int, epoch: int, flow_id: str, seq: int | None
    ) -> bool:
        values = stored.partitions[number]
        _, last = stored.positions[number]
        return (
            values.owner == flow_id
            and values.epoch == epoch
            and (seq is None or last is None or seq > last)
        )

    def _write(self, commit: Commit, stored: StoredQueue) -> None:
        self._check(commit, stored)
        self.trims.pass_fence(commit)
        stored.row = orjson.loads(orjson.dumps(queue_values(commit.queue, commit.next_deadline)))
        self._write_flows(commit)
        for write in first_writes(commit.writes).values():
            position, seq = stored.positions[write.partition]
            stored.positions[write.partition] = (
                position if write.position is None else write.position,
                seq if write.seq is None else write.seq,
            )
            if write.position is not None:
                stored.done_above[write.partition] = write.done_above
        for partition in commit.partitions:
            values = partition_values(commit.queue, partition)
            before = stored.partitions.get(values.number)
            position, seq = stored.positions.get(values.number, (None, None))
            if before is None or values.epoch > before.epoch:
                seq = None
            stored.partitions[values.number] = values
            stored.positions[values.number] = (position, seq)
        released = {one.partition for one in commit.writes if one.position is not None}
        for number in commit.passed.keys() - released:
            passed, (position, seq) = commit.passed[number], stored.positions[number]
            seen = (passed.seen_position, passed.seen_done_above)
            if seen == (position, stored.done_above.get(number)):
                stored.positions[number] = (passed.position, seq)
                stored.done_above[number] = passed.done_above
        for number, first in commit.first_positions.items():
            position, seq = stored.positions[number]
            stored.positions[number] = (first if position is None else position, seq)
        for number, position in commit.positions.items():
            stored.positions[number] = (position, stored.positions[number][1])
            stored.done_above[number] = None
        for number, key, parents in commit.children:
            stored.lineage[key] = LineageValues(number, key, [*parents])
        for number, key in commit.removed.items():
            stored.partitions.pop(number, None)
            stored.positions.pop(number, None)
            stored.done_above.pop(number, None)
            stored.lineage[key] = LineageValues(number, key, None)
        self.key_tables.record(commit.acts, self.clock())
        for entry in commit.entries:
            kept = Entry(entry.revision, entry.at, (), entry.rebalance_id, commit.commit_id)
            stored.entries.append((kept, encode(entry.records)))

    def _write_flows(self, commit: Commit) -> None:
        flows, now = self.flows, self.clock()
        for flow in commit.flows:
            if flow.id in flows:
                flows[flow.id].values = flow_values(flow)
            else:
                token_hash, expires = commit.token_hashes[flow.id], now + flow.lease_seconds
                flows[flow.id] = StoredFlow(commit.queue.id, flow_values(flow), token_hash, expires)
        for flow_id in commit.renewed:
            flows[flow_id].lease_expires_at = now + flows[flow_id].values.lease_seconds
        for flow_id, reason in commit.left.items():
            if flow_id in flows:
                flows[flow_id].reason, flows[flow_id].left_at = reason, now

    def _check(self, commit: Commit, stored: StoredQueue) -> None:
        """The fences of a commit; the simulation plants bugs here."""
        check(commit, stored, self.flows)

    # Positions and leases

    def expiries(self, queue_id: str) -> Expiry:
        bound = [flow for flow in self._flows_of(queue_id) if flow.reason is None]
        over = tuple(sorted(flow.values.id for flow in bound if self._over(flow)))
        others = (flow.lease_expires_at for flow in bound if flow.values.id not in over)
        seen_at = {
            flow.values.id: flow.lease_expires_at - flow.values.lease_seconds for flow in bound
        }
        return Expiry(over, min(others, default=None), seen_at)

    def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        return {flow.values.id: flow.lease_expires_at for flow in self._bound(flow_ids)}

    def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        now = self.clock()
        leases: dict[str, Lease | None] = {}
        for flow in self._bound(flow_ids):
            if flow.values.id in self.held_flows:
                leases[flow.values.id] = None
                continue
            flow.lease_expires_at = now + flow.values.lease_seconds
            leases[flow.values.id] = Lease(flow.lease_expires_at, flow.values.view_revision)
        return leases

    def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> PositionOutcomes:
        self.renew([item.flow_id for item in items])
        replaced: dict[int, str | None] = {}
        results = [self._commit_position(item, place, replaced) for place, item in enumerate(items)]
        positions = {
            (queue_id, number): known
            for queue_id, number in (shown if items else ())
            for known in self.positions(queue_id, [number]).values()
        }
        return PositionOutcomes(results, positions, replaced)

    def _commit_position(
        self, item: PositionCommit, place: int, replaced: dict[int, str | None]
    ) -> Result | None:
        stored = self.queues.get(item.queue_id)
        values = stored.partitions.get(item.partition) if stored else None
        if stored is None or values is None or values.state == State.REMOVED:
            return Result(item.partition, Outcome.NO_SUCH_PARTITION)
        if (item.queue_id, item.partition) in self.held_partitions:
            return None
        if item.epoch < values.epoch:
            return Result(item.partition, Outcome.STALE_EPOCH, values.epoch)
        bound = bool(self._bound([item.flow_id]))
        if item.epoch > values.epoch or values.owner != item.flow_id or not bound:
            return Result(item.partition, Outcome.NOT_OWNER)
        if item.flow_id in self.held_flows:
            return None
        if self._may_write(stored, item.partition, item.epoch, item.flow_id, item.seq):
            replaced[place], seq = stored.positions[item.partition]
            stored.positions[item.partition] = (
                item.position,
                seq if item.seq is None else item.seq,
            )
            stored.done_above[item.partition] = item.done_above
        return Result(item.partition, Outcome.OK)

    def positions(self, queue_id: str, partitions: Sequence[int] | None) -> Positions:
        stored = self.queues.get(queue_id)
        if stored is None:
            return {}
        return {
            number: Stored(
                stored.partitions[number].epoch,
                stored.positions[number][0],
                stored.done_above.get(number),
            )
            for number in (stored.partitions if partitions is None else partitions)
            if number in stored.partitions
        }

    def flow_rows(self, flow_ids: Sequence[str]) -> Mapping[str, FlowRow]:
        return {
            flow_id: FlowRow(flow_id, flow.queue_id, flow.token_hash, flow.reason)
            for flow_id in flow_ids
            if (flow := self.flows.get(flow_id)) is not None
        }

    def outages_after(self, after: int) -> Sequence[Outage]:
        return [outage for outage in self.outages if outage.id > after]

    def due(self, limit: int) -> Sequence[str]:
        now = self.clock()
        went_back = max((outage.id for outage in self.outages if outage.seconds < 0), default=0)
        since: dict[str, float] = {
            queue_id: queue.row["next_deadline"]
            for queue_id, queue in self.queues.items()
            if queue.row["next_deadline"] is not None
            and (queue.row["next_deadline"] <= now or queue.row["outage_seen"] < went_back)
        }
        for flow in self.flows.values():
            if self._over(flow):
                known = since.get(flow.queue_id, now)
                since[flow.queue_id] = min(known, flow.lease_expires_at)
        return sorted(since, key=lambda queue_id: (since[queue_id], queue_id))[:limit]


# The history


def with_their_causes(
    entries: Sequence[Entry], limit: int, before: int | None, most_entries: int
) -> list[int]:
    """See `Store.history`."""
    counts = Counter(entry.rebalance_id for entry in entries if entry.rebalance_id is not None)
    newest: list[int] = []
    for id in sorted((id for id in counts if before is None or id < before), reverse=True)[:limit]:
        most_entries -= counts[id]
        if newest and most_entries < 0:
            break
        newest.append(id)
    revisions = [entry.revision for entry in entries if entry.rebalance_id in newest]
    if not revisions:
        return []
    former = max(
        (
            entry.revision
            for entry in entries
            if entry.rebalance_id is not None and entry.revision < revisions[0]
        ),
        default=0,
    )
    between = {
        entry.revision
        for entry in entries
        if entry.rebalance_id is None and former < entry.revision < revisions[-1]
    }
    return sorted(between.union(revisions))


def shown_entry(stored: tuple[Entry, bytes]) -> ShownEntry:
    """A stored entry, for showing."""
    entry, records = stored
    shown = decode_shown(orjson.loads(records))
    return ShownEntry(entry.revision, entry.at, shown, entry.rebalance_id)


# Keys, sessions and the audit


@dataclass
class MemoryKey:
    """A key and what changes about it."""

    row: KeyRow
    revoked_at: float | None = None
    last_used_at: float | None = None
    created_at: float = 0.0

    def summary(self, now: float) -> KeySummary:
        ended = self.row.ends_at is not None and self.row.ends_at <= now
        state = "valid" if not ended else "ended"
        return KeySummary(
            self.row.id,
            self.row.name,
            self.row.role,
            self.row.queues,
            self.created_at,
            self.row.ends_at,
            self.revoked_at,
            self.last_used_at,
            state if self.revoked_at is None else "revoked",
        )


@dataclass
class KeyTables:
    """All of them. A test makes a key by putting it into `keys`."""

    keys: dict[str, MemoryKey] = field(default_factory=dict)
    sessions: dict[bytes, tuple[SessionRow, float]] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    next_id: int = 1

    def counts(self, key_id: str, now: float) -> bool:
        """Whether the key is neither revoked nor past its end."""
        key = self.keys[key_id]
        return key.revoked_at is None and (key.row.ends_at is None or key.row.ends_at > now)

    def record(self, acts: Iterable[Act], now: float) -> None:
        """Writes the audit."""
        for act in acts:
            self.audit.append(AuditRow(self.next_id, now, act))
            self.next_id += 1


# Announced trims


class TrimTable:
    """The rows, by the address of the log."""

    def __init__(self) -> None:
        self.rows: dict[str, Trimming] = {}

    def pass_fence(self, commit: Commit) -> None:
        """The commit's fences hold. Raises LogTrimmed."""
        passed = {}
        for fence in commit.fences:
            row = self.rows.get(fence.log, Trimming("", fence.announced, None))
            if row.announced != fence.announced or row.pending is not None:
                raise LogTrimmed(fence.log)
            passed[fence.log] = replace(row, readers=commit.commit_id)
        self.rows.update(passed)

    def end(self, end: End) -> None:
        """The log ends. Raises LogTrimmed."""
        row = self.rows.get(end.log)
        readers = None if row is None else row.readers
        if readers != end.seen:
            raise LogTrimmed(end.log)
        self.rows[end.log] = Trimming(readers or end.name, end.name, end.pending)
