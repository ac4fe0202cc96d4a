"""Dynamic queues (the contract, *Lineage*): partitions that split, merge and end."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import Invalid
from broker.core.lineage import FARTHEST
from tests.broker.core.world import World

Child = c.NewChild


def at_work(*roots: str, flows: str = "A", **settings: object) -> World:
    """A Ready queue with these roots, shared by these flows."""
    orders = World.dynamic(*roots, **{"rebalance_delay": 0.0, **settings})
    for flow in flows:
        orders.bind(flow)
        for other in flows:
            if other in orders.queue.flows:
                orders.release(other, *orders.owned(other))
    assert orders.status == "Ready"
    return orders


class TestSplitsAndMerges:
    def test_a_child_waits_for_its_parent_and_is_granted_when_it_is_finished(self) -> None:
        orders = at_work("a")
        assert orders.report("A", "a", Child("b", ("a",)), Child("c", ("a",))) == "ok"
        assert [orders.state_of(key) for key in "bc"] == ["waiting", "waiting"]
        assert orders.report("A", "a", finished=True) == "ok"
        assert [orders.state_of(key) for key in "abc"] == ["finished", "owned", "owned"]
        assert orders.status == "Ready"

    def test_a_child_of_two_is_granted_when_the_last_is_finished_to_the_idlest(self) -> None:
        orders = at_work("a", "b", "d", flows="AB")
        assert orders.owners() == {"A": [0, 1], "B": [2]}
        merged = Child("c", ("a", "b"))
        assert orders.report("A", "a", merged, finished=True) == "ok"
        assert orders.state_of("c") == "waiting"
        assert orders.report("A", "b", merged, finished=True) == "ok"
        assert (orders.keys("A"), orders.keys("B")) == (["c"], ["d"])

    def test_a_parent_that_is_named_twice_is_waited_for_once(self) -> None:
        orders = at_work("a")
        twice = Child("b", ("a", "a"))
        assert orders.report("A", "a", twice, finished=True) == "ok"
        assert [orders.state_of(key) for key in "ab"] == ["finished", "owned"]
        assert orders.report("A", "a", twice, finished=True) == "ok"
        orders.report("A", "b", finished=True)
        assert not orders.queue.partitions

    def test_finished_partitions_go_when_nothing_unfinished_follows_them(self) -> None:
        orders = at_work("a", "b")
        orders.report("A", "a", Child("c", ("a", "b")), Child("d", ("a",)), finished=True)
        orders.report("A", "b", finished=True)
        orders.report("A", "c", finished=True)
        assert [orders.state_of(key) for key in "abcd"] == [
            *("finished", "removed", "removed", "owned")
        ]
        orders.report("A", "d", finished=True)
        assert not orders.queue.partitions
        assert orders.queue.settings.partition_count == 0

    def test_a_key_is_remembered_after_the_removal_of_its_partition(self) -> None:
        orders = at_work("a", "b")
        again = Child("c", ("a",))
        orders.report("A", "a", again, finished=True)
        orders.report("A", "c", finished=True)
        assert orders.state_of("c") == "removed"
        orders.report("A", "b", Child("d", ("b", "a")))
        assert orders.do(c.AddChildren((again,))).answer == "ok"
        assert orders.state_of("c") == "removed"
        assert sorted(orders.queue.partitions) == [1, 3]

    def test_a_chain_of_reports_in_one_item(self) -> None:
        """A log may know what comes after what comes after."""
        orders = at_work("a")
        split = (Child("b", ("a",)), Child("c", ("a", "b")))
        assert orders.report("A", "a", *split, finished=True) == "ok"
        assert [orders.state_of(key) for key in "bc"] == ["owned", "waiting"]


class TestRefusals:
    def test_an_unknown_parent_refuses_the_whole_item_and_no_other(self) -> None:
        orders = at_work("a", "b")
        items = (
            c.ChildrenItem(0, 1, (Child("c", ("a",)), Child("d", ("a", "x"))), True),
            c.ChildrenItem(1, 1, (Child("e", ("b",)),), True),
        )
        answer = orders.do(c.Children("A", items)).answer
        assert [result.outcome for result in answer] == ["unknown_parent", "ok"]
        assert orders.state_of("a") == "owned"
        assert orders.queue.lineage is not None
        assert "c" not in orders.queue.lineage.numbers

    def test_a_stale_epoch_records_nothing(self) -> None:
        orders = at_work("a")
        orders.raise_epochs(0)
        assert orders.report("A", "a", Child("b", ("a",)), finished=True, epoch=1) == "stale_epoch"
        assert orders.report("A", "a", Child("b", ("a",)), epoch=3) == "not_owner"
        assert sorted(orders.queue.partitions) == [0]

    @pytest.mark.parametrize(
        "child",
        [
            Child("c", ("b",)),  # not of the partition that it is reported for
            Child("c", ("x",)),  # nor with a parent that may become known
            Child("b", ("a",)),  # a root has no parents
            Child("b", ("a", "x")),
            Child("c", ("a",), 1),  # another partition's number
            Child("c", ("a",), FARTHEST + 2),  # the highest is 1
        ],
    )
    def test_what_contradicts_is_refused(self, child: c.NewChild) -> None:
        orders = at_work("a", "b")
        assert orders.report("A", "a", child, finished=True) == "conflicting_child"
        assert orders.state_of("a") == "owned"

    def test_a_known_child_keeps_its_number_and_its_parents(self) -> None:
        orders = at_work("a", "b")
        assert orders.report("A", "a", Child("c", ("a", "b"), 9)) == "ok"
        assert orders.report("A", "a", Child("c", ("b", "a"), 9)) == "ok"
        assert orders.report("A", "a", Child("c", ("a", "b"), 8)) == "conflicting_child"
        assert orders.report("A", "a", Child("c", ("a",))) == "conflicting_child"
        assert orders.report("A", "b", Child("d", ("b",))) == "ok"
        assert sorted(orders.queue.partitions) == [0, 1, 9, 10]

    def test_a_number_may_be_so_far_above_the_highest(self) -> None:
        orders = at_work("a", "b")
        assert orders.report("A", "a", Child("c", ("a",), 1 + FARTHEST)) == "ok"
        assert orders.report("A", "a", Child("d", ("a",), 1 + 2 * FARTHEST)) == "ok"

    def test_numbers_do_not_run_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever numbers are reported, each key that the queue may still get has one above."""
        monkeypatch.setattr("broker.core.lineage.MOST_KEYS", 8)
        monkeypatch.setattr("broker.core.lineage.MOST_NUMBER", 1000)
        orders = at_work("a")
        # Of the seven keys that are left, six may get their numbers above the first.
        assert orders.report("A", "a", Child("b", ("a",), 995)) == "conflicting_child"
        assert orders.report("A", "a", Child("b", ("a",), 994)) == "ok"
        two = Child("c", ("a",), 995), Child("d", ("a",), 997)
        assert orders.report("A", "a", *two) == "conflicting_child"
        for key in "cdefgh":
            assert orders.report("A", "a", Child(key, ("a",))) == "ok"
        assert max(orders.queue.partitions) == 1000

    def test_a_queue_remembers_so_many_keys_at_the_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of removed partitions count: they are remembered as long as the queue exists."""
        monkeypatch.setattr("broker.core.lineage.MOST_KEYS", 4)
        orders = at_work("a", "b")
        assert orders.report("A", "a", Child("c", ("a",)), finished=True) == "ok"
        assert orders.report("A", "c", finished=True) == "ok"
        assert orders.state_of("c") == "removed"
        two = Child("d", ("b",)), Child("e", ("b",))
        assert orders.report("A", "b", *two, finished=True) == "too_many_partitions"
        assert orders.state_of("b") == "owned"
        assert orders.report("A", "b", two[0]) == "ok"
        assert orders.report("A", "b", two[1]) == "too_many_partitions"
        assert orders.report("A", "b", two[0], finished=True) == "ok"

    def test_two_children_of_one_report_have_two_numbers(self) -> None:
        orders = at_work("a")
        given = Child("b", ("a",), 5), Child("c", ("a",))
        assert orders.report("A", "a", *given) == "ok"
        assert sorted(orders.queue.partitions) == [0, 5, 6]
        same = Child("d", ("a",), 9), Child("e", ("a",), 9)
        assert orders.report("A", "a", *same) == "conflicting_child"
        assert sorted(orders.queue.partitions) == [0, 5, 6]

    def test_a_queue_has_so_many_partitions_at_the_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Removed ones do not count."""
        monkeypatch.setattr("broker.core.lineage.MOST_PARTITIONS", 3)
        orders = at_work("a", "b")
        assert orders.report("A", "a", Child("c", ("a",)), Child("d", ("a",))) == (
            "too_many_partitions"
        )
        assert orders.report("A", "a", Child("c", ("a",))) == "ok"
        assert orders.report("A", "b", Child("d", ("b",)), finished=True) == "too_many_partitions"
        assert orders.report("A", "b", finished=True) == "ok"
        assert orders.report("A", "a", Child("d", ("a",))) == "ok"

    def test_the_partitions_of_a_queue_name_so_many_parents_at_the_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Together, as long as they exist: all are in the memory of each replica."""
        monkeypatch.setattr("broker.core.lineage.MOST_PARENTS", 4)
        orders = at_work("a", "b")
        merged = Child("c", ("a", "b")), Child("d", ("a", "b", "a")), Child("e", ("a",))
        assert orders.report("A", "a", *merged) == "too_many_partitions"
        assert orders.report("A", "a", *merged[:2]) == "ok"
        assert orders.report("A", "a", merged[2]) == "too_many_partitions"
        assert orders.report("A", "a", *merged[:2], finished=True) == "ok"
        assert orders.report("A", "b", finished=True) == "ok"
        assert orders.report("A", "c", finished=True) == "ok"
        assert orders.report("A", "d", Child("e", ("d", "c"))) == "ok"

    def test_a_child_that_is_twice_in_one_report_is_one(self) -> None:
        orders = at_work("a", "b")
        twice = Child("c", ("a",)), Child("c", ("a",))
        assert orders.report("A", "a", *twice) == "ok"
        assert sorted(orders.queue.partitions) == [0, 1, 2]
        other = Child("d", ("a",)), Child("d", ("a", "b"))
        assert orders.report("A", "a", *other) == "conflicting_child"

    def test_a_hole_in_the_numbers_can_be_filled(self) -> None:
        orders = at_work("a", "b")
        assert orders.report("A", "a", Child("c", ("a",), 7)) == "ok"
        assert orders.report("A", "b", Child("d", ("b",), 4)) == "ok"
        assert sorted(orders.queue.partitions) == [0, 1, 4, 7]

    def test_a_fixed_queue_has_no_children(self) -> None:
        orders = World.owning({"A": [0]})
        with pytest.raises(Invalid):
            orders.do(c.Children("A", (c.ChildrenItem(0, 1, (Child("b", ("a",)),)),)))
        with pytest.raises(Invalid):
            World.dynamic("a").resize(3)


class TestRepetitions:
    def test_who_finished_it_adds_children_under_the_same_epoch_only(self) -> None:
        orders = at_work("a", flows="AB")
        owner, other = ("A", "B") if orders.owned("A") else ("B", "A")
        epoch = orders.epoch(0)
        orders.report(owner, "a", Child("b", ("a",)), finished=True)
        late = Child("c", ("a",))
        assert orders.report(owner, "a", late, epoch=epoch - 1) == "stale_epoch"
        assert orders.report(owner, "a", late, epoch=epoch + 1) == "not_owner"
        assert orders.report(other, "a", late, epoch=epoch) == "not_owner"
        assert orders.report(owner, "a", late, epoch=epoch) == "ok"

    def test_the_call_that_finishes_is_ok_again(self) -> None:
        orders = at_work("a", "b")
        for _ in range(2):
            assert orders.report("A", "a", Child("c", ("a", "b")), finished=True) == "ok"
        assert orders.release("A", 0, finished=True) == ["ok"]

    def test_who_finished_without_the_children_may_still_report_them(self) -> None:
        orders = at_work("a", "b")
        orders.report("A", "b", Child("d", ("a", "b")))
        assert orders.report("A", "a", finished=True) == "ok"
        assert orders.report("A", "a", Child("c", ("a",))) == "ok"
        assert orders.state_of("c") == "owned"

    def test_another_flow_may_not(self) -> None:
        orders = at_work("a", "b", flows="AB")
        orders.report("B", "b", Child("d", ("a", "b")), finished=True)
        assert orders.report("A", "b", Child("c", ("b",))) == "not_owner"


class TestKnownFailures:
    """What connectors to such sources get wrong."""

    def test_no_child_is_lost_if_the_owner_dies_between_finish_and_report(self) -> None:
        """They are one call: before it the successor owns the parent, after it the children."""
        orders = at_work("a", flows="AB")
        orders.expire("A")
        assert orders.keys("B") == ["a"]
        split = (Child("b", ("a",)), Child("c", ("a",)))
        assert orders.report("B", "a", *split, finished=True) == "ok"
        orders.expire("B")
        orders.bind("C")
        orders.advance(10)
        assert orders.keys("C") == ["b", "c"]

    def test_two_owners_of_overlapping_rebalances_cannot_both_finish(self) -> None:
        orders = at_work("a", "b", flows="A")
        orders.bind("B")
        orders.advance(3)  # B is granted one by force
        [taken] = orders.owned("B")
        key = "ab"[taken]
        assert orders.report("A", key, Child("x", (key,)), epoch=1, finished=True) == "stale_epoch"
        assert orders.report("B", key, Child("y", (key,)), finished=True) == "ok"

    def test_ties_go_to_the_earliest_bound(self) -> None:
        orders = at_work("a", "b", "c", flows="ABC")
        split = tuple(Child(f"a{n}", ("a",)) for n in range(3))
        orders.report("A", "a", *split, finished=True)
        assert [orders.keys(flow) for flow in "ABC"] == [["a0", "a1"], ["c", "a2"], ["b"]]

    def test_a_silent_flow_blocks_no_other(self) -> None:
        orders = at_work("a", "b", flows="AB")
        orders.report("A", "a", Child("c", ("a",)), Child("m", ("a", "b")), finished=True)
        assert orders.keys("A") == ["c"]
        orders.expire("B")
        assert sorted(orders.keys("A")) == ["b", "c"]

    def test_a_joiner_is_not_left_idle_for_ever(self) -> None:
        """After finishes one flow may have all that is left; whoever joins is a trigger, even if
        there are as many flows as partitions."""
        orders = at_work("a", "b", "c", "d", flows="AB", rebalance_delay=0.0)
        orders.report("B", "c", finished=True)
        orders.report("B", "d", finished=True)
        assert orders.status == "Ready"
        assert [len(orders.owned(flow)) for flow in "AB"] == [2, 0]
        orders.bind("C")
        orders.release("A", *orders.queue.handoffs)
        assert [len(orders.owned(flow)) for flow in "ABC"] == [1, 1, 0]

    def test_a_position_that_is_not_said_changes_nothing(self) -> None:
        """The core says where a partition begins only if a report did."""
        orders = at_work("a")
        item = c.ChildrenItem(0, 1, (Child("b", ("a",), None, "7"), Child("c", ("a",))))
        assert orders.do(c.Children("A", (item,))).effects.begins == {1: "7"}


class TestBalance:
    def test_a_finish_triggers_nothing_and_a_spread_may_stay(self) -> None:
        orders = at_work("a", "b", "c", "d", flows="AB")
        orders.report("A", "a", finished=True)
        orders.report("A", "b", finished=True)
        assert orders.status == "Ready"
        assert orders.queue.spread() == 2
        orders.rebalance_now()
        orders.release("B", *orders.queue.handoffs)
        assert orders.queue.spread() == 0

    def test_a_replaced_flow_does_not_trigger_either(self) -> None:
        orders = at_work("a", "b", "c", "d", flows="AB")
        orders.report("A", "a", finished=True)
        orders.report("A", "b", finished=True)
        orders.bind("B2", "i-B")
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [], "B2": [2, 3]}

    def test_a_holddown_keeps_no_child_waiting(self) -> None:
        orders = at_work("a", "b", flows="AB", rebalance_delay=0.0)
        orders.change(rebalance_delay=5.0)
        orders.expire("B")
        assert orders.status == "Holddown"
        orders.report("A", "a", Child("c", ("a",)), finished=True)
        assert orders.keys("A") == ["c"]
        assert orders.unassigned() == [1]
        assert orders.status == "Holddown"

    def test_a_handoff_ends_with_the_partition(self) -> None:
        orders = at_work("a", "b")
        orders.bind("B", warmup=True)
        [(number, handoff)] = orders.queue.handoffs.items()
        assert orders.state(number) == "warming"
        assert handoff.successor is not None
        orders.report("A", "ab"[number], finished=True)
        assert not orders.queue.handoffs
        assert orders.status == "Ready"

    def test_the_first_flow_owns_all_of_an_exclusive_queue(self) -> None:
        orders = at_work("a", flows="AB", access_type="exclusive")
        orders.report("A", "a", Child("b", ("a",)), Child("c", ("a",)), finished=True)
        assert orders.owners() == {"A": [1, 2], "B": []}

    def test_without_flows_that_take_a_child_has_no_owner(self) -> None:
        orders = at_work("a", "b")
        orders.drain("A")
        orders.report("A", "a", Child("c", ("a",)), finished=True)
        assert orders.unassigned() == [2]
        orders.bind("B")
        orders.release("A", *orders.owned("A"))
        assert sorted(orders.keys("B")) == ["b", "c"]

    def test_a_drained_flow_gives_its_children_to_others(self) -> None:
        orders = at_work("a", "b", flows="AB")
        orders.change(rebalance_delay=5.0)
        orders.drain("A")
        orders.report("A", "a", Child("c", ("a",)), finished=True)
        assert orders.keys("B")[-1] == "c"

    def test_positions_of_a_finished_partition_cannot_be_set(self) -> None:
        orders = at_work("a")
        orders.report("A", "a", Child("b", ("a",)), finished=True)
        orders.raise_epochs(0, 1)
        assert (orders.epoch(0), orders.epoch(1)) == (1, 2)


def test_what_begins_is_granted_and_not_what_a_holddown_keeps() -> None:
    orders = at_work("a", "b", "c", flows="AB")
    orders.change(rebalance_delay=5.0)
    orders.expire("B")
    kept = orders.unassigned()
    assert kept
    assert orders.status == "Holddown"
    key = orders.keys("A")[0]
    children = tuple(Child(f"x{n}", (key,)) for n in range(9))
    orders.report("A", key, *children, finished=True)
    assert orders.unassigned() == kept
    assert orders.status == "Holddown"


def test_what_happens_is_told_in_records() -> None:
    orders = at_work("a")
    split = Child("b", ("a",))
    item = c.ChildrenItem(0, 1, (split,), True)
    records = orders.do(c.Children("A", (item,))).records
    assert [type(record) for record in records] == [
        *(r.ChildrenAdded, r.PartitionFinished, r.WaitsEnded, r.GrantedOutside, r.Granted)
    ]
