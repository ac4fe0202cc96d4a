"""Every grant outside of a rebalance has an entry of its own in the history."""

from broker.calls.history import History
from broker.calls.times import time_of
from broker.core import commands as c
from broker.core.records import Entry, FlowBound, Grant, Granted, RebalanceStarted
from broker.replica.transaction import Transaction
from broker.store.ports import NamedFlow
from tests.broker.core.world import World


def named(clients: dict[str, str]) -> dict[str, NamedFlow]:
    return {id: NamedFlow(name) for id, name in clients.items()}


def test_an_instance_that_returns_and_brings_the_number_back_makes_two_entries() -> None:
    """A gets back its partitions (rule 12), and B's go to C (rule 7), in one decision."""
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.expire("A")
    orders.expire("B")
    orders.bind("C")
    turn = Transaction(orders.queue, orders.now, "commit")
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
    turn = Transaction(orders.queue, orders.now, "commit")
    turn.decide(c.RebalanceNow())
    (entry,) = History(turn.finish(1.0).entries).views({})
    assert (entry.handoffs, entry.forced, entry.granted) == (0, 0, 1)
    (move,) = entry.moves
    assert (move.outcome, move.reason) == ("forced", "positions_set")


def test_a_handoff_at_its_deadline_says_so_and_when_its_holddown_began() -> None:
    orders = World.owning({"A": [0, 1]}, rebalance_delay=5.0, max_handoff_time=3.0)
    began, entries = orders.now, list[Entry]()
    for seconds, command in ((0.0, bind("B")), (5.0, c.Advance()), (3.0, c.Advance())):
        orders.now += seconds
        turn = Transaction(orders.queue, orders.now, "commit")
        turn.decide(command)
        entries += turn.finish(1.0).entries
    (entry,) = History(entries).views(named({"A": "etl-1", "B": "etl-2", "C": "etl-3"}))
    assert (entry.triggered_at, entry.started_at) == (time_of(began), time_of(began + 5.0))
    assert (entry.finished_at, entry.forced) == (time_of(began + 8.0), 1)
    (move,) = entry.moves
    assert (move.outcome, move.reason, move.seconds) == ("forced", "not_released", 3.0)
    assert entry.clients == {"A": "etl-1", "B": "etl-2"}


def test_a_discarded_handoff_is_told_with_its_epoch_and_how_long_it_took() -> None:
    orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
    orders.bind("B")
    turn = Transaction(orders.queue, orders.now + 2.0, "commit")
    turn.decide(c.Change({"partition_count": 3}, discard=True))
    records = [record for entry in turn.finish(1.0).entries for record in entry.records]
    begun = Entry(1, orders.now, (RebalanceStarted(2, "bind", orders.now),), 2)
    (told,) = History([begun, Entry(2, orders.now, tuple(records), 2)]).views({})
    (move,) = [move for move in told.moves if move.outcome == "discarded"]
    assert (move.partition, move.from_flow, move.to_flow) == (3, "A", "B")
    assert (move.epoch, move.seconds) == (1, 2.0)


def told(orders: World, *turns: list[c.Command]) -> list[tuple[int, str, str]]:
    """The entries of the history, oldest first: id, trigger and cause. A turn takes a second."""
    names = {flow.id: f"client {flow.id}" for flow in orders.queue.flows.values()}
    entries: list[Entry] = []
    for commands in turns:
        orders.now += 1.0
        turn = Transaction(orders.queue, orders.now, "commit")
        for command in commands:
            turn.decide(command)
        entries += turn.finish(1.0).entries
    for record in (record for entry in entries for record in entry.records):
        if isinstance(record, FlowBound):
            names[record.flow_id] = record.client_name
    history = History(entries)
    assert set(history.flow_ids) <= names.keys()
    return [(one.id, one.trigger, one.why) for one in reversed(history.views(named(names)))]


def bind(flow_id: str, instance: str | None = None) -> c.Command:
    return c.Bind(flow_id, instance or f"i-{flow_id}", f"client {flow_id}", 10.0)


def test_all_that_happens_in_a_holddown_led_to_its_rebalance() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=5.0)
    turns: list[list[c.Command]] = [
        [c.Unbind("A", "driver_lost")],
        [c.Unbind("B")],
        [bind("C")],
        [c.RebalanceNow()],
    ]
    assert told(orders, *turns) == [
        (
            2,
            "driver_lost",
            "client A lost the Spark driver, which was killed; client B left; client C bound",
        )
    ]


def test_what_a_ready_queue_did_not_mind_led_to_nothing() -> None:
    """A standby binds, and minutes later a flow leaves: only that is the cause."""
    orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=0)
    entries = told(orders, [bind("standby")], [c.Unbind("B", "lease_expired")])
    assert [why for *_, why in entries] == ["client B did not renew the lease"]


def test_what_comes_during_a_rebalance_is_among_its_causes() -> None:
    orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
    entries = told(orders, [bind("B")], [bind("C")], [c.Change({"partition_count": 6})])
    assert [why for *_, why in entries] == ["client B and client C bound; resized to 6 partitions"]


def test_a_consumer_that_is_started_again_is_told_so() -> None:
    orders = World.owning({"A": [0], "B": [1]})
    again = c.Bind("A2", "i-A", "client A", 10.0)
    assert told(orders, [again])[-1][1:] == ("replaced", "client A started again")


def test_a_grant_after_a_departure_names_the_flow_that_had_the_partition() -> None:
    orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=0)
    turn = Transaction(orders.queue, orders.now, "commit")
    turn.decide(c.Unbind("B"))
    (one,) = History(turn.finish(1.0).entries).views(named({"A": "etl-1", "B": "etl-2"}))
    (move,) = one.moves
    assert (move.partition, move.from_flow, move.to_flow) == (1, "B", "A")
    assert one.clients == {"A": "etl-1", "B": "etl-2"}
    assert one.triggered_at == one.started_at


def test_very_many_causes_are_counted() -> None:
    orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=60.0)
    turn = Transaction(orders.queue, orders.now, "commit")
    turn.decide(c.Unbind("A"))
    turn.decide(c.Unbind("B"))
    for number in range(150):
        turn.decide(bind(f"F{number}"))
        turn.decide(c.Unbind(f"F{number}"))
    turn.decide(c.RebalanceNow())
    one = History(turn.finish(1.0).entries).views({})[0]
    assert len(one.causes) == 100
    assert one.more_causes > 100
    assert len(one.why) < 300


def test_a_pause_begins_with_the_last_sign_of_life_of_its_owner() -> None:
    """Killed: silent until the lease ends, then without an owner for the holddown."""
    orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=5.0)
    killed, entries = orders.now, list[Entry]()
    for seconds, command in ((8.0, c.Unbind("A", "lease_expired", killed)), (5.0, c.Advance())):
        orders.now += seconds
        turn = Transaction(orders.queue, orders.now, "commit")
        turn.decide(command)
        entries += turn.finish(1.0).entries
    (entry,) = History(entries).views({"A": NamedFlow("etl-1", killed + 8.0)})
    (move,) = entry.moves
    assert (move.outcome, move.seconds, move.silent_seconds) == ("orphaned", 13.0, 8.0)


def test_silence_is_part_of_the_pause_of_a_handoff() -> None:
    """A died 1 s before its partition was revoked; the handoff ends by force, or with its lease."""
    for command, outcome in (
        (c.Advance({"A": 99.0}), "forced"),
        (c.Unbind("A", "lease_expired", 99.0), "orphaned"),
    ):
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0.0, max_handoff_time=3.0)
        orders.now = 100.0
        orders.bind("B")
        orders.now = 103.0
        turn = Transaction(orders.queue, orders.now, "commit")
        turn.decide(command)
        grants = [grant for one in turn.finish(1.0).entries for grant in granted(one)]
        assert [(grant.handed_over, grant.seconds) for grant in grants][:1] == [(outcome, 4.0)]
        assert grants[0].by_handoff


def granted(entry: Entry) -> list[Grant]:
    return [one for record in entry.records if isinstance(record, Granted) for one in record.grants]
