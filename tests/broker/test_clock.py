"""The store's time, as a replica knows it."""

from broker.clock import FRESH_SECONDS, StoreClock
from broker.store.memory import MemoryDatabase, MemoryStore
from broker.store.ports import Pulse
from tests.broker.shell import virtual


class Clocks:
    """Two clocks that have nothing to do with one another."""

    def __init__(self) -> None:
        self.passed = 0.0

    def here(self) -> float:
        return 50 + self.passed

    def there(self) -> float:
        return 1_000_000 + self.passed


@virtual
async def test_it_follows_the_stores_clock() -> None:
    clocks = Clocks()
    store = MemoryStore(MemoryDatabase(clocks.there))
    clock = StoreClock(clocks.here)
    assert not clock.fresh
    await clock.look(store)
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

    await clock.look(Slow(MemoryDatabase(clocks.there)))
    assert not clock.fresh
    assert clock.now() == clocks.there()


@virtual
async def test_it_remembers_the_latest_outage() -> None:
    clocks = Clocks()
    store = MemoryStore(MemoryDatabase(clocks.there))
    clock = StoreClock(clocks.here)
    await clock.look(store)
    assert clock.outage is None
    clocks.passed += 10
    await clock.look(store)
    assert clock.outage is not None
    assert clock.outage.seconds == 10
