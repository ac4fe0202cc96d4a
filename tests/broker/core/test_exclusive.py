"""Exclusive access: the earliest-bound flow owns every partition, the others are standbys."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core.errors import StateKept
from tests.broker.core.world import World


def test_the_first_flow_gets_everything_and_the_others_stand_by() -> None:
    orders = World(3, access_type="exclusive")
    orders.bind("A")
    orders.bind("B")
    orders.advance(5)
    assert orders.owners() == {"A": [0, 1, 2], "B": []}


def test_a_second_flow_triggers_nothing() -> None:
    """Rule 2 with P read as 1."""
    orders = World.owning({"A": [0, 1, 2]}, access_type="exclusive")
    orders.bind("B")
    assert orders.status == "Ready"


def test_the_earliest_bound_standby_takes_everything_over_at_once() -> None:
    """Rule 3 with P read as 1."""
    orders = World.owning({"A": [0, 1, 2], "B": [], "C": []}, access_type="exclusive")
    orders.unbind("A")
    assert orders.status == "Ready"
    assert orders.owners() == {"B": [0, 1, 2], "C": []}


def test_without_a_standby_there_is_a_holddown() -> None:
    """Rule 4 with P read as 1."""
    orders = World.owning({"A": [0, 1, 2]}, access_type="exclusive")
    orders.unbind("A")
    assert orders.status == "Holddown"


def test_a_drain_hands_everything_to_the_next() -> None:
    orders = World.owning({"A": [0, 1], "B": [], "C": []}, access_type="exclusive")
    orders.drain("A")
    orders.advance(5)
    assert orders.on_their_way() == {0: ("revoking", "B"), 1: ("revoking", "B")}


def test_becoming_exclusive_gathers_all_with_the_earliest_bound() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3], "C": [4, 5]})
    orders.change(access_type="exclusive")
    assert orders.on_their_way() == dict.fromkeys((2, 3, 4, 5), ("revoking", "A"))
    orders.settle()
    assert orders.owners() == {"A": [0, 1, 2, 3, 4, 5], "B": [], "C": []}


def test_the_flow_with_the_most_gives_first_its_highest() -> None:
    orders = World.owning(
        {"A": [0], "B": [1, 2], "C": [3, 4, 5]}, max_concurrent_handoffs=1, rebalance_delay=0
    )
    orders.change(access_type="exclusive")
    order = []
    while orders.status == "Rebalancing":
        (number,) = orders.on_their_way()
        order.append(number)
        owner = orders.owner(number)
        assert owner is not None
        orders.release(owner, number)
    assert order == [5, 2, 4, 1, 3]


def test_becoming_non_exclusive_spreads_them() -> None:
    orders = World.owning({"A": [0, 1, 2, 3], "B": []}, access_type="exclusive")
    orders.change(access_type="non_exclusive")
    assert orders.on_their_way() == {2: ("revoking", "B"), 3: ("revoking", "B")}


def test_a_partition_handed_to_a_standby_comes_back_after_it_arrived() -> None:
    orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
    orders.bind("B")
    orders.change(access_type="exclusive")
    assert orders.on_their_way() == {1: ("revoking", "B")}
    orders.release("A", 1)
    assert orders.on_their_way() == {1: ("revoking", "A")}
    orders.release("B", 1)
    assert orders.status == "Ready"


def test_new_partitions_go_to_the_one_owner() -> None:
    orders = World.owning({"A": [0, 1], "B": []}, access_type="exclusive")
    orders.resize(4)
    assert orders.owned("A") == [0, 1, 2, 3]


def test_an_instance_that_comes_back_draining_no_more_is_first_again() -> None:
    orders = World.owning({"A": [0], "B": []}, access_type="exclusive", rebalance_delay=0)
    orders.drain("A")
    orders.release("A", 0)
    assert orders.owned("B") == [0]
    orders.bind("A2", "i-A")
    assert orders.on_their_way() == {0: ("revoking", "A2")}


class TestStateOutsideOfTheQueue:
    """A flow that keeps state has all partitions, or is not bound."""

    def owner(self) -> World:
        orders = World(2, access_type="exclusive", rebalance_delay=0)
        orders.bind("A", keeps_state=True)
        assert orders.owned("A") == [0, 1]
        return orders

    def test_it_is_refused_where_others_may_own_partitions(self) -> None:
        orders = World(2, rebalance_delay=0)
        with pytest.raises(StateKept, match=r"'orders'.*access_type to exclusive"):
            orders.bind("A", keeps_state=True)
        assert not orders.queue.flows

    def test_its_queue_stays_exclusive_while_it_is_bound(self) -> None:
        orders = self.owner()
        for leaving in (False, True):
            if leaving:
                orders.drain("A")
            with pytest.raises(StateKept, match=r"'c-A' \(flow A\).*stop this consumer first"):
                orders.change(access_type="non_exclusive")
            assert orders.queue.exclusive
        orders.change(access_type="exclusive", max_handoff_time=7.0)
        orders.unbind("A")
        orders.change(access_type="non_exclusive")

    def test_there_is_one_and_a_restart_takes_its_place(self) -> None:
        orders = self.owner()
        with pytest.raises(StateKept, match=r"'c-A'.*keeping a standby"):
            orders.bind("B", keeps_state=True)
        orders.bind("A2", "i-A", keeps_state=True)
        assert orders.owned("A2") == [0, 1]
        orders.unbind("A2")
        orders.bind("B", keeps_state=True)

    def test_a_consumer_with_a_new_key_is_still_the_same(self) -> None:
        orders = World(2, access_type="exclusive", rebalance_delay=0, checked=False)
        orders.bind("A", keeps_state=True, key_id="old")
        orders.bind("A2", "i-A", keeps_state=True, key_id="new")
        assert orders.queue.flows.keys() == {"A", "A2"}

    def test_a_standby_without_state_may_wait_beside_it(self) -> None:
        orders = self.owner()
        orders.bind("B")
        orders.unbind("A")
        assert orders.owned("B") == [0, 1]
        orders.bind("A2", "i-A", keeps_state=True)

    def test_of_several_that_bind_together_the_first_is_bound(self) -> None:
        orders = World(2, access_type="exclusive", rebalance_delay=0, checked=False)
        binds = [c.Bind(name, f"i-{name}", name, 10.0, keeps_state=True) for name in "AB"]
        first, second = orders.do(c.BindTogether(tuple(binds))).answer
        assert first is None
        assert isinstance(second, StateKept)
        assert orders.queue.flows.keys() == {"A"}
