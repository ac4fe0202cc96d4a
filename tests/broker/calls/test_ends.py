"""What flows report of ends, and what an administrator splits, compared with the log; on replicas
in a virtual world.
"""

from __future__ import annotations

import pytest

from broker.core.commands import ChildrenItem, NewChild, ReleaseItem
from broker.core.errors import ChildrenRefused, Unavailable
from broker.testing.loop import virtual
from counterpoise import wire
from tests.broker.shell import Service, World, dynamic, spec

WHOLE = "00000000-ffffffff.0"


async def at_work(world: World) -> tuple[Service, str]:
    """A dynamic queue with one partition in its own log, and a flow that owns it."""
    one = await world.replica()
    await one.create_queue(
        wire.QueueCreate("orders", 1, rebalance_delay=0.0, partitioning="dynamic")
    )
    return one, await one.join("orders", "first", lease=60)


async def report(one: Service, flow: str, item: ChildrenItem) -> str:
    (result,) = (await one.children("orders", flow, None, [item])).results
    return result.outcome


async def states(one: Service) -> dict[int, str]:
    page = await one.partitions("orders", 100, None)
    return {one.partition: one.state for one in page.items}


@virtual
async def test_nothing_ends_while_the_log_of_its_consumers_is_silent() -> None:
    one, flow = await at_work(World())
    await one.calls.lineage.split("orders", 0, "middle")
    one.logs.error = Unavailable("away")
    with pytest.raises(Unavailable, match="where its partitions end"):
        await report(one, flow, ChildrenItem(0, 1, finished=True))
    with pytest.raises(Unavailable):
        await one.release("orders", flow, None, [ReleaseItem(0, 1, "0", finished=True)])
    one.logs.error = None
    assert await report(one, flow, ChildrenItem(0, 1, finished=True)) == "ok"


@pytest.mark.parametrize("log", ["redis://elsewhere/0/orders", "stream://elsewhere"])
@virtual
async def test_a_log_that_cannot_be_asked_refuses_nothing(log: str) -> None:
    one = await World().replica()
    fixed = log.startswith("redis")
    await one.create_queue(spec("orders", 2, log=log) if fixed else dynamic("orders", "a", log=log))
    flow = await one.join("orders", "first", lease=60)
    number = 0
    if fixed:
        await one.change_queue("orders", {"partition_count": 1}, False)
        number = 1
    one.logs.error = Unavailable("away")
    done = await one.release("orders", flow, None, [ReleaseItem(number, 1, "7", finished=True)])
    assert [result.outcome for result in done.results] == ["ok"]


@virtual
async def test_a_log_outside_is_asked_too() -> None:
    one, log = await World().replica(), "redis://elsewhere/0/orders"
    await one.create_queue(spec("orders", 2, log=log))
    flow = await one.join("orders", "first", lease=60)
    one.logs.the(log).append(1)
    await one.change_queue("orders", {"partition_count": 1}, False)
    for position, outcome in ((None, "not_ended"), ("0", "not_ended"), ("1", "ok")):
        item = ReleaseItem(1, 1, position, finished=True)
        done = await one.release("orders", flow, None, [item])
        assert [result.outcome for result in done.results] == [outcome]


@virtual
async def test_an_earlier_outcome_comes_first() -> None:
    """The log's word is the last one that counts: epochs and owners go before."""
    one, flow = await at_work(World())
    await one.set_positions("orders", {0: "0"})
    assert await report(one, flow, ChildrenItem(0, 1, finished=True)) == "stale_epoch"
    assert await report(one, flow, ChildrenItem(7, 1, finished=True)) == "no_such_partition"
    assert await report(one, flow, ChildrenItem(0, 2, finished=True)) == "not_ended"


@virtual
async def test_a_split_is_answered_only_if_the_queue_has_recorded_it() -> None:
    """Found from outside: 200, and the queue had neither child."""
    one, _ = await at_work(World())
    taken = [NewChild("taken", (WHOLE,), 1)]
    assert await one.add_children("orders", taken) == "ok"
    for _ in range(2):
        with pytest.raises(ChildrenRefused, match="conflicting_child"):
            await one.calls.lineage.split("orders", 0, "middle")
    assert await states(one) == {0: "owned", 1: "waiting"}


@virtual
async def test_a_split_after_one_that_was_not_recorded_records_both() -> None:
    """The service died between the log's transaction and its own."""
    one, _ = await at_work(World())
    one.logs.the("builtin:orders").seal([0])
    await one.calls.lineage.split("orders", 2, "middle")
    assert await states(one) == {0: "owned", **dict.fromkeys((1, 2, 3, 4), "waiting")}


@virtual
async def test_a_queue_without_room_does_not_split_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, _ = await at_work(World())
    monkeypatch.setattr("broker.core.lineage.MOST_PARTITIONS", 2)
    with pytest.raises(ChildrenRefused, match="Nothing was changed"):
        await one.calls.lineage.split("orders", 0, "middle")
    assert not one.logs.the("builtin:orders").bounds().sealed
