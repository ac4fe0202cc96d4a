"""The store's time, as a replica knows it."""

import asyncio

import pytest

from broker.replica.alarms import SchedulerAlarms
from broker.replica.clock import FRESH_SECONDS, StoreClock
from broker.replica.replica import Replica
from broker.store.ports import Pulse
from broker.testing.database import MemoryDatabase
from broker.testing.loop import virtual
from broker.testing.store import MemoryStore
from tests.counterpoise.leases import sleeping


class Clocks:
    """Two independent clocks."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.set_by = 0.0

    def here(self) -> float:
        return 50 + self.passed

    def there(self) -> float:
        return 1_000_000 + self.passed + self.set_by


@virtual
async def test_it_follows_the_stores_clock() -> None:
    clocks = Clocks()
    store = MemoryStore(MemoryDatabase(clocks.there))
    clock = StoreClock(clocks.here)
    assert not clock.fresh
    await clock.read(store)
    clocks.passed += 1
    assert clock.now() == clocks.there()
    assert clock.fresh
    clocks.passed += FRESH_SECONDS
    assert not clock.fresh


@virtual
async def test_an_answer_that_lay_around_while_frozen_is_not_news() -> None:
    clocks = Clocks()
    clock = StoreClock(clocks.here)

    class Slow(MemoryStore):
        async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
            pulse = await super().pulse(gap_seconds)
            clocks.passed += 60
            return pulse

    await clock.read(Slow(MemoryDatabase(clocks.there)))
    assert not clock.fresh
    assert clock.now() == clocks.there()


@virtual
async def test_it_remembers_the_latest_outage() -> None:
    clocks = Clocks()
    store = MemoryStore(MemoryDatabase(clocks.there))
    clock = StoreClock(clocks.here)
    await clock.read(store)
    assert clock.outage is None
    clocks.passed += 10
    await clock.read(store)
    assert clock.outage is not None
    assert clock.outage.seconds == 10


class Post(MemoryStore):
    """Answers are made at once and delivered by the test, in any order."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.delivered = [asyncio.Event() for _ in range(3)]

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        event = self.delivered.pop(0)
        pulse = await super().pulse(gap_seconds)
        await event.wait()
        return pulse


@virtual
async def test_an_answer_from_before_the_clock_was_set_is_asked_for_again() -> None:
    clocks = Clocks()
    store = Post(MemoryDatabase(clocks.there))
    clock = StoreClock(clocks.here)
    first, second, third = store.delivered
    early = asyncio.ensure_future(clock.read(store))
    await asyncio.sleep(0)
    clocks.set_by = -3600.0
    late = asyncio.ensure_future(clock.read(store))
    await asyncio.sleep(0)
    second.set()
    await late
    assert clock.outage is not None
    assert clock.now() == clocks.there()
    first.set()
    third.set()
    assert (await early).now == clocks.there() == clock.now()


@virtual
async def test_an_earlier_question_may_have_the_newer_answer() -> None:
    """It was carried out later."""
    clocks = Clocks()
    database = MemoryDatabase(clocks.there)
    clock = StoreClock(clocks.here)
    asked, go = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
            asked.set()
            await go.wait()
            return await super().pulse(gap_seconds)

    early = asyncio.ensure_future(clock.read(Slow(database)))
    await asked.wait()
    clocks.passed += 1
    await clock.read(MemoryStore(database))
    clocks.set_by = -3600.0
    go.set()
    await early
    # A second passed between question and answer, so the time may be off by that much.
    assert clock.now() - clocks.there() == 1
    await clock.read(MemoryStore(database))
    assert clock.now() == clocks.there()


@virtual
async def test_a_database_that_was_restored_knows_less() -> None:
    clocks = Clocks()
    clock = StoreClock(clocks.here)
    store = MemoryStore(MemoryDatabase(clocks.there))
    await clock.read(store)
    clocks.passed += 10
    await clock.read(store)
    assert clock.outage_id == 1
    await clock.read(MemoryStore(MemoryDatabase(clocks.there)))
    assert clock.outage_id == 0


@virtual
async def test_a_replica_whose_machine_has_slept_knows_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = sleeping(monkeypatch)
    replica = Replica(MemoryStore(MemoryDatabase(lambda: 1000.0)), SchedulerAlarms(), str)
    await replica.clock.read(replica.store)
    assert replica.clock.fresh
    sleep(3600)
    assert not replica.clock.fresh
