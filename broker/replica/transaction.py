"""One transaction of a queue: submitted commands, decided one after the other, committed together.

A `Submission` is one command in the queue's mailbox and what goes with it. Each command is decided
on the queue as the commands before it left it, so the queue in memory runs ahead of the store until
the transaction is committed. The transaction can be taken back as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from broker.core import commands as c
from broker.core.decisions import is_read
from broker.core.draft import SLICE
from broker.core.errors import BrokerError, Unavailable
from broker.core.model import Flow
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.records import Child, Entry
from broker.pieces import Pace
from broker.store.ports import Act, Commit, PositionCommit, PositionWrite
from broker.store.trims import Fence
from broker.tracing import TracedCall

T = TypeVar("T")
# The slices of one transaction, which has a cost of its own: more if nobody waits for an answer.
SLICES_AT_ONCE = 2
SLICES_OF_A_REST = 4
# A transaction decides no longer than this, and holds up other queues for little more than a step.
DECIDING_SECONDS = 0.25
STEP_SECONDS = 0.002
# Where every partition of the built-in log begins.
EARLIEST = "0"
# A store that is slow writes so many partitions.
ROWS_PER_SECOND = 10_000
# Positions that come back with a transaction beside those that it writes.
MOST_SHOWN = 2000
# A decision cannot be farther ahead of the store's clock, unless that has gone back since: whoever
# read it less than `broker.replica.clock.FRESH_SECONDS` ago is ahead by less.
EARLY_SECONDS = 3.0


class LogMoved(Unavailable):
    """The log was trimmed meanwhile: what was to be committed relies on how it was before."""

    def __init__(self) -> None:
        super().__init__("The log is being trimmed; try again.")


@dataclass(slots=True, eq=False)
class Submission:
    """One command in the mailbox and what goes with it into the transaction.

    `token_hash` goes with a bind, `renews` names the flow whose lease begins anew, `seq` goes with
    a release, `positions` with raised epochs, `begins` (for partitions without a position) with a
    change of `start` to `latest`. It is refused with LogMoved if `fence` does not hold. `act` is
    recorded unless the command is refused, with what `shown` shows of the queue before and after.
    """

    command: c.Command
    token_hash: bytes | None = None
    renews: str | None = None
    seq: int | None = None
    positions: Mapping[int, str | None] = field(default_factory=dict)
    begins: Mapping[int, str] = field(default_factory=dict)
    fence: Fence | None = None
    moved: bool = False
    act: Act | None = None
    shown: Callable[[Queue], Mapping[str, Any] | None] | None = None
    trace: TracedCall | None = None
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    def joins(self, queue: Queue) -> bool:
        """Whether it is a bind of an instance that was not bound before."""
        if not isinstance(self.command, c.Bind):
            return False
        instance = (self.command.key_id, self.command.instance_id)
        return instance not in queue.by_instance and instance not in queue.absent

    def give(self, answer: Any) -> None:
        """The answer to the caller, unless it gave up; a BrokerError is raised there."""
        if self.answer.done():
            return
        if isinstance(answer, BrokerError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


async def all_of(answers: Sequence[asyncio.Future[T]]) -> list[T]:
    """The answers, once the last one is known, in this round of the event loop. Raises the first
    error.
    """
    try:
        return [await one for one in answers]
    finally:
        for one in answers:
            if not one.cancel() and not one.cancelled():
                one.exception()  # Else asyncio would log it.


class Superseded(NamedTuple):
    """A release that came after a later call of its flow, by `seq`: nothing is done for it."""

    partition: int
    epoch: int
    seq: int | None


def slices(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The items in pieces of the size of a slice, one at least."""
    for first in range(0, max(1, len(items)), SLICE):
        yield tuple(items[first : first + SLICE])


class Transaction:
    """Decisions on one queue, applied to the queue already, and the transaction that they make."""

    def __init__(
        self,
        queue: Queue,
        now: float,
        commit_id: str,
        wake_at: float | None = None,
        unfinished: bool = False,
    ) -> None:
        """`wake_at` and `unfinished` are what the last decision before said."""
        self.queue = queue
        self.now = now
        self.notices: frozenset[str] = frozenset()
        # Flows that got partitions by the rest of a decision, and may get more.
        self.later: frozenset[str] = frozenset()
        # Those to notify right after the commit, since `finish`. Others may wait for the rest.
        self.notified: frozenset[str] = frozenset()
        self.wake_at = wake_at
        self.unfinished = unfinished
        self._most = SLICES_AT_ONCE * SLICE
        self._mark = queue.journal.mark()
        self._entries: list[Entry] = []
        self._partitions: set[int] = set()
        self._flows: dict[str, Flow] = {}
        self._hashes: dict[str, bytes] = {}
        self._left: dict[str, str] = {}
        self._expired: set[str] = set()
        # By partition and epoch.
        self._writes: dict[tuple[int, int], PositionWrite] = {}
        self._positions: dict[int, str | None] = {}
        self._first_positions: dict[int, str] = {}
        self._children: list[Child] = []
        self._removed: dict[int, str] = {}
        self._renewed: set[str] = set()
        self._callers: set[str] = set()
        self._raised: set[int] = set()
        self._acts: list[Act] = []
        self._fenced: list[Submission] = []
        self._revokes = False
        self.commit = Commit(
            queue,
            queue.revision,
            commit_id,
            self._entries,
            token_hashes=self._hashes,
            left=self._left,
            positions=self._positions,
            first_positions=self._first_positions,
            children=self._children,
            removed=self._removed,
            acts=self._acts,
        )

    @property
    def full(self) -> bool:
        """Whether the transaction is large enough: what waits is for the next transaction."""
        return len(self._partitions) >= self._most

    @property
    def renewed(self) -> Sequence[str]:
        """The flows whose leases begin anew."""
        return sorted(self._renewed)

    def decide(self, command: c.Command, budget: int | None = None) -> Any:
        """Decides a command and takes the decision into the transaction.

        `budget`: how many partitions it may change; None: a slice, as far as the transaction has
        room for it. Returns its answer, raises its BrokerError.
        """
        if budget is None:
            budget = max(1, min(SLICE, self._most - len(self._partitions)))
        decision = decide(self.queue, command, self.now, budget)
        self._entries += decision.entries
        effects = decision.effects
        only_grants = isinstance(command, c.Resume) and not effects.revokes
        self.notices |= decision.complete if only_grants else decision.notices
        self.later = (self.later | decision.notices) - self.notices
        self.wake_at = decision.wake_at
        self.unfinished = decision.unfinished
        self._partitions |= effects.partitions
        self._flows.update((flow.id, flow) for flow in effects.flows)
        self._left.update(effects.left)
        self._raised |= effects.raised
        self._revokes = self._revokes or effects.revokes
        self._children += effects.children
        self._removed.update(effects.removed)
        if self.queue.settings.start == "latest":
            # Without a position they would start where the log ends when it is first read, and what
            # was published before that would be lost (the contract, *Queue*, `start`).
            added = dict.fromkeys(effects.added, EARLIEST)
            self._first_positions.update(added)
        self._first_positions.update(effects.begins)
        return decision.answer

    def expire(self, flow_id: str, seen_at: float | None) -> None:
        """Unbinds a flow, which may go only if its lease is over when this is committed. `seen_at`
        is its last renewal."""
        self.decide(c.Unbind(flow_id, "lease_expired", seen_at))
        self._expired.add(flow_id)

    async def answers(
        self,
        submissions: Sequence[Submission],
        superseded: frozenset[Superseded],
        *,
        resumes: bool = False,
        puts_off: bool = False,
    ) -> list[Any]:
        """The answers (or errors) to as many as there is time for, at least one; others get on
        meanwhile. Then the next slices of what was cut off; `resumes`: at least one.

        Of flows that join together, the last one's decision gives all of them their partitions.
        Otherwise the first would get everything, and hand most of it over to the others. It leaves
        this to a later transaction, too, if it `puts_off` what it can for others that are on their
        way.
        """
        answers: list[Any] = []
        pace = Pace(DECIDING_SECONDS, STEP_SECONDS)
        if not submissions:
            self._most = SLICES_OF_A_REST * SLICE
        for submission, after in zip_longest(submissions, submissions[1:]):
            if answers and (self.full or not await pace.goes_on()):
                break
            releases = isinstance(submission.command, c.Release)
            others = puts_off or (after is not None and after.joins(self.queue))
            waits = (others and submission.joins(self.queue)) or (puts_off and releases)
            try:
                answers.append(self.answer(submission, superseded, 0 if waits else None))
            except BrokerError as error:
                answers.append(error)
        ours = resumes or bool(self._entries)
        goes_on = len(answers) == len(submissions) and not self.full
        while self.unfinished and not puts_off:
            goes_on = goes_on and await pace.goes_on()
            if not (resumes or (ours and goes_on and not self._is_due)):
                break
            self.decide(c.Resume())
            resumes, goes_on = False, not self.full
        return answers

    @property
    def _is_due(self) -> bool:
        """Whether something goes before the rest of a decision, in the next transaction."""
        return self.wake_at is not None and self.wake_at <= self.now

    def answer(
        self, submission: Submission, superseded: frozenset[Superseded], budget: int | None = None
    ) -> Any:
        """Decides what was submitted, but not what is `superseded`; raises its BrokerError."""
        command = submission.command
        if submission.fence is not None:
            fences = (submission.fence,)
            if submission.moved or self.commit.fences not in ((), fences):
                raise LogMoved
            self.commit.fences = fences
            self._fenced.append(submission)
        if submission.trace is not None:
            self.commit.calls.append(submission.trace)
        flow_id = getattr(command, "flow_id", None)
        if flow_id is not None:
            self._callers.add(flow_id)
        before = None if submission.shown is None else submission.shown(self.queue)
        earliest = self.queue.settings.start == "earliest"
        if isinstance(command, c.Release):
            answer = self._release(submission, command, superseded, budget)
        elif isinstance(command, c.Children):
            answer = self._report(submission, command, superseded)
        else:
            answer = self.decide(command, budget)
        if earliest and self.queue.settings.start == "latest":
            # What the change adds, and what waits for parents, begins at the earliest position.
            waiting = self.queue.lineage.waiting if self.queue.lineage else ()
            for number in (partition.number for partition in self.queue.existing()):
                ends = {} if number in waiting else submission.begins
                self._first_positions.setdefault(number, ends.get(number, EARLIEST))
        if isinstance(command, c.Bind) and submission.token_hash is not None:
            self._hashes[command.flow_id] = submission.token_hash
        # One that was removed or finished meanwhile keeps its position, as it keeps its epoch.
        self._positions.update(
            (number, position)
            for number, position in submission.positions.items()
            if is_read(self.queue, number)
        )
        if submission.act is not None:
            act = submission.act
            if submission.shown is not None:
                act = replace(act, before=before, after=submission.shown(self.queue))
            self._acts.append(act)
        if submission.renews is not None and submission.renews in self.queue.flows:
            self._renewed.add(submission.renews)
        return answer

    def _release(
        self,
        submission: Submission,
        command: c.Release,
        superseded: frozenset[Superseded],
        budget: int | None,
    ) -> tuple[c.Result, ...]:
        """A release with its positions, which are written only where it really ends the flow's
        ownership.
        """
        flow_id = command.flow_id
        owned = {item for item in command.items if self._owns(flow_id, item)}
        known: dict[c.ReleaseItem, c.Result] = {}
        for item in owned:
            if item.partition in self._raised:
                # This epoch is not committed yet, so to who names it, it is too high.
                known[item] = c.Result(item.partition, c.Outcome.NOT_OWNER)
            elif (item.partition, item.epoch, submission.seq) in superseded:
                known[item] = c.Result(item.partition, c.Outcome.OK)
        items = tuple(item for item in command.items if item not in known)
        results: Sequence[c.Result] = self.decide(c.Release(flow_id, items), budget)
        done = {result.partition for result in results if result.outcome is c.Outcome.OK}
        for item in items:
            if item in owned and item.partition in done:
                self._write(_write_of(item, flow_id, submission.seq))
        answers = iter(results)
        return tuple(known[item] if item in known else next(answers) for item in command.items)

    def _report(
        self, submission: Submission, command: c.Children, superseded: frozenset[Superseded]
    ) -> tuple[c.Result, ...]:
        """Children with the positions of their parents.

        A report that comes late, by `seq`, is carried out, because no later call has said what it
        says. Only its position is left out: a later one is stored.
        """
        flow_id = command.flow_id
        owned = {item.partition for item in command.items if self._owns(flow_id, item)}
        # This epoch is not committed yet.
        early = owned & self._raised
        items = tuple(item for item in command.items if item.partition not in early)
        results = {
            result.partition: result for result in self.decide(c.Children(flow_id, items))
        } | {number: c.Result(number, c.Outcome.NOT_OWNER) for number in early}
        for item in items:
            late = (item.partition, item.epoch, submission.seq) in superseded
            done = results[item.partition].outcome is c.Outcome.OK and item.partition in owned
            if done and item.position is not None and not late:
                self._write(_write_of(item, flow_id, submission.seq))
        return tuple(results[item.partition] for item in command.items)

    def _write(self, write: PositionWrite) -> None:
        """A position, after those that this transaction has of the partition: the later counts."""
        key = write.partition, write.epoch
        known = self._writes.get(key)
        if known is not None:
            if write.seq is not None and known.seq is not None and write.seq <= known.seq:
                return
            position = known.position if write.position is None else write.position
            seq = known.seq if write.seq is None else write.seq
            write = replace(write, position=position, seq=seq)
        self._writes[key] = write

    def _owns(self, flow_id: str, item: c.ReleaseItem | c.ChildrenItem) -> bool:
        partition = self.queue.partitions.get(item.partition)
        return (
            partition is not None
            and partition.owner is not None
            and partition.owner.id == flow_id
            and partition.epoch == item.epoch
        )

    @property
    def unrecorded(self) -> Sequence[PositionCommit]:
        """The positions to be written if there is nothing else to commit: those of reports of which
        all else was known."""
        return [
            PositionCommit(self.queue.id, one.flow_id, one.seq, *place, one.position)
            for place, one in self._writes.items()
            if one.position is not None
        ]

    def late(self, partitions: Collection[int]) -> frozenset[Superseded]:
        """What was refused if the store refused the positions of these partitions."""
        return frozenset(
            Superseded(write.partition, write.epoch, write.seq)
            for write in self._writes.values()
            if write.partition in partitions
        )

    def finish(
        self, late_seconds: float, watched: Container[str] = (), gathered: Container[str] = ()
    ) -> Commit:
        """The transaction, with the rows that changed.

        The views of flows that called, and changed ones of flows in `watched`, are made right after
        it; so it returns the positions in them. Flows that are notified and in `gathered` are
        renewed.

        If owners are to let go, their time runs from when that was decided; so then it must be
        committed within `late_seconds`, or somewhat longer if it is large. How long that takes is
        not known if the clock goes back meanwhile; then it does not hold.
        """
        queue, commit = self.queue, self.commit
        for positions in (self._positions, self._first_positions):
            for number in self._removed.keys() & positions.keys():
                del positions[number]
        written = self._writes.values()
        commit.writes = [one for one in written if one.partition not in self._removed]
        numbers = sorted(self._partitions - self._removed.keys())
        commit.partitions = [queue.partitions[number] for number in numbers]
        # A flow that came and went within the transaction is written too: its client will call.
        there = queue.flows.keys() | self._hashes.keys()
        commit.flows = [flow for flow in self._flows.values() if flow.id in there]
        commit.expired = frozenset(self._expired)
        self.notified = self.notices if self.unfinished else self.notices | self.later
        self._renewed |= {flow_id for flow_id in self.notified if flow_id in gathered}
        commit.renewed = frozenset(self._renewed & queue.flows.keys())
        # A rest is due since now, for another replica should this one die.
        commit.next_deadline = self.now if self.unfinished else self.wake_at
        awaited = [flow_id for flow_id in sorted(self.notified) if flow_id in watched]
        commit.shown = self._positions_in_views((*sorted(self._callers), *awaited))
        if self._revokes:
            latest = self.now + late_seconds + len(self._partitions) / ROWS_PER_SECOND
            commit.valid = (self.now - EARLY_SECONDS, latest)
        return commit

    def _positions_in_views(self, flow_ids: Iterable[str]) -> set[int]:
        """Partitions in the views of these flows that are not written, as many as cost little."""
        numbers: set[int] = set()
        for flow_id in flow_ids:
            flow = self.queue.flows.get(flow_id)
            if flow is None:
                continue
            shown = (flow.owned | flow.incoming) - self._partitions
            if len(numbers) + len(shown) > MOST_SHOWN:
                break
            numbers |= shown
        return numbers

    def next_lease(self, known: float | None) -> float | None:
        """When the next lease ends: one that this transaction began, or the one that is `known`."""
        flows = [self.queue.flows.get(id) for id in (*self._hashes, *self._renewed)]
        ends = [self.now + flow.lease_seconds for flow in flows if flow is not None]
        return min(ends if known is None else (*ends, known), default=None)

    def refuse_fenced(self) -> None:
        """The next transaction refuses what relied on a log that was not trimmed."""
        for submission in self._fenced:
            submission.moved = True

    def take_back(self) -> None:
        """Leaves the queue as it was before the transaction."""
        self.queue.journal.undo(self._mark)


def _write_of(item: c.ReleaseItem | c.ChildrenItem, flow_id: str, seq: int | None) -> PositionWrite:
    """The position that an item of a release brings."""
    return PositionWrite(item.partition, item.epoch, flow_id, item.position, seq)
