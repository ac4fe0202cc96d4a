"""A crowd on two replicas in virtual time: slow and lossy connections, freezes, replicas that die.

A failure names its seed, which plays it again: `pytest tests/broker/test_crowd.py -k 17`.
"""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from broker.core.errors import BrokerError
from broker.store.memory import Fault
from tests.broker.crowd import Crowd, FacadeDoor
from tests.broker.shell import Service, World, freeze, spec, virtual

HAPPENS = (
    *("join", "join", "leave", "silence", "drain", "restart", "resize", "rebalance", "access"),
    *("freeze", "nothing"),
)


class Weather:
    """What a replica's connection to the database goes through."""

    def __init__(self, rng: random.Random, stormy: bool) -> None:
        self.rng, self.stormy = rng, stormy

    async def __call__(self, method: str) -> Fault | None:
        await asyncio.sleep(self.rng.random() * 0.01)
        if self.stormy and self.rng.random() < 0.03:
            return self.rng.choice(list(Fault))
        return None


@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_a_crowd_on_two_replicas(seed: int) -> None:
    await play(seed, seconds=40)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 300))
@virtual
async def test_many_crowds(seed: int) -> None:
    await play(seed, seconds=120)


async def play(seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    world = World()
    stormy = seed % 2 == 1
    services = [await world.replica() for _ in range(2)]
    weathers = [Weather(rng, stormy) for _ in services]
    for service, weather in zip(services, weathers, strict=True):
        service.net.before = weather
        service.database.deaf = rng.random() < 0.2
    settings: dict[str, Any] = {
        "rebalance_delay": rng.choice([0.0, 0.5, 2.0]),
        "max_handoff_time": rng.choice([0.5, 2.0]),
        "max_warmup_time": rng.choice([0.0, 1.0, 5.0]),
        "max_concurrent_handoffs": rng.choice([None, 1, 3]),
        "access_type": rng.choice(["non_exclusive"] * 4 + ["exclusive"]),
    }
    for weather in weathers:
        weather.stormy = False
    await services[0].create_queue(spec(partitions=rng.randint(1, 12), **settings))
    for weather in weathers:
        weather.stormy = stormy
    doors = [FacadeDoor(service, "orders") for service in services]
    crowd = Crowd(doors, rng)
    for _ in range(rng.randint(1, 5)):
        crowd.join()
    ends = world.now + seconds
    while world.now < ends:
        await asyncio.sleep(rng.random() * 2)
        crowd.check()
        await something(world, services, crowd, rng)
    for weather in weathers:
        weather.stormy = False
    crowd.join()
    await asyncio.sleep(60)
    crowd.check()
    await balanced(world, services, crowd)
    await crowd.go_home()
    for service in services:
        await service.replica.stop()


async def something(
    world: World, services: list[Service], crowd: Crowd, rng: random.Random
) -> None:
    """Any of the things that happen."""
    happens = rng.choice(HAPPENS)
    service = rng.choice(services)
    with suppress(BrokerError):
        match happens:
            case "join" if len(crowd.consumers) < 9:
                crowd.join(lease=rng.choice([3.0, 10.0]))
            case "leave":
                crowd.leave()
            case "silence":
                crowd.fall_silent()
            case "drain":
                await crowd.drain()
            case "restart":
                await crowd.restart()
            case "resize":
                count = rng.randint(1, 12)
                await service.change_queue("orders", {"partition_count": count}, False)
            case "rebalance":
                await service.rebalance_now("orders")
            case "access":
                access = rng.choice(["exclusive", "non_exclusive"])
                await service.change_queue("orders", {"access_type": access}, False)
            case "freeze":
                freeze(rng.choice([0.5, 2.0, 5.0, 60.0]))
            case _:
                pass


async def balanced(world: World, services: list[Service], crowd: Crowd) -> None:
    """In the end every partition has an owner who knows it, and the queue is at peace."""
    queue = world.check("orders")
    assert str(queue.status) == "Ready"
    assert not queue.handoffs
    assert not queue.unassigned
    settled = [one for one in crowd.consumers if not one.leaving]
    assert len(queue.ranking) == len(settled)
    if not queue.exclusive:
        assert queue.ranking.spread <= 1
    for service in services:
        page = await service.partitions("orders", 100, None)
        owners = {p.partition: (p.owner, p.epoch) for p in page.items}
        told = {
            p.partition: (one.flow_id, p.epoch)
            for one in settled
            for p in (await service.update("orders", one.flow_id)).partitions
        }
        assert told == owners
