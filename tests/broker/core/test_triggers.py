"""What triggers what, rule by rule (the contract, *What triggers what*)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import Overtaken
from tests.broker.core.world import World


def history(world: World) -> list[tuple[str, int, int]]:
    """The last entry of the history: (trigger, handoffs, grants without one)."""
    entry = world.queue.last_rebalance
    assert entry is not None
    return [(entry.trigger, entry.handoffs, entry.granted)]


class TestRule1:
    """Bind, F < P: holddown. Also for the first flow of an empty queue."""

    def test_the_first_flow_waits_out_the_holddown_and_gets_everything(self) -> None:
        orders = World(3)
        orders.bind("A")
        assert (orders.status, orders.trigger, orders.queue.holddown_until) == (
            "Holddown",
            "bind",
            5.0,
        )
        assert orders.unassigned() == [0, 1, 2]
        orders.advance(4.9)
        assert orders.owned("A") == []
        orders.advance(0.1)
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2]
        assert history(orders) == [("bind", 0, 3)]

    def test_at_once_the_first_flow_gets_everything_without_a_holddown(self) -> None:
        orders = World(3)
        orders.bind("A", at_once=True)
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2]
        assert history(orders) == [("bind", 0, 3)]

    def test_at_once_a_flow_that_finds_others_waits_out_the_holddown(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.bind("C", at_once=True)
        assert (orders.status, orders.trigger) == ("Holddown", "bind")

    def test_at_once_a_flow_that_finds_one_that_is_draining_takes_over_from_it(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.drain("A")
        orders.advance(5)
        assert (orders.status, orders.owned("A")) == ("Ready", [0, 1])
        orders.bind("B", at_once=True)
        assert (orders.status, orders.trigger) == ("Rebalancing", "bind")
        assert orders.on_their_way() == {0: ("revoking", "B"), 1: ("revoking", "B")}

    def test_at_once_a_flow_that_replaces_the_only_one_waits_for_nothing(self) -> None:
        """Also if that one had drained, and everything is to be granted."""
        orders = World.owning({"A": [0, 1]})
        orders.drain("A")
        orders.advance(5)
        orders.release("A", 0, 1)
        assert (orders.status, orders.unassigned()) == ("Ready", [0, 1])
        orders.bind("A2", "i-A", at_once=True)
        assert (orders.status, orders.owned("A2")) == ("Ready", [0, 1])

    def test_at_once_a_holddown_that_runs_goes_on(self) -> None:
        """Those who left may come back, as after any other bind."""
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.unbind("A")
        orders.unbind("B")
        orders.bind("C", at_once=True)
        assert (orders.status, orders.unassigned()) == ("Holddown", [0, 1, 2])
        orders.bind("A2", "i-A")
        assert orders.owned("A2") == [0, 1]
        assert (orders.status, orders.owned("C")) == ("Ready", [2])

    @pytest.mark.parametrize("asks", [(True, False), (False, True)])
    def test_at_once_is_for_those_that_come_together_if_all_ask_for_it(
        self, asks: tuple[bool, bool]
    ) -> None:
        def together(orders: World, *at_once: bool) -> str:
            binds = (
                c.Bind(name, name, name, 10.0, at_once=asks)
                for name, asks in zip("XY", at_once, strict=True)
            )
            orders.do(c.BindTogether(tuple(binds)))
            return orders.status

        assert together(World(3), True, True) == "Ready"
        assert together(World(3), *asks) == "Holddown"
        assert together(World.owning({"A": [0, 1, 2]}), True, True) == "Holddown"

    def test_a_bind_to_fewer_flows_than_partitions_starts_a_holddown(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.bind("C")
        assert (orders.status, orders.trigger) == ("Holddown", "bind")
        assert orders.owners() == {"A": [0, 1], "B": [2], "C": []}

    def test_a_flow_that_binds_as_the_last_with_a_share_starts_a_holddown(self) -> None:
        """F is counted before the event: 2 < 3."""
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.bind("C")
        orders.advance(5)
        orders.release("A", 1)
        assert orders.owners() == {"A": [0], "B": [2], "C": [1]}

    def test_draining_flows_do_not_count_in_f(self) -> None:
        orders = World.owning({"A": [0], "B": [1]}, rebalance_delay=1)
        orders.drain("B")
        orders.advance(1)
        orders.release("B", 1)
        assert orders.status == "Ready"
        orders.bind("C")
        assert (orders.status, orders.trigger) == ("Holddown", "bind")


class TestRule2:
    """Bind, F >= P: the flow stands by, inactive. Nothing is triggered."""

    def test_a_flow_beyond_the_partition_count_stands_by(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        decision = orders.bind("C")
        assert [type(record) for record in decision.records] == [r.FlowBound]
        assert orders.status == "Ready"
        assert not orders.queue.flows["C"].active


class TestRule3:
    """Unbind with at least P non-draining flows remaining: granted at once, without holddown."""

    def test_the_earliest_bound_standby_takes_over_at_once(self) -> None:
        orders = World.owning({"A": [0], "B": [1], "C": [], "D": []})
        orders.unbind("A")
        assert orders.status == "Ready"
        assert orders.owners() == {"B": [1], "C": [0], "D": []}
        assert (orders.epoch(0), orders.handed_over(0)) == (2, "orphaned")

    def test_it_is_in_the_history_as_an_entry_of_its_own(self) -> None:
        orders = World.owning({"A": [0], "B": []})
        orders.expire("A")
        entry = orders.queue.last_rebalance
        assert entry is not None
        assert (entry.id, entry.trigger, entry.handoffs, entry.granted) == (
            2,
            "lease_expired",
            0,
            1,
        )

    def test_a_standby_that_leaves_changes_nothing(self) -> None:
        orders = World.owning({"A": [0], "B": [1], "C": []})
        decision = orders.unbind("C")
        assert [type(record) for record in decision.records] == [r.FlowLeft]
        assert orders.status == "Ready"

    def test_within_a_holddown_the_partitions_go_to_those_with_the_fewest(self) -> None:
        orders = World.owning({"A": [0], "B": [1], "C": []})
        orders.drain("C")
        assert orders.status == "Holddown"
        orders.bind("D")
        orders.unbind("A")
        assert orders.owners() == {"B": [1], "C": [], "D": [0]}
        assert orders.epoch(0) == 2


class TestRule4:
    """Unbind otherwise: holddown. The leaver's partitions have no owner meanwhile."""

    def test_the_partitions_wait_without_an_owner(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.unbind("A")
        assert (orders.status, orders.trigger) == ("Holddown", "unbind")
        assert orders.unassigned() == [0, 1]
        orders.advance(5)
        assert orders.owners() == {"B": [0, 1, 2, 3]}
        assert [orders.handed_over(n) for n in (0, 1)] == ["orphaned", "orphaned"]
        assert history(orders) == [("unbind", 0, 2)]

    def test_when_the_last_flow_leaves_the_queue_is_ready_after_the_holddown(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.unbind("A")
        assert orders.status == "Holddown"
        orders.advance(5)
        assert orders.status == "Ready"
        assert orders.unassigned() == [0, 1]

    def test_the_unbind_of_a_drained_flow_triggers_nothing(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.drain("B")
        orders.release("B", 2, 3)
        orders.change(rebalance_delay=5.0)
        assert orders.status == "Ready"
        orders.unbind("B")
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2, 3]


class TestRule5:
    """An expired lease is an unbind; only the recorded reason differs."""

    def test_only_the_reason_differs(self) -> None:
        left, expired = (World.owning({"A": [0, 1], "B": [2, 3]}) for _ in range(2))
        left.unbind("A")
        expired.expire("A")
        assert (left.trigger, expired.trigger) == ("unbind", "lease_expired")
        for world in (left, expired):
            world.advance(5)
        assert left.owners() == expired.owners()


class TestRule6:
    """Further binds and unbinds during a holddown neither extend nor restart it."""

    def test_late_flow_joins_the_pending_rebalance(self) -> None:
        orders = World(6)
        orders.bind("A")
        orders.advance(3)
        orders.bind("B")
        orders.advance(1)
        orders.bind("C")
        orders.unbind("B")
        assert orders.queue.holddown_until == 5.0
        orders.advance(1)
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 2, 4], "C": [1, 3, 5]}

    def test_the_first_trigger_stays(self) -> None:
        orders = World.owning({"A": [0, 1, 2]})
        orders.bind("B")
        orders.bind("C")
        orders.unbind("A")
        assert orders.trigger == "bind"


class TestRule7:
    """F is again as before the trigger: unassigned partitions are granted at once; Ready if
    balanced."""

    def test_another_consumer_in_its_place_gets_the_partitions_without_a_handoff(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.expire("B")
        orders.advance(2)
        orders.bind("C")
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "C": [2, 3]}
        assert [orders.epoch(n) for n in range(4)] == [1, 1, 2, 2]
        assert history(orders) == [("lease_expired", 0, 2)]

    def test_a_flow_that_came_and_went_leaves_no_trace(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.bind("C")
        orders.unbind("C")
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "B": [2, 3]}

    def test_unassigned_partitions_are_granted_even_if_balance_needs_more(self) -> None:
        """A drains with one of three partitions left; B restores the number of flows."""
        orders = World.owning({"A": [0, 1, 2]})
        orders.drain("A")
        orders.release("A", 2)
        assert orders.unassigned() == [2]
        orders.bind("B")
        assert orders.owners() == {"A": [0, 1], "B": [2]}
        assert orders.status == "Holddown"
        orders.release("A", 0, 1)
        assert orders.status == "Ready"
        assert orders.owned("B") == [0, 1, 2]
        assert orders.handed_over(0) == "graceful"

    def test_a_queue_that_was_empty_before_and_is_again_is_ready(self) -> None:
        orders = World(2)
        orders.bind("A")
        orders.unbind("A")
        assert orders.status == "Ready"
        assert orders.unassigned() == [0, 1]


class TestRule8:
    """`rebalance_delay` 0: no holddown, straight to Rebalancing."""

    def test_a_bind_rebalances_at_once(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B")
        assert orders.status == "Rebalancing"
        assert orders.on_their_way() == {1: ("revoking", "B")}

    def test_an_unbind_is_rebalanced_in_the_same_decision(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.unbind("B")
        assert orders.status == "Ready"
        assert orders.owned("A") == [0, 1, 2, 3]
        assert history(orders) == [("unbind", 0, 2)]


class TestRule9:
    """Resize, access type and "rebalance now": Rebalancing at once, ending any holddown."""

    def test_rebalance_now_ends_the_holddown_and_keeps_the_first_trigger(self) -> None:
        orders = World.owning({"A": [0, 1]})
        orders.bind("B")
        orders.rebalance_now()
        assert (orders.status, orders.trigger) == ("Rebalancing", "bind")
        assert orders.queue.holddown_until is None

    def test_rebalance_now_on_a_balanced_queue_moves_nothing(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.rebalance_now()
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "B": [2]}
        assert history(orders) == [("admin", 0, 0)]

    def test_rebalance_now_amid_a_rebalance_changes_nothing(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B")
        assert orders.rebalance_now().records == ()

    @pytest.mark.parametrize(
        ("changes", "trigger"),
        [({"partition_count": 5}, "resize"), ({"access_type": "exclusive"}, "access_type")],
    )
    def test_these_changes_skip_the_holddown(self, changes: dict[str, Any], trigger: str) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        decision = orders.change(**changes)
        started = [x for x in decision.records if isinstance(x, r.RebalanceStarted)]
        assert [x.trigger for x in started] == [trigger]

    def test_a_setting_that_stays_the_same_is_no_change(self) -> None:
        orders = World.owning({"A": [0, 1]})
        same: dict[str, Any] = {
            "partition_count": 2,
            "access_type": "non_exclusive",
            "rebalance_delay": 5.0,
        }
        assert orders.change(**same).records == ()

    def test_other_settings_hold_for_what_begins_afterwards(self) -> None:
        orders = World.owning({"A": [0, 1, 2]})
        orders.bind("B")
        orders.change(rebalance_delay=60.0, max_handoff_time=9.0)
        assert orders.queue.holddown_until == 5.0
        orders.advance(5)
        assert orders.deadline(2) == 14.0
        orders.change(max_handoff_time=1.0)
        assert orders.deadline(2) == 14.0


class TestRule10:
    """A change while Rebalancing is taken up by the loop at once, without a new holddown."""

    def test_a_bind_while_rebalancing_needs_no_new_holddown(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3, 4, 5]})
        orders.bind("B")
        orders.advance(5)
        assert orders.on_their_way() == dict.fromkeys((3, 4, 5), ("revoking", "B"))
        orders.bind("C")
        assert orders.status == "Rebalancing"
        assert orders.on_their_way()[2] == ("revoking", "C")

    def test_an_unbind_while_rebalancing_is_taken_up_at_once(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.bind("C")
        orders.unbind("B")
        assert orders.unassigned() == []
        assert orders.queue.holddown_until is None


class TestRule11:
    """Drain triggers like an unbind, always with the holddown; the flow works until handed off."""

    def test_the_flow_keeps_its_partitions_until_each_is_handed_off(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.drain("B")
        assert (orders.status, orders.trigger) == ("Holddown", "drain")
        assert orders.owned("B") == [2, 3]
        orders.advance(5)
        assert orders.on_their_way() == {2: ("revoking", "A"), 3: ("revoking", "A")}
        orders.release("B", 2)
        assert orders.owned("B") == [3]
        orders.release("B", 3)
        assert orders.status == "Ready"
        assert not orders.queue.flows["B"].active

    def test_also_a_standby_that_drains_takes_the_holddown(self) -> None:
        orders = World.owning({"A": [0], "B": []})
        orders.drain("B")
        assert (orders.status, orders.trigger) == ("Holddown", "drain")
        orders.advance(5)
        assert orders.owners() == {"A": [0], "B": []}

    def test_a_drain_while_rebalancing_is_taken_up_by_the_loop(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.bind("C")
        orders.drain("B")
        assert orders.status == "Rebalancing"
        assert {n for n in (2, 3) if n in orders.on_their_way()} == {2, 3}


class TestRule12:
    """Bind of a bound instance: place, partitions and warm-ups at once, new epochs, no holddown."""

    def test_a_restarted_consumer_continues_its_partitions_at_once(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.bind("A2", "i-A")
        assert orders.status == "Ready"
        assert orders.owners() == {"A2": [0, 1], "B": [2, 3]}
        assert [orders.epoch(n) for n in range(4)] == [2, 2, 1, 1]
        assert orders.handed_over(0) == "replaced"
        assert history(orders) == [("replaced", 0, 2)]

    def test_a_bind_that_was_long_on_its_way_does_not_replace_a_later_one(self) -> None:
        orders = World(2, rebalance_delay=0)
        orders.bind("A2", "i", binder="program", attempt=2)
        for late in (1, 2):
            with pytest.raises(Overtaken, match="higher attempt"):
                orders.bind("late", "i", binder="program", attempt=late)
        assert orders.owners() == {"A2": [0, 1]}
        assert [orders.epoch(n) for n in range(2)] == [1, 1]
        orders.bind("A3", "i", binder="program", attempt=3)
        assert orders.owners() == {"A3": [0, 1]}

    @pytest.mark.parametrize("binder", ["another", None])
    def test_another_program_replaces_with_any_attempt_number(self, binder: str | None) -> None:
        orders = World(2, rebalance_delay=0)
        orders.bind("A", "i", binder="program", attempt=7)
        orders.bind("B", "i", binder=binder, attempt=1)
        assert orders.owners() == {"B": [0, 1]}

    def test_the_old_flow_is_gone_as_replaced(self) -> None:
        orders = World.owning({"A": [0]})
        decision = orders.bind("A2", "i-A")
        assert [x.reason for x in decision.records if isinstance(x, r.FlowLeft)] == ["replaced"]
        assert "A" in decision.notices

    def test_a_standby_is_replaced_without_an_entry_in_the_history(self) -> None:
        orders = World.owning({"A": [0], "B": []})
        orders.bind("B2", "i-B")
        assert orders.status == "Ready"
        assert history(orders) == [("bind", 0, 1)]

    def test_it_keeps_the_place_in_the_order_of_binding(self) -> None:
        orders = World.owning({"A": [0], "B": [1], "C": [], "D": []})
        orders.bind("C2", "i-C")
        orders.unbind("A")
        assert orders.owned("C2") == [0]

    def test_what_is_on_its_way_to_the_old_flow_goes_to_the_new_one(self) -> None:
        """Though another flow has fewer meanwhile: the new flow takes the place of the old one, and
        a partition in `revoking` is planned again only after its handoff."""
        owned = {"D": [0], "B": [2, 3], "C": [1]}
        orders = World.owning(owned, rebalance_delay=0, max_concurrent_handoffs=1)
        orders.drain("D")
        assert orders.on_their_way() == {0: ("revoking", "C")}
        orders.resize(2)
        orders.bind("C2", "i-C")
        assert orders.on_their_way() == {0: ("revoking", "C2")}
        orders.release("D", 0)
        while orders.status != "Ready":
            for number in orders.on_their_way():
                orders.release(str(orders.owner(number)), number)
        assert orders.owners() == {"D": [], "B": [1, 2, 3], "C2": [0]}  # 2 and 3 retire

    def test_partitions_in_revoking_go_to_their_successors(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]}, rebalance_delay=0)
        orders.bind("B")
        assert set(orders.on_their_way()) == {2, 3}
        orders.bind("A2", "i-A")
        assert orders.owners() == {"A2": [0, 1], "B": [2, 3]}
        assert [orders.handed_over(n) for n in range(4)] == ["replaced"] * 2 + ["orphaned"] * 2
        assert orders.status == "Ready"

    def test_warm_ups_of_its_partitions_go_on_under_the_new_epoch(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B", warmup=True)
        until = orders.deadline(1)
        orders.wait(1)
        orders.bind("A2", "i-A")
        assert orders.on_their_way() == {1: ("warming", "B")}
        assert orders.deadline(1) == until
        assert orders.ready("B", 1, epoch=1) == ["stale_epoch"]
        assert orders.ready("B", 1, epoch=2) == ["ok"]

    def test_a_successor_that_restarted_takes_its_warm_ups_over(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B", warmup=True)
        orders.wait(1)
        orders.bind("B2", "i-B", warmup=True)
        assert orders.on_their_way() == {1: ("warming", "B2")}
        assert orders.deadline(1) == 601.0

    def test_a_successor_that_restarted_without_warm_up_gets_the_partition_sooner(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B", warmup=True)
        orders.bind("B2", "i-B")
        assert orders.on_their_way() == {1: ("revoking", "B2")}

    def test_a_revoke_goes_on_to_the_successor_that_restarted(self) -> None:
        orders = World.owning({"A": [0, 1]}, rebalance_delay=0)
        orders.bind("B")
        orders.wait(1)
        orders.bind("B2", "i-B")
        assert orders.on_their_way() == {1: ("revoking", "B2")}
        assert orders.deadline(1) == 3.0

    def test_the_new_flow_is_not_draining(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.drain("B")
        orders.bind("B2", "i-B")
        assert not orders.queue.flows["B2"].draining
        assert orders.status == "Ready"
        assert orders.owners() == {"A": [0, 1], "B2": [2, 3]}

    def test_one_of_two_draining_flows_that_comes_back_is_a_trigger(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]}, rebalance_delay=0)
        orders.drain("A")
        orders.drain("B")
        orders.settle()
        orders.change(rebalance_delay=5.0)
        assert orders.status == "Ready"
        orders.bind("B2", "i-B")
        assert (orders.status, orders.trigger) == ("Holddown", "replaced")

    def test_an_instance_that_left_during_the_holddown_gets_its_partitions_back(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.unbind("A")
        orders.bind("A2", "i-A")
        assert orders.status == "Ready"
        assert orders.owners() == {"A2": [0, 1], "B": [2, 3]}
        assert [orders.handed_over(n) for n in (0, 1)] == ["replaced", "replaced"]
        assert history(orders) == [("replaced", 0, 2)]

    def test_both_crash_and_come_back_in_the_other_order(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.expire("A")
        orders.expire("B")
        orders.bind("B2", "i-B")
        orders.bind("A2", "i-A")
        assert orders.status == "Ready"
        assert orders.owners() == {"A2": [0, 1], "B2": [2, 3]}

    def test_only_partitions_that_are_still_unassigned_come_back(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.unbind("A")
        orders.bind("C")
        assert orders.status == "Ready"
        orders.bind("A2", "i-A")
        assert orders.owners() == {"B": [1], "C": [0], "A2": []}

    def test_partitions_owned_by_another_flow_meanwhile_do_not_come_back(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2]})
        orders.drain("B")
        orders.unbind("A")
        orders.bind("C")
        orders.bind("D")
        assert orders.owners() == {"B": [2], "C": [0], "D": [1]}
        assert orders.status == "Holddown"
        orders.unbind("C")
        orders.bind("A2", "i-A")
        assert orders.owned("A2") == [0]
        assert orders.handed_over(0) == "orphaned"

    def test_positions_set_meanwhile_are_not_hidden_by_a_return(self) -> None:
        """`replaced` would allow the flow to replay a range that was planned under the epoch
        before.
        """
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.unbind("A")
        orders.raise_epochs(0)
        orders.bind("A2", "i-A")
        assert orders.owned("A2") == [0, 1]
        assert [orders.handed_over(n) for n in (0, 1)] == ["forced", "replaced"]

    def test_a_flow_that_leaves_before_it_is_drained_gets_its_partitions_back(self) -> None:
        orders = World.owning({"A": [0, 1], "B": [2, 3]})
        orders.drain("A")
        orders.unbind("A")
        orders.bind("A2", "i-A")
        assert orders.owners() == {"A2": [0, 1], "B": [2, 3]}
        assert [orders.handed_over(n) for n in (0, 1)] == ["replaced", "replaced"]

    def test_a_standby_that_left_during_the_holddown_has_its_place_again(self) -> None:
        orders = World.owning({"A": [0], "S": [], "T": []}, access_type="exclusive")
        orders.drain("A")
        orders.unbind("S")
        orders.bind("S2", "i-S")
        orders.settle()
        assert orders.owned("S2") == [0]

    def test_after_the_holddown_the_place_is_lost(self) -> None:
        orders = World.owning({"A": [0], "B": [1]})
        orders.unbind("A")
        orders.advance(5)
        orders.bind("A2", "i-A")
        orders.settle()
        assert list(orders.owners()) == ["B", "A2"]

    def test_a_flow_that_left_without_a_holddown_has_lost_its_place(self) -> None:
        """A drained flow unbinds; its instance comes back much later, when others are bound."""
        orders = World.owning({"A": [0], "B": []}, access_type="exclusive", rebalance_delay=0)
        orders.drain("A")
        orders.release("A", 0)
        orders.change(rebalance_delay=5.0)
        orders.unbind("A")
        orders.bind("A2", "i-A")
        assert orders.status == "Ready"
        assert orders.owners() == {"B": [0], "A2": []}
