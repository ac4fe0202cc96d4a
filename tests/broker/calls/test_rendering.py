"""The views of a queue for flows and administrators, in the contract's words."""

from broker.calls.flow_views import needed_positions, partitions_in_view
from broker.calls.rendering import partition_view, status_view
from broker.calls.times import time_of
from broker.core.queue import Queue
from broker.store.ports import Stored
from tests.broker.core.world import World


def told(queue: Queue, flow_id: str) -> dict[int, str]:
    """The state of each partition in the flow's view."""
    flow = queue.flows[flow_id]
    positions = {number: Stored(one.epoch, None) for number, one in queue.partitions.items()}
    found = partitions_in_view(queue, flow, needed_positions(flow), positions)
    assert found is not None
    return {seen.partition: seen.state for seen in found}


def listed(queue: Queue) -> dict[int, str]:
    """The state of each partition that exists in the administrators' list."""
    return {p.number: partition_view(queue, p, {}).state for p in queue.existing()}


def test_a_retiring_partition_is_told_as_retiring_until_it_is_revoked() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
    orders.resize(3)
    assert told(orders.queue, "B") == {2: "owned", 3: "retiring"}
    assert listed(orders.queue) == {0: "owned", 1: "owned", 2: "owned", 3: "retiring"}
    orders.drain("B")
    assert told(orders.queue, "B") == {2: "revoking", 3: "revoking"}
    assert listed(orders.queue) == {0: "owned", 1: "owned", 2: "revoking", 3: "revoking"}


def test_a_successor_that_warms_up_sees_it_until_it_owns_it() -> None:
    orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
    orders.bind("B", warmup=True)
    assert (told(orders.queue, "A"), told(orders.queue, "B")) == (
        {0: "owned", 1: "owned"},
        {1: "warming"},
    )
    assert listed(orders.queue) == {0: "owned", 1: "warming"}
    orders.ready("B", 1)
    assert (told(orders.queue, "A"), told(orders.queue, "B")) == (
        {0: "owned", 1: "revoking"},
        {1: "warming"},
    )
    orders.release("A", 1)
    assert (told(orders.queue, "A"), told(orders.queue, "B")) == ({0: "owned"}, {1: "owned"})


def test_a_successor_without_warm_up_first_sees_the_partition_as_owner() -> None:
    orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
    orders.bind("B")
    assert told(orders.queue, "B") == {}


def test_the_spread_is_without_retiring_partitions_and_draining_flows() -> None:
    orders = World.owning({"A": [0, 2], "B": [1, 3]})
    orders.resize(3)
    assert (orders.status, status_view(orders.queue).spread) == ("Ready", 1)
    orders.resize(2)
    assert (orders.status, status_view(orders.queue).spread) == ("Ready", 0)
    orders.release("A", 2, finished=True)
    assert (orders.status, status_view(orders.queue).spread) == ("Ready", 0)
    orders.bind("C")
    orders.drain("C")
    assert status_view(orders.queue).spread == 0


def test_only_a_holddown_has_an_end_time() -> None:
    orders = World.owning({"A": [0, 1]}, rebalance_delay=5.0)
    assert (status_view(orders.queue).holddown_until, status_view(orders.queue).trigger) == (
        None,
        None,
    )
    orders.bind("B")
    status = status_view(orders.queue)
    assert (status.status, status.trigger) == ("Holddown", "bind")
    began, ends = time_of(orders.now), time_of(orders.now + 5.0)
    assert (status.since, status.holddown_until) == (began, ends)
    orders.advance(5.0)
    status = status_view(orders.queue)
    assert (status.status, status.trigger, status.holddown_until) == ("Rebalancing", "bind", None)
