"""Checks of a queue from the outside, without the code under test.

Everything is computed again from the partitions. From the core only data types are used (names of
attributes, states, records), and no decisions. The numbers are those of the contract's *What must
never happen*.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.graph import Lineage
from broker.core.model import Flow, Handoff, Partition
from broker.core.pauses import QueuePauses
from broker.core.queue import Queue
from broker.core.stored import to_json
from broker.core.structures import Ranking
from tests.judge import balance
from tests.judge.rules import Owners

IN_HANDOFF = ("warming", "revoking")
# The commands that change flows or settings.
CHANGES = (
    c.Bind
    | c.BindTogether
    | c.Unbind
    | c.Drain
    | c.Change
    | c.FollowLog
    | c.PinPartition
    | c.UnpinPartition
)


# Compared in another form below, or not part of a queue's state.
_APART = (
    *("journal", "touched"),
    *("flows", "partitions", "handoffs", "lineage"),
)


def snapshot(queue: Queue) -> dict[str, Any]:
    """The whole state of a queue as plain values: queues with equal snapshots are equal."""
    found = {name: _plain(value) for name, value in vars(queue).items() if name not in _APART}
    found["flows"] = {flow.id: _slots(flow) for flow in queue.flows.values()}
    found["partitions"] = [_slots(queue.partitions[number]) for number in sorted(queue.partitions)]
    found["handoffs"] = {number: _slots(handoff) for number, handoff in queue.handoffs.items()}
    found |= {**_slots(queue.flows), **_slots(queue.handoffs)}
    found["next_deadline"] = queue.next_deadline()
    found["lineage"] = None if queue.lineage is None else graph(queue.lineage)
    return found


def graph(lineage: Lineage) -> dict[str, Any]:
    """A graph as plain values."""
    nodes = {
        n.key: (n.number, n.parents, set(n.children), n.pending, n.open)
        for n in lineage.nodes.values()
    }
    names = ("numbers", "taken", "next_number", "waiting", "finished", "over", "parent_count")
    return {"nodes": nodes, **{name: _plain(getattr(lineage, name)) for name in names}}


_ALSO = {Handoff: ("successor",)}


def _slots(thing: Any) -> dict[str, Any]:
    return {
        name: _plain(getattr(thing, name))
        for name in (*type(thing).__slots__, *_ALSO.get(type(thing), ()))
        if name not in ("offers", "_deadlines")
    }


_VALUES = (type(None), bool, int, float, str)


def _plain(value: Any) -> Any:
    if isinstance(value, _VALUES):
        return value
    match value:
        case Flow():
            return f"flow {value.id}"
        case Partition():
            return f"partition {value.number}"
        case Ranking():
            # Levels are made anew when they are asked for.
            ends = (value.fewest(), value.most(), value.low, value.high) if value.counts else None
            return dict(value.counts), ends
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case QueuePauses():
            return {key: list(pause) for key, pause in value.of.items()}
        case set() | frozenset():
            return set(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return _slots(value)


# Balance


def _leads(queue: Queue, number: int) -> bool:
    """Whether the partition stands for its group in the balance."""
    return number % queue.settings.aligned == 0


def _is_let_go(partition: Partition) -> bool:
    """Whether its owner has released it, and not yet all of its group."""
    return partition.owner is not None and partition.next_handed_over == "graceful"


# The states in which a partition takes no part in the balance.
_BESIDE = ("removed", "waiting", "finished")


def is_balanced(queue: Queue, *, any_spread: bool = False) -> bool:
    """*Balance*, computed from the partitions alone; `any_spread`: whatever the numbers are."""
    takers = [flow for flow in queue.flows.values() if _takes(flow)]
    if not takers:
        return True
    existing = [p for p in queue.partitions.values() if p.state not in _BESIDE]
    if any(queue.partitions[number].owner is not home for number, home in homes_of(queue).items()):
        return False
    if any(p.owner is None or p.owner.draining for p in existing) and not is_full(queue):
        return False
    if any_spread or is_full(queue):
        # A resize may have given back to a flow above its maximum what no other may take.
        return True
    counted = [p for p in existing if not p.retiring and _leads(queue, p.number)]
    held = Counter(p.owner.id for p in counted if p.owner is not None)
    exclusive = queue.settings.access_type == "exclusive"
    only = min(takers, key=lambda flow: flow.bind_number).id if exclusive else None
    return balance.is_balanced(
        {flow.id: held[flow.id] for flow in takers},
        only=only,
        asks=asks_of(queue),
        partition_count=_groups(queue),
    )


def _groups(queue: Queue) -> int:
    return queue.settings.partition_count // queue.settings.aligned


def asks_of(queue: Queue) -> balance.Asks | None:
    """What flows that take part ask for, in groups; None if nobody asks for anything."""
    pinned = Counter(home.id for home in homes_of(queue).values())
    asks = {
        flow.id: balance.Ask(
            flow.weight,
            None if flow.max_partitions is None else flow.max_partitions // queue.settings.aligned,
            pinned[flow.id],
        )
        for flow in queue.flows.values()
        if _takes(flow)
    }
    return None if all(ask == balance.Ask() for ask in asks.values()) else asks


def homes_of(queue: Queue) -> dict[int, Flow]:
    """Where partitions must be by pins that are in force, by the first of their group."""
    takers = sorted(filter(_takes, queue.flows.values()), key=lambda flow: flow.bind_number)
    mosts = [flow.max_partitions for flow in takers]
    aligned, found = queue.settings.aligned, dict[int, Flow]()
    short = None not in mosts and sum((most or 0) // aligned for most in mosts) < _groups(queue)
    if queue.settings.access_type == "exclusive" or short:
        return found
    for number, (client_name, _, _) in sorted(queue.pins.of.items()):
        partition = queue.partitions[number]
        home = next((flow for flow in takers if flow.client_name == client_name), None)
        if home is None or partition.retiring or partition.state in _BESIDE:
            continue
        full = [*found.values()].count(home) == (home.max_partitions or 10**6) // aligned
        if not full:
            found[number] = home
    return found


def is_full(queue: Queue) -> bool:
    """Whether there are more groups than flows take together, and each has all that it takes."""
    asks, exclusive = asks_of(queue), queue.settings.access_type == "exclusive"
    if asks is None or exclusive or not balance.is_short(_groups(queue), asks):
        return False
    return all(queue.flows[id].load >= (ask.most or 0) for id, ask in asks.items())


def _check_maxima(before: dict[str, Any], queue: Queue, command: c.Command) -> None:
    """No flow gets more than its maximum; only a resize may give it back what was retiring, and a
    pin what makes it hand off others."""
    if queue.pins.homes or before["pins"]["homes"]:
        return
    for flow in queue.flows.values():
        if flow.max_partitions is None or flow.draining:
            continue
        most = flow.max_partitions // queue.settings.aligned
        was = before["flows"].get(flow.id, {"load": 0})["load"]
        resized = isinstance(command, c.Change | c.FollowLog)
        working = sum(
            queue.partitions[number].state != "revoking"
            for number in flow.owned - queue.retiring
            if _leads(queue, number)
        )
        worked = sum(
            f"flow {flow.id}"
            in (
                one["owner"] if one["state"] != "revoking" else None,
                before["handoffs"].get(one["number"], {}).get("successor"),
            )
            for one in before["partitions"]
            if not one["retiring"] and _leads(queue, one["number"])
        )
        assert resized or flow.load <= max(most, was, worked), "a flow got more than its maximum"
        assert resized or working <= max(most, worked), "a flow works on more than its maximum"


# Pauses

# What a pause may change of a queue, beside the revision of views.
_OF_A_PAUSE = ("pauses", "revision", "next_deadline")


def check_pauses(
    before: dict[str, Any],
    after: dict[str, Any],
    command: c.Command,
    decision: Decision,
    now: float,
) -> None:
    """A pause changes nothing of placement, ends in time, and every owner of what it holds sees it.

    Nothing but its end, an administrator or the end of its partition takes one away.
    """
    for pause in after["pauses"].values():
        assert pause[1] is None or pause[1] > now or not isinstance(command, c.Advance)
    if isinstance(command, c.PausePartitions | c.ResumePartitions):
        left, right = ({**one} for one in (before, after))
        for state in (left, right):
            for name in _OF_A_PAUSE:
                del state[name]
            state["flows"] = {
                id: {name: at for name, at in flow.items() if name != "view_revision"}
                for id, flow in state["flows"].items()
            }
        assert left == right, "a pause moves something"
    lasting = {key for key, (_, until, _) in before["pauses"].items() if until is None}
    gone = {key for key in lasting if key not in after["pauses"]}
    if gone and not isinstance(command, c.ResumePartitions):
        states = {p["number"]: p["state"] for p in after["partitions"]}
        assert all(states.get(key, "removed") in ("removed", "finished") for key in gone)
    changed = {
        key
        for key in before["pauses"].keys() | after["pauses"].keys()
        if before["pauses"].get(key) != after["pauses"].get(key)
    }
    for partition in after["partitions"]:
        owner = partition["owner"]
        if owner is not None and (partition["number"] in changed or None in changed):
            assert owner.removeprefix("flow ") in decision.notices


# One state


def _takes(flow: Flow) -> bool:
    """Whether a bound flow takes part in the balance."""
    return not flow.draining and flow.held_until is None


def check_state(queue: Queue, now: float, *, advanced: bool = False) -> None:
    """Holds after any command: the counts are right, and the status fits the assignment."""
    _check_partitions(queue)
    _check_groups(queue)
    _check_sets(queue, now)
    _check_counts(queue)
    _check_status(queue, now)
    if advanced:
        # 8. A holddown or handoff outlives its deadline.
        deadline = queue.next_deadline()
        assert deadline is None or deadline > now, f"due at {deadline}, still there at {now}"


def _is_pending(queue: Queue, now: float) -> bool:
    """Whether something is due that no `Advance` has come for yet."""
    due = queue.next_deadline()
    return due is not None and due <= now


def _check_partitions(queue: Queue) -> None:
    count = queue.settings.partition_count
    for number, partition in queue.partitions.items():
        assert partition.number == number
        owned = partition.state in ("owned", *IN_HANDOFF)
        assert (partition.owner is not None) == owned, partition.state
        assert (number in queue.handoffs) == (partition.state in IN_HANDOFF)
        assert (number in queue.unassigned) == (partition.state == "unassigned")
        assert (number in queue.retiring) == partition.retiring
        if queue.lineage is not None:
            assert partition.state != "removed"
        elif number < count:
            assert partition.state != "removed"
            assert not partition.retiring
        else:
            assert partition.state == "removed" or partition.retiring
        if partition.owner is not None:
            assert queue.flows.get(partition.owner.id) is partition.owner
            assert partition.epoch >= 1
            assert partition.handed_over is not None
    assert len(queue.partitions) >= count
    existing = sum(partition.state != "removed" for partition in queue.partitions.values())
    assert queue.operational_partition_count == existing


def _check_groups(queue: Queue) -> None:
    """Aligned partitions are where their first one is, after every decision."""
    aligned = queue.settings.aligned
    if aligned == 1:
        return
    for number, partition in queue.partitions.items():
        first = queue.partitions[number - number % aligned]
        same = (first.owner, first.state, first.retiring)
        assert (partition.owner, partition.state, partition.retiring) == same, number
        one, other = queue.handoffs.get(number), queue.handoffs.get(first.number)
        if one is not None and other is not None:
            assert (one.named, one.deadline, one.since) == (
                other.named,
                other.deadline,
                other.since,
            )
    for start in range(0, len(queue.partitions), aligned):
        group = [queue.partitions[number] for number in range(start, start + aligned)]
        assert not all(map(_is_let_go, group)), "all of a group is released, and nothing follows"


def _check_sets(queue: Queue, now: float) -> None:
    states = {p.number: p.state for p in queue.partitions.values()}
    assert queue.handoffs.warming == {n for n in queue.handoffs if states[n] == "warming"}
    assert queue.handoffs.without_successor == {
        n
        for n, handoff in queue.handoffs.items()
        if handoff.named is None and states[n] == "revoking"
    }
    for number, handoff in queue.handoffs.items():
        assert handoff.number == number
        if handoff.successor is not None:
            assert queue.flows.get(handoff.successor.id) is handoff.successor
            assert not handoff.successor.draining, "a draining flow is to be given a partition"
            assert _takes(handoff.successor), "a flow that is held back is to be given a partition"
        elif states[number] == "revoking" and not _is_pending(queue, now) and not is_full(queue):
            assert not any(map(_takes, queue.flows.values())), "no successor was named"
        if states[number] == "warming" and not _is_pending(queue, now):
            assert handoff.successor is not None
            assert handoff.successor.warmup
            assert handoff.warm
    assert len({f.instance_id for f in queue.flows.values()}) == len(queue.flows)
    assert queue.flows.by_instance == {f.instance: f for f in queue.flows.values()}
    assert queue.flows.by_bind_number == {f.bind_number: f for f in queue.flows.values()}
    assert all(f.bind_number < queue.next_bind_number for f in queue.flows.values())
    deadlines = [handoff.deadline for handoff in queue.handoffs.values()]
    if queue.holddown_until is not None:
        deadlines.append(queue.holddown_until)
    deadlines += [
        p.owner.drain_deadline
        for p in queue.partitions.values()
        if p.state == "warming" and p.owner is not None and p.owner.drain_deadline is not None
    ]
    if queue.resize.cuts_due is not None:
        deadlines.append(queue.resize.cuts_due)
    held = {f.id: f for f in queue.flows.values() if f.held_until is not None}
    assert queue.flows.held == held
    homes = homes_of(queue)
    assert queue.pins.homes == homes
    assert queue.pins.misplaced == {
        number for number, home in homes.items() if queue.partitions[number].owner is not home
    }
    deadlines += [f.held_until for f in held.values() if f.held_until is not None]
    deadlines += [p.until for p in queue.pauses.of.values() if p.until is not None]
    assert queue.flows.of_key == Counter(f.key_id for f in queue.flows.values() if f.key_id)
    assert all(moves.level > 0 for moves in queue.moved.values())
    assert queue.next_deadline() == min(deadlines, default=None)
    for flow in queue.flows.values():
        idle = {
            number
            for number in flow.owned
            if states[number] == "owned" and (flow.draining or number not in queue.retiring)
            if _leads(queue, number) and number not in queue.pins.homes
        }
        assert queue.highest_giveable(flow) == max(idle, default=None)
        assert all(-number in flow.offers for number in idle)


def _check_counts(queue: Queue) -> None:
    owned: dict[str, set[int]] = defaultdict(set)
    incoming: dict[str, set[int]] = defaultdict(set)
    homes = homes_of(queue)
    load = Counter(home.id for home in homes.values())
    pinned = load.copy()
    for partition in queue.partitions.values():
        if partition.owner is None:
            continue
        owned[partition.owner.id].add(partition.number)
        counted: Flow | None = partition.owner
        if partition.number in queue.handoffs:
            counted = queue.handoffs[partition.number].named
            if counted is not None:
                incoming[counted.id].add(partition.number)
        if partition.retiring or not _leads(queue, partition.number) or partition.number in homes:
            continue
        if counted is not None:
            load[counted.id] += 1
    ranked, leaving = {}, {}
    for flow in queue.flows.values():
        outgoing = sum(number in queue.handoffs for number in owned[flow.id])
        assert flow.owned == owned[flow.id]
        assert flow.incoming == incoming[flow.id]
        assert flow.load == load[flow.id]
        assert flow.pinned == pinned[flow.id]
        assert flow.outgoing == outgoing
        if flow.held_until is not None:
            assert not flow.draining
            assert not flow.owned | flow.incoming
        elif flow.draining:
            idle = len(owned[flow.id]) - outgoing
            leaving[flow.bind_number] = idle // queue.settings.aligned
        else:
            ranked[flow.bind_number] = load[flow.id]
    assert queue.ranking.counts == ranked
    for ranking, counts in ((queue.ranking, _levels(queue, ranked)), (queue.leaving, leaving)):
        assert ranking.counts == counts or ranking is queue.ranking
        if counts:
            low, high = min(counts.values()), max(counts.values())
            assert (ranking.low, ranking.high) == (low, high)
            assert ranking.fewest() == min(s for s, count in counts.items() if count == low)
            assert ranking.most() == min(s for s, count in counts.items() if count == high)


def _levels(queue: Queue, counts: dict[int, int]) -> dict[int, int]:
    """By which the balance compares flows, by bind number: without weights the counts."""
    asked = {flow.id: flow for flow in queue.flows.values()}
    plain = all((flow.weight, flow.max_partitions) == (1, None) for flow in asked.values())
    if plain and not homes_of(queue):
        return counts
    takers = {flow.id: flow for flow in asked.values() if _takes(flow)}
    asks = asks_of(queue) or dict.fromkeys(takers, balance.Ask())
    levels = {}
    for id, share in balance.shares(_groups(queue), asks).items():
        above = counts[takers[id].bind_number] - share.numerator // share.denominator
        levels[takers[id].bind_number] = 2 * above + (share.denominator == 1)
    return levels


def _check_status(queue: Queue, now: float) -> None:
    if queue.status != "Rebalancing":
        assert (queue.holddown_until is not None) == (queue.status == "Holddown")
    assert (queue.trigger is None) == (queue.status == "Ready")
    assert (queue.rebalance is not None) == (queue.status == "Rebalancing")
    if queue.flows.held and not any(map(_takes, queue.flows.values())):
        drained = [flow for flow in queue.flows.values() if flow.draining and flow.owned]
        assert not queue.unassigned, "partitions are idle, and flows are held back"
        assert not drained, "flows that drain wait, and flows are held back"
    if queue.status == "Ready":
        # A dynamic queue keeps its spread until the next trigger.
        ready = is_balanced(queue, any_spread=queue.lineage is not None)
        assert ready or _is_pending(queue, now), "Ready, but not balanced"
        assert not queue.absent, "what left is remembered beyond the holddown"
    if queue.status != "Rebalancing":
        assert not queue.handoffs
        return
    # 9. A rebalance that never ends: a handoff with a deadline must be under way.
    if _is_pending(queue, now):
        return
    if queue.holddown_until is not None:
        # What waits for a pair ends with this deadline; what nobody owns never waits.
        assert not queue.unassigned or not _may_take(queue)
        _check_no_pair_waits(queue)
        return
    assert queue.handoffs, "Rebalancing, and nothing under way"
    most = queue.settings.max_concurrent_handoffs
    if most is None or len(queue.handoffs) < most * queue.settings.aligned:
        _check_nothing_more_can_begin(queue)
    assert not queue.unassigned or not _may_take(queue)


def _may_take(queue: Queue) -> bool:
    """Whether a flow may get a partition."""
    return any(map(_takes, queue.flows.values())) and not is_full(queue)


def _check_no_pair_waits(queue: Queue) -> None:
    """No flow has nothing while another drains and hands nothing over."""
    takers = [f for f in queue.flows.values() if _takes(f)]
    idle = [f for f in takers if not f.load]
    alike = {(f.weight, f.max_partitions) for f in idle}
    drained = [
        f.owned - queue.handoffs.keys()
        for f in queue.flows.values()
        if f.draining and (f.weight, f.max_partitions) in alike
    ]
    beyond = queue.flows_before > queue.settings.partition_count // queue.settings.aligned
    if idle and not beyond and queue.settings.max_concurrent_handoffs is None:
        assert not any(drained), "a pair waits"


def _check_nothing_more_can_begin(queue: Queue) -> None:
    takers = {f.id: f.load for f in queue.flows.values() if _takes(f)}
    if not takers or is_full(queue):
        return
    idle = {
        f.id: [
            n
            for n in f.owned
            if n not in queue.handoffs and (f.draining or n not in queue.retiring)
            if _leads(queue, n) and queue.pins.homes.get(n) is not f
        ]
        for f in queue.flows.values()
    }
    assert not any(f.draining and idle[f.id] for f in queue.flows.values())
    assert queue.pins.misplaced <= queue.handoffs.keys(), "a pinned partition does not go home"
    if queue.settings.access_type == "exclusive":
        first = min((f for f in queue.flows.values() if _takes(f)), key=lambda f: f.bind_number)
        assert not any(numbers for flow_id, numbers in idle.items() if flow_id != first.id)
    elif (asks := asks_of(queue)) is not None:
        share = balance.shares(_groups(queue), asks)
        above = {id: load - share[id] for id, load in takers.items()}
        most = max(above.values())
        if most >= 1:
            givers = [id for id, more in above.items() if more >= 1]
            assert any(not idle[id] for id in givers), "a flow above its share gives nothing"
    elif max(takers.values()) - min(takers.values()) > 1:
        # The flow with the most partitions has no more to give before others arrive.
        ceiling = -(-queue.settings.partition_count // queue.settings.aligned // len(takers))
        assert any(load > ceiling or load == max(takers.values()) for load in takers.values())
        assert any(
            load == max(takers.values()) and not idle[flow_id] for flow_id, load in takers.items()
        )


# One step


@dataclass
class Oracle:
    """Checks one queue, decision by decision."""

    owners: Owners = field(default_factory=Owners)
    revokes_since_change: set[tuple[int, int]] = field(default_factory=set)
    fewest: int | None = None

    def check(
        self,
        before: dict[str, Any],
        queue: Queue,
        after: dict[str, Any],
        command: c.Command,
        decision: Decision,
        now: float,
    ) -> None:
        """`before` and `after` are the snapshots before and after the decision, `queue` is as after
        it.
        """
        check_state(queue, now, advanced=isinstance(command, c.Advance))
        assert decision.wake_at == after["next_deadline"]
        if not decision.entries:
            assert after == before
            assert not decision.notices
            return
        check_pauses(before, after, command, decision, now)
        _check_maxima(before, queue, command)
        json.dumps([to_json(record) for record in decision.records])
        self._check_epochs(before, after, decision)
        self._check_moves(before, after, command, decision)
        self._check_deadlines(before, after, command, decision, now)
        self._check_notices(before, after, decision)
        self._check_fewest(before, queue, command, decision)

    def _check_epochs(
        self, before: dict[str, Any], after: dict[str, Any], decision: Decision
    ) -> None:
        """1. Two flows own one partition in one epoch, or epochs go backwards; epochs never skip a
        number."""
        epochs = {p["number"]: p["epoch"] for p in before["partitions"]}
        for record in decision.records:
            if isinstance(record, r.Granted):
                for grant in record.grants:
                    assert grant.epoch == epochs.get(grant.partition, 0) + 1
                    epochs[grant.partition] = grant.epoch
                    self._own(grant.partition, grant.epoch, grant.flow_id)
            elif isinstance(record, r.EpochsRaised):
                assert len(set(record.partitions)) == len(record.partitions)
                for number in record.partitions:
                    epochs[number] = epochs.get(number, 0) + 1
        for old, new in zip(before["partitions"], after["partitions"], strict=False):
            if new["owner"] is not None and new["owner"] != old["owner"]:
                assert new["epoch"] > old["epoch"]
        for partition in after["partitions"]:
            assert partition["epoch"] == epochs.get(partition["number"], 0)
            if partition["owner"] is not None:
                owner = partition["owner"].removeprefix("flow ")
                self._own(partition["number"], partition["epoch"], owner)

    def _own(self, number: int, epoch: int, flow_id: str) -> None:
        assert not self.owners.claim(number, epoch, flow_id)

    def _check_moves(
        self,
        before: dict[str, Any],
        after: dict[str, Any],
        command: c.Command,
        decision: Decision,
    ) -> None:
        """5, 6 and *A revoke is never taken back*."""
        bound, draining = (
            set(after["flows"]),
            {flow_id for flow_id, flow in before["flows"].items() if flow["draining"]},
        )
        raised = {
            n
            for record in decision.records
            if isinstance(record, r.EpochsRaised)
            for n in record.partitions
        }
        resized = isinstance(command, c.Change | c.FollowLog)
        if isinstance(command, c.Unbind):
            _check_successors_of_the_leaver_own(before, after, command.flow_id)
        if isinstance(command, c.Change) and set(command.changes) <= {"max_concurrent_handoffs"}:
            kinds = {type(record) for record in decision.records}
            assert not kinds & {r.HandoffsCalledOff, r.HandoffsRedirected}, (
                "needless changes of plan"
            )
        for old, new in zip(before["partitions"], after["partitions"], strict=False):
            number = old["number"]
            if old["state"] == "revoking" and new["epoch"] == old["epoch"]:
                assert new["state"] in ("revoking", "unassigned", "removed"), (
                    "a revoke was taken back"
                )
            if old["owner"] is None:
                continue
            owner = old["owner"].removeprefix("flow ")
            if owner in bound and new["owner"] != old["owner"] and new["state"] != "removed":
                released = isinstance(command, c.Release) and owner in draining
                assert old["state"] == "revoking" or released or _revoked(decision, number), (
                    f"partition {number} was taken from {owner}"
                )
            if old["state"] == "owned" and owner in bound and number not in raised and not resized:
                same = new["owner"] == old["owner"] and new["state"] in ("owned", "warming")
                if same:
                    assert new["epoch"] == old["epoch"], "a partition in peace has another epoch"
        if (
            before["status"] == "Ready"
            and after["status"] == "Ready"
            and not isinstance(command, CHANGES | c.RaiseEpochs)
            and not _admits(decision)
        ):
            ready = [(p["owner"], p["epoch"], p["state"]) for p in before["partitions"]]
            released = isinstance(command, c.Release)
            assert released or ready == [
                (p["owner"], p["epoch"], p["state"]) for p in after["partitions"]
            ]

    def _check_deadlines(
        self,
        before: dict[str, Any],
        after: dict[str, Any],
        command: c.Command,
        decision: Decision,
        now: float,
    ) -> None:
        """Deadlines follow the settings, and move only for outages."""
        settings = after["settings"]
        raised = {
            number
            for record in decision.records
            if isinstance(record, r.EpochsRaised)
            for number in record.partitions
        }
        for number, handoff in after["handoffs"].items():
            old = before["handoffs"].get(number)
            state = after["partitions"][number]["state"]
            was = before["partitions"][number]
            allowed = (
                settings["max_warmup_time"] if state == "warming" else settings["max_handoff_time"]
            )
            same = (
                old is not None
                and was["state"] == state
                and (state == "revoking" or handoff["successor"] in (None, old["successor"]))
                and (
                    state == "warming"
                    or number in raised
                    or was["epoch"] == after["partitions"][number]["epoch"]
                )
            )
            if isinstance(command, c.RaiseEpochs | c.MoveDeadlines):
                assert old is not None
                moved = handoff["deadline"] - old["deadline"]
                most = command.seconds if isinstance(command, c.MoveDeadlines) else 0.0
                assert moved in (0.0, most) if most >= 0 else moved == most
            elif same:
                assert old is not None
                assert handoff["deadline"] == old["deadline"], "a deadline moved"
            else:
                assert handoff["deadline"] == now + allowed
                assert handoff["since"] == now
        if before["holddown_until"] is not None and after["holddown_until"] is not None:
            kinds = r.HolddownStarted | r.PairsFirst
            started = any(isinstance(record, kinds) for record in decision.records)
            moved = sum(one.seconds for one in decision.records if isinstance(one, r.ClockWentBack))
            assert started or after["holddown_until"] == before["holddown_until"] + moved
            later = after["holddown_until"] > before["holddown_until"]
            if later and before["status"] == after["status"] == "Rebalancing":
                moves = r.RevokesStarted | r.WarmupsStarted
                bound_at = [
                    after["flows"][move.owner]["bound_at"]
                    for record in decision.records
                    if isinstance(record, moves)
                    for move in record.moves
                ]
                assert min(bound_at) <= after["since"], "later flows keep others waiting"

    def _check_notices(
        self, before: dict[str, Any], after: dict[str, Any], decision: Decision
    ) -> None:
        """A flow whose view changes is woken, and its view has a new revision."""
        for flow_id, flow in after["flows"].items():
            changed = view(before, flow_id) != view(after, flow_id)
            woken = flow["view_revision"] == after["revision"]
            assert (
                woken or flow["view_revision"] <= before["revision"] or flow_id in decision.notices
            )
            if changed:
                assert flow_id in decision.notices, f"{flow_id} is not told"
                assert flow["view_revision"] > before["revision"]
        for flow_id in before["flows"]:
            if flow_id not in after["flows"]:
                assert flow_id in decision.notices

    def _check_fewest(
        self,
        before: dict[str, Any],
        queue: Queue,
        command: c.Command,
        decision: Decision,
    ) -> None:
        """6. A rebalance makes more handoffs than the minimum since the last change."""
        started = any(isinstance(record, r.RebalanceStarted) for record in decision.records)
        # A draining flow released a partition before it was revoked, or a partition was finished.
        unplanned = any(
            isinstance(record, r.Released | r.PartitionsRemoved) for record in decision.records
        )
        if queue.status != "Rebalancing" and not started and before["status"] != "Rebalancing":
            self.fewest = None
            return
        # What paired while others waited is balanced with them from now on.
        over = before["status"] == "Rebalancing" and (
            before["holddown_until"] is not None and queue.holddown_until is None
        )
        if started or unplanned or over or isinstance(command, CHANGES) or _admits(decision):
            self.fewest = self._fewest_from(before, queue, command, decision)
            self.revokes_since_change.clear()
        revoking = {n for n, p in enumerate(before["partitions"]) if p["state"] == "revoking"}
        for record in decision.records:
            if isinstance(record, r.RevokesStarted):
                self._revoked(move.partition for move in record.moves)
            elif isinstance(record, r.WarmupsEnded):
                assert not revoking.intersection(record.partitions)
                self._revoked(record.partitions)
            elif isinstance(record, r.Granted):
                # A draining owner may release a partition while its successor still warms up.
                self._revoked(_released_early(before, command, record))
        made = sum(_leads(queue, number) for number, _ in self.revokes_since_change)
        assert self.fewest is not None
        assert made <= self.fewest, f"{made} handoffs where {self.fewest} would do"
        if queue.status == "Ready":
            # What drains stays where it is if no flow may take it.
            assert made == self.fewest or is_full(queue), (
                f"{made} handoffs where {self.fewest} are needed"
            )
            self.fewest = None

    def _revoked(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            epoch = max((e for n, e in self.owners.by_epoch if n == number), default=0)
            self.revokes_since_change.add((number, epoch))

    def _fewest_from(
        self, before: dict[str, Any], queue: Queue, command: c.Command, decision: Decision
    ) -> int:
        """Computed from the state after the change, as if no warm-up and no direct grant had been
        made."""
        takers = {f.id: 0 for f in queue.flows.values() if _takes(f)}
        if not takers:
            return 0
        free = {
            grant.partition
            for record in decision.records
            if isinstance(record, r.Granted)
            for grant in record.grants
            if not grant.by_handoff and not _is_of_the_heir(before, queue, grant)
        }
        named = {
            redirect.partition
            for record in decision.records
            if isinstance(record, r.HandoffsRedirected) and record.deadline is None
            for redirect in record.redirects
            if not _takes_the_place(before, queue, redirect)
        }
        begun: dict[int, str] = {}
        for record in decision.records:
            if isinstance(record, r.RevokesStarted):
                for move in record.moves:
                    begun.setdefault(move.partition, move.owner)
            elif isinstance(record, r.WarmupsEnded):
                for number in record.partitions:
                    was = before["partitions"][number]["owner"].removeprefix("flow ")
                    begun.setdefault(number, was)
            elif isinstance(record, r.Granted) and isinstance(command, c.Release):
                for number in _released_early(before, command, record):
                    begun.setdefault(number, command.flow_id)
        leaving, homes = 0, homes_of(queue)
        for partition in queue.partitions.values():
            number = partition.number
            if not _leads(queue, number):
                continue
            owner = queue.flows.get(begun[number]) if number in begun else partition.owner
            if (home := homes.get(number)) is not None:
                # It goes home once, and from where a revoke takes it if that is elsewhere.
                takers[home.id] += 1
                gets = owner
                handoff = queue.handoffs.get(number)
                if handoff is not None and number not in begun and partition.state == "revoking":
                    gets = home if number in named else handoff.successor or home
                leaving += number not in free and gets not in (None, home)
                continue
            if number in free:
                continue
            if owner is None:
                # If its owner has left, the successor gets it, whatever the balance.
                handoff = queue.handoffs.get(number)
                if handoff is not None and handoff.successor is not None and number not in begun:
                    takers[handoff.successor.id] += not partition.retiring
                continue
            on_its_way = partition.state == "revoking" and number not in begun
            if owner.draining:
                leaving += not on_its_way
            if partition.retiring or (owner.draining and not on_its_way):
                continue
            if on_its_way:
                successor = queue.handoffs[number].successor
                if number not in named and successor is not None:
                    takers[successor.id] += 1
            else:
                takers[owner.id] += 1
        only = None
        if queue.settings.access_type == "exclusive":
            only = min((queue.flows[f] for f in takers), key=lambda flow: flow.bind_number).id
        asks = asks_of(queue)
        return leaving + balance.fewest_handoffs(takers, _groups(queue), only=only, asks=asks)


def _admits(decision: Decision) -> bool:
    """Whether flows that were held back join."""
    return any(isinstance(record, r.FlowsAdmitted) for record in decision.records)


def _takes_the_place(before: dict[str, Any], queue: Queue, redirect: r.Redirect) -> bool:
    """Whether the partition goes to the flow that has replaced its successor: the contract takes
    that for the same plan, and a revoked partition is planned again only after its handoff."""
    old = before["handoffs"].get(redirect.partition, {}).get("successor")
    heir = queue.flows.get(redirect.successor or "")
    if old is None or heir is None:
        return False
    return bool(before["flows"][old.removeprefix("flow ")]["instance"] == _plain(heir.instance))


def _is_of_the_heir(before: dict[str, Any], queue: Queue, grant: r.Grant) -> bool:
    """Whether the flow gets what its instance had: the plan is the same, also if positions were
    set."""
    if grant.handed_over == "replaced":
        return True
    left = before["flows"].get(grant.previous)
    return bool(left and left["instance"] == _plain(queue.flows[grant.flow_id].instance))


def view(state: dict[str, Any], flow_id: str) -> Any:
    """The view of a flow (*FlowChangeUpdate*) in a snapshot; None if it is not bound."""
    flow = state["flows"].get(flow_id)
    if flow is None:
        return None
    me, seen = f"flow {flow_id}", {}
    for partition in state["partitions"]:
        number = partition["number"]
        handoff = state["handoffs"].get(number)
        if partition["owner"] == me:
            if partition["next_handed_over"] == "graceful":
                continue
            revoking = partition["state"] == "revoking"
            label = "revoking" if revoking else "retiring" if partition["retiring"] else "owned"
            deadline = handoff["deadline"] if revoking else None
            seen[number] = (label, partition["epoch"], partition["handed_over"], deadline)
        elif handoff is not None and handoff["successor"] == me and handoff["warm"]:
            seen[number] = ("warming", partition["epoch"], None, handoff["deadline"])
    return seen, flow["draining"], flow["held_until"]


def _check_successors_of_the_leaver_own(
    before: dict[str, Any], after: dict[str, Any], leaver: str
) -> None:
    """*Owner gone: the successor is granted at once, warm or not.*"""
    for number, handoff in before["handoffs"].items():
        gone = before["partitions"][number]["owner"] == f"flow {leaver}"
        if gone and handoff["successor"] not in (None, f"flow {leaver}"):
            partition = after["partitions"][number]
            assert partition["owner"] == handoff["successor"]
            assert partition["handed_over"] == "orphaned"


def _revoked(decision: Decision, number: int) -> bool:
    """Whether the partition began to be revoked within the decision (max_handoff_time may be 0)."""
    for record in decision.records:
        if isinstance(record, r.WarmupsEnded) and number in record.partitions:
            return True
        if isinstance(record, r.RevokesStarted) and any(
            m.partition == number for m in record.moves
        ):
            return True
    return False


def _released_early(before: dict[str, Any], command: c.Command, record: r.Granted) -> list[int]:
    """The partitions that a draining owner released while their successors were warming up."""
    return [
        grant.partition
        for grant in record.grants
        if isinstance(command, c.Release)
        and grant.by_handoff
        and before["partitions"][grant.partition]["state"] == "warming"
    ]
