"""Outcomes of release and ready: the first that applies; a repetition is harmless (the contract,
*HTTP*)."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core.errors import FlowNotFound
from tests.broker.core.world import World


def revoking() -> World:
    """Partition 3, epoch 1, is being handed off from A to B; C has left, and 4 has been removed."""
    orders = World.owning(
        {"A": [0, 1, 2, 3], "B": []}, rebalance_delay=0, max_concurrent_handoffs=1
    )
    orders.resize(5)
    orders.resize(4, discard=True)
    orders.settle()
    orders = World.owning({"A": [0, 1], "B": [2]}, rebalance_delay=0, max_concurrent_handoffs=1)
    orders.raise_epochs(0, 1, 2)
    orders.bind("C")
    assert orders.on_their_way() == {1: ("revoking", "C")}
    return orders


class TestRelease:
    def test_no_such_partition_comes_first(self) -> None:
        orders = revoking()
        assert orders.release("A", 99, -1, epoch=0) == ["no_such_partition"] * 2

    def test_a_removed_partition_is_unknown(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.resize(1, discard=True)
        assert orders.release("A", 1, epoch=1) == ["no_such_partition"]

    def test_then_stale_epoch_with_the_current_one(self) -> None:
        orders = revoking()
        decision = orders.do(c.Release("B", (c.ReleaseItem(1, 1),)))
        assert decision.answer == (c.Result(1, c.Outcome.STALE_EPOCH, 2),)

    @pytest.mark.parametrize(
        ("flow", "epoch"), [("B", 2), ("C", 2), ("A", 3)], ids=["stranger", "successor", "future"]
    )
    def test_then_not_owner(self, flow: str, epoch: int) -> None:
        assert revoking().release(flow, 1, epoch=epoch) == ["not_owner"]

    def test_an_unassigned_partition_has_no_owner(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.unbind("B")
        assert orders.release("A", 1, epoch=1) == ["not_owner"]

    def test_then_not_revoking(self) -> None:
        assert revoking().release("A", 0) == ["not_revoking"]

    def test_one_bad_item_affects_no_other(self) -> None:
        orders = revoking()
        assert orders.release("A", 0, 1, 99) == ["not_revoking", "ok", "no_such_partition"]
        assert orders.owner(1) == "C"

    def test_only_ok_changes_anything(self) -> None:
        orders = revoking()
        for epoch in (0, 1, 3):
            assert (
                orders.do(c.Release("A", (c.ReleaseItem(1, epoch), c.ReleaseItem(0, 2)))).records
                == ()
            )

    def test_repeated_it_is_ok_again_and_changes_nothing(self) -> None:
        orders = revoking()
        assert orders.release("A", 1, epoch=2) == ["ok"]
        decision = orders.do(c.Release("A", (c.ReleaseItem(1, 2), c.ReleaseItem(1, 2))))
        assert [result.outcome for result in decision.answer] == ["ok", "ok"]
        assert decision.records == ()
        assert orders.release("C", 1, epoch=2) == ["stale_epoch"]

    def test_an_item_sees_what_the_items_before_it_did(self) -> None:
        orders = revoking()
        items = (c.ReleaseItem(1, 2), c.ReleaseItem(1, 2), c.ReleaseItem(1, 1))
        decision = orders.do(c.Release("A", items))
        assert [result.outcome for result in decision.answer] == ["ok", "ok", "stale_epoch"]
        assert decision.answer[2].current_epoch == 3

    def test_repeated_when_the_next_epoch_is_over_it_is_stale(self) -> None:
        orders = revoking()
        orders.release("A", 1)
        orders.raise_epochs(1)
        assert orders.release("A", 1, epoch=2) == ["stale_epoch"]

    def test_repeated_though_the_partition_has_no_owner_it_is_ok(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.drain("B")
        assert orders.release("B", 3) == ["ok"]
        assert orders.release("B", 3, epoch=1) == ["ok"]

    def test_repeated_though_there_was_no_successor_it_is_ok(self) -> None:
        orders = World.owning({"A": [0], "B": [1, 2]}, rebalance_delay=0, max_concurrent_handoffs=1)
        orders.drain("B")
        assert orders.release("B", 1) == ["ok"]
        assert orders.owner(1) == "A"
        assert orders.release("B", 1, epoch=1) == ["ok"]

    def test_repeated_by_an_owner_that_was_granted_it_again_it_is_ok(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B")
        orders.unbind("B")
        assert orders.release("A", 1, epoch=1) == ["ok"]
        assert orders.release("A", 1, epoch=1) == ["ok"]
        assert orders.release("A", 1, epoch=2) == ["not_revoking"]

    def test_repeated_when_the_partition_is_finished_it_is_ok(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.resize(1)
        assert orders.release("A", 1, epoch=1, finished=True) == ["ok"]
        assert orders.release("A", 1, epoch=1, finished=True) == ["ok"]
        orders.resize(2)
        assert orders.release("A", 1, epoch=1, finished=True) == ["stale_epoch"]

    def test_an_orphaned_partition_was_not_released(self) -> None:
        """A released epoch 1 to C, which died in epoch 2. A did not release epoch 2."""
        orders = World.owning({"A": [0, 1], "B": [2]}, rebalance_delay=0)
        orders.bind("C")
        orders.release("A", 1)
        orders.change(rebalance_delay=5.0)
        orders.expire("C")
        assert orders.unassigned() == [1]
        assert orders.release("A", 1, epoch=2) == ["not_owner"]


class TestReady:
    def warming(self) -> World:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.raise_epochs(0, 1)
        orders.bind("B", warmup=True)
        assert orders.on_their_way() == {1: ("warming", "B")}
        return orders

    def test_no_such_partition_comes_first(self) -> None:
        assert self.warming().ready("B", 99, epoch=0) == ["no_such_partition"]

    def test_then_stale_epoch(self) -> None:
        assert self.warming().ready("B", 1, epoch=1) == ["stale_epoch"]

    def test_then_not_owner_for_a_higher_epoch(self) -> None:
        assert self.warming().ready("B", 1, epoch=3) == ["not_owner"]

    def test_then_not_owner_for_an_unassigned_partition(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.unbind("A")
        assert orders.ready("B", 0, epoch=1) == ["not_owner"]

    @pytest.mark.parametrize(("flow", "number"), [("A", 1), ("B", 0)])
    def test_then_not_warming(self, flow: str, number: int) -> None:
        assert self.warming().ready(flow, number) == ["not_warming"]

    def test_too_late_is_not_warming(self) -> None:
        orders = self.warming()
        orders.advance(600)
        assert orders.ready("B", 1) == ["not_warming"]

    def test_repeated_it_is_ok_again_and_changes_nothing(self) -> None:
        orders = self.warming()
        assert orders.ready("B", 1, epoch=2) == ["ok"]
        again = orders.do(c.Ready("B", (c.ReadyItem(1, 2),)))
        assert (again.answer[0].outcome, again.records) == ("ok", ())
        orders.release("A", 1)
        assert orders.ready("B", 1, epoch=2) == ["ok"]

    def test_repeated_by_a_successor_that_drains_meanwhile_it_is_ok(self) -> None:
        orders = self.warming()
        orders.ready("B", 1)
        orders.bind("C")
        orders.drain("B")
        assert orders.successor(1) == "C"
        assert orders.ready("B", 1, epoch=2) == ["ok"]

    def test_the_ready_of_an_earlier_handoff_does_not_count_in_a_later_one(self) -> None:
        orders = self.warming()
        orders.ready("B", 1)
        orders.release("A", 1)
        orders.bind("C", warmup=True)
        orders.drain("B")
        assert orders.on_their_way() == {1: ("warming", "C")}
        assert orders.ready("B", 1) == ["not_warming"]
        assert orders.ready("B", 1, epoch=2) == ["stale_epoch"]


class TestUnknownFlows:
    @pytest.mark.parametrize(
        "command",
        [
            c.Unbind("X"),
            c.Drain("X"),
            c.Release("X", (c.ReleaseItem(0, 1),)),
            c.Ready("X", (c.ReadyItem(0, 1),)),
        ],
    )
    def test_a_flow_that_is_not_bound_is_an_error_and_changes_nothing(
        self, command: c.Command
    ) -> None:
        with pytest.raises(FlowNotFound, match="'X'"):
            World.owning({"A": [0]}).do(command)


class TestPositionsSet:
    def test_the_owner_continues_under_a_new_epoch(self) -> None:
        orders = World.owning({"A": [0, 1]})
        decision = orders.raise_epochs(1, 1, 99)
        assert [orders.epoch(n) for n in (0, 1)] == [1, 2]
        assert (orders.owner(1), orders.handed_over(1)) == ("A", "forced")
        assert decision.notices == {"A"}

    def test_the_next_grant_of_an_unassigned_partition_is_forced(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.unbind("B")
        orders.raise_epochs(1)
        orders.advance(5)
        assert (orders.epoch(1), orders.handed_over(1)) == (3, "forced")
        entry = orders.queue.last_rebalance
        assert entry is not None
        assert (entry.handoffs, entry.forced, entry.granted) == (0, 0, 1)

    def test_a_handoff_goes_on(self) -> None:
        orders = revoking()
        orders.raise_epochs(1)
        assert orders.on_their_way() == {1: ("revoking", "C")}
        assert orders.release("A", 1, epoch=2) == ["stale_epoch"]
        assert orders.release("A", 1, epoch=3) == ["ok"]
