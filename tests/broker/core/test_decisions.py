"""The other results of a decision: entries of the history, and effects."""

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import NO_EFFECTS
from tests.broker.core.world import World


class TestEntries:
    def test_a_decision_is_one_entry(self) -> None:
        orders = World(partitions=2, rebalance_delay=0)
        (entry,) = orders.bind("A").entries
        assert (entry.revision, entry.at, entry.rebalance_id) == (2, 0.0, 1)
        kinds = [type(record) for record in entry.records]
        assert kinds == [r.FlowBound, r.RebalanceStarted, r.Granted, r.RebalanceFinished]

    def test_an_entry_outside_of_a_rebalance_has_no_rebalance_id(self) -> None:
        orders = World.owning({"A": [0, 1]})
        (entry,) = orders.bind("B").entries
        assert entry.rebalance_id is None

    def test_an_instance_that_returns_and_brings_the_number_back_makes_two(self) -> None:
        """A gets back what it had (rule 12), and what B left goes to C (rule 7), in one
        decision."""
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.expire("A")
        orders.expire("B")
        orders.bind("C")
        revision = orders.queue.revision
        decision = orders.do(c.Bind("A2", "i-A", "etl", 10.0))
        assert [(e.revision, e.rebalance_id) for e in decision.entries] == [
            (revision + 1, 2),
            (revision + 2, 3),
        ]
        views = {flow.id: flow.view_revision for flow in orders.queue.flows.values()}
        assert views == {"A2": revision + 1, "C": revision + 2}
        assert decision.notices == {"A2", "C"}

    def test_a_decision_that_changes_nothing_has_none(self) -> None:
        orders = World.owning({"A": [0, 1]})
        decision = orders.do(c.RaiseEpochs((7,)))
        assert (decision.entries, decision.effects) == ((), NO_EFFECTS)


class TestEffects:
    def test_the_flows_that_left_are_named_with_the_reason(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        assert orders.expire("A").effects.left == {"A": "lease_expired"}
        assert orders.unbind("B").effects.left == {"B": "unbound"}

    def test_a_flow_that_is_replaced_has_left_and_its_partitions_have_new_epochs(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        effects = orders.bind("A2", instance="i-A").effects
        assert effects.left == {"A": "replaced"}
        assert effects.raised == effects.partitions == {0, 1}
        assert {flow.id for flow in effects.flows} == {"A", "A2"}

    def test_a_revoke_begins_a_deadline(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        effects = orders.bind("B").effects
        assert effects.revokes
        assert not effects.raised
        assert effects.partitions == {1}

    def test_a_warm_up_begins_none_and_its_end_does(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        assert not orders.bind("B", warmup=True).effects.revokes
        assert orders.do(c.Ready("B", (c.ReadyItem(1, 1),))).effects.revokes

    def test_positions_that_are_set_raise_epochs(self) -> None:
        orders = World.owning({"A": [0, 1]})
        assert orders.raise_epochs(1, 1).effects.raised == {1}
