"""Large decisions are cut into slices. Together they are the decision, and other commands may come
between.

The theory is in `broker.core.rebalancer`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.errors import FlowNotFound
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from tests.broker.core.test_sequences import PROFILE, SETTINGS, STEPS, Player
from tests.broker.core.world import World


class Whole(World):
    """After each command, timers that are due run."""

    def do(self, command: c.Command) -> Decision:
        decision = super().do(command)
        if not isinstance(command, c.Advance):
            super().do(c.Advance())
        return decision


class Sliced(Whole):
    """The same, one slice at a time."""

    def do(self, command: c.Command) -> Decision:
        decision = super().do(command)
        times = 0
        while self._is_due():
            assert super(Whole, self).do(c.Advance()).entries
            times += 1
            assert times < 1000, "this does not end"
        return decision

    def _is_due(self) -> bool:
        due = self.next_due()
        return due is not None and due <= self.now


def told(world: World) -> dict[str, Any]:
    """The result without revisions, because slices have more of them."""
    queue = world.queue
    return {
        "status": (queue.status, queue.trigger, queue.since, queue.holddown_until),
        "partitions": [
            (
                p.state,
                p.epoch,
                p.owner and p.owner.id,
                p.handed_over,
                p.retiring,
                p.next_handed_over,
            )
            for p in queue.partitions.values()
        ],
        "handoffs": {
            n: (h.successor and h.successor.id, h.deadline, h.since, h.warm)
            for n, h in sorted(queue.handoffs.items())
        },
        "history": (queue.rebalance, queue.last_rebalance),
        "next": queue.next_deadline(),
    }


@PROFILE
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=5),
    st.lists(STEPS, min_size=5, max_size=30),
)
def test_the_slices_together_are_the_decision(
    partitions: int,
    most: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    whole, sliced = Whole(partitions, **chosen), Sliced(partitions, most=most, **chosen)
    players = [Player(whole), Player(sliced)]
    for step in [*(("bind", warmup) for warmup in bound), ("settle",), *steps]:
        for player in players:
            player.play(step)
        note(f"{told(whole)}\n{told(sliced)}")
        assert told(whole) == told(sliced)


@PROFILE
@given(
    st.integers(1, 9),
    st.integers(1, 3),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=5),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_commands_may_come_between_slices(
    partitions: int,
    most: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    world = World(partitions, most=most, **chosen)
    player = Player(world)
    for step in [*(("bind", warmup) for warmup in bound), *steps]:
        player.play(step)
    world.settle()
    assert world.status == "Ready"


class TestDepartures:
    """A flow with more partitions than a slice has room for."""

    def test_the_flow_is_gone_at_once_and_its_partitions_follow(self) -> None:
        orders = owning("A", "B", most=2)
        left = orders.unbind("A")
        assert isinstance(left.records[0], r.FlowDeparted)
        assert left.unfinished
        assert left.effects.left == {"A": "unbound"}
        assert "A" not in orders.queue.flows
        with pytest.raises(FlowNotFound):
            orders.release("A", 4)
        assert orders.unassigned() == [0, 1]
        assert orders.do(c.Resume()).unfinished
        assert orders.unassigned() == [0, 1, 2, 3]
        assert not orders.do(c.Resume()).unfinished
        assert orders.unassigned() == [0, 1, 2, 3, 4]
        assert not orders.queue.gone
        assert (orders.status, orders.trigger) == ("Holddown", "unbind")

    def test_who_comes_back_meanwhile_gets_everything_back(self) -> None:
        orders = owning("A", "B", most=2)
        orders.unbind("A")
        orders.bind("A2", "i-A")
        orders.advance()
        assert orders.owned("A2") == [0, 1, 2, 3, 4]
        assert {orders.handed_over(n) for n in range(5)} == {"replaced"}
        assert orders.status == "Ready"

    def test_who_comes_back_after_it_gets_everything_back_in_slices(self) -> None:
        orders = owning("A", "B", most=2)
        orders.unbind("A")
        orders.advance()
        back = orders.bind("A2", "i-A")
        assert back.unfinished
        assert len(orders.owned("A2")) == 2
        orders.advance()
        assert orders.owned("A2") == [0, 1, 2, 3, 4]
        assert {orders.handed_over(n) for n in range(5)} == {"replaced"}
        assert orders.status == "Ready"

    def test_positions_that_are_set_meanwhile_are_not_passed_over(self) -> None:
        """The instance gets the partition back, but may not go on as if nothing had been."""
        orders = owning("A", "B", most=2)
        orders.unbind("A")
        orders.raise_epochs(0, 4)
        orders.advance()
        orders.bind("A2", "i-A")
        orders.advance()
        assert orders.owned("A2") == [0, 1, 2, 3, 4]
        told = {n: orders.handed_over(n) for n in range(5)}
        assert told == {0: "forced", 1: "replaced", 2: "replaced", 3: "replaced", 4: "forced"}

    def test_a_replacement_takes_over_in_slices(self) -> None:
        orders = owning("A", "B", most=2)
        orders.bind("A2", "i-A")
        assert orders.owned("A2") == [0, 1]
        assert orders.queue.gone.keys() == {"A"}
        orders.advance()
        assert orders.owned("A2") == [0, 1, 2, 3, 4]
        assert orders.status == "Ready"
        assert orders.queue.last_rebalance is not None
        assert orders.queue.last_rebalance.granted == 5

    def test_a_replacement_of_a_replacement_gets_everything(self) -> None:
        orders = owning("A", "B", most=2)
        orders.bind("A2", "i-A")
        orders.bind("A3", "i-A")
        orders.advance()
        assert orders.owned("A3") == [0, 1, 2, 3, 4]
        assert not orders.queue.gone

    def test_what_is_granted_at_once_waits_for_no_holddown_of_a_trigger_between(self) -> None:
        """Rule 3 grants what A left to B, when B begins to drain: C gets it without a wait."""
        orders = World(7, most=2, access_type="exclusive", rebalance_delay=5.0)
        orders.bind("A")
        orders.advance(5)
        orders.bind("B")
        orders.bind("C")
        orders.expire("A")
        assert (orders.status, bool(orders.queue.gone)) == ("Ready", True)
        orders.drain("B")
        assert (orders.status, orders.trigger) == ("Rebalancing", "drain")
        orders.advance()
        assert orders.owners() == {"B": [], "C": [0, 1, 2, 3, 4, 5, 6]}

    def test_an_exclusive_queue_passes_to_the_standby_without_a_holddown(self) -> None:
        orders = World(7, most=2, access_type="exclusive", rebalance_delay=5.0)
        orders.bind("A")
        orders.advance(5)
        orders.bind("B")
        orders.expire("A")
        assert orders.status == "Ready"
        orders.advance()
        assert orders.owned("B") == list(range(7))
        assert {orders.handed_over(n) for n in range(7)} == {"orphaned"}
        assert orders.queue.last_rebalance is not None
        assert orders.queue.last_rebalance.trigger == "lease_expired"
        assert orders.queue.last_rebalance.granted == 7

    def test_handoffs_go_to_their_successors_and_others_lose_theirs(self) -> None:
        orders = World(8, most=8, max_handoff_time=30.0, rebalance_delay=0.0)
        orders.bind("A")
        orders.bind("B")
        orders.advance()
        assert set(orders.on_their_way()) == {4, 5, 6, 7}
        orders.most = 3
        orders.unbind("B")
        assert orders.queue.gone.keys() == {"B"}
        assert {orders.successor(n) for n in (4, 5, 6, 7)} == {None}
        orders.advance()
        assert orders.on_their_way() == dict.fromkeys((4, 5, 6, 7), ("revoking", "A"))
        orders.bind("C")
        orders.unbind("A")
        orders.advance()
        assert orders.owned("C") == list(range(8))

    def test_two_flows_leave_of_which_one_was_to_get_what_the_other_owns(self) -> None:
        orders = World.owning({"B": [0, 1, 2, 3]}, rebalance_delay=0.0, max_handoff_time=30.0)
        orders.bind("C")
        assert orders.on_their_way() == {2: ("revoking", "C"), 3: ("revoking", "C")}
        orders.most, orders.oracle.sliced = 1, True
        orders.unbind("C")
        orders.unbind("B")
        assert orders.queue.gone.keys() == {"B", "C"}
        orders.advance()
        assert not orders.queue.gone
        assert orders.unassigned() == [0, 1, 2, 3]
        assert orders.status == "Ready"

    def test_a_warm_up_for_a_flow_that_left_can_be_released(self) -> None:
        """By a draining owner, before another successor is named."""
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0.0)
        orders.bind("B", warmup=True)
        orders.drain("A")
        assert set(orders.on_their_way()) == {0, 1, 2, 3}
        orders.most = 1
        orders.unbind("B")
        orders.do(c.Resume())
        assert orders.release("A", 3) == ["ok"]
        orders.advance()
        orders.settle()
        assert orders.status == "Ready"


class TestResizes:
    """The count changes at once; the partitions follow, slice by slice."""

    def test_growing_adds_upwards_and_grants_afterwards(self) -> None:
        orders = owning("A", "B", most=2)
        assert orders.resize(14).unfinished
        assert orders.queue.settings.partition_count == 14
        assert existing(orders) == list(range(11))
        assert orders.unassigned() == [9, 10]
        assert (orders.status, orders.queue.scale_status) == ("Rebalancing", "ScalingUp")
        assert orders.do(c.Resume()).unfinished
        assert existing(orders) == list(range(13))
        orders.advance()
        assert (orders.status, orders.queue.scale_status) == ("Ready", "Ready")
        assert sorted(map(len, orders.owners().values())) == [7, 7]

    def test_shrinking_retires_downwards(self) -> None:
        orders = owning("A", "B", most=2)
        assert orders.resize(4).unfinished
        assert orders.queue.retiring == {7, 8}
        assert orders.queue.operational_partition_count == 9
        assert orders.release("B", 6, finished=True) == ["not_revoking"]
        orders.advance()
        assert orders.queue.retiring == {4, 5, 6, 7, 8}

    def test_discarding_removes_what_retires_as_well(self) -> None:
        orders = owning("A", "B", most=9)
        orders.resize(6)
        assert orders.queue.retiring == {6, 7, 8}
        orders.most = 2
        assert orders.resize(4, discard=True).unfinished
        assert existing(orders) == [0, 1, 2, 3, 6, 7, 8]
        orders.advance()
        assert existing(orders) == [0, 1, 2, 3]
        assert orders.queue.scale_status == "Ready"

    def test_another_resize_between_slices_leads_to_its_count(self) -> None:
        orders = owning("A", "B", most=2)
        orders.resize(20)
        orders.do(c.Resume())
        orders.resize(11)
        orders.advance()
        assert orders.queue.operational_partition_count == 13
        assert orders.queue.retiring == {11, 12}
        orders.resize(2, discard=True)
        orders.resize(5)
        assert orders.queue.operational_partition_count > 5
        orders.advance()
        assert not orders.queue.is_resizing
        assert min(orders.queue.retiring) == 5

    def test_flows_come_and_leave_between_slices(self) -> None:
        orders = owning("A", "B", most=2)
        orders.resize(20)
        orders.bind("C")
        orders.unbind("A")
        orders.settle()
        assert sorted(map(len, orders.owners().values())) == [10, 10]

    def test_what_a_discard_takes_from_a_flow_that_leaves_is_not_granted(self) -> None:
        orders = World.owning({"A": [0], "B": [1, 2, 3]}, rebalance_delay=5.0)
        orders.resize(1)
        orders.expire("A")
        assert orders.status == "Ready"
        assert orders.owned("B") == [0, 1, 2, 3]
        orders.bind("C")
        orders.most, orders.oracle.sliced = 2, True
        assert orders.resize(1, discard=True).unfinished
        orders.most = 9
        orders.unbind("B")
        orders.advance()
        assert orders.owners() == {"C": [0]}
        assert existing(orders) == [0]


def owning(one: str, other: str, *, most: int) -> World:
    """Two flows that own five and four partitions, in slices of `most`."""
    orders = World.owning({one: [0, 1, 2, 3, 4], other: [5, 6, 7, 8]}, rebalance_delay=5.0)
    orders.most, orders.oracle.sliced = most, True
    return orders


def existing(world: World) -> list[int]:
    return [partition.number for partition in world.queue.existing()]


class TestDeadlines:
    """What is due does not wait for the rest of a decision that was cut off."""

    def test_a_handoff_ends_before_the_grants_of_the_rest(self) -> None:
        orders = World.owning(
            {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}, rebalance_delay=0.0, max_handoff_time=3.0
        )
        orders.bind("C")
        assert orders.on_their_way() == {3: ("revoking", "C"), 7: ("revoking", "C")}
        in_slices_of_one(orders)
        orders.unbind("B")
        taken = orders.unassigned()
        orders.wait(3.0)
        while orders.state(3) == "revoking":
            assert orders.do(c.Advance()).unfinished
        # What else the flow that is gone owns is taken from it after that.
        assert orders.queue.gone.keys() == {"B"}
        assert orders.unassigned() == taken
        orders.settle()
        assert (orders.handed_over(3), orders.handed_over(7)) == ("forced", "orphaned")
        assert orders.status == "Ready"

    def test_a_handoff_that_lost_its_successor_ends_with_another(self) -> None:
        orders = World.owning(
            {"A": [0, 1, 2, 3], "B": [4, 5, 6]}, rebalance_delay=0.0, max_handoff_time=3.0
        )
        orders.bind("C")
        orders.bind("D")
        ways = {2: ("revoking", "C"), 3: ("revoking", "C"), 6: ("revoking", "D")}
        assert orders.on_their_way() == ways
        in_slices_of_one(orders)
        orders.unbind("C")
        orders.unbind("B")
        orders.wait(3.0)
        while orders.on_their_way():
            assert orders.do(c.Advance()).unfinished
        # The one with the fewest partitions, then the owner itself, anew.
        assert (orders.owner(2), orders.owner(3)) == ("D", "A")
        assert (orders.handed_over(2), orders.handed_over(3)) == ("forced", "forced")
        # Not everything was taken from the flow that is gone.
        assert orders.queue.gone.keys() == {"B"}
        orders.settle()
        assert orders.owners() == {"A": [0, 1, 3, 5], "D": [2, 4, 6]}

    @pytest.mark.parametrize("most", [1, 9])
    def test_who_is_named_instead_does_not_depend_on_slices(self, most: int) -> None:
        """Of what was to go from a flow that is gone to one that warms up, the latter has more."""
        orders = World.owning(
            {"A": [0, 1, 2, 3, 4], "B": [5, 6], "C": [7, 8, 9]},
            warmup=True,
            rebalance_delay=0.0,
            max_handoff_time=3.0,
        )
        orders.bind("D", warmup=True)
        orders.bind("E")
        orders.drain("B")
        orders.bind("F", warmup=True)
        orders.most, orders.oracle.sliced = most, True
        orders.unbind("E")
        orders.unbind("B")
        orders.wait(3.0)
        orders.advance()
        owners = {"A": [0, 1, 3, 4], "C": [7, 8], "D": [2, 6], "F": [5, 9]}
        assert orders.owners() == owners

    @pytest.mark.parametrize("most", [1, 9])
    def test_nor_on_those_of_a_flow_that_is_replaced(self, most: int) -> None:
        orders = World.owning(
            {"A": [0, 1, 2], "B": [3, 4, 5], "C": [6]},
            warmup=True,
            rebalance_delay=0.0,
            max_handoff_time=3.0,
        )
        orders.bind("D", warmup=True)
        orders.drain("B", 0.0)
        orders.bind("C2", "i-C")
        orders.most, orders.oracle.sliced = most, True
        orders.drain("D", 0.0)
        orders.bind("C3", "i-C", warmup=True)
        orders.wait(3.0)
        orders.advance()
        assert orders.owners() == {"A": [0, 1, 2, 4], "B": [], "C3": [3, 5, 6], "D": []}

    def test_a_warm_up_ends_after_what_may_make_it_needless(self) -> None:
        """It pauses nothing, and the partitions of a flow that left are had without a handoff."""
        orders = World.owning(
            {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}, rebalance_delay=0.0, max_warmup_time=3.0
        )
        orders.bind("C", warmup=True)
        assert orders.on_their_way() == {3: ("warming", "C"), 7: ("warming", "C")}
        in_slices_of_one(orders)
        orders.unbind("B")
        orders.wait(3.0)
        orders.advance()
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2, 3]

    def test_who_was_ready_before_positions_were_set_warms_up_anew(self) -> None:
        """Found by the simulation: the warm-up ended, ready, with the state of other positions."""
        orders = World.owning(
            {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}, rebalance_delay=0.0, max_warmup_time=3.0
        )
        orders.bind("C", warmup=True)
        in_slices_of_one(orders)
        orders.resize(9)
        assert orders.ready("C", 3, 7) == ["ok", "ok"]
        orders.raise_epochs(3)
        while orders.do(c.Resume()).unfinished:
            pass
        assert (orders.state(3), orders.state(7)) == ("warming", "revoking")
        assert orders.ready("C", 3, epoch=2) == ["ok"]
        assert orders.state(3) == "revoking"

    def test_the_holddown_ends_before_the_grants_of_the_rest(self) -> None:
        orders = owning("A", "B", most=2)
        orders.unbind("A")
        orders.wait(5.0)
        assert orders.do(c.Advance()).unfinished
        assert orders.status == "Rebalancing"
        orders.settle()
        assert orders.owned("B") == list(range(9))


def in_slices_of_one(orders: World) -> None:
    orders.most, orders.oracle.sliced = 1, True


@pytest.mark.parametrize(("count", "share"), [(12, 3), (13, 3), (14, 4), (15, 4), (16, 4)])
def test_a_flow_has_its_share_unless_many_get_one_more(count: int, share: int) -> None:
    queue = Queue("id", "orders", Settings(partition_count=count, rebalance_delay=0.0), 0.0)
    replay_all(queue, [r.PartitionsAdded(0, count, 0.0)], 1)
    for flow in ("A", "B", "C", "D"):
        decide(queue, c.Bind(flow, flow, "etl", 10.0), 0.0, 0)
    slices = [decide(queue, c.Resume(), 0.0, 1) for _ in range(count)]
    assert [one.unfinished for one in slices] == [True] * (count - 1) + [False]
    granted = {n: "ABCD"[n % 4] for n in range(count)}
    for number, one in enumerate(slices[:-1]):
        has_it = number // 4 + 1 >= share
        assert one.complete == ({granted[number]} if has_it else set())
    assert not slices[-1].complete
