"""*Balance*: which flow gets which partition, which handoffs are made, and that they are the
fewest.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.broker.core.test_sequences import PROFILE
from tests.broker.core.world import World
from tests.judge.balance import fewest_handoffs


class TestDeterminism:
    """Unassigned: lowest number first, to the flow with the fewest, ties to the earliest bound."""

    def test_unassigned_partitions_go_round_in_the_order_of_binding(self) -> None:
        orders = World(7)
        for name in ("A", "B", "C"):
            orders.bind(name)
        orders.advance(5)
        assert orders.owners() == {"A": [0, 3, 6], "B": [1, 4], "C": [2, 5]}

    def test_unassigned_partitions_go_first_to_flows_with_the_fewest(self) -> None:
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4, 5]})
        orders.bind("C")
        orders.bind("D")
        orders.unbind("B")
        orders.advance(5)
        assert orders.owners() == {"A": [0, 1, 2], "C": [3, 5], "D": [4]}
        assert orders.on_their_way() == {2: ("revoking", "D")}

    def test_the_highest_numbers_of_the_flow_with_the_most_are_handed_off(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3], "B": [4, 5, 6]}, rebalance_delay=0)
        orders.bind("C")
        assert orders.on_their_way() == {3: ("revoking", "C"), 2: ("revoking", "C")}

    def test_of_flows_with_the_most_the_earliest_bound_gives(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.bind("C")
        assert orders.on_their_way() == {1: ("revoking", "C")}

    def test_of_flows_with_the_fewest_the_earliest_bound_gets(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]})
        orders.bind("B")
        orders.bind("C")
        orders.advance(5)
        assert orders.on_their_way() == {3: ("revoking", "B"), 2: ("revoking", "C")}

    def test_draining_flows_give_first(self) -> None:
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4]}, max_concurrent_handoffs=1)
        orders.drain("B")
        orders.bind("C")
        orders.advance(5)
        assert orders.on_their_way() == {4: ("revoking", "C")}

    def test_partitions_on_their_way_count_for_their_successors(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B")
        orders.resize(5)
        assert orders.on_their_way() == {2: ("revoking", "B"), 3: ("revoking", "B")}
        assert orders.owner(4) == "A"

    def test_a_flow_gives_partitions_on_after_it_got_them(self) -> None:
        """B is to get 2 and 3 when C joins, so B's share is too large before B owns anything."""
        orders = World.owning({"A": [0, 1, 2, 3, 4, 5, 6, 7]}, rebalance_delay=0)
        orders.bind("B")
        assert set(orders.on_their_way()) == {4, 5, 6, 7}
        orders.bind("C")
        assert orders.on_their_way()[3] == ("revoking", "C")
        assert len(orders.on_their_way()) == 5
        orders.release("A", 4)
        assert orders.on_their_way()[4] == ("revoking", "C")
        orders.settle()
        assert orders.owners() == {"A": [0, 1, 2], "B": [5, 6, 7], "C": [3, 4]}


class TestAlone:
    """With no non-draining flow every queue is balanced."""

    def test_draining_flows_keep_what_they_own(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.drain("A")
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1]

    def test_unassigned_partitions_stay_unassigned(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.drain("A")
        orders.settle()
        orders.drain("B")
        orders.unbind("B")
        assert orders.status == "Ready"
        assert orders.unassigned() == [0, 1, 2, 3]


@PROFILE
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    st.integers(0, 2),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)
def test_no_rebalance_makes_more_handoffs_than_the_best_of_all_ways(
    counts: list[int], joining: int, draining: int, exclusive: bool, most: int | None
) -> None:
    """From any assignment, however unbalanced, to balance; over the pairs that began before."""
    numbers = iter(range(sum(counts)))
    owned = {f"f{place}": [next(numbers) for _ in range(c)] for place, c in enumerate(counts)}
    orders = World.owning(owned, checked=False, max_concurrent_handoffs=most)
    for place in range(joining):
        orders.bind(f"j{place}")
    if draining < len(counts):
        orders.drain(f"f{draining}")
    flows = orders.queue.flows.values()
    takers = {flow.id: flow.load for flow in flows if not flow.draining}
    # All that drains moves, also with a pair. What a pair has is counted for the flow that comes.
    leaving = sum(len(flow.owned) for flow in flows if flow.draining)
    if exclusive:
        orders.change(access_type="exclusive")
    else:
        orders.rebalance_now()
    first = next((name for name in orders.owners() if name in takers), None)
    needed = fewest_handoffs(takers, sum(counts), only=first if exclusive else None)
    orders.settle()
    entry = orders.queue.last_rebalance
    assert entry is not None
    assert entry.handoffs == (needed + leaving if takers else 0)
    assert entry.granted == 0
