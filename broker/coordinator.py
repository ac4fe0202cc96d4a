"""The mailbox of one queue: take, decide, commit, and only then answer and wake.

All that waits is decided one after another on the queue in memory and committed in one transaction
under the next revisions. If another replica committed first, everything is taken back
(`core.journal`), the missed records are replayed, and it is decided again. If the store did not
answer, everything is taken back too and the queue is caught up with before it is used again: had
the commit gone through, its records are found then, and the caller, who was told that the service
is unavailable, repeats a call that is harmless to repeat.

Nothing that depends on the time is decided before the store was asked for it, because after a pause
in which nobody served (a frozen process wakes up) leases and deadlines have to be moved first (the
contract, *Flow*).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from broker.clock import StoreClock
from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import BrokerError, QueueNotFound, Unavailable
from broker.core.model import Flow, Handoff, Partition, Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from broker.store.ports import (
    Commit,
    Conflict,
    Entry,
    LeaseRenewed,
    PositionBehind,
    PositionWrite,
    Pulse,
    QueueGone,
    Store,
    StoreUnavailable,
)

_log = structlog.get_logger()

T = TypeVar("T")
MOST_AT_ONCE = 1000
UNAVAILABLE = "The service cannot reach its database right now; try again."


@dataclass(slots=True, eq=False)
class Ask:
    """One command in the mailbox and what goes with it into the transaction.

    `token_hash` goes with a bind, `renews` names the flow whose lease begins anew, `seq` and
    `released` (position by partition) go with a release, `positions` with raised epochs.
    """

    command: c.Command
    token_hash: bytes | None = None
    renews: str | None = None
    seq: int | None = None
    released: Mapping[int, str | None] = field(default_factory=dict)
    positions: Mapping[int, str | None] = field(default_factory=dict)
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class Coordinator:
    """One queue on this replica."""

    def __init__(
        self,
        queue_id: str,
        name: str,
        store: Store,
        clock: StoreClock,
        new_id: Callable[[], str],
        on_change: Callable[[Coordinator, frozenset[str], bool], None],
        on_alarm: Callable[[Coordinator, float | None], None],
    ) -> None:
        """`on_change(self, flows whose views changed, whether it was this replica)` follows every
        commit;

        `on_alarm(self, time)` says when to call `advance` next (Unix seconds of the store, None:
        not at all).
        """
        self.queue_id = queue_id
        self.name = name
        self.gone = False
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._on_change = on_change
        self._on_alarm = on_alarm
        self._queue: Queue | None = None
        self._asks: list[Ask] = []
        self._looks: list[tuple[Callable[[Queue], Any], asyncio.Future[Any]]] = []
        self._uncommitted = False
        self._advance = True
        self._behind = False
        self._stale = False
        self._next_lease: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def queue(self) -> Queue | None:
        """The queue as last known; None before the first use."""
        return self._queue

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return self._task is None

    async def ask(self, ask: Ask) -> Any:
        """The answer of the command, once it is committed.

        Raises the command's BrokerError, QueueNotFound if the queue is gone, Unavailable without
        the store.
        """
        self._asks.append(ask)
        self._run()
        return await ask.answer

    async def read(self, look: Callable[[Queue], T], *, fresh: bool = False) -> T:
        """What `look` makes of the queue as committed; `look` must not keep or change any of it.

        `fresh`: with everything that any replica committed before this call; else as this replica
        knows it, which may be a moment behind the others. Raises as `ask`, and what `look` raises.
        """
        if self._queue is not None and not (fresh or self._stale or self._uncommitted):
            return look(self._queue)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._looks.append((look, future))
        self._behind = self._behind or fresh
        self._run()
        answer: T = await future
        return answer

    def advance(self) -> None:
        """Something may be due."""
        self._advance = True
        self._run()

    def catch_up(self) -> None:
        """Another replica may have committed."""
        self._behind = True
        self._run()

    async def stop(self) -> None:
        """Waits for what is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _run(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._asks or self._looks or self._advance or self._behind:
            asks, self._asks = self._asks[:MOST_AT_ONCE], self._asks[MOST_AT_ONCE:]
            looks, self._looks = self._looks, []
            advance, self._advance = self._advance, False
            behind, self._behind = self._behind, False
            try:
                queue = await self._current(behind)
                if asks or advance:
                    await self._turn(queue, asks, advance)
                for look, future in looks:
                    _show(queue, look, future)
            except Exception as error:
                self._fail(error, [*(ask.answer for ask in asks), *(future for _, future in looks)])
        self._task = None

    def _fail(self, error: Exception, waiting: Iterable[asyncio.Future[Any]]) -> None:
        told = error
        if isinstance(error, StoreUnavailable):
            told = Unavailable(UNAVAILABLE)
            self._stale = True
        elif isinstance(error, QueueGone):
            told = QueueNotFound(self.name)
            flows = frozenset(self._queue.flows) if self._queue else frozenset()
            self.gone, self._queue = True, None
            self._on_alarm(self, None)
            self._on_change(self, flows, False)
        else:
            _log.exception("a turn failed; the queue is loaded anew", queue=self.name)
            self._queue = None
        for future in waiting:
            if not future.done():
                future.set_exception(told)

    # The queue in memory

    async def _current(self, behind: bool) -> Queue:
        if self._queue is None:
            self._queue = await self._store.load(self.queue_id)
            self.name = self._queue.name
            self._stale = False
            self._advance = True
        elif behind or self._stale:
            await self._replay_missed(self._queue)
            self._stale = False
        return self._queue

    async def _replay_missed(self, queue: Queue) -> None:
        try:
            entries = await self._store.entries_after(self.queue_id, queue.revision)
        except KeyError:
            self._queue = None
            raise StoreUnavailable("the records since this replica's revision are gone") from None
        for entry in entries:
            replay_all(queue, entry.records, entry.revision)
        if entries:
            self._settled(queue, ours=False)

    def _settled(self, queue: Queue, *, ours: bool) -> None:
        queue.journal.forget()
        touched, queue.touched = frozenset(queue.touched), set()
        self._set_alarm(queue)
        self._on_change(self, touched, ours)

    def _set_alarm(self, queue: Queue) -> None:
        times = [time for time in (queue.next_deadline(), self._next_lease) if time is not None]
        self._on_alarm(self, min(times, default=None))

    # One turn

    async def _turn(self, queue: Queue, asks: Sequence[Ask], advance: bool) -> None:
        spared: frozenset[str] = frozenset()
        behind: frozenset[int] = frozenset()
        while True:
            pulse = await self._pulse(queue, advance)
            now = pulse.now if pulse else self._clock.now()
            batch = Batch(queue, now, self._new_id())
            self._uncommitted = True
            try:
                if pulse is not None:
                    callers = {ask.renews for ask in asks if ask.renews is not None}
                    await self._do_what_is_due(batch, pulse, spared | callers)
                answers = [self._answer(batch, ask, behind) for ask in asks]
                if batch.commit.entries:
                    await self._store.commit(batch.finish())
                elif batch.commit.renewed:
                    await self._store.renew(sorted(batch.commit.renewed))
                break
            except Conflict:
                batch.take_back()
                await self._replay_missed(queue)
            except LeaseRenewed as renewed:
                batch.take_back()
                spared |= renewed.flow_ids
            except PositionBehind as error:
                batch.take_back()
                behind |= error.partitions
            except BaseException:
                batch.take_back()
                raise
            finally:
                self._uncommitted = False
        self._note_leases(queue, batch)
        self._settled(queue, ours=bool(batch.commit.entries))
        for ask, answer in zip(asks, answers, strict=True):
            if ask.answer.done():
                continue
            if isinstance(answer, BrokerError):
                ask.answer.set_exception(answer)
            else:
                ask.answer.set_result(answer)

    async def _pulse(self, queue: Queue, advance: bool) -> Pulse | None:
        """Asks the store for the time if anything may depend on it."""
        if not advance and self._clock.known:
            due = queue.next_deadline()
            if due is None or due > self._clock.now():
                return None
        pulse = await self._store.pulse()
        self._clock.observe(pulse.now)
        return pulse

    async def _do_what_is_due(self, batch: Batch, pulse: Pulse, spared: frozenset[str]) -> None:
        queue = batch.queue
        if pulse.outage is not None and pulse.outage.id > queue.outage_seen:
            outage = pulse.outage
            batch.decide(c.MoveDeadlines(outage.id, outage.began, outage.seconds))
        expiry = await self._store.expiries(self.queue_id)
        self._next_lease = expiry.next_at
        for flow_id in expiry.expired:
            if flow_id in queue.flows and flow_id not in spared:
                batch.decide(c.Unbind(flow_id, "lease_expired"))
                batch.expire(flow_id)
        due = queue.next_deadline()
        if due is not None and due <= batch.now:
            batch.decide(c.Advance())

    def _answer(self, batch: Batch, ask: Ask, behind: frozenset[int]) -> Any:
        try:
            return batch.answer(ask, behind)
        except BrokerError as error:
            return error

    def _note_leases(self, queue: Queue, batch: Batch) -> None:
        for flow_id in batch.commit.token_hashes:
            flow = queue.flows.get(flow_id)
            if flow is not None:
                ends = batch.now + flow.lease_seconds
                self._next_lease = ends if self._next_lease is None else min(self._next_lease, ends)


def _show(queue: Queue, look: Callable[[Queue], Any], future: asyncio.Future[Any]) -> None:
    if future.done():
        return
    try:
        future.set_result(look(queue))
    except Exception as error:
        future.set_exception(error)


class Batch:
    """Decisions on one queue that are committed together, applied to the queue already."""

    def __init__(self, queue: Queue, now: float, commit_id: str) -> None:
        self.queue = queue
        self.now = now
        self._mark = queue.journal.mark()
        self._entries: list[Entry] = []
        self._hashes: dict[str, bytes] = {}
        self._left: dict[str, str] = {}
        self._expired: set[str] = set()
        self._writes: list[PositionWrite] = []
        self._positions: dict[int, str | None] = {}
        self._renewed: set[str] = set()
        self.commit = Commit(
            queue,
            queue.revision,
            commit_id,
            self._entries,
            token_hashes=self._hashes,
            left=self._left,
            writes=self._writes,
            positions=self._positions,
        )

    def decide(self, command: c.Command) -> Any:
        """Decides a command and applies the decision; returns its answer, raises its
        BrokerError."""
        queue = self.queue
        decision = decide(queue, command, self.now)
        for records in _by_rebalance(decision.records):
            last = queue.last_rebalance
            replay_all(queue, records, queue.revision + 1)
            rebalance = queue.rebalance or (
                queue.last_rebalance if queue.last_rebalance is not last else None
            )
            self._entries.append(
                Entry(
                    queue.revision,
                    self.now,
                    records,
                    rebalance.id if rebalance else None,
                    self.commit.commit_id,
                )
            )
            for record in records:
                if isinstance(record, r.FlowLeft):
                    self._left[record.flow_id] = record.reason
        return decision.answer

    def expire(self, flow_id: str) -> None:
        """The flow just unbound may go only if its lease is over."""
        self._expired.add(flow_id)

    def answer(self, ask: Ask, behind: frozenset[int]) -> Any:
        """Decides what was asked.

        Partitions in `behind` have seen a later call of the flow: nothing is done there.
        """
        command = ask.command
        if isinstance(command, c.Release):
            answer = self._release(ask, command, behind)
        else:
            answer = self.decide(command)
        if isinstance(command, c.Bind) and ask.token_hash is not None:
            self._hashes[command.flow_id] = ask.token_hash
        self._positions.update(ask.positions)
        if ask.renews is not None and ask.renews in self.queue.flows:
            self._renewed.add(ask.renews)
            self.commit.renewed = frozenset(self._renewed)
        return answer

    def _release(
        self, ask: Ask, command: c.Release, behind: frozenset[int]
    ) -> tuple[c.Result, ...]:
        """A release with its positions, which are written only where it really ends the flow's
        ownership."""
        queue, flow_id = self.queue, command.flow_id
        owned = {
            item
            for item in command.items
            if (partition := queue.find(item.partition))
            and partition.owner is not None
            and partition.owner.id == flow_id
            and partition.epoch == item.epoch
        }
        skipped = {item for item in owned if item.partition in behind and ask.seq is not None}
        items = tuple(item for item in command.items if item not in skipped)
        results: Sequence[c.Result] = self.decide(c.Release(flow_id, items))
        done = {result.partition for result in results if result.outcome is c.Outcome.OK}
        for item in items:
            if item in owned and item.partition in done:
                position = ask.released.get(item.partition)
                write = PositionWrite(item.partition, item.epoch, flow_id, position, ask.seq)
                self._writes.append(write)
        answers = iter(results)
        return tuple(
            c.Result(item.partition, c.Outcome.OK) if item in skipped else next(answers)
            for item in command.items
        )

    def finish(self) -> Commit:
        """The transaction, with the rows that changed."""
        partitions: dict[int, Partition] = {}
        flows: dict[str, Flow] = {}
        for changed in self.queue.journal.changed_since(self._mark):
            if isinstance(changed, Partition):
                partitions[changed.number] = changed
            elif isinstance(changed, Handoff):
                partitions[changed.number] = self.queue.partitions[changed.number]
            elif isinstance(changed, Flow) and changed.id in self.queue.flows:
                flows[changed.id] = changed
        for flow_id in self._hashes:
            if flow_id in self.queue.flows:
                flows[flow_id] = self.queue.flows[flow_id]
        commit = self.commit
        commit.partitions = [partitions[number] for number in sorted(partitions)]
        commit.flows = list(flows.values())
        commit.expired = frozenset(self._expired)
        commit.renewed = frozenset(self._renewed)
        commit.next_deadline = self.queue.next_deadline()
        return commit

    def take_back(self) -> None:
        """Leaves the queue as it was before the batch."""
        self.queue.journal.undo(self._mark)


def _by_rebalance(records: tuple[r.Record, ...]) -> Iterable[tuple[r.Record, ...]]:
    """The records of one decision, cut where a rebalance follows grants outside of it: two entries
    of the history."""
    outside = any(isinstance(record, r.GrantedOutside) for record in records)
    for place, record in enumerate(records):
        if outside and place and isinstance(record, r.RebalanceStarted):
            return (part for part in (records[:place], records[place:]))
    return (records,) if records else ()
