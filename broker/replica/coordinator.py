"""The mailbox of one queue: take commands, decide them, commit, and only then answer and notify.

All waiting commands are decided one after another on the queue in memory, and are committed in one
transaction under the next revisions (`transaction`). If another replica committed first, all
decisions are taken back (`journal`), the missed records are replayed, and the commands are decided
again. If the store did not answer, all decisions are taken back too, and the queue catches up
before its next use. If the commit succeeded after all, the queue finds its records then. The caller
got the answer that the service is unavailable and repeats the call; a repetition is harmless.

**No answer comes from the past.** A commit succeeds only if no other replica committed first. An
answer without a commit (a refusal, a repetition) is given only after newer commits were read from
the store. So every replica knows what any replica has answered to a flow.

**The store's time is read before any decision that depends on the time.** After a pause in which no
replica served (for example, a frozen process wakes up), leases and deadlines have to be moved first
(the contract, *Flow*). A decision that begins a deadline is committed soon, or decided anew
(`Overdue`): otherwise an owner might be forced before it was notified to release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import structlog

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.errors import BrokerError, QueueNotFound, QueueUnreadable, Unavailable
from broker.core.queue import Queue
from broker.core.rebalancer import follow
from broker.core.records import Entry
from broker.replica.alarms import Alarms
from broker.replica.bursts import BindBurst
from broker.replica.clock import StoreClock
from broker.replica.notifier import PendingRead, ViewNotifier, answer_reads
from broker.replica.renewals import Renewals
from broker.replica.store_calls import UNAVAILABLE, renew, write
from broker.replica.transaction import Submission, Superseded, Transaction
from broker.store.ports import (
    Conflict,
    LeaseRenewed,
    LogTrimmed,
    Outage,
    Overdue,
    Positions,
    PositionSuperseded,
    QueueDamaged,
    QueueGone,
    QueueTooNew,
    Store,
    StoreUnavailable,
    WentBack,
)
from broker.tracing import Traces

_log = structlog.get_logger()

T = TypeVar("T")
MOST_AT_ONCE = 1000
# Entries of other replicas, until others get on.
FOLLOWED_AT_ONCE = 10
WENT_BACK = (
    "the database has lost what it had committed: it was returned to an earlier state, and epochs "
    "may be granted twice; stop every replica and run 'counterpoise migrate --after-restore'"
)
# How long a commit that begins handoffs may take: at first, and each time that it took longer.
LATE_SECONDS = (1.0, 2.0, 4.0, 8.0)


class Coordinator:
    """One queue on this replica."""

    def __init__(
        self,
        queue_id: str,
        name: str,
        store: Store,
        clock: StoreClock,
        alarms: Alarms,
        renewals: Renewals,
        new_id: Callable[[], str],
        on_change: Callable[[Coordinator, bool], None],
        on_commit: Callable[[Coordinator, Sequence[Entry]], None],
        traces: Traces | None = None,
    ) -> None:
        """`on_change(self, whether it was this replica)` follows every commit, and when the queue
        was loaded or is gone. `on_commit(self, entries)` gets what this replica itself has
        committed.
        """
        self.queue_id = queue_id
        self.name = name
        self.gone = False
        self._store = store
        self._clock = clock
        self._alarms = alarms
        self._renewals = renewals
        self._new_id = new_id
        self._on_change = on_change
        self._on_commit = on_commit
        self._traces = traces
        self._commit = store.commit if traces is None else traces.commit
        self.notifier = ViewNotifier()
        self._burst = BindBurst(self.notifier.watches)
        self._alarm: float | None = None
        self._wake_at: float | None = None
        self._uncommitted = self._behind = False
        self.queue: Queue | None = None
        """The queue as last known; None before the first use."""
        self._submissions: list[Submission] = []
        self._reads: list[PendingRead] = []
        self._advance = True
        self._next_lease: float | None = None
        self._refused = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def at_hand(self) -> Queue | None:
        """The queue as committed, only to be read; None if something comes first."""
        return None if self._behind or self._uncommitted else self.queue

    @property
    def waits(self) -> bool:
        """Whether something is, or will be, due in the queue."""
        return self._wake_at is not None

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return self._task is None

    def adopt(self, queue: Queue) -> None:
        """The queue that was just created, so that its first use need not load it."""
        if self.queue is None and self._task is None:
            self.queue, self._advance = queue, False
            self._settled(queue, follow(queue, ()))

    async def submit(self, submission: Submission) -> Any:
        """The answer of the command, once it is committed. Raises the command's BrokerError,
        QueueNotFound if the queue is gone, Unavailable without the store.
        """
        return await self.enqueue(submission)

    def enqueue(self, submission: Submission) -> asyncio.Future[Any]:
        """As `submit`, for several before they are awaited."""
        if self._traces is not None:
            submission.trace = self._traces.call()
        self._submissions.append(submission)
        self._run()
        return submission.answer

    async def read(self, extract: Callable[[Queue], T], *, fresh: bool = False) -> T:
        """What `extract` makes of the queue as committed, of which it must not keep or change any.

        `fresh`: with everything that any replica committed before this call; else as this replica
        knows it, which may be a moment behind the others. Raises as `submit`, and what `extract`
        raises.
        """
        if (queue := None if fresh else self.at_hand) is not None:
            return extract(queue)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._reads.append((extract, future))
        self._behind = self._behind or fresh
        self._run()
        return await future

    def advance(self) -> None:
        """Something may be due."""
        self._advance = True
        self._run()

    def ring(self) -> None:
        """The alarm that was set rings."""
        self._alarm = None
        self.advance()

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

    def _goes_first(self) -> bool:
        """Whether there is something to do that waits for no burst of binds."""
        return self._advance or bool(self._reads)

    async def _work(self) -> None:
        while self._submissions or self._reads or self._advance or self._behind:
            submissions: list[Submission] = []
            reads, self._reads = self._reads, []
            try:
                queue = await self._current()
                if reads:
                    await answer_reads(queue, reads)
                gathers = await self._burst.gathers(self._submissions, self._goes_first)
                if not gathers:
                    submissions, self._submissions = (
                        self._submissions[:MOST_AT_ONCE],
                        self._submissions[MOST_AT_ONCE:],
                    )
                    self._burst.taken(submissions)
                if submissions or self._advance:
                    await self._transact(await self._current(), submissions)
            except Exception as error:
                if not submissions:
                    submissions, self._submissions = self._submissions, []
                self._fail(
                    error,
                    [
                        *(submission.answer for submission in submissions),
                        *(future for _, future in reads),
                    ],
                )
                if self._submissions or self._reads:
                    continue
                break
        self._task = None
        self._burst.rests_since = asyncio.get_running_loop().time()

    def _fail(self, error: Exception, waiting: Iterable[asyncio.Future[Any]]) -> None:
        """Those who wait get the error. What is due is left to the sweep: to try at once meets the
        same.
        """
        raised: Exception = error
        self._advance, self._behind = False, True
        if isinstance(error, StoreUnavailable):
            raised = Unavailable(UNAVAILABLE)
        elif isinstance(error, QueueGone):
            raised = QueueNotFound(self.name)
            self.gone, self.queue = True, None
            self._set_alarm(None)
            self._changed(None)
        elif isinstance(error, QueueTooNew | QueueDamaged):
            raised = self._unreadable(error)
        else:
            _log.exception("a turn failed; the queue is loaded anew", queue=self.name)
            self.queue = None
        for future in waiting:
            if not future.done():
                future.set_exception(raised)

    def _unreadable(self, error: QueueTooNew | QueueDamaged) -> BrokerError:
        """The error for callers. It is logged once, though the sweep may meet it every second, and
        again if the queue could be read meanwhile."""
        self.queue, text = None, str(error)
        if text != self._refused:
            self._refused = text
            _log.error("a queue cannot be read", queue=self.name, error=text)
        return Unavailable(text) if isinstance(error, QueueTooNew) else QueueUnreadable(text)

    # The queue in memory

    async def _current(self) -> Queue:
        """The queue with everything that was committed when this was called, if that matters."""
        behind, self._behind = self._behind, False
        queue = self.queue
        if queue is not None and behind:
            try:
                await self._replay_missed(queue)
            except StoreUnavailable:
                if self.queue is not None:
                    raise
                queue = None
        if queue is None:
            queue = await self._store.load(self.queue_id)
            await self._keep_time(queue.outage_seen)
            self.queue, self.name, self._refused = queue, queue.name, ""
            # Not known yet; to advance it is the first thing that is done with it.
            self._wake_at, self._advance = None, True
            self._changed(None)
        return queue

    async def _replay_missed(self, queue: Queue) -> bool:
        """Whether others have committed; if so the queue is brought up to date."""
        found, uncommitted = False, self._uncommitted
        try:
            while entries := await self._missed(queue):
                found = True
                self._settled(queue, follow(queue, entries))
                if len(entries) < FOLLOWED_AT_ONCE:
                    break
                # The queue may be as amid a commit, so nobody reads it meanwhile.
                self._uncommitted = True
                await asyncio.sleep(0)
            return found
        finally:
            self._uncommitted = uncommitted

    async def _missed(self, queue: Queue) -> Sequence[Entry]:
        """The next entries that others have committed, which bring the time forward, too."""
        try:
            seen = queue.revision
            entries = await self._store.entries_after(self.queue_id, seen, FOLLOWED_AT_ONCE)
        except KeyError as error:
            # They are no longer stored, or say what only a newer version knows.
            self.queue = None
            if isinstance(error, WentBack):
                _log.error(WENT_BACK, queue=self.name, revision=seen)
            raise StoreUnavailable("the missed records are of no use") from None
        if self._traces is not None:
            self._traces.others(self.queue_id, entries)
        await self._keep_time(max(map(_outage_seen, entries), default=0))
        return entries

    async def _keep_time(self, outage_seen: int) -> None:
        """Reads the store's clock if the queue knows more of it than this replica: so nobody
        decides on a queue, or is shown it, by a time from before its deadlines moved."""
        if outage_seen > self._clock.outage_id:
            await self._clock.read(self._store)

    def _settled(self, queue: Queue, decided: Decision | Transaction) -> None:
        """What was decided is committed: it stays, and is obeyed."""
        queue.journal.forget()
        self._wake_at = decided.wake_at
        times = [time for time in (decided.wake_at, self._next_lease) if time is not None]
        self._set_alarm(min(times, default=None))
        ours = isinstance(decided, Transaction) and bool(decided.commit.entries)
        self._changed(decided.notices, ours=ours)

    def _changed(self, flow_ids: frozenset[str] | None, *, ours: bool = False) -> None:
        """The views of these flows have changed; None: those of any may have."""
        self._on_change(self, ours)
        self.notifier.wake(flow_ids)

    def _set_alarm(self, time: float | None) -> None:
        if time != self._alarm:
            self._alarm = time
            delay = None if time is None else time - self._clock.now()
            self._alarms.set(self.queue_id, delay, self.ring)

    async def _transact(self, queue: Queue, submissions: list[Submission]) -> None:
        """Decides and commits what was submitted and is due; what it did not get to waits again."""
        tries, done = _Tries(submissions), None
        while done is None:
            tries.advance, self._advance = tries.advance or self._advance, False
            now, due = await self._time(tries)
            transaction = Transaction(queue, now, self._new_id(), self._wake_at)
            self._uncommitted = True
            try:
                done = await self._try(transaction, submissions, tries, due=due)
            except BaseException as error:
                transaction.take_back()
                tries.learn(error, transaction)
                if isinstance(error, Conflict):
                    await self._replay_missed(queue)
            finally:
                self._uncommitted = False
        answers, positions = done
        self.notifier.keep(positions)
        self._submissions[:0], submissions[len(answers) :] = submissions[len(answers) :], []
        # Answers go before notices: a flow that has bound waits for what follows then.
        for submission, answer in zip(submissions, answers, strict=True):
            submission.give(answer)
        self._next_lease = transaction.next_lease(self._next_lease)
        self._settled(queue, transaction)
        self.notifier.forget_soon()
        if transaction.commit.entries:
            # Those who were woken go first.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._on_commit, self, transaction.commit.entries)
        if self._submissions or self._reads:
            # Views are made before the next transaction keeps them waiting.
            await asyncio.sleep(0)

    async def _time(self, tries: _Tries) -> tuple[float, bool]:
        """The time to decide at, and whether what is due is done: by a time that was just read."""
        known = None if tries.advance or tries.overdue else self._clock.fresh_now()
        if known is None or (self._wake_at is not None and self._wake_at <= known):
            return (await self._clock.read(self._store)).now, True
        return known, False

    async def _try(
        self,
        transaction: Transaction,
        submissions: Sequence[Submission],
        tries: _Tries,
        *,
        due: bool,
    ) -> tuple[Sequence[Any], Positions] | None:
        """The answers and the positions that came back with the commit. None: nothing is to be
        committed, but other replicas have committed what the answers do not know."""
        queue, outage = transaction.queue, self._clock.outage
        if outage is not None and outage.id > queue.outage_seen:
            await self._move_deadlines(transaction, outage)
        if due:
            await self._do_what_is_due(transaction, tries.spared)
        answers = await transaction.answers(submissions, tries.superseded)
        if transaction.commit.entries:
            watched, gathered = self.notifier.watches, self._renewals.gathered
            commit = transaction.finish(tries.within, watched, gathered)
            with self.notifier.committing(), self._renewals.by_commit(commit):
                return answers, await self._commit(commit)
        if submissions and await self._replay_missed(queue):
            return None
        if not await write(self._store, transaction.unrecorded):
            return None
        await renew(self._store, transaction.renewed)
        await self._store.keys.record(transaction.commit.acts)
        return answers, {}

    async def _move_deadlines(self, transaction: Transaction, latest: Outage) -> None:
        """Before anything else, the deadlines get back all the time in which nobody served, and
        follow a clock that went back. Raises StoreUnavailable.

        `latest` is the latest outage that is known, and that the queue has not seen.
        """
        queue = transaction.queue
        # Without times it is enough to know the last one.
        times = queue.handoffs or queue.leaving.counts or queue.moved
        waits = queue.next_deadline() is not None or bool(times)
        outages = await self._store.outages(queue.outage_seen) if waits else (latest,)
        for outage in outages:
            # One that came since the clock was read has not moved this transaction's time.
            if outage.id <= latest.id:
                transaction.decide(c.MoveDeadlines(outage.id, outage.began, outage.seconds))

    async def _do_what_is_due(self, transaction: Transaction, spared: frozenset[str]) -> None:
        """Unbinds the flows whose leases are over, and advances the queue. Not those in `spared`,
        which live, nor those whose renewals this replica has kept waiting.
        """
        queue = transaction.queue
        expiry = await self._store.expiries(self.queue_id)
        self._next_lease = expiry.next_at
        for flow_id in expiry.expired:
            if transaction.full:
                self._advance = True
                return
            if flow_id in queue.flows and flow_id not in spared and flow_id not in self._renewals:
                transaction.expire(flow_id, expiry.seen_at.get(flow_id))
        transaction.decide(c.Advance(expiry.seen_at))


class _Tries:
    """What the tries to commit some submissions have learned, each for the next one."""

    def __init__(self, submissions: Iterable[Submission]) -> None:
        self.spared = frozenset(one.renews for one in submissions if one.renews is not None)
        """The flows whose leases are not over."""
        self.superseded: frozenset[Superseded] = frozenset()
        self.advance = False
        self._late_seconds = iter(LATE_SECONDS)
        self.within = next(self._late_seconds)
        """How long the commit may take."""

    @property
    def overdue(self) -> bool:
        """Whether a commit took too long."""
        return self.within > LATE_SECONDS[0]

    def learn(self, error: BaseException, transaction: Transaction) -> None:
        """Why the transaction, which was taken back, was not committed. Raises what no further try
        can mend."""
        match error:
            case Conflict():
                pass
            case Overdue():
                self.within = next(self._late_seconds, 0.0)
                if not self.within:
                    raise StoreUnavailable("commits take too long") from None
            case LeaseRenewed():
                self.spared |= error.flow_ids
            case LogTrimmed():
                transaction.refuse_fenced()
            case PositionSuperseded():
                late = transaction.late(error.partitions)
                assert not late <= self.superseded, "a position is behind that was not written"
                self.superseded |= late
            case _:
                raise error


def _outage_seen(entry: Entry) -> int:
    """The outage after which the entry moved deadlines; 0: it moved none."""
    moved = (r.DeadlinesMoved, r.ClockWentBack)
    return max((one.outage_id for one in entry.records if isinstance(one, moved)), default=0)
