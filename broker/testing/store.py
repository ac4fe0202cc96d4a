"""The store of one replica on the database in memory.

A `MemoryDatabase` is the database, each `MemoryStore` on it is one replica's store. Replicas share
nothing but rows and records. With `hook` a simulation can make a call wait or fail. The ports of
conditions, of keys, sessions and the audit, of measurements, of mirrors, and of trims each have
their class.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from enum import Enum
from typing import Protocol, TypeVar

from broker.core.access import ALL_QUEUES, matches
from broker.core.queue import Queue
from broker.core.records import Entry
from broker.core.stored import ShownEntry
from broker.store.conditions import Condition, counted
from broker.store.measurements import KEPT_SECONDS, LEAST_SECONDS, Measurement, sums
from broker.store.mirrors import Mirrored, MirrorFailure
from broker.store.ports import (
    USED_SECONDS,
    Act,
    AuditRow,
    Commit,
    Expiry,
    FlowRow,
    KeyRow,
    Keys,
    KeySummary,
    Lease,
    NamedFlow,
    NewKey,
    Outage,
    PositionCommit,
    PositionOutcomes,
    Positions,
    Pulse,
    QueueRow,
    SessionRow,
    StoreError,
    StoreUnavailable,
)
from broker.store.trims import End, Trimming
from broker.testing.database import MemoryDatabase, MemoryKey, StoredFlow


class Fault(Enum):
    """How a call fails: `LOST` before anything happened, `UNKNOWN` after it was carried out."""

    LOST = "lost"
    UNKNOWN = "unknown"


T = TypeVar("T")
Hook = Callable[[str], Awaitable[Fault | None]]


class HookedCall(Protocol):
    """Awaits the hook with the method's name, then does the work."""

    def __call__(self, method: str, work: Callable[[], T], /) -> Awaitable[T]: ...


class MemoryStore:
    """A replica's store. Each call first awaits `hook` with the method's name; see `Fault`."""

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        clock: Callable[[], float] = time.time,
        hook: Hook | None = None,
    ) -> None:
        self.database = database or MemoryDatabase(clock)
        self.hook = hook
        self.keys = MemoryKeys(self.database, self._call)
        self.trims = MemoryTrims(self.database, self._call)
        self.conditions = MemoryConditions(self.database, self._call)
        self.measurements = MemoryMeasurements(self.database, self._call)
        self.mirrors = MemoryMirrors(self.database, self._call)
        self._listening: list[_Listening] = []

    async def start(self) -> None:
        await self._call("start", lambda: None)

    async def stop(self) -> None:
        """Nothing to close."""

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        return await self._call("pulse", lambda: self.database.pulse(gap_seconds))

    async def create(self, commit: Commit) -> None:
        await self._call("create", lambda: self.database.create(commit))

    async def delete(
        self, queue_id: str, *, force: bool, act: Act | None = None, end: End | None = None
    ) -> None:
        await self._call(
            "delete", lambda: self.database.delete(queue_id, force=force, act=act, end=end)
        )

    async def find(self, name: str) -> str | None:
        return await self._call("find", lambda: self.database.find(name))

    async def list(
        self, limit: int, after: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> Sequence[QueueRow]:
        return await self._call("list", lambda: self.database.list(limit, after, patterns))

    async def load(self, queue_id: str) -> Queue:
        return await self._call("load", lambda: self.database.load(queue_id))

    async def revisions(self, queue_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._call("revisions", lambda: self.database.revisions(queue_ids))

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        return await self._call(
            "entries_after", lambda: self.database.entries_after(queue_id, revision, limit)
        )

    async def changes_after(self, queue_id: str, revision: int, limit: int) -> Sequence[ShownEntry]:
        return await self._call(
            "changes_after", lambda: self.database.changes_after(queue_id, revision, limit)
        )

    async def history(
        self, queue_id: str, limit: int, before: int | None, most_entries: int
    ) -> Sequence[int]:
        return await self._call(
            "history", lambda: self.database.history(queue_id, limit, before, most_entries)
        )

    async def entries_at(self, queue_id: str, revisions: Sequence[int]) -> Sequence[ShownEntry]:
        return await self._call("entries_at", lambda: self.database.entries_at(queue_id, revisions))

    async def flows_named(self, flow_ids: Sequence[str]) -> Mapping[str, NamedFlow]:
        return await self._call("flows_named", lambda: self.database.flows_named(flow_ids))

    async def commit(self, commit: Commit) -> Positions:
        return await self._call("commit", lambda: self.database.commit(commit))

    async def expiries(self, queue_id: str) -> Expiry:
        return await self._call("expiries", lambda: self.database.expiries(queue_id))

    async def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        return await self._call("renew", lambda: self.database.renew(flow_ids))

    async def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> PositionOutcomes:
        return await self._call(
            "commit_positions", lambda: self.database.commit_positions(items, shown)
        )

    async def positions(self, queue_id: str, partitions: Sequence[int] | None = None) -> Positions:
        return await self._call("positions", lambda: self.database.positions(queue_id, partitions))

    async def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        return await self._call("leases", lambda: self.database.leases(flow_ids))

    async def flow_rows(self, flow_ids: Sequence[str]) -> Mapping[str, FlowRow]:
        return await self._call("flow_rows", lambda: self.database.flow_rows(flow_ids))

    async def outages(self, after: int) -> Sequence[Outage]:
        return await self._call("outages", lambda: self.database.outages_after(after))

    async def due(self, limit: int) -> Sequence[str]:
        return await self._call("due", lambda: self.database.due(limit))

    async def purge(self, flows_before: float, records_before: float) -> None:
        await self._call("purge", lambda: self.database.purge(flows_before, records_before))

    async def notify(self, queue_ids: Sequence[str]) -> None:
        try:
            await self._call("notify", lambda: self._notify(queue_ids))
        except StoreUnavailable:
            return

    def _notify(self, queue_ids: Sequence[str]) -> None:
        for listener in self.database.listeners:
            listener.heard(self, queue_ids)

    async def listen(self) -> AsyncIterator[Sequence[str] | None]:
        listening = _Listening(self)
        self._listening.append(listening)
        self.database.listeners.append(listening)
        try:
            while True:
                yield await listening.next()
        finally:
            self._listening.remove(listening)
            self.database.listeners.remove(listening)

    def interrupt(self) -> None:
        """Breaks this replica's `listen`: pending notifications are lost, and None says so."""
        for listening in self._listening:
            listening.miss()

    async def _call(self, method: str, work: Callable[[], T]) -> T:
        fault = await self.hook(method) if self.hook else None
        if fault is None:
            return work()
        if fault is Fault.UNKNOWN:
            with contextlib.suppress(StoreError):
                work()
        raise StoreUnavailable(f"{method}: {fault.value}")


class _Listening:
    """The notifications of a replica that it has not fetched; at first, that it may have missed
    some.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._queue_ids: dict[str, None] = {}
        self._something = asyncio.Event()
        self.miss()

    def heard(self, speaker: object, queue_ids: Sequence[str]) -> None:
        if speaker is not self._store and queue_ids:
            self._queue_ids.update(dict.fromkeys(queue_ids))
            self._something.set()

    def miss(self) -> None:
        self._missed = True
        self._something.set()

    async def next(self) -> Sequence[str] | None:
        await self._something.wait()
        self._something.clear()
        queue_ids = None if self._missed else tuple(self._queue_ids)
        self._missed = False
        self._queue_ids.clear()
        return queue_ids


class _Port:
    """A replica's access to some of the tables."""

    def __init__(self, database: MemoryDatabase, call: HookedCall) -> None:
        self._database, self._call = database, call


class MemoryConditions(_Port):
    """The conditions that flows report."""

    async def report(self, flow_id: str, seq: int, reported: Sequence[Condition]) -> None:
        def work() -> None:
            flow = self._database.flows.get(flow_id)
            if flow is None or flow.reason is not None:
                return
            if flow.conditions_seq is None or seq > flow.conditions_seq:
                flow.conditions, flow.conditions_seq = tuple(reported), seq

        await self._call("report_conditions", work)

    async def of_flow(self, flow_id: str) -> Sequence[Condition]:
        def work() -> Sequence[Condition]:
            flow = self._database.flows.get(flow_id)
            return () if flow is None else flow.conditions

        return await self._call("conditions_of_flow", work)

    async def of_queue(self, queue_id: str, limit: int) -> Sequence[tuple[str, Condition]]:
        def work() -> Sequence[tuple[str, Condition]]:
            found = [
                (flow_id, one)
                for flow_id, flow in self._database.flows.items()
                if flow.queue_id == queue_id and flow.reason is None
                for one in self._holding(flow_id, flow)
            ]
            return sorted(found, key=_order)[:limit]

        return await self._call("conditions_of_queue", work)

    async def counts(self, queue_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        def work() -> Mapping[str, Mapping[str, int]]:
            return counted(
                (flow.queue_id, one.kind, 1)
                for flow_id, flow in self._database.flows.items()
                if flow.queue_id in queue_ids and flow.reason is None
                for one in self._holding(flow_id, flow)
            )

        return await self._call("condition_counts", work)

    def _holding(self, flow_id: str, flow: StoredFlow) -> Iterator[Condition]:
        partitions = self._database.queues[flow.queue_id].partitions
        for one in flow.conditions:
            if one.partition is None:
                yield one
                continue
            values = partitions.get(one.partition)
            if values is not None and (values.owner, values.epoch) == (flow_id, one.epoch):
                yield one


def _order(found: tuple[str, Condition]) -> tuple[bool, int, str]:
    flow_id, condition = found
    return condition.partition is not None, condition.partition or 0, flow_id


class MemoryKeys(_Port):
    """Keys, sessions and the audit."""

    async def read(self, key_ids: Sequence[str]) -> Keys:
        def work() -> Keys:
            tables, now = self._database.key_tables, self._database.clock()
            found = {id for id in key_ids if id in tables.keys and tables.counts(id, now)}
            return Keys(bool(tables.keys), {id: tables.keys[id].row for id in found})

        return await self._call("read", work)

    async def make(self, key: NewKey, act: Act, *, only_first: bool) -> KeySummary | None:
        def work() -> KeySummary | None:
            tables, now = self._database.key_tables, self._database.clock()
            if only_first and tables.keys:
                return None
            tables.keys[key.id] = MemoryKey(KeyRow(*key), created_at=now)
            made = tables.keys[key.id].summary(now)
            tables.record([replace(act, after=made.audited)], now)
            return made

        return await self._call("make", work)

    async def one(self, key_id: str) -> KeySummary | None:
        def work() -> KeySummary | None:
            tables, now = self._database.key_tables, self._database.clock()
            key = tables.keys.get(key_id)
            return None if key is None else key.summary(now)

        return await self._call("one", work)

    async def page(
        self, limit: int, after: str | None, *, everything: bool
    ) -> Sequence[KeySummary]:
        def work() -> Sequence[KeySummary]:
            tables, now = self._database.key_tables, self._database.clock()
            found = sorted(
                (key.summary(now) for key in tables.keys.values()),
                key=lambda key: (key.created_at, key.id),
            )
            if after is not None:
                ids = [key.id for key in found]
                found = found[ids.index(after) + 1 :] if after in ids else []
            return [key for key in found if everything or key.state == "valid"][:limit]

        return await self._call("page", work)

    async def revoke(self, key_id: str, act: Act) -> KeySummary | None:
        def work() -> KeySummary | None:
            tables, now = self._database.key_tables, self._database.clock()
            key = tables.keys.get(key_id)
            if key is None:
                return None
            before = key.summary(now)
            if key.revoked_at is None:
                key.revoked_at = now
                after = key.summary(now)
                tables.record([replace(act, before=before.audited, after=after.audited)], now)
            return key.summary(now)

        return await self._call("revoke", work)

    async def keyless(self, limit: int) -> Sequence[tuple[str, str]]:
        def work() -> Sequence[tuple[str, str]]:
            tables, now = self._database.key_tables, self._database.clock()
            return [
                (flow.queue_id, id)
                for id, flow in sorted(self._database.flows.items())
                if flow.reason is None
                and flow.values.key_id in tables.keys
                and not tables.counts(flow.values.key_id, now)
            ][:limit]

        return await self._call("keyless", work)

    async def used(self, key_ids: Sequence[str]) -> None:
        def work() -> None:
            now = self._database.clock()
            for id in key_ids:
                key = self._database.key_tables.keys.get(id)
                if key and (key.last_used_at is None or key.last_used_at < now - USED_SECONDS):
                    key.last_used_at = now

        await self._call("used", work)

    async def begin_session(self, hash: bytes, key_id: str, seconds: float, most: int) -> float:
        def work() -> float:
            now, sessions = self._database.clock(), self._database.key_tables.sessions
            sessions[hash] = (SessionRow(key_id, now + seconds), now)
            of_key = [hash for hash, (row, _) in sessions.items() if row.key_id == key_id]
            for surplus in of_key[: max(0, len(of_key) - most)]:
                del sessions[surplus]
            return now + seconds

        return await self._call("begin_session", work)

    async def sessions(self, hashes: Sequence[bytes]) -> Mapping[bytes, SessionRow]:
        def work() -> Mapping[bytes, SessionRow]:
            now, sessions = self._database.clock(), self._database.key_tables.sessions
            found = {hash: sessions[hash][0] for hash in hashes if hash in sessions}
            return {
                hash: row
                if (row.unlocked_until or now) > now
                else row._replace(unlocked_until=None)
                for hash, row in found.items()
                if row.ends_at > now
            }

        return await self._call("sessions", work)

    async def unlock_session(self, hash: bytes, seconds: float, act: Act) -> float | None:
        def work() -> float | None:
            tables, now = self._database.key_tables, self._database.clock()
            row, began_at = tables.sessions.get(hash, (None, now))
            if row is None or row.ends_at <= now:
                return None
            until = min(now + seconds, row.ends_at)
            tables.sessions[hash] = (row._replace(unlocked_until=until), began_at)
            tables.record([act], now)
            return until

        return await self._call("unlock_session", work)

    async def lock_session(self, hash: bytes) -> None:
        def work() -> None:
            sessions = self._database.key_tables.sessions
            if hash in sessions:
                row, began_at = sessions[hash]
                sessions[hash] = (row._replace(unlocked_until=None), began_at)

        await self._call("lock_session", work)

    async def end_session(self, hash: bytes) -> None:
        await self._call("end_session", lambda: self._database.key_tables.sessions.pop(hash, None))

    async def flow_of_token(self, hash: bytes) -> tuple[str, str, str | None] | None:
        def work() -> tuple[str, str, str | None] | None:
            flows = self._database.flows.items()
            return next(
                (
                    (flow.queue_id, id, flow.values.key_id)
                    for id, flow in flows
                    if flow.token_hash == hash and flow.reason is None
                ),
                None,
            )

        return await self._call("flow_of_token", work)

    async def record(self, acts: Sequence[Act]) -> None:
        tables, clock = self._database.key_tables, self._database.clock
        if acts:
            await self._call("record", lambda: tables.record(acts, clock()))

    async def audit(
        self, limit: int, before: int | None, patterns: Sequence[str], queue: str | None
    ) -> Sequence[AuditRow]:
        def shown(act: Act) -> bool:
            there = act.queue is not None and matches(tuple(patterns), act.queue)
            return (queue is None or act.queue == queue) and (there or "*" in patterns)

        def work() -> Sequence[AuditRow]:
            rows = [row for row in self._database.key_tables.audit if shown(row.act)]
            return [row for row in reversed(rows) if before is None or row.id < before][:limit]

        return await self._call("audit", work)

    async def purge(self, before: float) -> None:
        def work() -> None:
            tables, now = self._database.key_tables, self._database.clock()
            tables.audit = [row for row in tables.audit if row.at >= before]
            tables.sessions = {
                hash: session
                for hash, session in tables.sessions.items()
                if session[0].ends_at > now
            }
            used = {session.key_id for session, _ in tables.sessions.values()}
            flows = self._database.flows.values()
            used |= {flow.values.key_id or "" for flow in flows if flow.reason is None}
            made = sorted(tables.keys.items(), key=lambda one: (one[1].created_at, one[0]))
            for id, key in made[1:]:
                ends = [at for at in (key.revoked_at, key.row.ends_at) if at is not None]
                if id not in used and min(ends, default=before) < before:
                    del tables.keys[id]

        await self._call("purge_keys", work)


class MemoryTrims(_Port):
    """Announced trims."""

    async def all(self) -> Mapping[str, Trimming]:
        return await self._call("trims", lambda: {**self._database.trims.rows})

    async def read(self, log: str) -> Trimming | None:
        return await self._call("trim", lambda: self._database.trims.rows.get(log))

    async def announce(self, log: str, seen: str | None, name: str, pending: str) -> bool:
        def work() -> bool:
            row = self._database.trims.rows.get(log)
            if row is None if seen is not None else row is not None:
                return False
            if row is not None and (row.readers != seen or row.pending is not None):
                return False
            readers = name if row is None else row.readers
            self._database.trims.rows[log] = Trimming(readers, name, pending)
            return True

        return await self._call("announce_trim", work)

    async def done(self, log: str, announced: str) -> None:
        def work() -> None:
            row = self._database.trims.rows.get(log)
            if row is not None and row.announced == announced:
                self._database.trims.rows[log] = replace(row, pending=None)

        await self._call("trim_done", work)

    async def forget(self, log: str, seen: str) -> None:
        def work() -> None:
            row = self._database.trims.rows.get(log)
            if row is not None and row.readers == seen and row.pending is None:
                del self._database.trims.rows[log]

        await self._call("forget_trim", work)


class MemoryMeasurements(_Port):
    """The measurements of the last hour."""

    async def begin(self, at: int) -> bool:
        def work() -> bool:
            tables = self._database
            begun = tables.measured_at
            if begun is not None and at - LEAST_SECONDS < begun <= at:
                return False
            tables.measured_at = at
            for taken in tables.measurements.values():
                taken[:] = [one for one in taken if one.at >= at - KEPT_SECONDS]
            for slot in [slot for slot in tables.commit_ages if slot[1] < at - KEPT_SECONDS]:
                del tables.commit_ages[slot]
            return True

        return await self._call("begin_round", work)

    async def add(self, taken: Mapping[str, Measurement]) -> None:
        def work() -> None:
            for queue_id, one in taken.items():
                known = self._database.measurements.setdefault(queue_id, [])
                if all(one.at != other.at for other in known):
                    known.append(one)
                    known.sort(key=lambda each: each.at)

        await self._call("add_measurements", work)

    async def of_queue(self, queue_id: str, since: int) -> Sequence[Measurement]:
        def work() -> Sequence[Measurement]:
            known = self._database.measurements.get(queue_id, ())
            return [one for one in known if one.at >= since]

        return await self._call("measurements_of_queue", work)

    async def add_ages(self, at: int, counts: Mapping[str, Sequence[int]]) -> None:
        def work() -> None:
            known = self._database.commit_ages
            for queue_id, added in counts.items():
                known[queue_id, at] = sums((known.get((queue_id, at), ()), added))

        await self._call("add_ages", work)

    async def ages_of_queue(self, queue_id: str, since: int) -> Sequence[int]:
        def work() -> Sequence[int]:
            known = self._database.commit_ages.items()
            return sums(counts for (id, at), counts in known if id == queue_id and at >= since)

        return await self._call("ages_of_queue", work)


class MemoryMirrors(_Port):
    """Which replica mirrors, and which mirrors fail."""

    async def claim(self, replica: str, seconds: float) -> bool:
        def work() -> bool:
            tables = self._database
            now = tables.clock()
            by, until = tables.mirrored_by or (replica, now)
            if by != replica and now <= until <= now + seconds:
                return False
            if not self._mirrored():
                return False
            tables.mirrored_by = (replica, now + seconds)
            return True

        return await self._call("claim_mirrors", work)

    async def queues(self) -> Sequence[Mirrored]:
        return await self._call("mirrored_queues", self._mirrored)

    async def report(self, queue: Mirrored, text: str | None) -> None:
        def work() -> None:
            failures = self._database.mirror_failures
            if text is None:
                failures.pop(queue.queue_id, None)
            elif queue.queue_id in self._database.queues:
                since = failures.get(queue.queue_id, ("", "", self._database.clock()))[2]
                failures[queue.queue_id] = (queue.group, text, since)

        await self._call("report_mirror", work)

    async def failures(self, queue_ids: Sequence[str]) -> Mapping[str, MirrorFailure]:
        def work() -> Mapping[str, MirrorFailure]:
            groups = {one.queue_id: one.group for one in self._mirrored()}
            return {
                queue_id: MirrorFailure(text, since)
                for queue_id, (group, text, since) in self._database.mirror_failures.items()
                if queue_id in queue_ids and groups.get(queue_id) == group
            }

        return await self._call("mirror_failures", work)

    def _mirrored(self) -> list[Mirrored]:
        return [
            Mirrored(queue_id, stored.row["log"], group)
            for queue_id, stored in self._database.queues.items()
            if (group := stored.row["mirror_group"]) is not None
        ]
