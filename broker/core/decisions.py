"""What each command decides that changes flows or settings, or lets time pass.

- *Flows come and go*: bind, unbind and drain (the contract, *What triggers what*).
- *Administrators and the clock*: change settings, rebalance now, pause and resume, pin and unpin,
  set positions, add children, advance, move deadlines.

What flows report on their partitions is in `reports`, the cuts of a log in `cuts`. Each function
takes a command and the draft of a decision, and emits records.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import commands as c
from broker.core import cuts
from broker.core import records as r
from broker.core.budget import held_until
from broker.core.draft import Draft
from broker.core.errors import (
    BrokerError,
    Invalid,
    LogChanged,
    Overtaken,
    StateKept,
    TooManyFlows,
)
from broker.core.leaving import give_back, leave
from broker.core.lineage import record_children
from broker.core.loop import (
    end_due,
    grant_outside,
    hold_down,
    loop,
    rebalance,
    rebalance_if_replaced,
    take_up,
)
from broker.core.model import Absent, AccessType, Flow
from broker.core.pairs import wait_for_pairs
from broker.core.pins import claimed
from broker.core.queue import Queue
from broker.core.resizing import resize
from broker.core.shares import Demand, share_out
from broker.core.transitions import State, Status

# Reasons to leave that are triggers of their own: the consumer failed.
FAILURES = ("lease_expired", "driver_lost")


def bind(command: c.Bind, draft: Draft) -> None:
    """A consumer joins (rules 1, 2 and 12). Raises Invalid, Overtaken, StateKept, TooManyFlows."""
    queue = draft.queue
    before = queue.takers
    instance = (command.key_id, command.instance_id)
    predecessor = queue.flows.by_instance.get(instance)
    if predecessor is not None and _is_overtaken(command, predecessor):
        raise Overtaken(command.instance_id)
    _refuse_divided_state(command, queue)
    _refuse_share(command, queue)
    if predecessor is None:
        _refuse_beyond_quota(command, queue)
    absent = queue.absent.get(instance)
    left = [] if absent is None else queue.still_left(absent)
    moved, held = _budget(command, draft)
    takes_its_place = predecessor
    # Who began to drain joins anew, as who has left, and so does who claims more than it had. Else
    # these would be ways in.
    comes_back = absent if predecessor is None else predecessor
    if predecessor is not None and predecessor.draining and queue.takers:
        comes_back = None
    if comes_back is not None and (held is None or not _claims_more(command, comes_back, queue)):
        held = None if predecessor is None else predecessor.held_until
    elif held is not None:
        takes_its_place = absent = None
        left = []
    bind_number = (
        takes_its_place.bind_number
        if takes_its_place
        else absent.bind_number
        if absent
        else queue.next_bind_number
    )
    if predecessor is None and held is None:
        wait_for_pairs(draft)
    flow = _enter(command, draft, bind_number, moved, held)
    if predecessor is not None:
        leave(draft, predecessor, "replaced", heir=flow if takes_its_place else None)
    if left:
        give_back(draft, left, flow)
    at_once = command.at_once and len(queue.flows) == 1
    if predecessor is not None and takes_its_place is None:
        if queue.status is Status.READY and not queue.is_settled:
            hold_down(draft, "unbind", before)
        else:
            take_up(draft)
    elif predecessor is not None and held is None and queue.status is Status.READY:
        rebalance_if_replaced(draft, predecessor, flow, at_once=at_once)
    elif held is None:
        _join(draft, before, at_once=at_once)


def bind_together(command: c.BindTogether, draft: Draft) -> tuple[BrokerError | None, ...]:
    """New consumers join (rules 1 and 2)."""
    queue = draft.queue
    before, at_once = queue.takers, not queue.flows
    answers: list[BrokerError | None] = []
    for one in command.binds:
        try:
            _refuse_divided_state(one, queue)
            _refuse_share(one, queue)
            _refuse_beyond_quota(one, queue)
        except (Invalid, StateKept, TooManyFlows) as error:
            answers.append(error)
        else:
            moved, held = _budget(one, draft)
            if held is None:
                wait_for_pairs(draft)
            _enter(one, draft, queue.next_bind_number, moved, held)
            at_once = at_once and one.at_once
            answers.append(None)
    if queue.takers > before:
        _join(draft, before, at_once=at_once)
    return tuple(answers)


def _enter(
    command: c.Bind, draft: Draft, bind_number: int, moved: float | None, held: float | None
) -> Flow:
    """The new flow, at this place in the order of binding; `moved` and `held` as of `_budget`."""
    draft.emit(
        r.FlowBound(
            command.flow_id,
            command.instance_id,
            command.client_name,
            bind_number,
            command.lease_seconds,
            command.warmup,
            draft.now,
            command.binder,
            command.attempt,
            command.key_id,
            held,
            moved,
            command.keeps_state,
            command.weight,
            command.max_partitions,
        )
    )
    return draft.queue.flows[command.flow_id]


def _join(draft: Draft, before: int, *, at_once: bool = False) -> None:
    """Flows have joined the balance, in which there were so many `before` (rules 1, 2, 7, 10)."""
    queue = draft.queue
    if queue.status is not Status.READY:
        take_up(draft)
    elif at_once:
        rebalance(draft, "bind")
    elif before < queue.share_count or not queue.is_balanced:
        # In an exclusive queue, one that was held back may have been bound before the owner.
        hold_down(draft, "bind", before)


def _budget(command: c.Bind, draft: Draft) -> tuple[float | None, float | None]:
    """What counts of the moves of the key (`budget`), None if nothing is known of any; and until
    when a new flow of it is held back, None if it is not."""
    queue, quota, now = draft.queue, command.quota, draft.now
    moves = queue.moved.get(command.key_id or "")
    if moves is None or quota is None:
        return None, None
    most = max(1, quota.least_moves, quota.moves * queue.settings.partition_count)
    moved = moves.leaked(most, now)
    share = _share(command, queue) * queue.settings.aligned
    waiting = sum(flow.key_id == command.key_id for flow in queue.flows.held.values())
    return moved, held_until(moved, most, share, waiting, now)


def _share(command: c.Bind, queue: Queue) -> int:
    """How many groups a new flow would take, with this weight and maximum."""
    if queue.exclusive or not (queue.flows.weighted or queue.pins.of or command.is_weighted):
        return -(-queue.share_count // (queue.takers + 1))
    demands = {number: queue.demand(number) for number in queue.ranking.counts}
    new = queue.next_bind_number
    most = queue.most_groups(command.max_partitions)
    least = claimed(queue, command.client_name, most)
    demands[new] = Demand(command.weight, most, least)
    return share_out(queue.group_count, demands).ceiling(new)


def admit(draft: Draft, flows: Iterable[Flow]) -> None:
    """Flows that were held back join the balance."""
    before = draft.queue.takers
    draft.emit(r.FlowsAdmitted(tuple(sorted(flow.id for flow in flows)), draft.now))
    _join(draft, before)


def _claims_more(command: c.Bind, before: Flow | Absent, queue: Queue) -> bool:
    """Whether the share may be greater than that which the instance had before."""
    name = command.client_name
    if name != before.client_name and claimed(queue, name, None):
        return True
    most, had = command.max_partitions, before.max_partitions
    more_room = had is not None and (most is None or most > had)
    return command.weight > before.weight or more_room


def _is_overtaken(command: c.Bind, bound: Flow) -> bool:
    """Whether the program that is bound sent this before: a bind that was long on its way would
    take its partitions for a flow that nobody knows of, and end it.
    """
    same = command.binder is not None and command.binder == bound.binder
    return same and command.attempt <= bound.attempt


def _refuse_beyond_quota(command: c.Bind, queue: Queue) -> None:
    """Raises TooManyFlows if the key may not have one more flow."""
    key_id, quota = command.key_id, command.quota
    if key_id is None or quota is None:
        return
    if queue.flows.of_key.get(key_id, 0) >= quota.flows:
        raise TooManyFlows(quota.flows)


def _refuse_divided_state(command: c.Bind, queue: Queue) -> None:
    """Raises StateKept if the flow's state would not be of all that the queue has (the contract,
    *State outside of the queue*).
    """
    if not command.keeps_state:
        return
    if not queue.exclusive:
        raise StateKept(
            f"Several consumers share the queue {queue.name!r}, and the state of this one is not "
            "handed over with a partition; set the queue's access_type to exclusive, or keep no "
            "state outside of the sink."
        )
    for flow in queue.flows.values():
        # After a change of its key it is still the same consumer.
        if flow.keeps_state and flow.instance_id != command.instance_id:
            raise StateKept(
                f"The consumer {flow.client_name!r} of the queue {queue.name!r} keeps state too. "
                "The one would take over without the state of the other; start a stopped consumer "
                "again from its own state (with its own instance_id) instead of keeping a standby."
            )


def _refuse_share(command: c.Bind, queue: Queue) -> None:
    """Raises Invalid for a weight or a maximum that the queue does not allow."""
    most, weight = queue.settings.max_weight, command.weight
    if weight > most:
        raise Invalid(
            f"The queue {queue.name!r} allows no weight above {most}; bind with a lower one, or "
            "let its administrator raise the queue's max_weight.",
            [("weight", f"is at most {most}")],
        )
    maximum = command.max_partitions
    if maximum is None:
        return
    if queue.exclusive:
        raise Invalid(
            f"One consumer owns every partition of the queue {queue.name!r}, whose access_type is "
            "exclusive; bind without max_partitions.",
            [("max_partitions", "has no place in an exclusive queue")],
        )
    if maximum < queue.settings.aligned:
        raise Invalid(
            f"The partitions of the queue {queue.name!r} have owners in groups of "
            f"{queue.settings.aligned}, one for each of its logs; no group fits into the maximum.",
            [("max_partitions", f"is at least {queue.settings.aligned}")],
        )


def unbind(command: c.Unbind, draft: Draft) -> None:
    """A flow leaves (rules 3 to 5)."""
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    trigger = command.reason if command.reason in FAILURES else "unbind"
    before = queue.takers
    excess = before - flow.takes >= queue.share_count
    owned = bool(flow.owned)
    # A drained flow is missed by nobody: F and the assignment are what they were without it.
    missed = queue.status is Status.READY and owned and not excess
    holddown = queue.status is Status.HOLDDOWN or (missed and queue.settings.rebalance_delay > 0)
    # Who was held back, or is drained, comes back as a new one.
    remember = holddown and flow.held_until is None and (owned or not flow.draining)
    left = leave(draft, flow, command.reason, remember=remember, seen_at=command.seen_at)
    if excess and owned and queue.status is not Status.REBALANCING:
        grant_outside(draft, trigger, [*filter(queue.leads, left)])
    if queue.status is not Status.READY:
        take_up(draft)
        return
    # By weight, also the end of a flow that owned nothing may leave others with other shares.
    by_weight = flow.takes and (flow.is_weighted or queue.flows.weighted)
    if missed or not (queue.is_balanced if by_weight else queue.is_settled):
        hold_down(draft, trigger, before)


def drain(command: c.Drain, draft: Draft) -> None:
    """A flow begins to leave in order (rule 11)."""
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
    before, held = queue.takers, flow.held_until is not None
    if not held:
        wait_for_pairs(draft)
    draft.emit(r.FlowDraining(flow.id, deadline))
    if held:
        return
    if queue.status is Status.READY:
        hold_down(draft, "drain", before)
    else:
        take_up(draft)


# What administrators and the clock do


def _refuse_to_share_state(queue: Queue) -> None:
    """Raises StateKept while a flow is bound whose state would be divided."""
    for flow in queue.flows.values():
        if flow.keeps_state:
            raise StateKept(
                f"The consumer {flow.client_name!r} (flow {flow.id}) keeps state of all partitions "
                f"of the queue {queue.name!r}, and none of it is handed over with a partition; "
                "stop this consumer first, or leave access_type as it is."
            )


def _refuse_maxima(queue: Queue) -> None:
    """Raises Invalid while a flow is bound that may not own every partition."""
    for flow in queue.flows.weighted.values():
        if flow.max_partitions is not None:
            raise Invalid(
                f"The consumer {flow.client_name!r} (flow {flow.id}) takes at most "
                f"{flow.max_partitions} partitions, and one consumer owns all of an exclusive "
                "queue; stop the consumers with max_partitions first.",
                [("access_type", "cannot be exclusive while a flow has max_partitions")],
            )


def change(command: c.Change, draft: Draft) -> None:
    """Settings change; the partition count is the resize (rule 9). Raises LogChanged, Invalid,
    ResizeUnsettled, StateKept.
    """
    queue = draft.queue
    if command.checked not in (None, cuts.last_resize(queue)):
        raise LogChanged("resized")
    if queue.lineage is not None and "partition_count" in command.changes:
        raise Invalid(
            "The source of a dynamic queue begins and ends its partitions; it cannot be resized.",
            [("partition_count", "cannot be changed in a dynamic queue")],
        )
    changes = {
        name: value
        for name, value in command.changes.items()
        if getattr(queue.settings, name) != value
    }
    if changes.get("access_type") == AccessType.NON_EXCLUSIVE:
        _refuse_to_share_state(queue)
    elif "access_type" in changes:
        _refuse_maxima(queue)
    awaits, count = cuts.begins(changes, queue), queue.settings.partition_count
    if changes:
        draft.emit(r.SettingsChanged(changes))
    if awaits:
        cuts.await_cuts(draft)
    discarded = False
    if "partition_count" in command.changes:
        discarded = resize(draft, count, discard=command.discard)
    if "partition_count" in changes:
        rebalance(draft, "resize")
    elif "access_type" in changes:
        rebalance(draft, "access_type")
    elif discarded or "max_concurrent_handoffs" in changes:
        take_up(draft)


def follow_log(command: c.FollowLog, draft: Draft) -> None:
    """The log was resized, and the queue is resized as well."""
    if not cuts.follows(command, draft):
        return
    count = draft.queue.settings.partition_count
    if command.partition_count != count:
        draft.emit(r.SettingsChanged({"partition_count": command.partition_count}))
    cuts.await_cuts(draft)
    if command.partition_count != count:
        resize(draft, count)
        rebalance(draft, "resize")


def rebalance_now(command: c.RebalanceNow, draft: Draft) -> None:
    """An administrator does not want to wait (rule 9)."""
    queue = draft.queue
    if queue.status is not Status.REBALANCING or queue.holddown_until is not None:
        rebalance(draft, "admin")


def pause(command: c.PausePartitions, draft: Draft) -> None:
    """Partitions or the queue are held still (`pauses`). Raises Invalid."""
    queue, now, until = draft.queue, draft.now, command.until
    numbers = _to_hold(queue, command.partitions)
    if command.seconds is not None:
        until = now + command.seconds
    if until is not None and until <= now:
        raise Invalid(
            "The pause would be over already: give a time to come, or none for a pause that lasts "
            "until it is resumed.",
            [("until", "lies in the past")],
        )
    said = (until, command.reason)
    known = {key: (one.until, one.reason) for key, one in queue.pauses.of.items()}
    if new := tuple(number for number in numbers if known.get(number) != said):
        draft.emit(r.Paused(new, *said, now))
    elif not numbers and known.get(None) != said:
        draft.emit(r.Paused((), *said, now))


def resume(command: c.ResumePartitions, draft: Draft) -> None:
    """Pauses end. Raises Invalid."""
    queue = draft.queue
    numbers = _to_hold(queue, command.partitions)
    if over := tuple(number for number in numbers if number in queue.pauses.of):
        draft.emit(r.Resumed(over, "resumed", draft.now))
    elif not numbers and queue.pauses.whole is not None:
        draft.emit(r.Resumed((), "resumed", draft.now))


def pin(command: c.PinPartition, draft: Draft) -> None:
    """A partition is to be at a consumer (`pins`). Raises Invalid."""
    queue, name = draft.queue, command.client_name
    number = _group_of(queue, command.partition)
    known = queue.pins.of.get(number)
    since = known.since if known is not None and known.client_name == name else draft.now
    if known != (name, since, command.reason):
        draft.emit(r.Pinned((number,), name, command.reason, since))
        _follow_pins(draft, "pin")


def unpin(command: c.UnpinPartition, draft: Draft) -> None:
    """A partition may be anywhere again. Raises Invalid."""
    number = _group_of(draft.queue, command.partition)
    if number in draft.queue.pins.of:
        draft.emit(r.Unpinned((number,), draft.now))
        _follow_pins(draft, "unpin")


def _group_of(queue: Queue, partition: int) -> int:
    """The first partition of the group. Raises Invalid for one that nobody reads, now or later."""
    _to_hold(queue, (partition,))
    return queue.group(partition)[0]


def _follow_pins(draft: Draft, trigger: str) -> None:
    """The balance follows after a holddown, so that several pins are followed together."""
    queue = draft.queue
    if queue.status is not Status.READY:
        take_up(draft)
    elif not queue.is_settled:
        hold_down(draft, trigger, queue.takers)


def _to_hold(queue: Queue, partitions: tuple[int, ...]) -> tuple[int, ...]:
    """These partitions, each once. Raises Invalid for one that nobody reads, now or later."""
    for number in partitions:
        if not is_read(queue, number):
            state = "is finished" if queue.exists(number) else "does not exist"
            raise Invalid(
                f"Partition {number} of the queue {queue.name!r} {state}; "
                f"GET /v1/queues/{queue.name}/partitions lists those that there are.",
                [("partition", state)],
            )
    return tuple(dict.fromkeys(partitions))


def is_read(queue: Queue, number: int) -> bool:
    """Whether anybody reads this partition, now or later: only then its position can be set, and
    it can be paused."""
    partition = queue.partitions.get(number)
    return partition is not None and partition.state not in (State.REMOVED, State.FINISHED)


def raise_epochs(command: c.RaiseEpochs, draft: Draft) -> None:
    """Positions are set: whoever goes on goes on under new epochs. Raises LogChanged."""
    cuts.refuse_outdated(command, draft.queue)
    numbers = tuple(
        number for number in dict.fromkeys(command.partitions) if is_read(draft.queue, number)
    )
    if numbers:
        draft.emit(r.EpochsRaised(numbers, draft.now))
        cuts.positions_set(command, draft)


def add_children(command: c.AddChildren, draft: Draft) -> c.Outcome:
    """Partitions were split or merged in the log. Raises Invalid for a fixed queue."""
    outcome = record_children(draft, command.children)
    if draft.records:
        take_up(draft, changed=False)
    return outcome


def advance(command: c.Advance, draft: Draft) -> None:
    """Ends the holddown, warm-ups, handoffs and pauses that are due, and admits flows."""
    queue, now = draft.queue, draft.now
    draft.seen_at = command.seen_at
    if queue.resize.cuts_due is not None and queue.resize.cuts_due <= now:
        cuts.await_again(draft)
    if queue.pauses:
        _end_pauses(draft)
    if due := [flow for flow in queue.flows.held.values() if (flow.held_until or 0.0) <= now]:
        admit(draft, due)
    while _is_due(draft):
        if queue.holddown_until is not None and queue.holddown_until <= now:
            assert queue.trigger is not None
            rebalance(draft, queue.trigger)
        else:
            end_due(draft)
            loop(draft, changed=False)


def _end_pauses(draft: Draft) -> None:
    """Ends the pauses whose time has come."""
    numbers, whole = draft.queue.pauses.due(draft.now)
    if numbers:
        draft.emit(r.Resumed(tuple(numbers), "ended", draft.now))
    if whole:
        draft.emit(r.Resumed((), "ended", draft.now))


def _is_due(draft: Draft) -> bool:
    due = draft.queue.next_deadline()
    return due is not None and due <= draft.now


def move_deadlines(command: c.MoveDeadlines, draft: Draft) -> None:
    """Gives handoffs back the time in which nobody served, or follows a clock that went back."""
    if command.outage_id <= draft.queue.outage_seen:
        return
    if command.seconds < 0:
        draft.emit(r.ClockWentBack(command.outage_id, command.seconds))
    else:
        draft.emit(r.DeadlinesMoved(command.outage_id, command.began, command.seconds))
