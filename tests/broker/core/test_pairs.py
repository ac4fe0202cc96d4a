"""Deploys: a flow that comes takes over from one that drains (the contract, rule 14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from tests.broker.core.world import World


def moves(orders: World) -> Counter[int]:
    """How often a handoff of each partition has begun."""
    begun = (one for one in orders.records if isinstance(one, r.RevokesStarted | r.WarmupsStarted))
    return Counter(move.partition for one in begun for move in one.moves)


def forced(orders: World) -> int:
    grants = (one for one in orders.records if isinstance(one, r.Granted))
    return sum(grant.by_force for one in grants for grant in one.grants)


def let_go(orders: World) -> None:
    """Every owner finishes what it has to, and leaves if it is drained."""
    for name in [*orders.queue.flows]:
        flow = orders.queue.flows[name]
        if revoking := [n for n in sorted(flow.owned) if orders.state(n) == "revoking"]:
            assert set(orders.release(name, *revoking)) == {"ok"}
        if flow.draining and not flow.owned:
            orders.unbind(name)


class Deploy:
    """So many consumers with an even share each, some of which are replaced."""

    def __init__(self, partitions: int = 200, consumers: int = 40) -> None:
        share = partitions // consumers
        self.orders = World.owning(
            {f"old{n}": [*range(n * share, (n + 1) * share)] for n in range(consumers)},
        )
        self.orders.checked = partitions <= 20

    def come(self, number: int) -> None:
        self.orders.bind(f"new{number}")
        self._check()

    def go(self, number: int) -> None:
        self.orders.drain(f"old{number}")
        self._check()

    def wait(self, seconds: float) -> None:
        """Handoffs take 0.2 s."""
        self.orders.advance(0.2)
        let_go(self.orders)
        self.orders.advance(seconds - 0.2)
        self._check()

    def _check(self) -> None:
        """Nobody has more than its share, at any time."""
        share = self.orders.queue.settings.partition_count // 40
        if not self.orders.checked:
            assert max(len(flow.owned) for flow in self.orders.queue.flows.values()) == share


def old_first(deploy: Deploy, count: int, seconds: float) -> None:
    for number in range(count):
        deploy.go(number)
        deploy.wait(seconds)
        deploy.come(number)


def new_first(deploy: Deploy, count: int, seconds: float) -> None:
    for number in range(count):
        deploy.come(number)
        deploy.wait(seconds)
        deploy.go(number)


def several(deploy: Deploy, count: int, seconds: float) -> None:
    """As many as may be missing drain, as many as may be added come, and each pair makes room for
    the next one."""
    for number in range(3):
        deploy.go(number)
        deploy.come(number)
    deploy.come(3)
    for number in range(3, count):
        deploy.go(number)
        deploy.wait(seconds / 2)
        if number + 1 < count:
            deploy.come(number + 1)


@pytest.mark.parametrize("seconds", [0.2, 1.5, 4.9])
@pytest.mark.parametrize("order", [old_first, new_first, several])
def test_a_deploy_moves_each_partition_of_the_replaced_once(
    order: Callable[[Deploy, int, float], None], seconds: float
) -> None:
    deploy = Deploy()
    order(deploy, 10, seconds)
    deploy.wait(1)
    orders = deploy.orders
    assert moves(orders) == Counter(range(50))
    assert forced(orders) == 0
    assert (orders.status, len(orders.queue.flows)) == ("Ready", 40)
    assert {len(owned) for owned in orders.owners().values()} == {5}


@pytest.mark.parametrize("order", [old_first, new_first, several])
def test_a_deploy_of_all_consumers_leaves_nobody_with_more_than_its_share(
    order: Callable[[Deploy, int, float], None],
) -> None:
    """In public, two pods once had 997 of 1,024 partitions amid a deploy."""
    deploy = Deploy(partitions=1000)
    order(deploy, 40, 2.0)
    deploy.wait(1)
    assert moves(deploy.orders) == Counter(range(1000))
    assert {len(owned) for owned in deploy.orders.owners().values()} == {25}


@pytest.mark.parametrize("order", [old_first, new_first, several])
def test_the_oracle_agrees(order: Callable[[Deploy, int, float], None]) -> None:
    deploy = Deploy(partitions=15, consumers=5)
    order(deploy, 5, 1.0)
    deploy.wait(1)
    assert moves(deploy.orders) == Counter(range(15))


def test_a_pair_moves_at_once() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.bind("C")
    orders.advance(1)
    orders.drain("A")
    assert (orders.status, orders.trigger) == ("Rebalancing", "bind")
    assert orders.on_their_way() == {0: ("revoking", "C"), 1: ("revoking", "C")}
    let_go(orders)
    assert orders.owners() == {"B": [2, 3], "C": [0, 1]}
    assert orders.status == "Ready"


def test_the_earliest_bound_pairs_first_and_the_others_wait() -> None:
    orders = World.owning({"A": [0, 1, 2], "B": [3, 4, 5]})
    for name in "CD":
        orders.bind(name)
        orders.advance(1)
    orders.drain("A")
    assert orders.on_their_way() == dict.fromkeys((0, 1, 2), ("revoking", "C"))
    assert orders.queue.holddown_until == 7.0
    let_go(orders)
    assert (orders.status, orders.owned("D")) == ("Rebalancing", [])
    orders.advance(4.9)
    orders.drain("B")
    assert orders.on_their_way() == dict.fromkeys((3, 4, 5), ("revoking", "D"))
    assert orders.queue.holddown_until is None


def test_a_flow_without_a_partner_joins_a_rebalance_delay_after_the_last_pair() -> None:
    orders = World.owning({"A": [0, 1, 2], "B": [3, 4, 5]})
    orders.bind("C")
    orders.bind("D")
    orders.advance(3)
    orders.drain("A")
    let_go(orders)
    orders.advance(4.9)
    assert orders.on_their_way() == {}
    orders.advance(0.1)
    assert orders.on_their_way() == {2: ("revoking", "D"), 5: ("revoking", "D")}


def test_a_drain_without_a_partner_goes_on_a_rebalance_delay_after_the_last_pair() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3], "C": [4, 5]})
    orders.drain("A")
    orders.drain("B")
    orders.advance(4)
    orders.bind("D")
    let_go(orders)
    assert (orders.owned("B"), orders.owned("D")) == ([2, 3], [0, 1])
    orders.advance(5)
    assert orders.on_their_way() == {2: ("revoking", "D"), 3: ("revoking", "C")}


def test_without_a_drain_flows_join_together_when_the_holddown_ends() -> None:
    orders = World.owning({"A": [0, 1, 2, 3]})
    orders.bind("B")
    orders.advance(4)
    orders.bind("C")
    orders.advance(1)
    assert orders.on_their_way() == {3: ("revoking", "B"), 2: ("revoking", "C")}


def test_while_the_handoffs_of_a_pair_end_the_next_flow_waits_for_its_own() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.drain("A")
    orders.bind("C")
    orders.bind("D")
    assert orders.on_their_way() == {0: ("revoking", "C"), 1: ("revoking", "C")}
    orders.drain("B")
    assert orders.successor(2) == orders.successor(3) == "D"


@pytest.mark.parametrize("together", [False, True])
def test_while_a_drain_ends_what_comes_waits_for_a_pair(together: bool) -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.drain("A")
    orders.advance(5)
    assert (orders.status, orders.queue.holddown_until) == ("Rebalancing", None)
    if together:
        orders.do(c.BindTogether(tuple(c.Bind(name, name, name, 10.0) for name in "CD")))
    else:
        orders.bind("C")
    assert orders.queue.holddown_until == 10.0


def test_in_a_rebalance_of_others_a_flow_joins_at_once_as_ever() -> None:
    orders = World.owning({"A": [0, 1, 2, 3]}, max_handoff_time=60)
    orders.bind("B")
    orders.advance(5)
    orders.bind("C")
    assert orders.queue.holddown_until is None
    assert orders.successor(1) == "C"


def test_no_pair_begins_while_an_instance_may_come_back() -> None:
    """A static member once held a partition for three minutes: here the holddown ends in time."""
    orders = World.owning({"A": [0, 1], "B": [2, 3], "C": [4, 5]})
    orders.expire("C")
    for second in range(4):
        if second < 2:
            orders.drain("AB"[second])
            orders.bind(f"new{second}")
        assert orders.status == "Holddown"
        orders.advance(1)
    orders.advance(1)
    assert orders.unassigned() == []


def test_what_a_crash_leaves_amid_a_deploy_is_granted_at_once() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3], "C": [4, 5]})
    orders.drain("A")
    orders.drain("B")
    orders.bind("D")
    assert orders.queue.holddown_until is not None
    orders.expire("C")
    assert orders.unassigned() == []


@pytest.mark.parametrize(
    "change", [{}, {"partition_count": 5}, {"access_type": "exclusive"}], ids=str
)
def test_what_rebalances_at_once_ends_the_wait_for_pairs(change: dict[str, Any]) -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.drain("A")
    orders.drain("B")
    orders.bind("C")
    assert set(orders.on_their_way()) == {0, 1}
    if change:
        orders.change(**change)
    else:
        orders.rebalance_now()
    assert set(orders.on_their_way()) == {0, 1, 2, 3}
    assert orders.queue.holddown_until is None


@pytest.mark.parametrize(
    "settings", [{"access_type": "exclusive"}, {"max_concurrent_handoffs": 1}], ids=str
)
def test_what_cannot_move_whole_waits_out_the_holddown(settings: dict[str, Any]) -> None:
    orders = World.owning({"A": [0, 1]}, **settings)
    orders.bind("B")
    orders.drain("A")
    assert orders.status == "Holddown"
    orders.advance(5)
    assert orders.successor(1) == "B"


def test_the_one_that_comes_to_an_exclusive_queue_waits_out_the_holddown() -> None:
    orders = World.owning({"A": [0, 1]}, access_type="exclusive")
    orders.drain("A")
    orders.bind("B")
    assert (orders.status, orders.on_their_way()) == ("Holddown", {})


def test_a_standby_waits_out_the_holddown() -> None:
    orders = World.owning({"A": [0], "B": [1], "C": []})
    orders.drain("A")
    assert orders.status == "Holddown"


def test_a_warm_up_of_a_pair_goes_on_when_another_comes() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3]}, warmup=True)
    orders.drain("A")
    orders.bind("C", warmup=True)
    orders.bind("D", warmup=True)
    assert orders.on_their_way() == {0: ("warming", "C"), 1: ("warming", "C")}
    orders.drain("B")
    assert orders.on_their_way()[3] == ("warming", "D")


def test_a_changed_delay_of_zero_ends_the_wait() -> None:
    orders = World.owning({"A": [0, 1], "B": [2, 3], "C": [4, 5]})
    orders.drain("A")
    orders.drain("B")
    orders.change(rebalance_delay=0.0)
    orders.bind("D")
    orders.advance(0)
    assert orders.queue.holddown_until is None
    assert len(orders.on_their_way()) == 4


def test_flows_that_replace_one_another_for_ever_do_not_keep_a_newcomer_waiting() -> None:
    """An instance that comes back keeps its place in the order of binding, so it pairs first."""
    orders = World.owning({"A": [0, 1], "B": [2, 3]})
    orders.bind("C")
    orders.bind("victim")
    giver, taker = "A", "C"
    for number in range(10):
        orders.drain(giver)
        orders.advance(1)
        assert set(orders.release(giver, *orders.owned(giver))) == {"ok"}
        again = f"{giver}{number}"
        orders.bind(again, orders.queue.flows[giver].instance_id)
        giver, taker = taker, again
        orders.advance(3)
        let_go(orders)
    assert orders.owned("victim")


def test_pairs_that_go_on_for_ever_do_not_keep_a_drain_waiting() -> None:
    """Of the flows that drain, the one with the most partitions pairs first."""
    orders = World.owning({"A": [0, 1], "B": [2, 3], "victim": [4]})
    orders.drain("victim")
    giver = "A"
    for number in range(10):
        orders.drain(giver)
        giver = f"new{number}"
        orders.bind(giver)
        orders.advance(0.2)
        let_go(orders)
        orders.advance(3.8)
    let_go(orders)
    assert "victim" not in orders.queue.flows


@pytest.mark.parametrize("warmup", [False, True])
def test_a_pin_amid_a_wait_goes_home_when_nobody_waits_any_more(warmup: bool) -> None:
    orders = World.owning({"A": [0, 1], "B": [4], "C": [2, 3]}, warmup=warmup)
    orders.drain("A")
    orders.advance(5)
    orders.bind("D", warmup=warmup)
    if not warmup:
        orders.release("A", 0, 1)
        assert orders.owners() == {"A": [], "B": [0, 1, 4], "C": [2, 3], "D": []}
    orders.pin(0, "c-C")
    orders.unbind("D")
    assert orders.successor(0) == "C"
    orders.settle()
    assert (orders.status, orders.owner(0)) == ("Ready", "C")
    assert moves(orders)[0] == (1 if warmup else 2)


def test_a_warm_up_that_was_kept_goes_to_a_home_that_has_come() -> None:
    orders = World.owning({"A": [0], "B": [1]}, warmup=True)
    orders.pin(0, "c-D")
    orders.drain("A")
    orders.advance(5)
    assert orders.on_their_way() == {0: ("warming", "B")}
    orders.bind("D", warmup=True)
    assert orders.on_their_way() == {0: ("warming", "D")}
