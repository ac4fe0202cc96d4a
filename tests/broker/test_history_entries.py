"""Every grant outside of a rebalance has an entry of its own in the history."""

from broker.core import commands as c
from broker.rendering import history
from broker.turns import Turn
from tests.core.world import World


def test_an_instance_that_returns_and_brings_the_number_back_makes_two_entries() -> None:
    """A gets back what it had (rule 12), and what B left goes to C (rule 7), in one decision."""
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.expire("A")
    orders.expire("B")
    orders.bind("C")
    turn = Turn(orders.queue, orders.now, "commit")
    turn.decide(c.Bind("A2", "i-A", "etl", 10.0))
    entries = turn.finish().entries
    assert [entry.rebalance_id for entry in entries] == [2, 3]
    assert orders.queue.status == "Ready"
    assert orders.owners() == {"A2": [0, 1], "C": [2, 3]}


def test_a_partition_whose_positions_were_set_was_granted_and_not_forced() -> None:
    """`forced` counts handoffs."""
    orders = World.owning({"A": [0], "B": [1]})
    orders.unbind("B")
    orders.raise_epochs(1)
    turn = Turn(orders.queue, orders.now, "commit")
    turn.decide(c.RebalanceNow())
    (entry,) = history(turn.finish().entries)
    assert (entry.handoffs, entry.forced, entry.granted) == (0, 0, 1)
