"""Pins (docs, *Placement*): who is the home, what else moves, and which rule wins."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core.errors import Invalid
from broker.core.model import Pin
from broker.core.pins import unmet
from broker.core.shares import Demand, WeightedRanking, share_out
from tests.broker.core.test_sequences import PROFILE
from tests.broker.core.world import World
from tests.judge import balance


def twelve() -> World:
    return World.owning({"A": [0, 1, 2, 3], "B": [4, 5, 6, 7], "C": [8, 9, 10, 11]})


class TestBalance:
    """Pinned partitions are at home; the rest is shared over what remains."""

    def test_a_pin_is_a_part_of_the_share(self) -> None:
        orders = twelve()
        orders.pin(4, "c-A")
        orders.pin(8, "c-A")
        assert (orders.status, orders.trigger) == ("Holddown", "pin")
        orders.advance(5)
        assert len(orders.on_their_way()) == 4
        orders.settle()
        assert orders.owners() == {"A": [0, 1, 4, 8], "B": [3, 5, 6, 7], "C": [2, 9, 10, 11]}

    def test_more_pins_than_the_share_leave_the_others_the_rest(self) -> None:
        orders = twelve()
        for number in range(7):
            orders.pin(number, "c-A")
        orders.settle()
        assert orders.owners() == {"A": [0, 1, 2, 3, 4, 5, 6], "B": [7, 11], "C": [8, 9, 10]}

    def test_one_flow_may_have_all(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        for number in range(4):
            orders.pin(number, "c-B")
        orders.settle()
        assert orders.owners() == {"A": [], "B": [0, 1, 2, 3]}

    def test_a_pin_at_home_moves_nothing(self) -> None:
        orders = twelve()
        orders.pin(11, "c-C", "its cache")
        assert (orders.status, orders.on_their_way()) == ("Ready", {})
        orders.bind("D")
        orders.settle()
        assert 11 in orders.owned("C")

    def test_an_unpin_is_balanced(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        for number in range(4):
            orders.pin(number, "c-B")
        orders.settle()
        orders.unpin(0)
        assert orders.status == "Rebalancing" or orders.status == "Ready"
        orders.unpin(1)
        orders.settle()
        assert orders.owners() == {"A": [0, 1], "B": [2, 3]}

    def test_a_pin_that_is_taken_back_in_the_holddown_moves_nothing(self) -> None:
        orders = twelve()
        orders.pin(4, "c-A")
        orders.unpin(4)
        assert (orders.status, orders.on_their_way()) == ("Ready", {})

    def test_a_pin_again_is_nothing_new(self) -> None:
        orders = twelve()
        orders.pin(0, "c-A", "why")
        assert not orders.pin(0, "c-A", "why").entries
        orders.advance(1)
        orders.pin(0, "c-A", "because")
        assert orders.queue.pins.of[0] == Pin("c-A", 0.0, "because")
        orders.pin(0, "c-B")
        assert orders.queue.pins.of[0] == Pin("c-B", 1.0)
        assert not orders.unpin(5).entries

    def test_without_a_pin_in_force_no_share_is_computed(self) -> None:
        orders = twelve()
        orders.pin(4, "nobody")
        assert not isinstance(orders.queue.ranking, WeightedRanking)
        orders.pin(4, "c-B")
        assert isinstance(orders.queue.ranking, WeightedRanking)
        orders.unbind("B")
        assert not isinstance(orders.queue.ranking, WeightedRanking)
        assert unmet(orders.queue) == [4]

    @PROFILE
    @given(
        st.integers(0, 30),
        st.lists(
            st.tuples(st.integers(1, 9), st.none() | st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=6,
        ),
    )
    def test_shares_are_those_of_another_way_to_compute_them(
        self, more: int, asks: list[tuple[int, int | None, int]]
    ) -> None:
        asks = [(w, None if most is None else most + least, least) for w, most, least in asks]
        total = more + sum(least for _, _, least in asks)
        found = share_out(total, {at: Demand(*ask) for at, ask in enumerate(asks)})
        expected = balance.shares(total, {str(at): balance.Ask(*a) for at, a in enumerate(asks)})
        for at in range(len(asks)):
            share = expected[str(at)]
            assert found.floors[at] == share // 1
            assert (at in found.whole) == (share == Fraction(share // 1))
        assert found.taken == sum(expected.values())


class TestHome:
    """A pin is in force while a flow of its name takes part."""

    def test_it_waits_for_its_consumer(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.pin(3, "c-C")
        assert (orders.status, unmet(orders.queue)) == ("Ready", [3])
        orders.bind("C")
        assert (orders.trigger, unmet(orders.queue)) == ("bind", [])
        orders.settle()
        assert orders.owners() == {"A": [0, 1], "B": [2], "C": [3]}

    def test_a_standby_with_a_pin_is_none(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.pin(0, "c-C")
        orders.bind("C")
        orders.settle()
        assert orders.owners() == {"A": [], "B": [1], "C": [0]}

    def test_it_is_balanced_when_its_consumer_is_gone_and_goes_back_to_it(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.pin(0, "c-A")
        orders.unbind("A")
        orders.settle()
        assert orders.owners() == {"B": [0, 1, 2, 3]}
        orders.bind("A3", client_name="c-A")
        orders.settle()
        assert 0 in orders.owned("A3")

    def test_an_unassigned_partition_is_granted_to_its_home(self) -> None:
        orders = World(4)
        orders.pin(0, "c-B")
        orders.bind("A")
        orders.bind("B")
        orders.advance(5)
        assert orders.owners() == {"A": [1, 2], "B": [0, 3]}

    def test_the_earliest_bound_of_one_name_is_meant(self) -> None:
        orders = World(4, rebalance_delay=0)
        orders.bind("A")
        for name in ("B", "C"):
            orders.bind(name, client_name="etl")
        orders.settle()
        orders.pin(0, "etl")
        orders.settle()
        assert 0 in orders.owned("B")
        orders.drain("B")
        orders.settle()
        assert 0 in orders.owned("C")

    def test_a_drain_of_the_home_lets_others_have_it(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.pin(0, "c-A")
        orders.drain("A")
        orders.settle()
        assert orders.owners() == {"A": [], "B": [0, 1, 2, 3]}

    def test_what_is_pinned_elsewhere_leaves_a_pair_for_its_home(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, max_warmup_time=0.0)
        orders.pin(3, "c-A")
        orders.bind("C")
        orders.drain("B")
        assert orders.on_their_way() == {2: ("revoking", "C"), 3: ("revoking", "A")}
        orders.settle()
        assert 3 in orders.owned("A")


class TestWhichRuleWins:
    """Every rule that meets a pin."""

    def test_a_maximum(self) -> None:
        orders = World(6, rebalance_delay=0)
        orders.bind("A", max_partitions=2)
        orders.bind("B")
        orders.settle()
        for number in (1, 3, 5):
            orders.pin(number, "c-A")
        orders.settle()
        assert orders.owners() == {"A": [1, 3], "B": [0, 2, 4, 5]}
        assert unmet(orders.queue) == [5]

    def test_no_pin_is_in_force_where_all_have_their_maximum(self) -> None:
        orders = World(6, rebalance_delay=0)
        orders.bind("A", max_partitions=2)
        orders.bind("B", max_partitions=2)
        orders.settle()
        orders.pin(5, "c-A")
        assert (orders.status, unmet(orders.queue)) == ("Ready", [5])
        orders.bind("C")
        orders.settle()
        assert 5 in orders.owned("A")
        assert len(orders.owned("A")) == 2

    def test_an_exclusive_queue(self) -> None:
        orders = World.owning({"A": [0, 1], "B": []}, access_type="exclusive", rebalance_delay=0)
        orders.pin(0, "c-B")
        assert (orders.owners(), unmet(orders.queue)) == ({"A": [0, 1], "B": []}, [])
        orders.change(access_type="non_exclusive")
        orders.settle()
        assert orders.owners() == {"A": [1], "B": [0]}

    def test_aligned_partitions_are_pinned_as_a_group(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, aligned=2, rebalance_delay=0)
        orders.pin(3, "c-A")
        orders.pin(1, "c-B")
        orders.settle()
        assert orders.owners() == {"A": [2, 3], "B": [0, 1]}
        orders.unpin(2)
        assert [*orders.queue.pins.of] == [0]

    def test_a_warm_up_goes_to_the_home_or_is_called_off(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B", warmup=True)
        orders.bind("C", warmup=True)
        on_their_way = orders.on_their_way()
        assert on_their_way[3] == ("warming", "B")
        orders.pin(3, "c-C")
        assert orders.successor(3) == "C"
        orders.pin(3, "c-A")
        assert 3 not in orders.on_their_way()
        orders.settle()
        assert 3 in orders.owned("A")

    def test_an_heir_of_another_name_is_no_reason_to_hand_over(self) -> None:
        """The home comes back as another consumer, so nothing has to move."""
        orders = World.owning({"A": [0], "B": []}, warmup=True, rebalance_delay=0)
        orders.pin(0, "c-B")
        assert orders.on_their_way() == {0: ("warming", "B")}
        orders.bind("B2", "i-B", client_name="other")
        assert orders.on_their_way() == {}

    def test_a_revoke_ends_at_its_successor_before_the_partition_goes_home(self) -> None:
        orders = World.owning({"A": [0, 1], "B": []}, rebalance_delay=0)
        orders.rebalance_now()
        assert orders.on_their_way() == {1: ("revoking", "B")}
        orders.pin(1, "c-A")
        assert orders.successor(1) == "B"
        orders.settle()
        assert (orders.owner(1), orders.epoch(1)) == ("A", 3)

    def test_a_partition_that_retires_is_pinned_again_when_it_is_taken_back(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.resize(3)
        orders.settle()
        orders.pin(3, "c-A")
        orders.settle()
        assert orders.owner(3) == "B"
        assert unmet(orders.queue) == []
        orders.resize(4)
        orders.settle()
        assert orders.owner(3) == "A"

    def test_a_pin_ends_with_its_partition(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.pin(3, "c-B")
        orders.resize(3, discard=True)
        assert not orders.queue.pins.of
        with pytest.raises(Invalid, match="does not exist"):
            orders.pin(3, "c-B")

    @pytest.mark.parametrize("order", ["ab", "ba"])
    def test_children_inherit_the_latest_pin(self, order: str) -> None:
        orders = World.dynamic("a", "b", rebalance_delay=0)
        orders.bind("A")
        orders.bind("B")
        orders.settle()
        orders.pin(0, "c-B")
        orders.advance(1)
        orders.pin(1, "c-A")
        orders.settle()
        child = c.NewChild("ab", ("a", "b"))
        owners = {"a": "B", "b": "A"}
        for key in order:
            assert orders.report(owners[key], key, child, finished=True) == "ok"
        assert [pin.client_name for pin in orders.queue.pins.of.values()] == ["c-A"]
        assert orders.keys("A") == ["ab"]

    def test_a_flow_that_is_held_back_has_no_pins_and_is_asked_for_them(self) -> None:
        quota = c.Quota(1000, 0, 3)
        orders = World.owning({"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}, rebalance_delay=0)
        orders.bind("C", key_id="k", quota=quota)
        orders.settle()
        for number in range(4):
            orders.pin(number, "pinned")
        orders.unbind("C")
        orders.settle()
        orders.bind("D", key_id="k", quota=quota, client_name="pinned")
        [held] = orders.queue.flows.held.values()
        assert held.held_until is not None
        # It would take 4, of 3 in an hour, after 2 that are taken. Without pins it would take 3.
        assert held.held_until == pytest.approx(3600 * (2 + 4 - 3) / 3)
        assert unmet(orders.queue) == [0, 1, 2, 3]

    def test_a_new_name_with_pins_claims_more(self) -> None:
        quota = c.Quota(1000, 0, 2)
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B", key_id="k", quota=quota)
        orders.settle()
        orders.pin(0, "pinned")
        orders.bind("B2", "i-B", key_id="k", quota=quota, client_name="pinned")
        assert orders.queue.flows.held.keys() == {"B2"}
