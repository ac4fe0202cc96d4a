"""Every grant outside of a rebalance has an entry of its own in the history."""

from broker.calls.rendering import history
from broker.core import commands as c
from broker.core.state.records import Entry, RebalanceStarted
from broker.mailbox.turns import Turn
from tests.core.world import World


def test_an_instance_that_returns_and_brings_the_number_back_makes_two_entries() -> None:
    """A gets back its partitions (rule 12), and B's go to C (rule 7), in one decision."""
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.expire("A")
    orders.expire("B")
    orders.bind("C")
    turn = Turn(orders.queue, orders.now, "commit")
    turn.decide(c.Bind("A2", "i-A", "etl", 10.0))
    entries = turn.finish(1.0).entries
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
    (entry,) = history(turn.finish(1.0).entries)
    assert (entry.handoffs, entry.forced, entry.granted) == (0, 0, 1)


def test_a_discarded_handoff_is_told_with_its_epoch_and_how_long_it_took() -> None:
    orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
    orders.bind("B")
    turn = Turn(orders.queue, orders.now + 2.0, "commit")
    turn.decide(c.Change({"partition_count": 3}, discard=True))
    records = [record for entry in turn.finish(1.0).entries for record in entry.records]
    begun = Entry(1, orders.now, (RebalanceStarted(2, "bind", orders.now),), 2)
    (told,) = history([begun, Entry(2, orders.now, tuple(records), 2)])
    (move,) = [move for move in told.moves if move.outcome == "discarded"]
    assert (move.partition, move.from_flow, move.to_flow) == (3, "A", "B")
    assert (move.epoch, move.seconds) == (1, 2.0)
