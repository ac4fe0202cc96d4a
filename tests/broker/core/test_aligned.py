"""Aligned partitions: a group has one owner, moves as one and is handed over as one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core import records as r
from tests.broker.core.test_sequences import PROFILE, SETTINGS, STEPS, Player
from tests.broker.core.world import World


def pairs(partitions: int = 8, **settings: Any) -> World:
    return World(partitions, aligned=2, **settings)


def two_flows(**settings: Any) -> World:
    """A has all four pairs, and B has just been bound; the two highest are on their way to B."""
    world = pairs(rebalance_delay=0.0, **settings)
    world.bind("A")
    world.bind("B")
    return world


def test_flows_share_groups_evenly_and_own_whole_ones() -> None:
    world = pairs(6)
    world.bind("A")
    world.bind("B")
    world.advance(5)
    assert world.owners() == {"A": [0, 1, 4, 5], "B": [2, 3]}


def test_more_flows_than_groups_leave_standbys() -> None:
    world = pairs(4)
    for name in "ABC":
        world.bind(name)
    world.advance(5)
    assert world.owners() == {"A": [0, 1], "B": [2, 3], "C": []}
    assert world.status == "Ready"


def test_a_group_is_revoked_at_once_and_counts_as_one_handoff() -> None:
    world = two_flows(max_concurrent_handoffs=1)
    assert world.on_their_way() == {6: ("revoking", "B"), 7: ("revoking", "B")}
    assert world.deadline(6) == world.deadline(7)


def test_nothing_of_a_group_is_granted_before_all_of_it_is_released() -> None:
    world = two_flows()
    assert world.release("A", 7) == ["ok"]
    assert world.owner(6) == world.owner(7) == "A"
    revision = world.queue.revision
    assert world.release("A", 7) == ["ok"], "repeated"
    assert world.queue.revision == revision, "which changes nothing"
    assert world.release("A", 6) == ["ok"]
    assert world.owned("B") == [6, 7]
    assert world.handed_over(6) == world.handed_over(7) == "graceful"
    assert world.release("A", 7, epoch=1) == ["ok"], "repeated after the grant"


def test_one_call_may_release_the_whole_group() -> None:
    world = two_flows()
    assert world.release("A", 4, 5, 6, 7) == ["ok"] * 4
    assert world.owned("B") == [4, 5, 6, 7]
    assert world.status == "Ready"


def test_at_the_deadline_all_of_a_group_is_taken() -> None:
    world = two_flows()
    world.release("A", 7)
    world.advance(3)
    assert world.owned("B") == [4, 5, 6, 7]
    assert world.handed_over(6) == world.handed_over(7) == "forced"


def test_a_group_waits_until_its_successor_is_ready_for_all_of_it() -> None:
    world = pairs(4, rebalance_delay=0.0)
    world.bind("A")
    world.bind("B", warmup=True)
    assert world.on_their_way() == {2: ("warming", "B"), 3: ("warming", "B")}
    assert world.ready("B", 3) == ["ok"]
    assert world.state(2) == world.state(3) == "warming"
    assert world.ready("B", 3) == ["ok"], "repeated"
    assert world.ready("B", 2) == ["ok"]
    assert world.state(2) == world.state(3) == "revoking"


def test_a_partition_whose_position_was_set_warms_up_anew_before_its_group_moves() -> None:
    world = pairs(4, rebalance_delay=0.0)
    world.bind("A")
    world.bind("B", warmup=True)
    world.ready("B", 3)
    world.raise_epochs(3)
    world.ready("B", 2)
    assert world.state(2) == "warming"
    world.ready("B", 3)
    assert world.state(2) == world.state(3) == "revoking"


def test_a_partition_that_was_released_is_read_again_if_its_position_is_set() -> None:
    world = two_flows()
    world.release("A", 7)
    world.raise_epochs(7)
    world.release("A", 6)
    assert world.owner(6) == "A", "7 goes on under another epoch"
    world.release("A", 7)
    assert world.owned("B") == [6, 7]


def test_a_warm_up_goes_on_if_positions_are_set_and_its_owner_is_replaced() -> None:
    """Also if only some of the group are set: all of it is in one state."""
    world = pairs(4, rebalance_delay=0.0)
    world.bind("A")
    world.settle()
    world.bind("B", warmup=True)
    assert world.on_their_way() == {2: ("warming", "B"), 3: ("warming", "B")}
    world.raise_epochs(2)
    world.bind("A2", "i-A")
    assert world.owned("A2") == [*range(4)]
    assert world.on_their_way() == {2: ("warming", "B"), 3: ("warming", "B")}
    assert (world.handed_over(2), world.handed_over(3)) == ("replaced", "replaced")


def test_the_last_flow_drains_group_by_group() -> None:
    world = pairs(4)
    world.bind("A")
    world.advance(5)
    world.drain("A")
    world.release("A", 0)
    assert world.unassigned() == []
    world.release("A", 1)
    assert world.unassigned() == [0, 1]
    world.release("A", 2, 3)
    world.unbind("A")
    world.bind("B")
    world.advance(5)
    assert world.handed_over(0) == world.handed_over(3) == "graceful"


def test_an_owner_that_dies_leaves_the_whole_group_to_the_successor() -> None:
    world = two_flows()
    world.release("A", 7)
    world.expire("A")
    assert world.owned("B") == [*range(8)]
    assert world.handed_over(7) == "orphaned"


def test_a_retiring_group_is_removed_when_all_of_it_is_finished() -> None:
    world = pairs(4)
    world.bind("A")
    world.advance(5)
    world.resize(2)
    assert world.release("A", 2, finished=True) == ["ok"]
    assert world.queue.operational_partition_count == 4
    world.release("A", 3, finished=True)
    assert world.queue.operational_partition_count == 2


def test_what_was_finished_counts_for_nothing_once_the_group_is_taken_back() -> None:
    world = pairs(4)
    world.bind("A")
    world.advance(5)
    world.resize(2)
    world.release("A", 2, finished=True)
    world.resize(4)
    assert (world.epoch(2), world.epoch(3)) == (2, 1)
    assert world.handed_over(2) == "replaced"
    world.resize(2)
    assert world.release("A", 2, epoch=1, finished=True) == ["stale_epoch"]


def test_a_draining_owner_leaves_what_it_has_not_finished_to_the_next() -> None:
    world = pairs(4)
    world.bind("A")
    world.advance(5)
    world.resize(2)
    world.drain("A")
    world.release("A", 2)
    world.release("A", 3, finished=True)
    assert world.unassigned() == [2, 3]


def test_a_budget_counts_partitions_and_shares_are_whole_groups() -> None:
    moves = [record for record in two_flows().records if isinstance(record, r.RevokesStarted)]
    assert [len(record.moves) for record in moves] == [4]


def test_a_flow_is_held_back_for_the_partitions_of_its_share_of_groups() -> None:
    """Of four groups a third flow takes one, and has room for two, four partitions."""
    world = pairs(8)
    quota = c.Quota(flows=1000, moves=1, least_moves=1)
    for name in "AB":
        world.bind(name, key_id="honest", quota=quota)
    world.settle()
    for name in ("X0", "X1", "X2"):
        world.bind(name, key_id="greedy", quota=quota)
        assert not world.queue.flows.held
        world.settle()
        world.unbind(name)
        world.settle()
    assert round(world.queue.moved["greedy"].level) == 6
    world.bind("X3", key_id="greedy", quota=quota)
    assert list(world.queue.flows.held) == ["X3"]


def _in_pairs(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """Resizes keep groups whole."""
    if step[0] == "resize":
        return (step[0], 2 * step[1], step[2])
    if step[0] == "change" and "partition_count" in step[1]:
        return (step[0], {**step[1], "partition_count": 2 * step[1]["partition_count"]})
    return step


@PROFILE
@given(
    st.integers(1, 5),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=4),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_any_sequence_keeps_groups_whole_and_ends_balanced(
    groups: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    """The oracle compares the partitions of each group after every decision."""
    world = World(2 * groups, aligned=2, **chosen)
    player = Player(world)
    for warmup in bound:
        player.play(("bind", warmup))
    world.settle()
    for step in steps:
        player.play(_in_pairs(step))
    world.settle()
    assert world.status == "Ready"
