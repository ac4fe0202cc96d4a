"""A warm-up that is ready between the slices of a change: whether its handoff is needed is known
only with the last slice, and a revoke is never taken back (the contract, *The rebalance loop*).
"""

from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from tests.broker.core.world import World


def in_slices_of_one(orders: World) -> None:
    orders.most, orders.oracle.sliced = 1, True


def warming(**settings: Any) -> World:
    """Partition 2 is on its way from A, which has three, to B, which has one; slices of one."""
    orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0.0, **settings)
    orders.bind("B", warmup=True)
    assert orders.on_their_way() == {2: ("warming", "B"), 3: ("warming", "B")}
    orders.ready("B", 3)
    orders.release("A", 3)
    in_slices_of_one(orders)
    return orders


def test_a_handoff_that_the_rest_makes_needless_does_not_begin() -> None:
    orders = warming()
    assert orders.resize(6).unfinished
    assert orders.ready("B", 2) == ["ok"]
    assert orders.state(2) == "warming"
    orders.advance()
    assert orders.status == "Ready"
    assert orders.owners() == {"A": [0, 1, 2], "B": [3, 4, 5]}
    assert orders.epoch(2) == 1


def test_a_handoff_that_is_needed_begins_with_the_last_slice() -> None:
    orders = warming(max_warmup_time=600.0)
    assert orders.resize(5).unfinished
    orders.resize(4)
    assert orders.ready("B", 2) == ["ok"]
    assert orders.ready("B", 2) == ["ok"], "repeated"
    orders.advance()
    assert orders.on_their_way() == {2: ("revoking", "B")}
    assert orders.ready("B", 2) == ["ok"], "repeated afterwards"
    assert orders.release("A", 2) == ["ok"]
    assert orders.handed_over(2) == "graceful"


def test_many_that_are_ready_begin_in_slices() -> None:
    orders = World.owning({"A": list(range(8))}, rebalance_delay=0.0)
    orders.bind("B", warmup=True)
    in_slices_of_one(orders)
    assert orders.resize(9).unfinished
    assert orders.ready("B", 4, 5, 6, 7) == ["ok"] * 4
    while orders.queue.unfinished_at is not None:
        ended = [one for one in orders.do(c.Resume()).records if isinstance(one, r.WarmupsEnded)]
        assert sum(len(one.partitions) for one in ended) <= 1
    assert orders.on_their_way() == dict.fromkeys((5, 6, 7), ("revoking", "B"))
    assert orders.state(4) == "owned"
    assert orders.owner(8) == "B"


def test_ready_counts_for_the_successor_that_said_so() -> None:
    """Another successor warms up anew; so does the first one if the partition comes back to it."""
    orders = warming()
    orders.resize(5)
    orders.ready("B", 2)
    orders.bind("B2", "i-B", warmup=True)
    orders.resize(4)
    orders.advance()
    assert orders.on_their_way() == {2: ("warming", "B2")}
    assert orders.ready("B2", 2) == ["ok"]
    assert orders.state(2) == "revoking"


@pytest.mark.parametrize("count", [4, 6])
def test_a_successor_that_takes_the_partition_as_it_is_waits_too(count: int) -> None:
    """It replaces one that warms up, and is ready at once."""
    orders = warming()
    orders.resize(5)
    orders.resize(count)
    orders.bind("B2", "i-B", warmup=False)
    assert orders.state(2) == "warming"
    orders.advance()
    assert orders.state(2) == ("revoking" if count == 4 else "owned")
