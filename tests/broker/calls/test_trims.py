"""No trim or end meets a reader, whatever comes between the list of a log's readers and it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from broker.core.commands import CommitItem
from broker.core.errors import Invalid, QueueInUse, Unavailable
from broker.logs.ports import LogOwner
from broker.testing.loop import settle, virtual
from counterpoise import wire
from tests.broker.shell import Service, World, spec

LOG = "builtin:orders"


async def at_work(world: World) -> tuple[Service, Service]:
    """Two replicas; the log has five messages, of which three are processed."""
    one, two = await world.replica(), await world.replica()
    two.logs.by_name = one.logs.by_name
    await one.create_queue(spec(partitions=1))
    for _ in range(5):
        one.logs.the(LOG).append(0)
    flow = await one.join("orders", "first", lease=600)
    await one.commit("orders", flow, 1, [CommitItem(0, 1, "3")])
    return one, two


def firsts(one: Service) -> Mapping[int, int]:
    return one.logs.the(LOG).firsts


async def position(one: Service, name: str) -> str | None:
    return (await one.partitions(name, 9, None)).items[0].position


@pytest.mark.parametrize("again", [False, True])
@virtual
async def test_a_queue_that_is_made_before_the_trim_keeps_its_messages(again: bool) -> None:
    """Also when the log was trimmed before."""
    world = World()
    one, two = await at_work(world)
    if again:
        await one.create_queue(wire.QueueCreate("before", log=LOG, start="latest"))
        await one.set_positions("before", {0: "2"})
        await one.keep_logs()
        await one.delete_queue("before", force=False)
    before = dict(firsts(one))
    assert before == ({0: 2} if again else {})
    gate = one.net.hold("announce_trim")
    upkeep = asyncio.ensure_future(one.keep_logs())
    await one.net.met("announce_trim")
    await two.create_queue(wire.QueueCreate("copy", log=LOG))
    gate.set()
    await upkeep
    assert firsts(one) == before
    await one.keep_logs()
    assert firsts(one) == before
    await two.delete_queue("copy", force=False)
    await one.keep_logs()
    assert firsts(one) == {0: 3}


@pytest.mark.parametrize("again", [False, True])
@virtual
async def test_positions_that_are_set_back_before_the_trim_keep_their_messages(again: bool) -> None:
    world = World()
    one, two = await at_work(world)
    if again:
        await one.keep_logs()
        await one.set_positions("orders", {0: "5"})
    before = dict(firsts(one))
    assert before == ({0: 3} if again else {})
    gate = one.net.hold("announce_trim")
    upkeep = asyncio.ensure_future(one.keep_logs())
    await one.net.met("announce_trim")
    back = 4 if again else 1
    await two.set_positions("orders", {0: str(back)})
    gate.set()
    await upkeep
    assert firsts(one) == before
    await one.keep_logs()
    assert firsts(one) == {0: back}


@virtual
async def test_a_trim_before_the_commit_makes_the_call_look_again() -> None:
    """At what it was about to commit: the ends and starts of the log from before."""
    world = World()
    one, two = await at_work(world)
    gate = two.net.hold("create")
    latest = wire.QueueCreate("copy", log=LOG, start="latest")
    creating = asyncio.ensure_future(two.create_queue(latest))
    await two.net.met("create")
    await one.keep_logs()
    one.logs.the(LOG).append(0)
    gate.set()
    await creating
    assert two.net.calls["create"] == 2
    assert await position(one, "copy") == "6"

    await one.set_positions("orders", {0: "5"})
    await one.set_positions("copy", {0: "5"})
    gate = two.net.hold("commit")
    setting = asyncio.ensure_future(two.set_positions("orders", "earliest"))
    await two.net.met("commit")
    await one.keep_logs()
    assert firsts(one) == {0: 5}
    gate.set()
    answer = await setting
    assert [item.position for item in answer.partitions] == ["5"]
    assert await position(one, "orders") == "5"


async def frozen(one: Service, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, asyncio.Event]:
    """The upkeep of a replica that froze after it had announced a trim, and what wakes it up."""
    trim, wakes = one.logs.trim, asyncio.Event()

    async def slowly(log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        await wakes.wait()
        await trim(log, below, owner)

    monkeypatch.setattr(one.logs, "trim", slowly)
    upkeep = asyncio.ensure_future(one.keep_logs())
    await settle()
    assert not upkeep.done()
    return upkeep, wakes


@pytest.mark.parametrize("call", ["create", "set", "upkeep"])
@virtual
async def test_a_trim_of_a_frozen_replica_is_carried_out_by_whoever_meets_it(call: str) -> None:
    world = World()
    one, two = await at_work(world)
    with pytest.MonkeyPatch.context() as monkeypatch:
        upkeep, wakes = await frozen(one, monkeypatch)
        if call == "create":
            await two.create_queue(wire.QueueCreate("copy", log=LOG))
        elif call == "set":
            await two.set_positions("orders", {0: "1"})
            assert await position(two, "orders") == "1"
        else:
            await two.keep_logs()
        assert firsts(one) == {0: 3}
        [row] = world.database.trims.rows.values()
        assert row.pending is None
        wakes.set()
        await upkeep
    assert firsts(one) == {0: 3}


@virtual
async def test_a_replica_that_wakes_up_late_ends_no_later_trim() -> None:
    """It says that its own trim is done; another one is still to be carried out."""
    world = World()
    one, two = await at_work(world)
    with pytest.MonkeyPatch.context() as monkeypatch:
        upkeep, wakes = await frozen(one, monkeypatch)
        await two.set_positions("orders", {0: "4"})
        later, wakes_later = await frozen(two, monkeypatch)
        wakes.set()
        await upkeep
        [row] = world.database.trims.rows.values()
        assert row.pending is not None
        wakes_later.set()
        await later
    assert firsts(one) == {0: 4}


@virtual
async def test_while_a_log_cannot_be_trimmed_nobody_begins_below_the_trim() -> None:
    world = World()
    one, two = await at_work(world)

    async def refuses(log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        raise Unavailable("The log cannot be trimmed: it is away; try again.")

    with pytest.MonkeyPatch.context() as monkeypatch:
        for replica in (one, two):
            monkeypatch.setattr(replica.logs, "trim", refuses)
        await one.keep_logs()
        with pytest.raises(Unavailable, match="away"):
            await two.create_queue(wire.QueueCreate("copy", log=LOG))
        with pytest.raises(Unavailable, match="away"):
            await two.set_positions("orders", {0: "1"})
    await two.set_positions("orders", {0: "1"})
    assert firsts(one) == {0: 3}


@virtual
async def test_the_trims_of_a_log_are_forgotten_with_its_last_queue() -> None:
    world = World()
    one, _ = await at_work(world)
    await one.keep_logs()
    assert [*world.database.trims.rows] == [LOG]
    await one.delete_queue("orders", force=True)
    await one.keep_logs()
    assert not world.database.trims.rows


@pytest.mark.parametrize("again", [False, True])
@virtual
async def test_the_log_of_a_deleted_queue_goes_though_the_replica_dies(again: bool) -> None:
    """Also when a queue of that name was made meanwhile, whose log is not touched."""
    world = World()
    one, two = await at_work(world)
    never = asyncio.Event()

    async def hangs(log: str, owner: LogOwner) -> None:
        await never.wait()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(one.logs, "drop", hangs)
        deleting = asyncio.ensure_future(one.delete_queue("orders", force=True))
        await settle()
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
    assert two.logs.the(LOG).ends == {0: 5}
    if again:
        await two.create_queue(spec(partitions=1))
        two.logs.the(LOG).append(0)
    await two.keep_logs()
    if again:
        assert two.logs.the(LOG).ends == {0: 1}
    else:
        assert not two.logs.by_name
    await two.keep_logs()
    assert all(row.pending is None for row in world.database.trims.rows.values())


@virtual
async def test_a_log_that_is_away_is_dropped_later() -> None:
    world = World()
    one, two = await at_work(world)

    async def refuses(log: str, owner: LogOwner) -> None:
        raise Unavailable("The log cannot be dropped: it is away; try again.")

    with pytest.MonkeyPatch.context() as monkeypatch:
        for replica in (one, two):
            monkeypatch.setattr(replica.logs, "drop", refuses)
        await one.delete_queue("orders", force=True)
        await two.keep_logs()
    assert one.logs.by_name
    await two.keep_logs()
    assert not one.logs.by_name


@virtual
async def test_no_queue_begins_to_read_a_log_that_ends() -> None:
    """Whichever of the two is the first to be carried out, the other one sees it."""
    world = World()
    one, two = await at_work(world)
    gate = one.net.hold("delete")
    deleting = asyncio.ensure_future(one.delete_queue("orders", force=True))
    await one.net.met("delete")
    await two.create_queue(wire.QueueCreate("copy", log=LOG))
    gate.set()
    with pytest.raises(QueueInUse, match="copy"):
        await deleting
    assert one.logs.by_name
    await two.delete_queue("copy", force=False)

    gate = two.net.hold("create")
    creating = asyncio.ensure_future(two.create_queue(wire.QueueCreate("copy", log=LOG)))
    await two.net.met("create")
    await one.delete_queue("orders", force=True)
    assert not one.logs.by_name
    gate.set()
    with pytest.raises(Invalid, match="orders"):
        await creating
