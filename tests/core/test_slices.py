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
from broker.core.draft import Decision
from broker.core.errors import FlowNotFound
from broker.core.state import records as r
from tests.core.test_sequences import PROFILE, SETTINGS, STEPS, Player
from tests.core.world import World


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
        due = self.queue.next_deadline()
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
            for p in queue.partitions
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
        assert left.rest
        assert left.effects.left == {"A": "unbound"}
        assert "A" not in orders.queue.flows
        with pytest.raises(FlowNotFound):
            orders.release("A", 4)
        assert orders.unassigned() == [0, 1]
        assert orders.do(c.Resume()).rest
        assert orders.unassigned() == [0, 1, 2, 3]
        assert not orders.do(c.Resume()).rest
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
        assert back.rest
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


def owning(one: str, other: str, *, most: int) -> World:
    """Two flows that own five and four partitions, in slices of `most`."""
    orders = World.owning({one: [0, 1, 2, 3, 4], other: [5, 6, 7, 8]}, rebalance_delay=5.0)
    orders.most, orders.oracle.sliced = most, True
    return orders
