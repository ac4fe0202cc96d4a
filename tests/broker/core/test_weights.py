"""Weights and maxima (docs, *Placement*): shares, what nobody may take, and which rule wins."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core.errors import Invalid
from broker.core.shares import Demand, WeightedRanking, share_out
from tests.broker.core.test_sequences import PROFILE
from tests.broker.core.world import World
from tests.judge import balance


def counts(world: World) -> dict[str, int]:
    return {name: len(numbers) for name, numbers in world.owners().items()}


def one_and_eight() -> World:
    """Nine partitions: A has one of them, and B, of weight 8, the others."""
    orders = World(9)
    orders.bind("A", weight=1)
    orders.bind("B", weight=8)
    orders.advance(5)
    return orders


class TestShares:
    """Each flow has the floor or the ceiling of its share."""

    def test_partitions_are_shared_by_weight(self) -> None:
        orders = World(12)
        for name, weight in (("A", 1), ("B", 2), ("C", 3)):
            orders.bind(name, weight=weight)
        orders.advance(5)
        assert counts(orders) == {"A": 2, "B": 4, "C": 6}

    def test_what_a_flow_with_a_maximum_cannot_take_is_shared_by_the_others(self) -> None:
        orders = World(12)
        orders.bind("A", weight=1)
        orders.bind("B", weight=2)
        orders.bind("C", weight=4, max_partitions=3)
        orders.advance(5)
        assert counts(orders) == {"A": 3, "B": 6, "C": 3}

    def test_a_join_moves_its_share_and_nothing_else(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]})
        orders.bind("C", weight=2)
        orders.advance(5)
        assert len(orders.on_their_way()) == 4
        orders.settle()
        assert counts(orders) == {"A": 2, "B": 2, "C": 4}

    def test_equal_weights_decide_as_none(self) -> None:
        decisions = []
        for weight in (1, 7):
            orders = World(7)
            for name in ("A", "B", "C"):
                orders.bind(name, weight=weight)
            orders.advance(5)
            orders.bind("D", weight=weight)
            orders.drain("A")
            orders.settle()
            decisions.append(orders.owners())
        assert decisions[0] == decisions[1]

    def test_without_weights_no_share_is_computed(self) -> None:
        orders = World(7)
        orders.bind("A")
        orders.bind("B", weight=2)
        assert isinstance(orders.queue.ranking, WeightedRanking)
        orders.unbind("B")
        assert not isinstance(orders.queue.ranking, WeightedRanking)

    @PROFILE
    @given(
        st.integers(0, 40),
        st.lists(
            st.tuples(st.integers(1, 9), st.none() | st.integers(1, 9)), min_size=1, max_size=6
        ),
    )
    def test_they_are_those_of_another_way_to_compute_them(
        self, total: int, asks: list[tuple[int, int | None]]
    ) -> None:
        found = share_out(total, {at: Demand(*ask) for at, ask in enumerate(asks)})
        expected = balance.shares(total, {str(at): balance.Ask(*a) for at, a in enumerate(asks)})
        for at in range(len(asks)):
            share = expected[str(at)]
            assert found.floors[at] == share // 1
            assert (at in found.whole) == (share == Fraction(share // 1))
        assert found.taken == sum(expected.values())


class TestCapacity:
    """What no flow may take has no owner, and no flow gets more than its maximum."""

    def test_it_stays_unassigned_and_is_counted(self) -> None:
        orders = World(6)
        orders.bind("A", max_partitions=2)
        orders.bind("B", max_partitions=1)
        orders.advance(5)
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "B": [2]}
        assert orders.unassigned() == [3, 4, 5]
        assert orders.queue.over_capacity == 3

    def test_a_flow_that_comes_gets_it(self) -> None:
        orders = World(6)
        orders.bind("A", max_partitions=2)
        orders.advance(5)
        orders.bind("B")
        orders.advance(5)
        assert orders.owners() == {"A": [0, 1], "B": [2, 3, 4, 5]}
        assert orders.queue.over_capacity == 0

    def test_a_flow_that_drains_keeps_what_nobody_may_take_over(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B", max_partitions=1)
        orders.settle()
        orders.drain("A")
        orders.settle()
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0], "B": [1]}
        assert orders.release("A", 0) == ["ok"]
        orders.unbind("A")
        assert orders.unassigned() == [0]
        orders.unbind("B")
        orders.bind("C")
        orders.settle()
        assert orders.owners() == {"C": [0, 1]}

    def test_an_instance_that_comes_back_with_less_room_gets_the_lowest_numbers(self) -> None:
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4]})
        orders.bind("A2", "i-A", max_partitions=1)
        assert orders.owners() == {"A2": [0], "B": [3, 4]}
        assert orders.unassigned() == [1, 2]
        orders.settle()
        assert orders.owners() == {"A2": [0], "B": [1, 2, 3, 4]}

    def test_a_revoke_that_ends_without_a_successor_does_not_exceed_the_owners_maximum(
        self,
    ) -> None:
        """0 is on its way from A to C. B and C leave, so A gets what B had and has its maximum when
        the revoke of 0 ends."""
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("A2", "i-A", max_partitions=2)
        orders.settle()
        assert counts(orders) == {"A2": 2}
        orders.bind("B", max_partitions=3)
        orders.settle()
        orders.bind("C", weight=1000)
        assert orders.on_their_way()
        orders.unbind("B")
        orders.unbind("C")
        orders.settle()
        assert counts(orders) == {"A2": 2}
        assert orders.queue.over_capacity == 2

    def test_a_partition_that_ends_makes_room_at_once(self) -> None:
        orders = World.dynamic("a", "b", "c")
        orders.bind("A", max_partitions=2)
        orders.settle()
        assert orders.unassigned() == [2]
        orders.release("A", 0, finished=True)
        assert orders.owned("A") == [1, 2]
        assert orders.status == "Ready"

    def test_held_back_flows_join_when_all_others_have_their_maximum(self) -> None:
        quota = c.Quota(1000, 0, 1)
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B", key_id="k", quota=quota)
        orders.settle()
        orders.bind("C", key_id="k", quota=quota)
        assert orders.queue.flows.held
        orders.bind("A2", "i-A", max_partitions=1)
        orders.unbind("B")
        assert not orders.queue.flows.held
        orders.settle()
        assert counts(orders) == {"A2": 1, "C": 3}

    @pytest.mark.parametrize("comes_back", [False, True])
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"weight": 1}, {"weight": 1000}),
            ({"max_partitions": 1}, {}),
            ({"max_partitions": 1}, {"max_partitions": 3}),
        ],
    )
    def test_an_instance_that_claims_more_each_time_is_held_back(
        self, before: dict[str, int], after: dict[str, int], comes_back: bool
    ) -> None:
        """Else a key could take partitions by binds alone, as often as it likes."""
        quota = c.Quota(1000, 1, 1)
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=10 if comes_back else 0)
        bound, turns = "A", 0
        while not orders.queue.flows.held:
            turns += 1
            assert turns < 9
            if comes_back and turns > 1:
                orders.unbind(bound)
            bound = f"B{turns}"
            claim: dict[str, Any] = after if turns % 2 == 0 else before
            orders.bind(bound, "i-B", key_id="k", quota=quota, **claim)
            if not orders.queue.flows.held:
                orders.settle()
        assert turns % 2 == 0, "it is not held back when it claims less"
        assert not orders.owned(bound)


class TestTriggers:
    """By weight, more flows than partitions may still be unbalanced."""

    def test_a_flow_beyond_the_number_of_partitions_with_a_large_weight_is_a_trigger(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.bind("C", weight=1000)
        assert orders.status == "Holddown"
        orders.settle()
        assert len(orders.owned("C")) >= 1

    @pytest.mark.parametrize("roots", [(), tuple("abcdef")], ids=["fixed", "dynamic"])
    def test_the_end_of_a_flow_without_partitions_is_one_if_shares_change(
        self, roots: tuple[str, ...]
    ) -> None:
        """Shares of 0.9, 2.6, 1.25 and 1.25 become 3.06, 1.47 and 1.47."""
        orders = World.dynamic(*roots) if roots else World(6)
        for name, weight in (("C", 25), ("D", 25), ("B", 52), ("A", 18)):
            orders.bind(name, weight=weight)
        orders.advance(5)
        assert counts(orders) == {"C": 2, "D": 2, "B": 2, "A": 0}
        orders.unbind("A")
        assert orders.status == "Holddown"
        orders.settle()
        assert counts(orders)["B"] == 3

    def test_a_pair_has_the_same_weight(self) -> None:
        orders = one_and_eight()
        orders.bind("C", weight=8)
        orders.drain("B")
        assert {to for _, to in orders.on_their_way().values()} == {"C"}
        assert len(orders.on_their_way()) == 8

    def test_others_are_balanced_without_pairs(self) -> None:
        orders = one_and_eight()
        orders.bind("C", weight=2)
        orders.drain("B")
        assert orders.status == "Holddown"
        orders.settle()
        assert counts(orders) == {"A": 3, "B": 0, "C": 6}

    def test_one_that_is_replaced_with_another_weight_counted_before(self) -> None:
        """So who leaves now and comes back finds its own (rule 7)."""
        orders = World(12)
        for name in "ABC":
            orders.bind(name)
        orders.advance(5)
        orders.bind("A2", "i-A", weight=4)
        assert (orders.status, orders.trigger) == ("Holddown", "replaced")
        own = orders.owned("B")
        orders.expire("B")
        assert orders.unassigned() == own
        orders.bind("B2", "i-B")
        assert orders.owned("B2") == own

    def test_one_with_another_weight_is_a_trigger_in_a_dynamic_queue_too(self) -> None:
        orders = World.dynamic(*"abcd", rebalance_delay=5.0)
        orders.bind("A")
        orders.bind("B")
        orders.advance(5)
        orders.bind("A2", "i-A", weight=3)
        assert (orders.status, orders.trigger) == ("Holddown", "replaced")
        orders.settle()
        assert counts(orders) == {"A2": 3, "B": 1}


class TestRefusals:
    def test_a_weight_above_that_of_the_queue(self) -> None:
        orders = World(4, max_weight=3)
        with pytest.raises(Invalid, match="no weight above 3"):
            orders.bind("A", weight=4)
        orders.bind("A", weight=3)
        orders.change(max_weight=1)
        assert orders.queue.flows["A"].weight == 3

    def test_together_with_others_only_the_one_is_refused(self) -> None:
        orders = World(4, max_weight=3, checked=False)
        binds = [c.Bind(f"f{w}", f"i{w}", "c", 10.0, weight=w) for w in (3, 4)]
        first, second = orders.do(c.BindTogether(tuple(binds))).answer
        assert first is None
        assert isinstance(second, Invalid)

    def test_what_one_that_is_refused_asked_for_does_not_count(self) -> None:
        orders = World(4, max_weight=3, checked=False)
        refused = c.Bind("f1", "i1", "c", 10.0, weight=4, at_once=True)
        orders.do(c.BindTogether((refused, c.Bind("f2", "i2", "c", 10.0))))
        assert (orders.status, orders.trigger) == ("Holddown", "bind")

    def test_a_maximum_in_an_exclusive_queue(self) -> None:
        orders = World(4, access_type="exclusive")
        with pytest.raises(Invalid, match="without max_partitions"):
            orders.bind("A", max_partitions=2)

    def test_exclusive_access_while_a_flow_has_a_maximum(self) -> None:
        orders = World(4)
        orders.bind("A", max_partitions=2)
        with pytest.raises(Invalid, match="max_partitions first"):
            orders.change(access_type="exclusive")

    def test_a_maximum_in_which_no_group_fits(self) -> None:
        orders = World(6, aligned=3)
        with pytest.raises(Invalid, match="groups of 3"):
            orders.bind("A", max_partitions=2)
        orders.bind("A", max_partitions=5)
        orders.settle()
        assert orders.owned("A") == [0, 1, 2]
