"""The rebalance loop and one handoff, step by step (the contract, *The rebalance loop*)."""

from __future__ import annotations

from typing import Any

from broker.core import records as r
from broker.core.commands import MoveDeadlines, Release, ReleaseItem
from broker.core.draft import Decision
from tests.broker.core.world import World


def joined(*, warmup: bool, **settings: Any) -> World:
    """A owns 0 to 3; B has just joined, and 2 and 3 are being handed off to it."""
    orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0, **settings)
    orders.bind("B", warmup=warmup)
    return orders


class TestLoop:
    def test_unassigned_partitions_are_granted_in_the_first_pass(self) -> None:
        """Step 2 comes before step 5: granting an unassigned partition is not a handoff."""
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4, 5]})
        orders.bind("C")
        orders.bind("D")
        orders.unbind("B")
        orders.advance(5)
        assert orders.unassigned() == []
        assert len(orders.on_their_way()) == 1

    def test_a_flow_that_loses_its_last_partition_is_told(self) -> None:
        """Step 3."""
        orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=0)
        orders.drain("B")
        orders.bind("C")
        assert orders.status == "Rebalancing"
        decision = orders.resize(1, discard=True)
        assert "B" in decision.notices
        assert not orders.queue.flows["B"].active

    def test_balanced_is_ready(self) -> None:
        """Step 4."""
        orders = joined(warmup=False)
        orders.release("A", 3)
        assert orders.status == "Rebalancing"
        orders.release("A", 2)
        assert orders.status == "Ready"

    def test_all_handoffs_start_at_once_without_a_limit(self) -> None:
        """Step 5."""
        assert set(joined(warmup=False).on_their_way()) == {2, 3}

    def test_handoffs_go_one_after_another_with_a_limit_of_one(self) -> None:
        orders = joined(warmup=False, max_concurrent_handoffs=1)
        assert set(orders.on_their_way()) == {3}
        orders.release("A", 3)
        assert set(orders.on_their_way()) == {2}
        orders.release("A", 2)
        assert orders.status == "Ready"

    def test_warming_counts_against_the_limit(self) -> None:
        orders = joined(warmup=True, max_concurrent_handoffs=1)
        assert orders.on_their_way() == {3: ("warming", "B")}
        orders.ready("B", 3)
        assert orders.on_their_way() == {3: ("revoking", "B")}

    def test_a_raised_limit_is_taken_up_at_once(self) -> None:
        orders = joined(warmup=True, max_concurrent_handoffs=1)
        orders.change(max_concurrent_handoffs=None)
        assert set(orders.on_their_way()) == {2, 3}

    def test_a_lowered_limit_does_not_stop_started_handoffs(self) -> None:
        orders = joined(warmup=False)
        orders.change(max_concurrent_handoffs=1)
        assert set(orders.on_their_way()) == {2, 3}

    def test_a_rebalance_ends_without_any_answer_of_a_flow(self) -> None:
        orders = joined(warmup=True)
        orders.settle()
        assert orders.now == 603.0
        assert orders.status == "Ready"
        assert orders.owned("B") == [2, 3]


class TestMinimumFromTheLastChange:
    """While a partition is only warming its successor changes, or the handoff is called off."""

    def test_a_warm_up_that_is_not_needed_any_more_is_called_off(self) -> None:
        orders = joined(warmup=True)
        decision = orders.unbind("B")
        assert [x.partitions for x in decision.records if isinstance(x, r.HandoffsCalledOff)] == [
            (3, 2)
        ]
        assert orders.status == "Ready"
        assert [orders.epoch(n) for n in range(4)] == [1, 1, 1, 1]

    def test_the_owner_notices_nothing_of_a_warm_up_called_off(self) -> None:
        orders = joined(warmup=True)
        assert "A" not in orders.unbind("B").notices

    def test_a_warm_up_gets_another_successor_when_its_own_leaves(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3, 4, 5]}, rebalance_delay=5)
        orders.bind("B", warmup=True)
        orders.bind("C", warmup=True)
        orders.advance(5)
        assert orders.on_their_way() == {
            5: ("warming", "B"),
            4: ("warming", "C"),
            3: ("warming", "B"),
            2: ("warming", "C"),
        }
        orders.unbind("C")
        assert orders.on_their_way() == dict.fromkeys((3, 4, 5), ("warming", "B"))

    def test_a_warm_up_moves_to_a_flow_that_joined_when_its_own_successor_has_enough(self) -> None:
        orders = joined(warmup=True)
        orders.bind("C", warmup=True)
        assert orders.on_their_way() == {3: ("warming", "B"), 2: ("warming", "C")}
        orders.settle()
        assert orders.queue.last_rebalance is not None
        assert orders.queue.last_rebalance.handoffs == 2

    def test_a_warm_up_that_still_fits_does_not_change(self) -> None:
        """Eight over three: the greedy step gave B a ceiling, and an existing plan is as good as
        another."""
        orders = World.owning({"A": list(range(8))})
        for name in ("B", "C"):
            orders.bind(name, warmup=True)
        orders.advance(5)
        before = orders.on_their_way()
        orders.change(max_concurrent_handoffs=100)
        assert orders.on_their_way() == before

    def test_a_warm_up_stays_though_another_flow_could_give(self) -> None:
        """Nine over seven: A must give one or two; two are warming up already."""
        orders = World.owning({"A": [0, 1, 2], "B": [3, 4], "C": [5, 6], "D": [7, 8]})
        orders.bind("E", warmup=True)
        orders.bind("F", warmup=True)
        orders.advance(5)
        before = orders.on_their_way()
        assert before == {2: ("warming", "E"), 1: ("warming", "F")}
        orders.wait(1)
        orders.bind("G", warmup=True)
        assert before.items() <= orders.on_their_way().items()
        assert len(orders.on_their_way()) == 3
        assert orders.deadline(1) == 605.0

    def test_a_revoke_is_not_replanned_before_it_arrives(self) -> None:
        orders = joined(warmup=False)
        orders.bind("C")
        orders.bind("D")
        assert orders.on_their_way() == {
            3: ("revoking", "B"),
            2: ("revoking", "B"),
            1: ("revoking", "C"),
        }
        orders.release("A", 2, 3)
        assert orders.on_their_way() == {1: ("revoking", "C"), 3: ("revoking", "D")}


class TestWarmUp:
    def test_the_owner_notices_nothing(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        decision = orders.bind("B", warmup=True)
        assert orders.on_their_way() == {1: ("warming", "B")}
        assert decision.notices == {"B"}
        assert orders.owner(1) == "A"

    def test_ready_starts_the_revoke(self) -> None:
        orders = joined(warmup=True)
        orders.wait(7)
        assert orders.ready("B", 3) == ["ok"]
        assert orders.state(3) == "revoking"
        assert orders.deadline(3) == 10.0
        assert orders.state(2) == "warming"

    def test_after_max_warmup_time_it_goes_on_without(self) -> None:
        orders = joined(warmup=True, max_warmup_time=20)
        orders.advance(19.9)
        assert orders.state(3) == "warming"
        orders.advance(0.1)
        assert orders.state(3) == "revoking"

    def test_a_successor_that_did_not_ask_for_it_gets_none(self) -> None:
        assert joined(warmup=False).on_their_way()[3] == ("revoking", "B")

    def test_a_max_warmup_time_of_zero_means_none(self) -> None:
        assert joined(warmup=True, max_warmup_time=0).on_their_way()[3] == ("revoking", "B")


class TestRevoke:
    def test_a_release_grants_the_next_epoch_to_the_successor(self) -> None:
        orders = joined(warmup=False)
        assert orders.release("A", 3) == ["ok"]
        assert (orders.owner(3), orders.epoch(3), orders.handed_over(3)) == ("B", 2, "graceful")

    def test_only_the_partition_in_question_pauses(self) -> None:
        orders = joined(warmup=False)
        assert [orders.state(n) for n in range(4)] == ["owned", "owned", "revoking", "revoking"]

    def test_at_the_deadline_it_is_handed_over_regardless(self) -> None:
        orders = joined(warmup=False)
        orders.advance(2.9)
        assert orders.owner(3) == "A"
        orders.advance(0.1)
        assert (orders.owner(3), orders.epoch(3), orders.handed_over(3)) == ("B", 2, "forced")
        assert orders.release("A", 3, epoch=1) == ["stale_epoch"]
        assert orders.queue.last_rebalance is not None
        assert orders.queue.last_rebalance.forced == 2

    def test_a_max_handoff_time_of_zero_hands_over_at_once(self) -> None:
        orders = joined(warmup=False, max_handoff_time=0)
        orders.advance()
        assert orders.status == "Ready"
        assert orders.handed_over(3) == "forced"

    def test_a_late_timer_hands_over_every_due_partition(self) -> None:
        orders = joined(warmup=False)
        orders.wait(50)
        assert orders.release("A", 3) == ["ok"]
        assert orders.handed_over(3) == "graceful"
        orders.advance()
        assert orders.handed_over(2) == "forced"


class TestRevokeIsNeverTakenBack:
    """Successor gone or draining: the loop names another; if there is none, the owner itself."""

    def test_another_is_named_when_the_successor_leaves(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3, 4, 5], "B": [6, 7, 8]}, rebalance_delay=0)
        orders.bind("C")
        first = orders.on_their_way()
        assert set(first.values()) == {("revoking", "C")}
        orders.unbind("C")
        assert orders.status == "Rebalancing"
        assert set(orders.on_their_way()) >= set(first)
        assert all(successor in ("A", "B") for _, successor in orders.on_their_way().values())

    def test_another_is_named_when_the_successor_drains(self) -> None:
        orders = joined(warmup=False)
        deadline = orders.deadline(3)
        orders.wait(1)
        orders.bind("C")
        orders.drain("B")
        assert {successor for _, successor in orders.on_their_way().values()} <= {"A", "C"}
        assert orders.deadline(3) == deadline

    def test_the_owner_itself_is_granted_it_anew_if_there_is_no_other(self) -> None:
        orders = joined(warmup=False)
        orders.unbind("B")
        assert orders.on_their_way() == {2: ("revoking", "A"), 3: ("revoking", "A")}
        orders.release("A", 3)
        assert (orders.owner(3), orders.epoch(3), orders.handed_over(3)) == ("A", 2, "graceful")
        orders.advance(3)
        assert (orders.owner(2), orders.epoch(2), orders.handed_over(2)) == ("A", 2, "forced")
        assert orders.status == "Ready"

    def test_a_draining_owner_keeps_it_under_the_next_epoch_when_all_drain(self) -> None:
        orders = joined(warmup=False)
        orders.drain("A")
        orders.drain("B")
        assert orders.on_their_way() == dict.fromkeys(range(4), ("revoking", None))
        orders.advance(3)
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2, 3]
        assert [orders.epoch(n) for n in range(4)] == [2, 2, 2, 2]

    def test_a_draining_owner_that_releases_it_then_leaves_it_unassigned(self) -> None:
        orders = joined(warmup=False)
        orders.drain("A")
        orders.drain("B")
        orders.release("A", 3)
        assert orders.unassigned() == [3]
        orders.bind("C")
        assert (orders.owner(3), orders.handed_over(3)) == ("C", "graceful")


class TestGone:
    def test_the_successor_gets_it_though_another_has_fewer(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3], "B": []}, access_type="exclusive")
        orders.change(access_type="non_exclusive")
        assert set(orders.on_their_way()) == {2, 3}
        orders.bind("C")
        orders.bind("D")
        orders.expire("A")
        assert (orders.owner(2), orders.owner(3)) == ("B", "B")
        assert (orders.owner(0), orders.owner(1)) == ("D", "C")

    def test_an_owner_gone_while_revoking_the_successor_gets_it_at_once(self) -> None:
        orders = joined(warmup=False)
        orders.expire("A")
        assert (orders.owner(3), orders.epoch(3), orders.handed_over(3)) == ("B", 2, "orphaned")

    def test_an_owner_gone_while_warming_the_successor_gets_it_warm_or_not(self) -> None:
        orders = joined(warmup=True)
        orders.expire("A")
        assert (orders.owner(3), orders.epoch(3), orders.handed_over(3)) == ("B", 2, "orphaned")
        assert orders.owned("B") == [0, 1, 2, 3]
        assert orders.status == "Ready"

    def test_an_owner_and_a_successor_gone_leave_nothing_behind(self) -> None:
        orders = joined(warmup=True)
        orders.expire("A")
        orders.expire("B")
        orders.settle()
        assert orders.status == "Ready"
        assert orders.unassigned() == [0, 1, 2, 3]


class TestHistory:
    """How long each partition had no owner, or was being handed off."""

    def grants(self, decision: Decision) -> list[r.Grant]:
        return [g for x in decision.records if isinstance(x, r.Granted) for g in x.grants]

    def test_a_first_grant_has_no_duration(self) -> None:
        orders = World(1, rebalance_delay=0)
        (grant,) = self.grants(orders.bind("A"))
        assert (grant.previous, grant.seconds, grant.by_handoff) == (None, None, False)

    def test_a_handoff_takes_from_the_revoke_to_the_grant(self) -> None:
        orders = joined(warmup=True)
        orders.wait(100)
        orders.ready("B", 3)
        orders.wait(1.5)
        (grant,) = self.grants(orders.do(Release("A", (ReleaseItem(3, 1),))))
        assert (grant.previous, grant.seconds, grant.by_handoff) == ("A", 1.5, True)

    def test_an_orphan_counts_from_the_death_of_its_owner(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.wait(7)
        orders.expire("B")
        orders.wait(2)
        (grant,) = self.grants(orders.rebalance_now())
        assert (grant.seconds, grant.handed_over) == (2.0, "orphaned")

    def test_an_owner_gone_amid_a_warm_up_left_no_gap(self) -> None:
        orders = joined(warmup=True)
        orders.wait(100)
        grants = self.grants(orders.expire("A"))
        assert {g.partition: g.seconds for g in grants} == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}


class TestOutage:
    """After a gap the deadlines of handoffs move by it, once."""

    def test_handoffs_get_the_time_back(self) -> None:
        orders = joined(warmup=False)
        orders.wait(1)
        began = orders.now
        orders.wait(60)
        orders.do(MoveDeadlines(1, began, 60.0))
        orders.do(MoveDeadlines(1, began, 60.0))
        assert orders.deadline(3) == 63.0

    def test_handoffs_that_began_after_an_outage_get_no_time_from_it(self) -> None:
        """A replica served again before the gap was recorded."""
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.wait(70)
        orders.bind("B")
        orders.do(MoveDeadlines(1, 10.0, 60.0))
        assert orders.deadline(1) == 73.0

    def test_flows_that_see_a_deadline_are_told_that_it_moved(self) -> None:
        orders = joined(warmup=True)
        orders.ready("B", 3)
        orders.wait(2)
        assert orders.do(MoveDeadlines(1, 1.0, 60.0)).notices == {"A", "B"}

    def test_deadlines_before_the_outage_are_not_postponed(self) -> None:
        orders = joined(warmup=False)
        orders.wait(30)
        orders.do(MoveDeadlines(1, 20.0, 10.0))
        assert orders.deadline(3) == 3.0


class TestClockGoesBack:
    """Waits become no longer and no shorter."""

    @staticmethod
    def set_back(orders: World, seconds: float) -> set[str]:
        began = orders.now
        orders.wait(-seconds)
        told = orders.do(MoveDeadlines(1, began, -seconds)).notices
        assert not orders.do(MoveDeadlines(1, began, -seconds)).records
        return set(told)

    def test_deadlines_of_handoffs_go_back_and_their_flows_are_told(self) -> None:
        orders = joined(warmup=True)
        orders.ready("B", 3)
        orders.wait(1)
        assert self.set_back(orders, 3600) == {"A", "B"}
        assert orders.deadline(3) == orders.now + 2
        orders.advance(2)
        assert orders.owner(3) == "B"

    def test_a_holddown_lasts_as_long_as_it_would_have(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=5.0)
        orders.bind("B")
        orders.wait(2)
        self.set_back(orders, 3600)
        assert orders.queue.holddown_until == orders.now + 3
        assert orders.queue.since == orders.now - 2

    def test_a_drain_cuts_warm_ups_short_when_it_would_have(self) -> None:
        orders = joined(warmup=True)
        orders.drain("A", 30.0)
        orders.wait(10)
        self.set_back(orders, 3600)
        assert orders.queue.flows["A"].drain_deadline == orders.now + 20

    def test_a_log_is_asked_for_its_cuts_when_it_would_have_been(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0.0, ordered_resize=True)
        orders.resize(4)
        due = orders.queue.resize.cuts_due
        assert due is not None
        self.set_back(orders, 3600)
        assert orders.queue.resize.cuts_due == due - 3600

    def test_an_outage_after_the_step_is_given_back_to_older_handoffs(self) -> None:
        orders = joined(warmup=False)
        self.set_back(orders, 3600)
        began = orders.now
        orders.wait(60)
        orders.do(MoveDeadlines(2, began, 60.0))
        assert orders.deadline(3) == orders.now + 3

    def test_durations_are_never_negative(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=5.0)
        orders.unbind("A")
        self.set_back(orders, 3600)
        orders.bind("B")
        granted = [one for one in orders.records if isinstance(one, r.Granted)][-1]
        assert {grant.seconds for grant in granted.grants} == {0.0}
