"""Leaving in order (the contract, *Drain*)."""

from __future__ import annotations

import pytest

from tests.broker.core.world import World


def test_a_draining_flow_may_release_before_it_is_asked_to() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.drain("B")
    assert orders.release("B", 3) == ["ok"]
    assert orders.unassigned() == [3]
    orders.advance(5)
    assert (orders.owner(3), orders.handed_over(3), orders.epoch(3)) == ("A", "graceful", 2)


def test_a_flow_that_does_not_drain_may_not_release_early() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    assert orders.release("A", 0) == ["not_revoking"]


def test_partitions_it_releases_while_rebalancing_are_granted_at_once() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, max_concurrent_handoffs=1)
    orders.drain("B")
    assert set(orders.on_their_way()) == {3}
    orders.release("B", 2)
    assert (orders.owner(2), orders.handed_over(2)) == ("A", "graceful")


def test_a_partition_it_releases_goes_to_the_warming_successor() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, warmup=True)
    orders.drain("B")
    assert orders.state(3) == "warming"
    orders.release("B", 3)
    assert (orders.owner(3), orders.handed_over(3)) == ("A", "graceful")


def test_the_last_flow_too_can_leave_in_order() -> None:
    orders = World.owning({"A": [0, 1]})
    orders.drain("A")
    orders.advance(5)
    assert (orders.status, orders.owned("A")) == ("Ready", [0, 1])
    orders.release("A", 0, 1)
    assert not orders.queue.flows["A"].active
    orders.unbind("A")
    assert orders.status == "Ready"
    orders.bind("B")
    orders.advance(5)
    assert [orders.handed_over(n) for n in (0, 1)] == ["graceful", "graceful"]


def test_a_repeated_drain_is_harmless() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.drain("B", 60)
    assert orders.drain("B").records == ()
    assert orders.drain("B", 60).records == ()


@pytest.mark.parametrize("first", [60, None])
def test_a_repeated_drain_may_shorten_the_timeout(first: float | None) -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, warmup=True)
    orders.drain("B", first)
    orders.drain("B", 10)
    orders.drain("B", 30)
    orders.advance(10)
    assert orders.state(3) == "revoking"


def test_after_the_timeout_warm_ups_of_its_successors_are_cut_short() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, warmup=True)
    orders.drain("B", 60)
    orders.advance(59)
    assert {state for state, _ in orders.on_their_way().values()} == {"warming"}
    orders.advance(1)
    assert {state for state, _ in orders.on_their_way().values()} == {"revoking"}
    assert orders.deadline(3) == 63.0


def test_after_the_timeout_no_warm_up_begins() -> None:
    orders = World.owning(
        {"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, warmup=True, max_concurrent_handoffs=1
    )
    orders.drain("B", 0)
    assert orders.on_their_way() == {3: ("revoking", "A")}
    orders.release("B", 3)
    assert orders.on_their_way() == {2: ("revoking", "A")}


def test_warm_ups_of_other_owners_go_on() -> None:
    orders = World.owning({"A": [0, 1, 2], "B": [3, 4, 5]}, rebalance_delay=0)
    orders.bind("C", warmup=True)
    orders.drain("B", 10)
    orders.advance(10)
    states = {orders.owner(n): state for n, (state, _) in orders.on_their_way().items()}
    assert states.get("A", "warming") == "warming"


def test_retiring_partitions_of_a_draining_flow_are_handed_off_and_stay_retiring() -> None:
    orders = World.owning({"A": [0, 2], "B": [1, 3]}, rebalance_delay=0)
    orders.resize(2)
    assert orders.on_their_way() == {}
    orders.drain("B")
    assert orders.on_their_way() == {1: ("revoking", "A"), 3: ("revoking", "A")}
    orders.release("B", 1, 3)
    assert orders.status == "Ready"
    assert orders.owned("A") == [0, 1, 2, 3]
    assert orders.queue.retiring == {2, 3}


def test_nothing_is_given_to_a_draining_flow() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0, warmup=True)
    orders.bind("C", warmup=True)
    orders.drain("C")
    orders.settle()
    assert orders.owned("C") == []
