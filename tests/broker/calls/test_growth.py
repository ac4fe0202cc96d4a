"""Queues follow a topic that grows at the next round, whatever other clusters do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from broker.calls.growth import AWAY_SECONDS, ROUND_SECONDS
from broker.core.errors import Invalid
from broker.service import UPKEEP_SECONDS
from broker.store.ports import QueueDamaged
from broker.testing.loop import running, settle, virtual
from broker.testing.store import Fault
from counterpoise import wire
from tests.broker.shell import Service, World, spec, unreadable

LOG = "kafka://broker:9092/orders"
OTHER = "kafka://broker:9092/invoices"
FAR = "kafka://far:9092/orders"


async def following(world: World, queues: Mapping[str, str]) -> Service:
    """A replica with these queues on these topics, which have two partitions."""
    one = await world.replica()
    for name, log in queues.items():
        one.logs.topics[log] = 2
        await one.create_queue(wire.QueueCreate(name, log=log, rebalance_delay=0))
    one.logs.told.clear()
    return one


async def round_of(*services: Service) -> None:
    await running().sleep(ROUND_SECONDS)
    for service in services:
        await service.calls.growth.round()
    await settle()


def questions(service: Service) -> list[tuple[str, ...]]:
    return [told[1:] for told in service.logs.told if told[0] == "partition_counts"]


def counts(world: World, *names: str) -> list[int]:
    return [len(world.check(name).partitions) for name in names]


def test_growth_is_looked_for_within_seconds() -> None:
    assert ROUND_SECONDS <= 5.0 < UPKEEP_SECONDS


@virtual
async def test_a_round_is_one_question_for_all_topics_of_a_cluster_and_no_statement() -> None:
    world = World()
    one = await following(world, {"a": LOG, "b": LOG, "c": OTHER, "d": FAR})
    await one.create_queue(spec("e"))
    before = one.net.calls.copy()
    # A replica's own sweep would use the database.
    for _ in range(3):
        await one.calls.growth.round()
        await settle()
    assert one.net.calls == before
    assert questions(one) == [(LOG, OTHER), (FAR,)] * 3


@virtual
async def test_all_queues_of_a_topic_grow_at_the_next_round_and_no_others() -> None:
    world = World()
    one = await following(world, {"a": LOG, "b": LOG, "c": OTHER})
    flow = await one.join("a", "first", lease=3600)
    one.logs.topics[LOG] = 5
    await round_of(one)
    assert counts(world, "a", "b", "c") == [5, 5, 2]
    assert [*await one.view("a", flow)] == [0, 1, 2, 3, 4]
    revision = world.check("a").revision
    await round_of(one)
    assert world.check("a").revision == revision


@virtual
async def test_nothing_is_taken_away_by_a_smaller_topic_or_one_that_is_gone() -> None:
    world = World()
    one = await following(world, {"a": LOG, "c": OTHER})
    one.logs.topics[LOG] = 1
    del one.logs.topics[OTHER]
    await round_of(one)
    assert counts(world, "a", "c") == [2, 2]


@virtual
async def test_a_replica_that_knows_an_older_count_takes_no_partition_back() -> None:
    world = World()
    one = await following(world, {"a": LOG})
    two = await world.replica()
    await two.queue("a")
    one.logs.topics[LOG], two.logs.topics[LOG] = 7, 5
    gate = two.net.hold("commit")
    await round_of(two)
    await two.net.met("commit")
    await round_of(one)
    gate.set()
    await settle()
    assert counts(world, "a") == [7]
    queue = world.check("a")
    assert (queue.settings.partition_count, [*queue.retiring]) == (7, [])


@virtual
async def test_nor_does_the_upkeep_that_asked_before_the_topic_grew_again() -> None:
    world = World()
    one = await following(world, {"a": LOG})
    one.logs.topics[LOG] = 5
    asked, answered, ask = asyncio.Event(), asyncio.Event(), one.logs.partition_count

    async def slow(log: str) -> int:
        count = await ask(log)
        asked.set()
        await answered.wait()
        return count

    one.logs.partition_count = slow  # type: ignore[method-assign]
    upkeep = asyncio.create_task(one.keep_logs())
    await asked.wait()
    one.logs.topics[LOG] = 7
    await round_of(one)
    answered.set()
    await upkeep
    queue = world.check("a")
    assert (queue.settings.partition_count, [*queue.retiring]) == (7, [])


@virtual
async def test_in_the_upkeep_a_queue_that_cannot_grow_is_alone() -> None:
    world = World()
    one = await following(world, {"a": LOG, "b": LOG})
    unreadable(one, await one.queue("a"), QueueDamaged("its rows do not fit"))
    one.logs.topics[LOG] = 3
    await one.keep_logs()
    assert counts(world, "b") == [3]


@virtual
async def test_a_cluster_that_hangs_holds_up_itself_alone() -> None:
    world = World()
    one = await following(world, {"a": LOG, "d": FAR})
    answered = asyncio.Event()
    ask = one.logs.partition_counts

    async def hanging(logs: Sequence[str]) -> Mapping[str, int]:
        found = await ask(logs)
        if FAR in logs:
            await answered.wait()
        return found

    one.logs.partition_counts = hanging  # type: ignore[method-assign]
    one.logs.topics.update({LOG: 4, FAR: 4})
    await round_of(one)
    await round_of(one)
    assert counts(world, "a", "d") == [4, 2]
    assert questions(one) == [(LOG,), (FAR,), (LOG,)]
    answered.set()
    await settle()
    assert counts(world, "d") == [4]


@virtual
async def test_a_cluster_that_is_away_is_asked_again_after_a_pause() -> None:
    world = World()
    one = await following(world, {"a": LOG})
    one.logs.error = Invalid("it is away")
    await round_of(one)
    one.logs.error = None
    one.logs.topics[LOG] = 3
    await round_of(one)
    assert counts(world, "a") == [2]
    await running().sleep(AWAY_SECONDS)
    await round_of(one)
    assert counts(world, "a") == [3]
    assert len(questions(one)) == 2


@virtual
async def test_a_database_that_is_away_costs_a_round() -> None:
    world = World()
    one = await following(world, {"a": LOG, "b": LOG})
    one.logs.topics[LOG] = 3
    one.net.fail("commit", Fault.LOST)
    await round_of(one)
    await round_of(one)
    assert counts(world, "a", "b") == [3, 3]


@virtual
async def test_nothing_goes_on_after_a_stop() -> None:
    world = World()
    one = await following(world, {"a": LOG})

    async def never(logs: Sequence[str]) -> Mapping[str, int]:
        await asyncio.Event().wait()
        return {}

    one.logs.partition_counts = never  # type: ignore[method-assign]
    await round_of(one)
    await one.calls.growth.stop()
    assert not one.calls.growth._tasks
