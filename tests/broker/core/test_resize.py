"""Growing and shrinking (the contract, *Resize*)."""

from __future__ import annotations

from broker.core import records as r
from tests.broker.core.world import World


class TestGrow:
    def test_new_partitions_are_granted_in_the_first_pass(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.resize(6)
        assert orders.owners() == {"A": [0, 1, 4], "B": [2, 3, 5]}
        assert orders.status == "Ready"
        assert orders.handed_over(5) == "initial"

    def test_scale_status_is_scaling_up_until_balance(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B")
        orders.resize(3)
        assert orders.queue.scale_status == "ScalingUp"
        orders.settle()
        assert orders.queue.scale_status == "Ready"

    def test_growing_ends_a_holddown(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.bind("B")
        orders.resize(3)
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "B": [2]}

    def test_a_retiring_number_is_taken_back_unchanged(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(2)
        orders.resize(4)
        assert orders.owners() == {"A": [0, 2], "B": [1, 3]}
        assert [orders.epoch(n) for n in range(4)] == [1, 1, 1, 1]
        assert orders.queue.retiring == set()
        assert orders.queue.scale_status == "Ready"

    def test_some_are_taken_back_and_some_are_new(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(2)
        orders.resize(5)
        assert [orders.epoch(n) for n in range(5)] == [1, 1, 1, 1, 1]
        assert orders.owner(4) == "A"

    def test_a_delayed_finish_does_not_finish_a_partition_that_retires_again(
        self,
    ) -> None:
        """The release was delayed over both resizes; messages were appended in between."""
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(3)
        orders.resize(4)
        assert (orders.epoch(3), orders.owner(3)) == (1, "B")
        orders.resize(3)
        assert orders.release("B", 3, epoch=1, finished=True) == ["stale_epoch"]
        assert (orders.epoch(3), orders.handed_over(3), orders.owner(3)) == (2, "replaced", "B")
        assert orders.release("B", 3, epoch=2, finished=True) == ["ok"]

    def test_it_retires_in_its_epoch_when_it_was_granted_anew_since(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(3)
        orders.resize(4)
        orders.bind("B again", "i-B")
        assert orders.epoch(3) == 2
        orders.resize(3)
        assert orders.epoch(3) == 2

    def test_a_number_used_again_continues_its_epochs(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(3, discard=True)
        orders.resize(4)
        assert (orders.epoch(3), orders.owner(3)) == (2, "B")

    def test_a_finished_number_that_is_used_again_begins_anew(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(3)
        orders.release("B", 3, finished=True)
        orders.resize(4)
        assert (orders.epoch(3), orders.handed_over(3)) == (2, "initial")

    def test_messages_discarded_under_an_owner_may_come_again(self) -> None:
        """The log deletes the messages only after the resize. So if the number is used again at
        once, messages that the owner had processed without a commit are read again."""
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(3, discard=True)
        orders.resize(4)
        assert orders.handed_over(3) == "orphaned"

    def test_a_number_discarded_before_its_first_owner_is_new(self) -> None:
        orders = World(4)
        orders.resize(3, discard=True)
        orders.resize(4)
        orders.bind("A")
        orders.settle()
        assert orders.handed_over(3) == "initial"


class TestShrink:
    def test_the_highest_numbers_retire_and_stay_with_their_owners(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(2)
        assert orders.status == "Ready"
        assert orders.queue.retiring == {2, 3}
        assert orders.owners() == {"A": [0, 2], "B": [1, 3]}
        assert orders.queue.scale_status == "ScalingDown"
        assert orders.queue.operational_partition_count == 4

    def test_the_owners_are_told(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        assert orders.resize(3).notices == {"B"}

    def test_a_retiring_partition_is_removed_when_its_owner_has_finished_it(self) -> None:
        orders = World.owning({"A": [0, 2], "B": [1, 3]})
        orders.resize(2)
        assert orders.release("B", 3, finished=True) == ["ok"]
        assert orders.state(3) == "removed"
        orders.release("A", 2, finished=True)
        assert orders.queue.scale_status == "Ready"

    def test_only_retiring_partitions_can_be_finished(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        assert orders.release("A", 0, finished=True) == ["not_revoking"]

    def test_a_delayed_finish_does_not_remove_a_partition_that_was_taken_back(self) -> None:
        """Nor while it is handed off: its successor has to read on."""
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0.0)
        orders.resize(3)
        orders.resize(4)
        assert orders.release("A", 3, epoch=1, finished=True) == ["not_revoking"]
        orders.bind("B")
        assert orders.state(3) == "revoking"
        assert orders.release("A", 3, epoch=1, finished=True) == ["not_revoking"]
        assert orders.state(3) == "revoking"

    def test_retiring_partitions_do_not_count(self) -> None:
        """B's two retire: B gets one of A's three, although both own partitions."""
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4]})
        orders.resize(3)
        assert orders.on_their_way() == {2: ("revoking", "B")}

    def test_p_is_the_configured_count(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.resize(1)
        orders.bind("C")
        assert orders.status == "Ready"

    def test_the_retiring_partitions_of_a_leaver_are_granted(self) -> None:
        orders = World.owning({"A": [0], "B": [1], "C": [2]})
        orders.resize(1)
        orders.unbind("C")
        assert orders.status == "Ready"
        assert orders.owner(2) in ("A", "B")
        assert orders.queue.retiring == {1, 2}

    def test_a_shrink_amid_a_warm_up_calls_it_off(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B", warmup=True)
        orders.resize(2)
        assert orders.on_their_way() == {1: ("warming", "B")}

    def test_a_shrink_amid_a_revoke_lets_it_arrive(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B")
        orders.resize(2)
        assert set(orders.on_their_way()) == {1, 2, 3}
        orders.release("A", 1, 2, 3)
        assert orders.owned("B") == [1, 2, 3]
        assert orders.queue.retiring == {2, 3}


class TestDiscard:
    def test_the_partitions_are_removed_at_once(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.resize(2, discard=True)
        assert [orders.state(n) for n in (2, 3)] == ["removed", "removed"]
        assert orders.queue.scale_status == "Ready"
        assert orders.on_their_way() == {1: ("revoking", "B")}

    def test_a_handoff_in_progress_ends_with_them(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B")
        decision = orders.resize(3, discard=True)
        removed = [x for x in decision.records if isinstance(x, r.PartitionsRemoved)]
        ended = r.Ended(3, "A", "B", epoch=1, seconds=0.0)
        assert [(x.outcome, x.ended) for x in removed] == [("discarded", (ended,))]
        assert orders.release("A", 3) == ["no_such_partition"]

    def test_with_the_same_count_retiring_partitions_are_removed(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.resize(3)
        orders.resize(3, discard=True)
        assert orders.state(3) == "removed"
        assert orders.status == "Ready"

    def test_with_the_same_count_a_rebalance_ends_with_their_last_handoff(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.resize(3)
        orders.drain("B")
        orders.release("B", 2)
        assert orders.on_their_way() == {3: ("revoking", "A")}
        orders.resize(3, discard=True)
        assert orders.status == "Ready"

    def test_other_changes_discard_nothing(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.resize(3)
        orders.change(rebalance_delay=1.0, discard=True)
        assert orders.state(3) == "owned"
