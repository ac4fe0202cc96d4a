"""Pauses (`broker.core.pauses`): what holds, what ends one, and that nothing moves by one."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import Invalid
from broker.core.pauses import Pause
from tests.broker.core.test_lineage import at_work
from tests.broker.core.world import World

Child = c.NewChild


def paused(orders: World) -> list[int]:
    """The partitions that are paused."""
    numbers = sorted(orders.queue.partitions)
    return [number for number in numbers if orders.queue.pauses.holding(number) is not None]


def owning(**settings: Any) -> World:
    return World.owning({"A": [0, 1], "B": [2, 3]}, **settings)


class TestWhatHolds:
    def test_a_partition_is_paused_and_its_owner_is_told(self) -> None:
        orders = owning()
        decision = orders.pause(2, reason="the sink is away")
        assert decision.notices == {"B"}
        assert orders.queue.pauses.holding(2) == Pause(0.0, None, "the sink is away")
        assert paused(orders) == [2]
        assert orders.owners() == {"A": [0, 1], "B": [2, 3]}

    def test_the_queue_is_paused_and_all_owners_are_told(self) -> None:
        orders = owning()
        orders.bind("C")
        assert orders.pause().notices == {"A", "B"}
        assert paused(orders) == [0, 1, 2, 3]

    def test_pausing_again_replaces_end_and_reason_and_is_harmless(self) -> None:
        orders = owning()
        orders.pause(0, until=9.0)
        assert orders.pause(0, until=9.0).records == ()
        orders.advance(1.0)
        orders.pause(0, until=20.0, reason="longer")
        assert orders.queue.pauses.of == {0: Pause(0.0, 20.0, "longer")}
        assert orders.pause(0, 0, 1, until=20.0, reason="longer").records == (
            r.Paused((1,), 20.0, "longer", 1.0),
        )

    def test_of_two_pauses_the_one_that_ends_last_is_shown(self) -> None:
        orders = owning()
        orders.pause(0, until=9.0, reason="own")
        orders.pause(until=10.0, reason="all")
        orders.pause(1, reason="for good")
        shown = [orders.queue.pauses.holding(number) for number in range(3)]
        assert [pause and pause.reason for pause in shown] == ["all", "for good", "all"]
        orders.pause(until=9.0, reason="all")
        assert orders.queue.pauses.holding(0) == Pause(0.0, 9.0, "own")

    @pytest.mark.parametrize("until", [-1.0, 0.0])
    def test_a_time_that_is_over_is_refused(self, until: float) -> None:
        with pytest.raises(Invalid, match="over already"):
            owning().pause(0, until=until)

    def test_what_nobody_reads_cannot_be_paused(self) -> None:
        orders = owning()
        with pytest.raises(Invalid, match=r"Partition 4 .* does not exist"):
            orders.pause(0, 4)
        assert paused(orders) == []
        with pytest.raises(Invalid, match="does not exist"):
            orders.resume(4)
        graph = at_work("a", "b")
        graph.report("A", "a", Child("c", ("a", "b")), finished=True)
        with pytest.raises(Invalid, match=r"Partition 0 .* is finished"):
            graph.pause(0)

    def test_a_waiting_partition_begins_paused(self) -> None:
        orders = at_work("a")
        orders.report("A", "a", Child("b", ("a",)))
        orders.pause(1)
        orders.report("A", "a", finished=True)
        assert (orders.state_of("b"), paused(orders)) == ("owned", [1])


class TestWhatEndsOne:
    def test_resuming_one_leaves_the_other(self) -> None:
        orders = owning()
        orders.pause()
        orders.pause(1)
        orders.resume()
        assert paused(orders) == [1]
        orders.pause()
        assert orders.resume(1).notices == {"A"}
        assert paused(orders) == [0, 1, 2, 3]
        orders.resume()
        assert paused(orders) == []
        assert orders.resume().records == orders.resume(0).records == ()

    def test_it_ends_by_itself_at_its_time_and_not_before(self) -> None:
        orders = owning()
        orders.pause(0, until=10.0)
        orders.pause(seconds=4.0)
        assert orders.queue.next_deadline() == 4.0
        orders.advance(4.0)
        assert paused(orders) == [0]
        orders.advance(5.75)
        assert paused(orders) == [0]
        orders.advance(0.25)
        assert paused(orders) == []
        ended = [record for record in orders.records if isinstance(record, r.Resumed)]
        assert ended == [r.Resumed((), "ended", 4.0), r.Resumed((0,), "ended", 10.0)]

    def test_no_outage_moves_its_end(self) -> None:
        orders = owning()
        orders.pause(0, until=10.0)
        orders.wait(8.0)
        orders.do(c.MoveDeadlines(1, 0.0, 8.0))
        orders.advance(2.0)
        assert paused(orders) == []

    def test_it_ends_with_its_partition(self) -> None:
        orders = owning(rebalance_delay=0.0)
        orders.pause(2, 3)
        orders.resize(2)
        assert paused(orders) == [2, 3]
        orders.release("B", 2, 3, finished=True)
        orders.resize(4)
        assert paused(orders) == []
        orders.pause(3)
        orders.resize(3, discard=True)
        orders.resize(4)
        assert paused(orders) == []


class TestNothingMoves:
    def test_it_holds_over_handoffs_failures_and_replacements(self) -> None:
        orders = World.owning({"A": [0], "B": [1, 2]}, rebalance_delay=0.0)
        orders.pause(2)
        orders.bind("C")
        assert orders.state(2) == "revoking"
        orders.release("B", 2)
        assert (orders.owner(2), paused(orders)) == ("C", [2])
        orders.bind("D", "i-C")
        assert (orders.owner(2), paused(orders)) == ("D", [2])
        orders.expire("D")
        assert paused(orders) == [2]

    def test_a_paused_partition_counts_as_any_other(self) -> None:
        orders = World(6, rebalance_delay=0.0)
        orders.pause(0, 1, 2)
        orders.bind("A")
        orders.bind("B")
        orders.release("A", 5, 4, 3)
        assert {name: len(owned) for name, owned in orders.owners().items()} == {"A": 3, "B": 3}

    def test_during_holddown_and_warmup_nothing_is_cut_short(self) -> None:
        orders = owning(max_warmup_time=60.0)
        orders.bind("C", warmup=True)
        until = orders.queue.holddown_until
        orders.pause()
        assert (orders.status, orders.queue.holddown_until) == ("Holddown", until)
        orders.resume()
        orders.advance(5.0)
        warming = dict(orders.on_their_way())
        assert warming
        orders.pause(*warming)
        assert orders.on_their_way() == warming


class TestLineage:
    def test_children_inherit_the_pause_of_a_parent_that_finishes_paused(self) -> None:
        orders = at_work("a", "b")
        orders.pause(0, reason="wrong prices", until=90.0)
        orders.report("A", "a", Child("c", ("a",)), Child("d", ("a", "b")))
        assert paused(orders) == [0]
        orders.report("A", "a", finished=True)
        assert orders.queue.pauses.of == {
            number: Pause(0.0, 90.0, "wrong prices") for number in (2, 3)
        }

    def test_a_parent_that_was_resumed_leaves_none(self) -> None:
        orders = at_work("a")
        orders.pause(0)
        orders.report("A", "a", Child("b", ("a",)), Child("c", ("a",)))
        orders.resume(0)
        orders.report("A", "a", finished=True)
        assert paused(orders) == []

    def test_of_two_paused_parents_the_pause_that_ends_last_goes_on(self) -> None:
        for first, second in ((90.0, 50.0), (50.0, 90.0)):
            orders = at_work("a", "b")
            orders.pause(0, until=first)
            orders.pause(1, until=second)
            merged = Child("c", ("a", "b"))
            orders.report("A", "a", merged, finished=True)
            orders.report("A", "b", merged, finished=True)
            assert orders.queue.pauses.of == {2: Pause(0.0, 90.0, None)}
