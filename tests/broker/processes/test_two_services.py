"""Two service processes on one database, and consumers that use both at once."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from counterpoise.client import AsyncClient
from counterpoise.errors import ServiceUnavailable
from tests.broker.crowd import Crowd
from tests.broker.processes.conftest import CrowdOf
from tests.service import ServeProcess

pytestmark = pytest.mark.xdist_group("processes")

Pair = tuple[ServeProcess, ServeProcess]

# With a crowd of about twenty, every kind of change happens a dozen times.
CHANGES = 120


@pytest.fixture
def pair(migrated_url: str, tmp_path: Path) -> Iterator[Pair]:
    arguments = ["--database-url", migrated_url]
    with ServeProcess(tmp_path / "one.log", arguments) as one:
        with ServeProcess(tmp_path / "two.log", arguments) as two:
            yield one, two


@pytest.mark.matrix(of="crowds")
@pytest.mark.long
async def test_a_crowd_on_two_services(pair: Pair, crowd_of: CrowdOf) -> None:
    one, two = pair
    async with AsyncClient(one.url) as first, AsyncClient(two.url) as second:
        await first.create_queue("orders", 24, rebalance_delay=0.3, max_handoff_time=1.0)
        crowd = crowd_of([one.url, two.url], "orders", 1)
        for _ in range(12):
            crowd.join()
        await asyncio.sleep(1)
        crowd.join(lease=1.0)
        for change in (crowd.leave, crowd.fall_silent, crowd.join, crowd.restart, crowd.drain):
            done = change()
            if asyncio.iscoroutine(done):
                await done
            await asyncio.sleep(0.3)
            crowd.check()
        await second.change_queue("orders", partition_count=30)
        await peace([first, second], "orders", crowd)
        await crowd.go_home()


@pytest.mark.matrix(of="crowds")
@pytest.mark.long
async def test_a_large_crowd_that_changes_all_the_time(pair: Pair, crowd_of: CrowdOf) -> None:
    one, two = pair
    async with AsyncClient(one.url) as first, AsyncClient(two.url) as second:
        await first.create_queue("orders", 60, rebalance_delay=0.25, max_handoff_time=1.0)
        crowd = crowd_of([one.url, two.url], "orders", 2)
        for _ in range(20):
            crowd.join()
        counts = [60, 40, 80, 60]
        for _ in range(CHANGES):
            # On average as long as the rebalance delay, so that some fall into handoffs.
            await asyncio.sleep(crowd.rng.random() / 2)
            crowd.check()
            await _something(crowd, [first, second], counts)
        await peace([first, second], "orders", crowd)
        outcomes = crowd.verdict().counts
        assert outcomes["commit ok"] > 100
        assert outcomes["release ok"] > 10
        await crowd.go_home()


@pytest.mark.matrix(of="crowds")
@pytest.mark.long
async def test_services_that_are_killed_one_after_the_other(pair: Pair, crowd_of: CrowdOf) -> None:
    """Acknowledged commits are there (the checker looks), and no live flow loses anything."""
    urls = [service.url for service in pair]
    async with AsyncClient(urls[0]) as first, AsyncClient(urls[1]) as second:
        await first.create_queue("orders", 40, rebalance_delay=0.2, max_handoff_time=2.0)
        crowd = crowd_of(urls, "orders", 4)
        for _ in range(16):
            crowd.join()
        await asyncio.sleep(2)
        for turn in range(8):
            victim = pair[turn % 2]
            await _something(crowd, [first, second], [])
            await asyncio.sleep(0.1 + crowd.rng.random() * 0.3)
            # During handoffs.
            await asyncio.to_thread(victim.end, signal.SIGKILL)
            crowd.join()
            await asyncio.sleep(1)
            await asyncio.to_thread(victim.start)
            await asyncio.sleep(1)
            crowd.check()
        await peace([first, second], "orders", crowd)
        assert not crowd.notes.gone["lease_expired"]
        await crowd.go_home()


@pytest.mark.matrix(of="crowds")
@pytest.mark.long
async def test_frozen_services_expire_no_flow(pair: Pair, crowd_of: CrowdOf) -> None:
    """The leases are shorter than the freeze; the database's clock runs on."""
    urls = [service.url for service in pair]
    async with AsyncClient(urls[0]) as first, AsyncClient(urls[1]) as second:
        await first.create_queue("orders", 12, rebalance_delay=0.2, max_handoff_time=4.0)
        crowd = crowd_of(urls, "orders", 7)
        for _ in range(4):
            crowd.join(lease=6.0, warmup=False)
        await peace([first, second], "orders", crowd)
        before = {p.partition: (p.owner, p.epoch) for p in await first.partitions("orders")}
        for service in pair:
            assert service.process is not None
            service.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(9)
        for service in pair:
            assert service.process is not None
            service.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(3)
        await peace([first, second], "orders", crowd)
        assert {
            p.partition: (p.owner, p.epoch) for p in await second.partitions("orders")
        } == before
        assert not crowd.notes.gone
        await crowd.go_home()


async def _something(crowd: Crowd, clients: list[AsyncClient], counts: list[int]) -> None:
    client = crowd.rng.choice(clients)
    things: list[Callable[[], object]] = [crowd.leave, crowd.join, crowd.join, crowd.restart]
    things += [crowd.drain]
    if counts:
        things += [
            crowd.fall_silent,
            lambda: crowd.join(lease=2.0),
            lambda: client.change_queue("orders", partition_count=crowd.rng.choice(counts)),
        ]
    if len(crowd.consumers) > 24:
        things = [crowd.leave, crowd.drain]
    elif len(crowd.consumers) < 4:
        things = [crowd.join]
    try:
        done = crowd.rng.choice(things)()
        if asyncio.iscoroutine(done):
            await done
    except ServiceUnavailable:
        pass


async def peace(clients: list[AsyncClient], queue: str, crowd: Crowd, seconds: float = 240) -> None:
    """In the end the queue is balanced, and all services and consumers know it."""
    deadline = time.monotonic() + seconds
    while (problem := await _problem(clients, queue, crowd)) is not None:
        crowd.check()
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(0.2)
    crowd.check()


async def _problem(clients: list[AsyncClient], queue: str, crowd: Crowd) -> str | None:
    for client in clients:
        status = await client.rebalance_status(queue)
        if status.status != "Ready" or status.spread > 1:
            return f"{status}"
        bound = await client.flows(queue)
        flows = {flow.flow_id for flow in bound}
        here = {one.flow_id for one in crowd.consumers if not one.leaving}
        if flows != here:
            return f"bound: {sorted(flows)}, in the crowd: {sorted(here)}"
        partitions = await client.partitions(queue)
        # Partitions released by draining flows have no owner while no flow can take them.
        takers = any(not flow.draining for flow in bound)
        owners = {p.partition: (p.owner, p.epoch) for p in partitions if p.owner or takers}
        told = {
            p.partition: (one.flow_id, p.epoch)
            for one in crowd.consumers
            if one.view is not None
            for p in one.view.partitions
        }
        if owners != told:
            return f"{owners} is not what was told: {told}"
    return None
