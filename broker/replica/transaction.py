"""One transaction of a queue: submitted commands, decided one after the other, committed together.

A `Submission` is one command in the queue's mailbox and what goes with it. Each command is decided
on the queue as the commands before it left it, so the queue in memory runs ahead of the store until
the transaction is committed. The transaction can be taken back as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from broker.core import commands as c
from broker.core.decisions import is_read
from broker.core.errors import BrokerError, LogChanged
from broker.core.model import Flow, Instance
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.records import Child, Entry
from broker.store.ports import Act, Commit, Passed, PositionCommit, PositionWrite
from broker.store.trims import Fence
from broker.tracing import TracedCall

T = TypeVar("T")
# A transaction that changes so many partitions takes no more of what waits.
FULL = 512
# Others get on after a decision that took longer; a transaction decides no longer in all.
STEP_SECONDS = 0.002
DECIDING_SECONDS = 0.25
# Where every partition of the built-in log begins.
EARLIEST = "0"
# A store that is slow writes so many partitions.
ROWS_PER_SECOND = 10_000
# Positions that come back with a transaction beside those that it writes.
MOST_SHOWN = 2000
# A decision cannot be farther ahead of the store's clock, unless that has gone back since: whoever
# read it less than `broker.replica.clock.FRESH_SECONDS` ago is ahead by less.
EARLY_SECONDS = 3.0


@dataclass(slots=True, eq=False)
class Submission:
    """One command in the mailbox and what goes with it into the transaction.

    `token_hash` goes with a bind, `renews` names the flow whose lease begins anew, `seq` goes with
    a release, `positions` and `passed` with raised epochs, `begins` (for partitions without a
    position) with a change of `start` to `latest`. It is refused with LogChanged if `fence` does
    not hold. `act` is recorded unless the command is refused, with what `shown` shows of the queue
    before and after.
    """

    command: c.Command
    token_hash: bytes | None = None
    renews: str | None = None
    seq: int | None = None
    positions: Mapping[int, str | None] = field(default_factory=dict)
    passed: Mapping[int, Passed] = field(default_factory=dict)
    begins: Mapping[int, str] = field(default_factory=dict)
    fence: Fence | None = None
    moved: bool = False
    act: Act | None = None
    shown: Callable[[Queue], Mapping[str, Any] | None] | None = None
    trace: TracedCall | None = None
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    def joins(self, queue: Queue) -> Instance | None:
        """The instance that it binds, if that was not bound before."""
        if not isinstance(self.command, c.Bind):
            return None
        instance = (self.command.key_id, self.command.instance_id)
        return None if instance in queue.flows.by_instance or instance in queue.absent else instance

    def give(self, answer: Any) -> None:
        """The answer to the caller, unless it gave up; a BrokerError is raised there."""
        if self.answer.done():
            return
        if isinstance(answer, BrokerError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class Superseded(NamedTuple):
    """A release that came after a later call of its flow, by `seq`: nothing is done for it."""

    partition: int
    epoch: int
    seq: int | None


class Transaction:
    """Decisions on one queue, applied to the queue already, and the transaction that they make."""

    def __init__(
        self,
        queue: Queue,
        now: float,
        commit_id: str,
        wake_at: float | None = None,
    ) -> None:
        """`wake_at` is what the last decision before said."""
        self.queue = queue
        self.now = now
        self.notices: frozenset[str] = frozenset()
        self.wake_at = wake_at
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
        self._passed: dict[int, Passed] = {}
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
            passed=self._passed,
            first_positions=self._first_positions,
            children=self._children,
            removed=self._removed,
            acts=self._acts,
        )

    @property
    def full(self) -> bool:
        """Whether the transaction is large enough: what waits is for the next transaction."""
        return len(self._partitions) >= FULL

    @property
    def renewed(self) -> Sequence[str]:
        """The flows whose leases begin anew."""
        return sorted(self._renewed)

    def decide(self, command: c.Command) -> Any:
        """Decides a command and takes the decision into the transaction. Returns its answer, raises
        its BrokerError.
        """
        decision = decide(self.queue, command, self.now)
        self._entries += decision.entries
        effects = decision.effects
        self.notices |= decision.notices
        self.wake_at = decision.wake_at
        self._partitions |= effects.partitions
        self._flows.update((flow.id, flow) for flow in effects.flows)
        self._left.update(effects.left)
        self._raised |= effects.raised
        self._revokes = self._revokes or effects.revokes
        self._children += effects.children
        self._removed.update(effects.removed)
        self._first_positions.update(effects.begins)
        return decision.answer

    def expire(self, flow_id: str, seen_at: float | None) -> None:
        """Unbinds a flow, which may go only if its lease is over when this is committed. `seen_at`
        is its last renewal."""
        self.decide(c.Unbind(flow_id, "lease_expired", seen_at))
        self._expired.add(flow_id)

    async def answers(
        self, submissions: Sequence[Submission], superseded: frozenset[Superseded]
    ) -> list[Any]:
        """The answers (or errors) to as many as there is time for, at least one; others get on
        meanwhile. New instances that wait together are bound together.
        """
        answers: list[Any] = []
        clock = asyncio.get_running_loop().time
        began = stepped = clock()
        while len(answers) < len(submissions) and not (answers and self.full):
            joining = self._joining(submissions, len(answers))
            if len(joining) > 1:
                answers += self._bind_together(joining)
            else:
                try:
                    answers.append(self.answer(submissions[len(answers)], superseded))
                except BrokerError as error:
                    answers.append(error)
            now = clock()
            if now - began > DECIDING_SECONDS:
                break
            if now - stepped > STEP_SECONDS:
                await asyncio.sleep(0)
                stepped = clock()
        return answers

    def _joining(self, submissions: Sequence[Submission], first: int) -> list[Submission]:
        """The binds from the `first` on, each of another instance that was not bound."""
        joining: dict[Instance, Submission] = {}
        for place in range(first, len(submissions)):
            instance = submissions[place].joins(self.queue)
            if instance is None or instance in joining:
                break
            joining[instance] = submissions[place]
        return [*joining.values()]

    def _bind_together(self, submissions: Sequence[Submission]) -> Sequence[BrokerError | None]:
        """Binds new instances, and decides the balance once."""
        binds = tuple(one.command for one in submissions if isinstance(one.command, c.Bind))
        answers: Sequence[BrokerError | None] = self.decide(c.BindTogether(binds))
        for one, error in zip(submissions, answers, strict=True):
            self._take_call(one)
            if error is None:
                self._taken(one)
        return answers

    def answer(self, submission: Submission, superseded: frozenset[Superseded]) -> Any:
        """Decides what was submitted, but not what is `superseded`; raises its BrokerError."""
        command = submission.command
        if submission.fence is not None:
            fences = (submission.fence,)
            if submission.moved or self.commit.fences not in ((), fences):
                raise LogChanged("trimmed")
            self.commit.fences = fences
            self._fenced.append(submission)
        self._take_call(submission)
        before = None if submission.shown is None else submission.shown(self.queue)
        earliest = self.queue.settings.start == "earliest"
        if isinstance(command, c.Release):
            answer = self._release(submission, command, superseded)
        elif isinstance(command, c.Children):
            answer = self._report(submission, command, superseded)
        else:
            answer = self.decide(command)
        if earliest and self.queue.settings.start == "latest":
            # What the change adds, and what waits for parents, begins at the earliest position.
            waiting = self.queue.lineage.waiting if self.queue.lineage else ()
            for number in (partition.number for partition in self.queue.existing()):
                if number in submission.begins and number not in waiting:
                    self._first_positions.setdefault(number, submission.begins[number])
        # One that was removed or finished meanwhile keeps its position, as it keeps its epoch.
        self._positions.update(
            (number, position)
            for number, position in submission.positions.items()
            if is_read(self.queue, number)
        )
        # Of several calls on one partition in one transaction, the position that is set counts, and
        # else the message that was passed last.
        self._passed.update(
            (number, passed)
            for number, passed in submission.passed.items()
            if is_read(self.queue, number)
        )
        for number in self._passed.keys() & self._positions.keys():
            del self._passed[number]
        if submission.act is not None:
            act = submission.act
            if submission.shown is not None:
                act = replace(act, before=before, after=submission.shown(self.queue))
            self._acts.append(act)
        self._taken(submission)
        return answer

    def _take_call(self, submission: Submission) -> None:
        """Remembers who calls, whatever becomes of it."""
        if submission.trace is not None:
            self.commit.calls.append(submission.trace)
        flow_id = getattr(submission.command, "flow_id", None)
        if flow_id is not None:
            self._callers.add(flow_id)

    def _taken(self, submission: Submission) -> None:
        """Remembers what goes with a command that was not refused."""
        if isinstance(submission.command, c.Bind) and submission.token_hash is not None:
            self._hashes[submission.command.flow_id] = submission.token_hash
        if submission.renews is not None and submission.renews in self.queue.flows:
            self._renewed.add(submission.renews)

    def _release(
        self, submission: Submission, command: c.Release, superseded: frozenset[Superseded]
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
        results: Sequence[c.Result] = self.decide(c.Release(flow_id, items))
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
            above = known.done_above if write.position is None else write.done_above
            write = replace(write, position=position, seq=seq, done_above=above)
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
        for positions in (self._positions, self._passed, self._first_positions):
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
        self._renewed |= {flow_id for flow_id in self.notices if flow_id in gathered}
        commit.renewed = frozenset(self._renewed & queue.flows.keys())
        commit.next_deadline = self.wake_at
        awaited = [flow_id for flow_id in sorted(self.notices) if flow_id in watched]
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
    above = item.done_above if isinstance(item, c.ReleaseItem) else None
    return PositionWrite(item.partition, item.epoch, flow_id, item.position, seq, above)
