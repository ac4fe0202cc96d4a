"""What one key may have and cause in one queue."""

from itertools import pairwise
from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.budget import held_until
from broker.core.draft import Decision
from broker.core.errors import TooManyFlows
from tests.broker.core.world import World

FEW = c.Quota(flows=2, moves=12)


class TestFlows:
    """The flows of one key on one queue are counted."""

    def bind(self, world: World, name: str, key: str | None, instance: str = "") -> Decision:
        return world.bind(name, instance or None, key_id=key, quota=FEW)

    def test_one_too_many_is_refused_and_changes_nothing(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        revision = orders.queue.revision
        with pytest.raises(TooManyFlows, match=r"2 flows.*COUNTERPOISE_KEY_FLOWS"):
            self.bind(orders, "C", "key")
        assert orders.queue.revision == revision
        assert orders.queue.flows.keys() == {"A", "B"}

    def test_others_and_those_without_a_key_are_not_counted(self) -> None:
        orders = World(partitions=4)
        for number in range(3):
            self.bind(orders, f"N{number}", None)
        for key in ("one", "two"):
            self.bind(orders, f"A-{key}", key)
            self.bind(orders, f"B-{key}", key)
        assert len(orders.queue.flows) == 7

    def test_who_takes_the_place_of_its_own_is_none_too_many(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        self.bind(orders, "A2", "key", instance="i-A")
        assert orders.queue.flows.keys() == {"A2", "B"}
        with pytest.raises(TooManyFlows):
            self.bind(orders, "C", "key")

    def test_who_leaves_makes_room(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        orders.expire("A")
        self.bind(orders, "C", "key")
        with pytest.raises(TooManyFlows):
            self.bind(orders, "D", "key")
        orders.unbind("B")
        orders.unbind("C")
        assert orders.queue.flows.of_key == {}


HONEST, GREEDY = "honest", "greedy"
# Of eight partitions.
MOST = 8
BUDGET = c.Quota(flows=1000, moves=1, least_moves=1)
HOUR = 3600.0


def shared(*, warmup: bool = False, **settings: Any) -> World:
    """A queue of eight partitions that two flows of one key share, balanced."""
    orders = World(partitions=8, **settings)
    for name in ("A", "B"):
        orders.bind(name, warmup=warmup, key_id=HONEST, quota=BUDGET)
    orders.settle()
    return orders


def joins(orders: World, name: str, key: str | None = GREEDY, instance: str = "") -> Decision:
    return orders.bind(name, instance or None, key_id=key, quota=BUDGET)


def comes_and_goes(orders: World, name: str, key: str | None = GREEDY) -> None:
    """A flow takes its share, and leaves."""
    joins(orders, name, key)
    orders.advance(30)
    orders.unbind(name)
    orders.advance(30)


def held(orders: World) -> list[str]:
    return sorted(orders.queue.flows.held)


def taken(orders: World) -> dict[str, int]:
    """What was counted; little of it leaks between."""
    return {key: round(moves.level) for key, moves in orders.queue.moved.items()}


def spent() -> World:
    """The greedy key has no room for one more share: three flows of it came and went."""
    orders = shared()
    for number in range(3):
        comes_and_goes(orders, f"X{number}")
    assert taken(orders) == {GREEDY: 6}
    return orders


class TestWhatCounts:
    """Partitions that a key's flows take from bound flows of other keys."""

    def test_each_handoff_from_another_key(self) -> None:
        orders = shared()
        comes_and_goes(orders, "X")
        assert taken(orders) == {GREEDY: 2}

    def test_once_if_it_begins_with_a_warm_up(self) -> None:
        orders = shared()
        orders.bind("X", key_id=GREEDY, quota=BUDGET, warmup=True)
        orders.settle()
        assert orders.owned("X")
        assert taken(orders) == {GREEDY: 2}

    def test_not_what_a_key_takes_from_itself(self) -> None:
        orders = shared()
        comes_and_goes(orders, "C", HONEST)
        assert taken(orders) == {}

    def test_not_what_callers_without_a_key_take(self) -> None:
        orders = shared()
        comes_and_goes(orders, "C", None)
        assert taken(orders) == {}

    def test_but_what_is_taken_from_them(self) -> None:
        orders = World.owning({"A": [0, 1, 2, 3]})
        comes_and_goes(orders, "X")
        assert taken(orders) == {GREEDY: 2}

    def test_not_what_has_no_owner_or_an_owner_that_drains(self) -> None:
        """Else whoever leaves would use up the budget of those who take over."""
        orders = shared()
        joins(orders, "X")
        orders.settle()
        orders.drain("A")
        orders.unbind("B")
        orders.settle()
        assert orders.owned("X") == [*range(8)]
        assert taken(orders) == {GREEDY: 2}

    def test_it_leaks_away_in_an_hour(self) -> None:
        orders = spent()
        orders.advance(HOUR)
        comes_and_goes(orders, "Y", "third")
        assert taken(orders) == {"third": 2}

    def test_what_has_not_leaked_in_an_hour_still_counts(self) -> None:
        """Flows that bind together may take more than leaks in an hour."""
        orders = shared()
        for name in ("X", "Y"):
            comes_and_goes(orders, name)
        for number in range(6):
            joins(orders, f"Z{number}")
        orders.settle()
        assert taken(orders) == {GREEDY: 10}
        orders.advance(HOUR)
        orders.unbind("Z0")
        orders.settle()
        comes_and_goes(orders, "C", "third")
        joins(orders, "W")
        assert taken(orders)[GREEDY] == 10 - MOST

    def test_not_faster_with_many_binds(self) -> None:
        orders = spent()
        before = orders.queue.moved[GREEDY]
        for number in range(60):
            orders.advance(1)
            joins(orders, "X", instance=f"i{number}")
            orders.unbind("X")
        leaked = before.leaked(MOST, orders.now)
        assert orders.queue.moved[GREEDY].level == pytest.approx(leaked, abs=0.001)


class TestHeldBack:
    """A flow of a key that has taken all it may waits until there is room for its share."""

    def test_nobody_moves_for_it(self) -> None:
        orders = spent()
        before, status = orders.owners(), orders.status
        decision = joins(orders, "X")
        assert [type(record) for record in decision.records] == [r.FlowBound]
        orders.advance(60)
        assert held(orders) == ["X"]
        assert (orders.owners(), orders.status) == ({**before, "X": []}, status)

    def test_a_loop_that_only_ends_drains_does_not_wait_for_it(self) -> None:
        orders = spent()
        orders.drain("A")
        orders.advance(5)
        joins(orders, "X")
        assert held(orders) == ["X"]
        assert (orders.status, orders.queue.holddown_until) == ("Rebalancing", None)

    def test_several_that_bind_together_are_no_trigger_either(self) -> None:
        orders = spent()
        binds = (c.Bind(n, n, n, 10.0, key_id=GREEDY, quota=BUDGET) for n in ("X", "Y"))
        orders.do(c.BindTogether(tuple(binds)))
        assert (held(orders), orders.status) == (["X", "Y"], "Ready")

    def test_just_enough_room_is_room(self) -> None:
        assert held_until(MOST - 3, MOST, 3, 0, 0.0) is None

    def test_it_joins_when_there_is_room(self) -> None:
        orders = spent()
        joins(orders, "X")
        until = orders.queue.flows["X"].held_until
        assert until is not None
        assert orders.queue.next_deadline() == until
        # A third flow takes the share of three.
        assert orders.queue.moved[GREEDY].leaked(MOST, until) == pytest.approx(MOST - 3)
        orders.advance(until - orders.now - 1)
        assert orders.status == "Ready"
        orders.advance(1)
        assert not orders.queue.flows.held
        assert (orders.status, orders.trigger) == ("Holddown", "bind")
        orders.settle()
        assert len(orders.owned("X")) == 2

    def test_the_first_of_an_exclusive_queue_gets_it_when_it_joins(self) -> None:
        """Not later, when something else happens."""
        orders = spent()
        joins(orders, "X")
        orders.change(access_type="exclusive", max_handoff_time=1)
        orders.advance(1)
        orders.bind("C")
        orders.unbind("A")
        orders.unbind("B")
        assert orders.owners() == {"X": [], "C": list(range(8))}
        until = orders.queue.flows["X"].held_until
        assert until is not None
        orders.advance(until - orders.now)
        assert (orders.status, orders.trigger) == ("Holddown", "bind")
        orders.settle()
        assert orders.owners() == {"X": list(range(8)), "C": []}

    def test_those_that_wait_join_one_after_the_other(self) -> None:
        orders = spent()
        for name in ("X", "Y", "Z"):
            joins(orders, name)
        times = [orders.queue.flows[name].held_until or 0.0 for name in ("X", "Y", "Z")]
        assert [b - a for a, b in pairwise(times)] == [pytest.approx(3 / MOST * HOUR)] * 2

    def test_to_drain_and_bind_again_is_no_way_in(self) -> None:
        orders = shared()
        joins(orders, "X0")
        orders.advance(30)
        for number in range(1, 4):
            orders.drain(f"X{number - 1}")
            orders.advance(30)
            joins(orders, f"X{number}", instance="i-X0")
            orders.advance(30)
        assert taken(orders) == {GREEDY: 6}
        assert held(orders) == ["X3"]
        assert {name: len(numbers) for name, numbers in orders.owners().items()} == {
            "A": 4,
            "B": 4,
            "X3": 0,
        }

    def test_nor_with_what_it_still_has(self) -> None:
        """What was not handed over yet goes to the others, as if it had left."""
        orders = shared(max_concurrent_handoffs=1)
        joins(orders, "X")
        orders.advance(30)
        for number in range(2):
            comes_and_goes(orders, f"X{number}")
        orders.drain("X")
        orders.advance(5)
        owned = orders.owned("X")
        assert len(owned) == 2
        orders.release("X", *orders.queue.handoffs)
        joins(orders, "X2", instance="i-X")
        assert held(orders) == ["X2"]
        orders.advance(30)
        assert {name: len(numbers) for name, numbers in orders.owners().items()} == {
            "A": 4,
            "B": 4,
            "X2": 0,
        }

    def test_nor_to_drain_while_it_waits(self) -> None:
        orders = spent()
        joins(orders, "X")
        orders.drain("X")
        joins(orders, "X2", instance="i-X")
        assert held(orders) == ["X2"]
        orders.drain("X2")
        orders.expire("A")
        orders.unbind("X2")
        joins(orders, "X3", instance="i-X")
        assert (held(orders), orders.status) == (["X3"], "Holddown")

    def test_who_drains_and_binds_again_alone_goes_on(self) -> None:
        orders = spent()
        for name in ("A", "B"):
            orders.unbind(name)
        joins(orders, "X")
        orders.settle()
        orders.drain("X")
        orders.settle()
        joins(orders, "X2", instance="i-X")
        assert (held(orders), orders.owned("X2"), orders.status) == ([], [*range(8)], "Ready")

    def test_other_keys_and_callers_without_one_join_at_once(self) -> None:
        orders = spent()
        joins(orders, "C", HONEST)
        joins(orders, "D", None)
        joins(orders, "E", "third")
        assert held(orders) == []
        orders.settle()
        assert all(orders.owned(name) for name in "CDE")

    def test_who_restarts_goes_on(self) -> None:
        """Also one that comes back within the holddown."""
        orders = shared()
        joins(orders, "X")
        orders.settle()
        for number in range(3):
            comes_and_goes(orders, f"X{number}")
        owned = orders.owned("X")
        joins(orders, "X2", instance="i-X")
        assert (orders.owned("X2"), held(orders)) == (owned, [])
        orders.expire("X2")
        joins(orders, "X3", instance="i-X")
        assert (orders.owned("X3"), held(orders), orders.status) == (owned, [], "Ready")

    def test_so_does_who_claims_as_much_as_before(self) -> None:
        """With its maximum and its pins."""
        orders = shared()
        claim: dict[str, Any] = {"client_name": "c-X", "max_partitions": 2, "key_id": GREEDY}
        orders.bind("X", quota=BUDGET, **claim)
        orders.settle()
        owned = orders.owned("X")
        orders.pin(owned[0], "c-X")
        for number in range(3):
            comes_and_goes(orders, f"X{number}")
        orders.bind("X2", "i-X", quota=BUDGET, **claim)
        assert (orders.owned("X2"), held(orders)) == (owned, [])
        orders.expire("X2")
        orders.bind("X3", "i-X", quota=BUDGET, **claim)
        assert (orders.owned("X3"), held(orders)) == (owned, [])

    def test_to_bind_again_is_no_way_in(self) -> None:
        """Neither in its own place, nor after it has left in a holddown."""
        orders = spent()
        joins(orders, "X")
        until = orders.queue.flows["X"].held_until
        joins(orders, "X2", instance="i-X")
        assert held(orders) == ["X2"]
        assert orders.queue.flows["X2"].held_until == until
        orders.expire("A")
        assert orders.status == "Holddown"
        orders.unbind("X2")
        joins(orders, "X3", instance="i-X")
        assert held(orders) == ["X3"]

    def test_it_counts_for_no_rule(self) -> None:
        """F is what it was: another bind brings the number back (rule 7), and it is no excess."""
        orders = spent()
        joins(orders, "X")
        orders.unbind("A")
        assert orders.status == "Holddown"
        joins(orders, "C", HONEST)
        assert orders.status == "Ready"
        assert {name: len(numbers) for name, numbers in orders.owners().items()} == {
            "B": 4,
            "C": 4,
            "X": 0,
        }

    def test_it_may_leave_and_drain(self) -> None:
        orders = spent()
        for name in ("X", "Y"):
            joins(orders, name)
        orders.unbind("X")
        orders.drain("Y")
        assert (held(orders), orders.status) == ([], "Ready")
        assert orders.queue.flows["Y"].draining
        assert orders.settle() == 0
        orders.unbind("Y")
        assert orders.status == "Ready"

    def test_its_time_goes_back_with_the_clock(self) -> None:
        orders = spent()
        joins(orders, "X")
        until, at = orders.queue.flows["X"].held_until, orders.queue.moved[GREEDY].at
        assert until is not None
        began = orders.now
        orders.wait(-600.0)
        orders.do(c.MoveDeadlines(1, began, -600.0))
        assert orders.queue.flows["X"].held_until == until - 600
        assert orders.queue.moved[GREEDY].at == at - 600


class TestNothingIsIdle:
    """If nobody else is there, flows that are held back join at once."""

    @pytest.mark.parametrize("delay", [5.0, 0.0])
    @pytest.mark.parametrize("leave", ["unbind", "expire"])
    def test_when_the_last_other_flow_leaves(self, leave: str, delay: float) -> None:
        orders = spent()
        orders.change(rebalance_delay=delay)
        for name in ("X", "Y"):
            joins(orders, name)
        getattr(orders, leave)("A")
        orders.advance(100)
        assert held(orders) == ["X", "Y"]
        assert orders.owned("B") == [*range(8)]
        getattr(orders, leave)("B")
        assert held(orders) == []
        orders.advance(100)
        assert [len(orders.owned(name)) for name in ("X", "Y")] == [4, 4]

    def test_when_it_drains(self) -> None:
        orders = spent()
        orders.unbind("A")
        orders.settle()
        joins(orders, "X")
        orders.drain("B")
        assert held(orders) == []
        orders.settle()
        assert orders.owned("X") == [*range(8)]

    def test_when_the_one_leaves_that_was_to_get_all_that_another_drains(self) -> None:
        orders = spent()
        orders.unbind("A")
        orders.settle()
        joins(orders, "X")
        joins(orders, "C", None)
        orders.drain("B")
        assert held(orders) == ["X"]
        assert orders.on_their_way() == dict.fromkeys(range(8), ("revoking", "C"))
        orders.unbind("C")
        assert held(orders) == []
        assert orders.on_their_way() == dict.fromkeys(range(8), ("revoking", "X"))

    def test_when_it_is_the_first_to_bind(self) -> None:
        orders = spent()
        for name in ("A", "B"):
            orders.unbind(name)
        orders.settle()
        joins(orders, "X")
        assert held(orders) == []
        orders.settle()
        assert orders.owned("X") == [*range(8)]
