"""The rebalancer: what happens to a queue when somebody asks something of it or time passes.

A queue is *Ready* until a trigger (the contract, *What triggers what*). Then it waits out the
**holddown**, so that consumers that come or go together cause one rebalance, and so that one that
restarts gets back what it had. Then it is *Rebalancing*: the loop grants what nobody owns and hands
partitions from the most to the least loaded flow until the queue is balanced. A change while the
loop runs is taken up at once.

A handoff leaves the owner in peace while the successor warms up (if it asked for that), then tells
the owner to finish and release by a deadline, and ends with a grant under the next epoch. Three
things make it safe whoever crashes: the epoch fences everything that an owner does; a revoke is
never taken back, so a delayed release cannot be mistaken for another; and at its deadline every
handoff ends, so every rebalance does.

`decide` only reads. It plans step by step on the queue itself, each step applied by `replay` as it
will be when it is committed, and takes all steps back before it returns (`journal`). So no step can
see a state that never will be, and live and reloaded queues cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.core.assignment import Giving, is_balanced, put_back, revise, taker
from broker.core.commands import Outcome, Result
from broker.core.errors import FlowNotFound
from broker.core.model import Flow, HandedOver, Handoff, Partition, Queue
from broker.core.ranking import Ranking
from broker.core.replay import replay
from broker.core.transitions import State, Status


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command leads to, in the order in which it must happen.

    `records` are to be committed (empty: nothing changes), then the flows in `notices` woken, and
    the queue advanced at `wake_at` (Unix seconds, None: nothing will be due). `answer` is for the
    caller, after the commit.
    """

    records: tuple[r.Record, ...]
    notices: frozenset[str]
    wake_at: float | None
    answer: Any = None


def decide(queue: Queue, command: c.Command, now: float) -> Decision:
    """Decides a command. Only reads: the queue is as before when this returns.

    Raises FlowNotFound if the flow that the command speaks of is not bound (any more).
    """
    draft = Draft(queue, now)
    try:
        answer = _decide(command, draft)
        return Decision(
            tuple(r.merged(draft.records)), frozenset(queue.touched), queue.next_deadline(), answer
        )
    finally:
        draft.take_back()


class Draft:
    """A decision in the making: the queue with the records so far applied."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.now = now
        self.records: list[r.Record] = []
        self._mark = queue.journal.mark()
        queue.set("touched", set())
        queue.set("revision", queue.revision + 1)

    def emit(self, record: r.Record) -> None:
        """Adds a record and applies it."""
        self.records.append(record)
        replay(self.queue, record)

    def take_back(self) -> None:
        """Leaves the queue as it was."""
        self.queue.journal.undo(self._mark)

    def flow(self, flow_id: str) -> Flow:
        """The bound flow of this id; raises FlowNotFound."""
        flow = self.queue.flows.get(flow_id)
        if flow is None:
            raise FlowNotFound(flow_id)
        return flow

    def grant(
        self, partition: Partition, flow: Flow, handed_over: str, *, by_handoff: bool = False
    ) -> None:
        """Makes the flow the owner of the partition, under the next epoch."""
        self.emit(r.Granted((self.drawn_up(partition, flow, handed_over, by_handoff),), self.now))

    def drawn_up(
        self, partition: Partition, flow: Flow, handed_over: str, by_handoff: bool = False
    ) -> r.Grant:
        """The grant of the partition to the flow, under the next epoch."""
        queue, number = self.queue, partition.number
        since = queue.unowned.get(number) if partition.owner is None else self.now
        if partition.state is State.REVOKING:
            since = queue.handoffs[number].since
        seconds = None if since is None else round(self.now - since, 6)
        previous = partition.owner.id if partition.owner else None
        return r.Grant(
            number, previous, flow.id, partition.epoch + 1, handed_over, seconds, by_handoff
        )

    def outside(self, trigger: str) -> None:
        """Opens an entry of the history for grants outside of a rebalance; inside one this is
        nothing."""
        if self.queue.status is not Status.REBALANCING:
            self.emit(r.GrantedOutside(self.queue.next_rebalance_id, trigger, self.now))


# The status


def _trigger(draft: Draft, cause: str, flows_before: int) -> None:
    """Something happened to a Ready queue that takes a holddown (rules 1, 4, 8 and 11)."""
    delay = draft.queue.settings.rebalance_delay
    if delay > 0:
        draft.emit(r.HolddownStarted(cause, draft.now + delay, flows_before, draft.now))
    else:
        _rebalance(draft, cause)


def _rebalance(draft: Draft, cause: str) -> None:
    """Rebalancing at once, whatever the status (rules 8 to 10)."""
    queue = draft.queue
    if queue.status is not Status.REBALANCING:
        trigger = queue.trigger or cause
        draft.emit(r.RebalanceStarted(queue.next_rebalance_id, trigger, draft.now))
    _loop(draft, changed=True)


def _take_up(draft: Draft, *, changed: bool = True) -> None:
    """Something happened: the holddown may settle (rule 7), a running loop takes it up (rule
    10)."""
    queue = draft.queue
    if queue.status is Status.HOLDDOWN and queue.takers == queue.flows_before:
        assert queue.trigger is not None
        _grant_outside(draft, queue.trigger, sorted(queue.unowned))
        if is_balanced(queue):
            draft.emit(r.HolddownSettled(draft.now))
    elif queue.status is Status.REBALANCING:
        _loop(draft, changed=changed)


def _grant_outside(draft: Draft, trigger: str, numbers: Sequence[int]) -> None:
    """Grants of rules 3 and 7: at once, without a rebalance, in the history under an entry of their
    own."""
    if numbers and draft.queue.takers:
        draft.outside(trigger)
        _grant(draft, numbers, draft.queue.ranking)


# The loop


def _loop(draft: Draft, *, changed: bool) -> None:
    """One turn of the rebalance loop; it is turned again whenever something finishes or changes.

    `changed`: flows or settings did, so warm-ups under way may not be what is needed any more.
    """
    queue = draft.queue
    if queue.warming and (changed or queue.unowned or queue.stranded):
        _revise(draft)
    else:
        _grant_all(draft, queue.ranking)
    _start_handoffs(draft)
    if is_balanced(queue):
        draft.emit(r.RebalanceFinished(draft.now))


def _grant_all(draft: Draft, ranking: Ranking) -> None:
    """Grants what nobody owns, and names successors for partitions in `revoking` that lost theirs.

    A revoke is never taken back, so a partition that lost its successor goes on like one that
    nobody owns; its present owner may be the one to get it.
    """
    queue = draft.queue
    _grant(draft, sorted(queue.unowned), ranking)
    for number in sorted(queue.stranded):
        flow = taker(queue, ranking)
        if flow is None:
            return
        draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), None, draft.now))
        if ranking is not queue.ranking and number not in queue.retiring:
            ranking.add(flow.seat, 1)


def _grant(draft: Draft, numbers: Sequence[int], ranking: Ranking) -> None:
    """Grants unowned partitions, given lowest number first, each to the flow with the fewest
    partitions."""
    queue = draft.queue
    grants: list[r.Grant] = []
    for number in numbers:
        flow = taker(queue, ranking)
        if flow is None:
            return
        partition = queue.partitions[number]
        grants.append(draft.drawn_up(partition, flow, partition.let_go))
        if not partition.retiring:
            # If this is the queue's own ranking, `replay` will set it to the same counts.
            ranking.add(flow.seat, 1)
    if grants:
        draft.emit(r.Granted(tuple(grants), draft.now))


def _revise(draft: Draft) -> None:
    """Grants and successors as if no warm-up had begun, then keeps the warm-ups that fit (see
    `assignment`)."""
    queue = draft.queue
    ranking = put_back(queue)
    _grant_all(draft, ranking)
    revision = revise(queue, ranking)
    for number in revision.called_off:
        draft.emit(r.HandoffsCalledOff((number,)))
    for number, flow in revision.redirected:
        _redirect(draft, number, flow)


def _redirect(draft: Draft, number: int, flow: Flow) -> None:
    """Gives a warming handoff another successor, which warms up anew, or takes the partition as it
    is."""
    deadline = draft.now + draft.queue.settings.max_warmup_time
    draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), deadline, draft.now))
    if not flow.warmup:
        _revoke(draft, (number,), ready=False)


def _start_handoffs(draft: Draft) -> None:
    """Starts handoffs until the balance needs no more or `max_concurrent_handoffs` are under
    way."""
    queue, now = draft.queue, draft.now
    most = queue.settings.max_concurrent_handoffs
    giving = Giving(queue)
    while most is None or len(queue.handoffs) < most:
        chosen = giving.next()
        if chosen is None:
            return
        number, successor = chosen
        owner = queue.partitions[number].owner
        assert owner is not None
        moves = (r.Move(number, owner.id, successor.id),)
        cut_short = owner.drain_deadline is not None and owner.drain_deadline <= now
        if successor.warmup and not cut_short and queue.settings.max_warmup_time > 0:
            draft.emit(r.WarmupsStarted(moves, now + queue.settings.max_warmup_time, now))
        else:
            draft.emit(r.RevokesStarted(moves, now + queue.settings.max_handoff_time, now))


def _revoke(draft: Draft, numbers: tuple[int, ...], *, ready: bool) -> None:
    """Ends warm-ups: the owners are told to finish and release."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(numbers, ready, deadline, draft.now))


def _remove(draft: Draft, numbers: tuple[int, ...], outcome: str) -> None:
    """Removes partitions; handoffs of theirs end with them."""
    queue = draft.queue
    moves = tuple(
        r.Move(number, owner.id, handoff.successor.id)
        for number in numbers
        if (handoff := queue.handoffs.get(number))
        and handoff.successor
        and (owner := queue.partitions[number].owner)
    )
    draft.emit(r.PartitionsRemoved(numbers, moves, outcome, draft.now))


def _force(draft: Draft, handoff: Handoff) -> None:
    """The deadline has come: the successor gets the partition whatever the owner does, or the owner
    gets it anew."""
    partition = draft.queue.partitions[handoff.number]
    flow = handoff.successor or partition.owner
    assert flow is not None
    draft.grant(partition, flow, HandedOver.FORCED, by_handoff=True)


# The commands


@singledispatch
def _decide(command: object, draft: Draft) -> Any:
    raise AssertionError(f"no decision for {type(command).__name__}")


@_decide.register
def _(command: c.Bind, draft: Draft) -> None:
    queue = draft.queue
    before = queue.takers
    predecessor = queue.by_instance.get(command.instance_id)
    departed = queue.departed.get(command.instance_id)
    seat = predecessor.seat if predecessor else departed.seat if departed else queue.next_seat
    draft.emit(
        r.FlowBound(
            command.flow_id,
            command.instance_id,
            command.client_name,
            seat,
            command.lease_seconds,
            command.warmup,
            draft.now,
        )
    )
    flow = queue.flows[command.flow_id]
    if predecessor is not None:
        _replace(draft, predecessor, flow)
        if queue.status is Status.READY and not is_balanced(queue):
            _trigger(draft, "replaced", before)
            return
    elif departed is not None:
        _give_back(draft, flow, departed.partitions)
    if queue.status is not Status.READY:
        _take_up(draft)
    elif predecessor is None and before < queue.share_count:
        _trigger(draft, "bind", before)


def _replace(draft: Draft, old: Flow, new: Flow) -> None:
    """Rule 12: the new flow takes the old one's place, its partitions and its warm-ups at once."""
    queue = draft.queue
    for number in sorted(old.incoming):
        if queue.partitions[number].state is State.WARMING:
            _redirect(draft, number, new)
        else:
            draft.emit(r.HandoffsRedirected((r.Redirect(number, new.id),), None, draft.now))
    if old.owned:
        draft.outside("replaced")
    for number in sorted(old.owned):
        partition = queue.partitions[number]
        handoff = queue.handoffs.get(number)
        if partition.state is State.REVOKING:
            assert handoff is not None
            successor = handoff.successor or new
            same = successor is new
            draft.grant(
                partition,
                successor,
                HandedOver.REPLACED if same else HandedOver.ORPHANED,
                by_handoff=not same,
            )
        else:
            draft.grant(partition, new, HandedOver.REPLACED)
    draft.emit(r.FlowLeft(old.id, "replaced", remember=False, at=draft.now))


def _give_back(draft: Draft, flow: Flow, held: Sequence[tuple[int, int]]) -> None:
    """Rule 12 within a holddown: an instance that left during it gets back what nobody owned since.

    `held`: (partition, epoch) as it left them. If positions were set meanwhile (which raises the
    epoch) it gets them back too, but is not told that it may go on as if nothing had been
    (`replaced`).
    """
    queue = draft.queue
    back = [
        (queue.partitions[number], epoch)
        for number, epoch in held
        if number in queue.unowned
        and (
            queue.partitions[number].epoch == epoch
            or queue.partitions[number].let_go == HandedOver.FORCED
        )
    ]
    if back:
        draft.outside("replaced")
    for partition, epoch in back:
        same = partition.epoch == epoch
        draft.grant(partition, flow, HandedOver.REPLACED if same else partition.let_go)


@_decide.register
def _(command: c.Unbind, draft: Draft) -> None:
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    cause = "lease_expired" if command.reason == "lease_expired" else "unbind"
    before = queue.takers
    for number in sorted(flow.owned):
        handoff = queue.handoffs.get(number)
        if handoff is not None and handoff.successor not in (None, flow):
            assert handoff.successor is not None
            draft.grant(
                queue.partitions[number], handoff.successor, HandedOver.ORPHANED, by_handoff=True
            )
    left_alone = sorted(flow.owned)
    after = before - (not flow.draining)
    excess = after >= queue.share_count
    # A drained flow is missed by nobody: F and the assignment are what they were without it.
    trigger = queue.status is Status.READY and bool(left_alone) and not excess
    holddown = queue.status is Status.HOLDDOWN or (trigger and queue.settings.rebalance_delay > 0)
    draft.emit(r.FlowLeft(flow.id, command.reason, remember=holddown, at=draft.now))
    if excess and queue.status is not Status.REBALANCING:
        _grant_outside(draft, cause, left_alone)
    if queue.status is not Status.READY:
        _take_up(draft)
    elif trigger:
        _trigger(draft, cause, before)


@_decide.register
def _(command: c.Drain, draft: Draft) -> None:
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    timeout = command.timeout_seconds
    deadline = None if timeout is None else draft.now + timeout
    if flow.draining:
        if deadline is None or (
            flow.drain_deadline is not None and flow.drain_deadline <= deadline
        ):
            return
        draft.emit(r.FlowDraining(flow.id, deadline))
        return
    before = queue.takers
    draft.emit(r.FlowDraining(flow.id, deadline))
    if queue.status is Status.READY:
        _trigger(draft, "drain", before)
    else:
        _take_up(draft)


@_decide.register
def _(command: c.Release, draft: Draft) -> tuple[Result, ...]:
    flow = draft.flow(command.flow_id)
    results = tuple(_release(draft, flow, item) for item in command.items)
    if draft.records:
        _take_up(draft, changed=False)
    return results


def _release(draft: Draft, flow: Flow, item: c.Let) -> Result:
    queue = draft.queue
    partition = queue.find(item.partition)
    if partition is None:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if partition.released_by == flow.id:
        ended = partition.epoch if partition.owner is None else partition.epoch - 1
        if item.epoch == ended:
            return Result(item.partition, Outcome.OK)
    refusal = _refuse(partition, flow, item.epoch)
    if refusal is not None:
        return refusal
    revoking = partition.state is State.REVOKING
    if item.finished and not partition.retiring:
        return Result(item.partition, Outcome.NOT_REVOKING)
    if not (item.finished or revoking or flow.draining):
        return Result(item.partition, Outcome.NOT_REVOKING)
    handoff = queue.handoffs.get(item.partition)
    if item.finished:
        _remove(draft, (item.partition,), "finished")
    elif handoff is not None and handoff.successor is not None:
        draft.grant(partition, handoff.successor, HandedOver.GRACEFUL, by_handoff=True)
    else:
        draft.emit(r.Released(item.partition, flow.id, draft.now))
    return Result(item.partition, Outcome.OK)


def _refuse(partition: Partition, flow: Flow, epoch: int) -> Result | None:
    """What forbids the owner's act, if anything does; the first that applies (the contract,
    *HTTP*)."""
    if partition.state is State.REMOVED:
        return Result(partition.number, Outcome.NO_SUCH_PARTITION)
    if epoch < partition.epoch:
        return Result(partition.number, Outcome.STALE_EPOCH, partition.epoch)
    if partition.owner is not flow or epoch > partition.epoch:
        return Result(partition.number, Outcome.NOT_OWNER)
    return None


@_decide.register
def _(command: c.Ready, draft: Draft) -> tuple[Result, ...]:
    flow = draft.flow(command.flow_id)
    results: list[Result] = []
    ready: list[int] = []
    for item in command.items:
        outcome = _warm(draft.queue, flow, item)
        if outcome is None:
            _revoke(draft, (item.partition,), ready=True)
            ready.append(item.partition)
            outcome = Result(item.partition, Outcome.OK)
        results.append(outcome)
    return tuple(results)


def _warm(queue: Queue, flow: Flow, item: c.Warm) -> Result | None:
    partition = queue.find(item.partition)
    if partition is None or partition.state is State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if queue.warmed.get(item.partition) == (flow.id, item.epoch):
        return Result(item.partition, Outcome.OK)
    if item.epoch < partition.epoch:
        return Result(item.partition, Outcome.STALE_EPOCH, partition.epoch)
    if item.epoch > partition.epoch or partition.owner is None:
        return Result(item.partition, Outcome.NOT_OWNER)
    handoff = queue.handoffs.get(item.partition)
    if handoff is None or handoff.successor is not flow or partition.state is not State.WARMING:
        return Result(item.partition, Outcome.NOT_WARMING)
    return None


@_decide.register
def _(command: c.Change, draft: Draft) -> None:
    queue = draft.queue
    settings = queue.settings
    changes = {
        name: value for name, value in command.changes.items() if getattr(settings, name) != value
    }
    count = changes.get("partition_count", settings.partition_count)
    grown = count > settings.partition_count
    old_count = settings.partition_count
    discard = command.discard and "partition_count" in command.changes
    gone = tuple(
        number
        for number in range(count, len(queue.partitions))
        if queue.partitions[number].state is not State.REMOVED
        and (discard or number not in queue.retiring)
    )
    if changes:
        draft.emit(r.SettingsChanged(changes))
    if grown:
        draft.emit(r.PartitionsAdded(old_count, count, draft.now))
    if gone and discard:
        _remove(draft, gone, "discarded")
    elif gone:
        draft.emit(r.PartitionsRetired(gone))
    if "partition_count" in changes:
        _rebalance(draft, "resize")
    elif "access_type" in changes:
        _rebalance(draft, "access_type")
    elif gone or "max_concurrent_handoffs" in changes:
        _take_up(draft)


@_decide.register
def _(command: c.RebalanceNow, draft: Draft) -> None:
    if draft.queue.status is not Status.REBALANCING:
        _rebalance(draft, "admin")


@_decide.register
def _(command: c.RaiseEpochs, draft: Draft) -> None:
    numbers = tuple(
        number
        for number in dict.fromkeys(command.partitions)
        if (partition := draft.queue.find(number)) and partition.state is not State.REMOVED
    )
    if numbers:
        draft.emit(r.EpochsRaised(numbers, draft.now))


@_decide.register
def _(command: c.Advance, draft: Draft) -> None:
    queue, now = draft.queue, draft.now
    if queue.holddown_until is not None and queue.holddown_until <= now:
        _rebalance(draft, "admin")
    while True:
        ended = [
            number
            for seat in queue.leaving.counts
            if (flow := queue.by_seat[seat]).drain_deadline is not None
            and flow.drain_deadline <= now
            for number in sorted(flow.owned)
            if queue.partitions[number].state is State.WARMING
        ]
        due = queue.due(now)
        ended += [h.number for h in due if queue.partitions[h.number].state is State.WARMING]
        forced = [h for h in due if queue.partitions[h.number].state is State.REVOKING]
        if not ended and not forced:
            return
        if ended:
            _revoke(draft, tuple(dict.fromkeys(ended)), ready=False)
        for handoff in forced:
            _force(draft, handoff)
        _loop(draft, changed=False)


@_decide.register
def _(command: c.MoveDeadlines, draft: Draft) -> None:
    if command.outage_id > draft.queue.outage_seen:
        draft.emit(r.DeadlinesMoved(command.outage_id, command.began, command.seconds))
