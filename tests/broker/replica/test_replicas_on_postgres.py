"""Replicas on a real database keep the promises of `test_coordinator` and `test_replica`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from uuid import uuid4

import pytest

from broker.core.commands import CommitItem, ReleaseItem
from broker.core.errors import FlowGone, QueueNotFound, Unavailable
from broker.replica.alarms import SchedulerAlarms
from broker.replica.replica import Replica
from broker.store.postgres import PostgresStore
from tests.broker.shell import ReplicaCalls, spec
from tests.databases import end_other_sessions
from tests.world.log import Logs
from tests.world.store import picture

pytestmark = pytest.mark.long


class Service(ReplicaCalls):
    """A replica on Postgres and APScheduler."""

    def __init__(self, url: str) -> None:
        self.replica = Replica(
            PostgresStore(url, pool_size=4), SchedulerAlarms(), lambda: uuid4().hex
        )
        super().__init__(self.replica, Logs())

    async def join(self, who: str, lease: float = 600.0) -> str:
        bound = await self.bind("orders", who, f"i-{who}", lease, False)
        return bound.flow_id

    async def revoking(self, flow_id: str) -> list[ReleaseItem]:
        update = await self.update("orders", flow_id)
        return [
            ReleaseItem(p.partition, p.epoch, "7")
            for p in update.partitions
            if p.state == "revoking"
        ]


@pytest.fixture
async def services(migrated_url: str) -> AsyncIterator[tuple[Service, Service]]:
    async with AsyncExitStack() as stack:
        pair = Service(migrated_url), Service(migrated_url)
        for service in pair:
            await service.replica.start()
            stack.push_async_callback(service.replica.stop)
        yield pair


Pair = tuple[Service, Service]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(240):
        while not await condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


async def test_a_crowd_that_binds_on_both_at_once(services: Pair) -> None:
    one, two = services
    await one.create_queue(spec(partitions=40, rebalance_delay=0.3))
    flows = await asyncio.gather(*(services[n % 2].join(f"{n}") for n in range(80)))
    assert {flow.flow_id for flow in (await two.flows("orders", 100, None)).items} == set(flows)

    async def ready() -> bool:
        return (await two.rebalance_status("orders")).status == "Ready"

    await eventually(ready)
    queue = await one.queue("orders")
    await two.queue("orders")
    stored = await one.replica.store.load(queue.id)
    assert stored.ranking.spread <= 1
    for service in services:
        memory = (await service.replica.coordinator("orders")).queue
        assert memory is not None
        assert picture(memory) == picture(stored)


async def test_what_one_replica_answered_the_other_knows(services: Pair) -> None:
    one, two = services
    await one.create_queue(spec(max_handoff_time=600.0))
    for round_ in range(10):
        # At once, before any notification can have arrived.
        first = await one.join(f"first-{round_}")
        await two.update("orders", first)
        second = await one.join(f"second-{round_}")
        items = await one.revoking(first)
        done = await two.release("orders", first, 1, items)
        assert [result.outcome for result in done.results] == ["ok"] * len(items)
        assert len((await one.update("orders", second)).partitions) == 2
        await two.unbind("orders", first)
        await one.unbind("orders", second)
        with pytest.raises(FlowGone):
            await two.heartbeat("orders", second)


async def is_watching(service: Service, flow_id: str) -> bool:
    known = service.replica._coordinators.values()
    return any(flow_id in one.notifier.watches for one in known)


@pytest.fixture
def without_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that look for changes only when they are notified."""
    monkeypatch.setattr("broker.replica.replica.SWEEP_SECONDS", 3600.0)


async def test_a_change_arrives_on_the_other_without_the_sweep(
    without_the_sweep: None, services: Pair
) -> None:
    one, two = services
    await one.create_queue(spec(max_handoff_time=600.0))
    first = await one.join("first")
    revision = (await two.update("orders", first)).revision
    for n in range(5):
        told = asyncio.ensure_future(two.wait_update("orders", first, revision, 60))
        await eventually(partial(is_watching, two, first))
        await one.join(f"other-{n}")
        assert await told is not None
        revision = (await two.update("orders", first)).revision
        items = await two.revoking(first)
        if items:
            await two.release("orders", first, None, items)
            revision = (await two.update("orders", first)).revision
        if len((await two.update("orders", first)).partitions) == 1:
            break


async def test_a_name_that_is_used_again(services: Pair) -> None:
    one, two = services
    for _ in range(3):
        made = await one.create_queue(spec())
        flow = await two.join("first")
        assert (await two.queue("orders")).id == made.id
        watching = asyncio.ensure_future(anext(two.watch("orders", flow, 10**6)))
        await eventually(partial(is_watching, two, flow))
        await one.delete_queue("orders", force=True)
        with pytest.raises(QueueNotFound):
            await asyncio.wait_for(watching, 60)


async def test_connections_that_are_cut_cost_nothing_that_was_acknowledged(
    services: Pair, migrated_url: str
) -> None:
    one, two = services
    await one.create_queue(spec(partitions=8, rebalance_delay=0.1, max_handoff_time=600.0))
    flow = await one.join("first")

    async def owns_all() -> bool:
        return len((await two.update("orders", flow)).partitions) == 8

    await eventually(owns_all)
    reached = 0
    cuts: list[asyncio.Future[object]] = []
    for seq in range(1, 200):
        if seq % 20 == 10:
            # Amid the commits that follow, wherever it meets them.
            await asyncio.gather(*cuts)
            cut = asyncio.to_thread(end_other_sessions, migrated_url)
            cuts.append(asyncio.ensure_future(cut))
        items = [CommitItem(seq % 8, 1, str(seq))]
        with suppress(Unavailable):
            done = await services[seq % 2].commit("orders", flow, seq, items)
            assert done.results[0].outcome == "ok"
            reached = seq
    await asyncio.gather(*cuts)

    async def back() -> bool:
        try:
            update = await two.update("orders", flow)
        except Unavailable:
            return False
        position = update.partitions[reached % 8].position
        assert position is not None
        return int(position) >= reached

    async def joins() -> bool:
        # The last cut may have met this replica only now.
        with suppress(Unavailable):
            await one.join("second")
            return True
        return False

    await eventually(back)
    await eventually(joins)
    assert reached > 100
