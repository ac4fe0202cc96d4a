"""Mirrors of positions in consumer groups: one replica writes, and a failure is seen."""

from __future__ import annotations

import asyncio

import pytest

from broker.calls.mirrors import (
    CLAIM_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ROUND_SECONDS,
    TAKEN,
    WHOLE_SECONDS,
)
from broker.core.access import RIGHTS, Caller, Role
from broker.core.commands import CommitItem
from broker.core.errors import Forbidden, Invalid
from broker.testing.loop import running, settle, virtual
from counterpoise import wire
from tests.broker.shell import Service, World, spec

LOG = "kafka://broker:9092/orders"
GROUP = "counterpoise.orders"


async def mirrored(
    world: World, name: str = "orders", group: str | None = GROUP, partitions: int = 2
) -> Service:
    """A replica with a queue on a topic, whose positions are mirrored."""
    one = await world.replica()
    one.logs.topics[LOG] = partitions
    await one.create_queue(wire.QueueCreate(name, log=LOG, rebalance_delay=0, mirror_group=group))
    return one


async def round_of(*services: Service) -> None:
    """A round of each, after the time of one, with all that it begins."""
    await running().sleep(ROUND_SECONDS)
    for service in services:
        await service.calls.mirrors.round()
        await settle()


def requests(service: Service) -> list[dict[int, str]]:
    """What the replica has stored in groups."""
    return [told[3] for told in service.logs.told if told[0] == "store_offsets"]


async def commit(service: Service, flow: str, positions: dict[int, str]) -> None:
    epochs = {one.partition: one.epoch for one in (await service.update("orders", flow)).partitions}
    items = [CommitItem(number, epochs[number], at) for number, at in positions.items()]
    await service.commit("orders", flow, None, items)


async def conditions(service: Service, queue: str = "orders") -> list[tuple[str, str, str | None]]:
    found = await service.calls.conditions.of_queue(queue, 10)
    return [(one.kind, one.text, one.flow_id) for one in found.items]


@virtual
async def test_what_is_committed_is_in_the_group_after_the_next_round() -> None:
    world = World()
    one = await mirrored(world)
    flow = await one.join("orders", "first", lease=3600)
    await round_of(one)
    # A partition without a position has no offset.
    assert requests(one) == []
    await commit(one, flow, {0: "7"})
    await round_of(one)
    await commit(one, flow, {0: "9", 1: "3"})
    await round_of(one)
    await round_of(one)
    assert requests(one) == [{0: "7"}, {0: "9", 1: "3"}]
    # Positions that are set back are mirrored, too.
    await one.set_positions("orders", {0: "2"})
    await round_of(one)
    assert one.logs.groups == {GROUP: {0: "2", 1: "3"}}


@virtual
async def test_one_of_two_replicas_mirrors_and_the_other_takes_over() -> None:
    world = World()
    one = await mirrored(world)
    two = await world.replica()
    flow = await two.join("orders", "first", lease=3600)
    await commit(two, flow, {0: "7"})
    for _ in range(4):
        await round_of(one, two)
    assert (requests(one), requests(two)) == ([{0: "7"}], [])
    world.kill(one)
    await commit(two, flow, {0: "8"})
    await running().sleep(CLAIM_SECONDS)
    await round_of(two)
    assert requests(two) == [{0: "8"}]


@virtual
async def test_what_a_stale_write_has_left_is_right_again_within_a_minute() -> None:
    world = World()
    one = await mirrored(world)
    flow = await one.join("orders", "first", lease=3600)
    await commit(one, flow, {0: "7"})
    await round_of(one)
    one.logs.groups[GROUP][0] = "5"
    await running().sleep(WHOLE_SECONDS)
    await round_of(one)
    await round_of(one)
    assert one.logs.groups[GROUP] == {0: "7"}


@virtual
async def test_a_mirror_that_fails_is_a_condition_and_is_tried_again() -> None:
    world = World()
    one = await mirrored(world)
    two = await world.replica()
    flow = await one.join("orders", "first", lease=3600)
    await commit(one, flow, {0: "7"})
    one.logs.refusal = "the group has members"
    await round_of(one)
    # One failure may be a broker that restarts.
    assert await conditions(one) == []
    for _ in range(100):
        await round_of(one)
    attempts = len(requests(one))
    assert attempts < 12
    text = f"the positions are not in the consumer group {GROUP}: the group has members"
    for service in (one, two):
        assert await conditions(service) == [("mirror_failed", text, None)]
        (listed,) = (await service.list_queues(9, None)).items
        (shown,) = await service.calls.conditions.with_counts([listed])
        assert shown.conditions == {"mirror_failed": 1}
    # Consumers do not notice.
    await commit(one, flow, {0: "8"})
    one.logs.refusal = None
    await running().sleep(LONGEST_PAUSE_SECONDS)
    await round_of(one)
    await round_of(one)
    assert one.logs.groups == {GROUP: {0: "8"}}
    assert await conditions(two) == []


@virtual
async def test_what_a_lost_answer_has_stored_is_corrected() -> None:
    world = World()
    one = await mirrored(world)
    flow = await one.join("orders", "first", lease=3600)
    await commit(one, flow, {0: "7"})
    await round_of(one)
    await commit(one, flow, {0: "8"})
    one.logs.refusal = "no answer"
    await round_of(one)
    one.logs.groups[GROUP][0] = "8"
    await one.set_positions("orders", {0: "7"})
    one.logs.refusal = None
    await running().sleep(LONGEST_PAUSE_SECONDS)
    await round_of(one)
    assert one.logs.groups == {GROUP: {0: "7"}}


@virtual
async def test_a_failure_ends_with_the_mirror_and_the_mirror_with_the_queue() -> None:
    world = World()
    one = await mirrored(world)
    flow = await one.join("orders", "first", lease=3600)
    await commit(one, flow, {0: "7"})
    one.logs.refusal = "no"
    for _ in range(10):
        await round_of(one)
    assert len(await conditions(one)) == 1
    await one.change_queue("orders", {"mirror_group": "counterpoise.other"}, False)
    assert await conditions(one) == []
    one.logs.refusal = None
    await round_of(one)
    assert one.logs.groups == {"counterpoise.other": {0: "7"}}
    await one.change_queue("orders", {"mirror_group": None}, False)
    await commit(one, flow, {0: "8"})
    await round_of(one)
    assert one.logs.groups == {"counterpoise.other": {0: "7"}}
    await one.change_queue("orders", {"mirror_group": GROUP}, False)
    await one.delete_queue("orders", force=True)
    before = len(requests(one))
    await running().sleep(WHOLE_SECONDS)
    await round_of(one)
    assert len(requests(one)) == before


@virtual
async def test_a_log_that_hangs_holds_up_its_own_mirror_alone() -> None:
    world = World()
    one = await mirrored(world)
    other = "kafka://broker:9092/payments"
    one.logs.topics[other] = 1
    await one.create_queue(
        wire.QueueCreate("payments", log=other, mirror_group="counterpoise.payments")
    )
    real, asked = one.logs.store_offsets, []

    async def hanging(log: str, group: str, positions: object) -> str | None:
        asked.append(group)
        if log == LOG:
            await running().sleep(3600)
        return await real(log, group, positions)  # type: ignore[arg-type]

    one.logs.store_offsets = hanging  # type: ignore[method-assign]
    for name in ("orders", "payments"):
        await one.set_positions(name, {0: "0"})
    for _ in range(3):
        await round_of(one)
    assert one.logs.groups == {"counterpoise.payments": {0: "0"}}
    await running().sleep(LONGEST_PAUSE_SECONDS)
    await round_of(one)
    assert asked.count(GROUP) == 1
    await one.calls.mirrors.stop()


@virtual
async def test_only_topics_are_mirrored_and_each_queue_has_its_own_group() -> None:
    world = World()
    one = await mirrored(world)
    with pytest.raises(Invalid, match="topic of Kafka"):
        await one.create_queue(spec("builtin", mirror_group=GROUP))
    copy = wire.QueueCreate("copy", log=LOG, mirror_group=GROUP)
    with pytest.raises(Invalid, match="Another queue"):
        await one.create_queue(copy)
    await one.create_queue(wire.QueueCreate("copy", log=LOG))
    with pytest.raises(Invalid, match="Another queue"):
        await one.change_queue("copy", {"mirror_group": GROUP}, False)


@virtual
async def test_of_two_queues_that_take_one_group_at_once_the_first_is_mirrored() -> None:
    world = World()
    one, two = await mirrored(world, group=None), await world.replica()
    two.logs.topics[LOG] = 2
    await two.create_queue(wire.QueueCreate("copy", log=LOG, rebalance_delay=0))
    flow = await one.join("orders", "first", lease=3600)
    await commit(one, flow, {0: "7"})
    await one.set_positions("copy", {0: "5", 1: "5"})
    gates = [each.net.hold("commit") for each in (one, two)]
    changing = [
        asyncio.ensure_future(each.change_queue(name, {"mirror_group": GROUP}, False))
        for each, name in ((one, "orders"), (two, "copy"))
    ]
    for each, gate in zip((one, two), gates, strict=True):
        await each.net.met("commit")
        gate.set()
    await asyncio.gather(*changing)
    for _ in range(4):
        await round_of(one)
    assert one.logs.groups == {GROUP: {0: "7"}}
    text = f"the positions are not in the consumer group {GROUP}: {TAKEN}"
    assert await conditions(one) == []
    assert await conditions(one, "copy") == [("mirror_failed", text, None)]
    # When it is free, the other one has it.
    await one.change_queue("orders", {"mirror_group": None}, False)
    await running().sleep(LONGEST_PAUSE_SECONDS)
    await round_of(one)
    await round_of(one)
    assert one.logs.groups == {GROUP: {0: "5", 1: "5"}}
    assert await conditions(one, "copy") == []


@virtual
async def test_a_key_writes_to_no_foreign_group() -> None:
    """The service may write to every group of the cluster, and would do it for anybody."""
    world = World()
    one = await world.replica()
    log = "kafka://broker:9092/team-a.orders"
    one.logs.topics[log] = 1
    of_team = Caller(RIGHTS[Role.ADMIN], ("team-a.*",), Role.ADMIN, key_id="a")
    of_all = Caller(RIGHTS[Role.ADMIN], ("*",), Role.ADMIN, key_id="b")

    def queue(group: str) -> wire.QueueCreate:
        return wire.QueueCreate("team-a.orders", log=log, mirror_group=group)

    for foreign in ("payments", "counterpoise.team-b.orders", "team-a.orders"):
        with pytest.raises(Forbidden, match=r"counterpoise\.team-a\.orders"):
            await one.create_queue(queue(foreign), of_team)
    await one.create_queue(queue("counterpoise.team-a.orders"), of_team)
    with pytest.raises(Forbidden):
        await one.change_queue("team-a.orders", {"mirror_group": "payments"}, False, of_team)
    await one.change_queue("team-a.orders", {"mirror_group": "payments"}, False, of_all)
