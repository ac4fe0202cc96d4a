"""An idle hour of Spark applications: leases are kept by triggers that find nothing to read.

Service, flows and network are those of the simulation, and whether a lease may be renewed is up to
the reader of the source itself. Spark is a double: it asks each source of a query at each trigger.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from counterpoise.flow import programs
from counterpoise.spark.offsets import Json
from counterpoise.spark.options import read_options
from counterpoise.spark.source import reader
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.simulation import world as module
from tests.simulation.consumers import Consumer
from tests.simulation.plan import BUILTIN, Config, Plan
from tests.simulation.service import FOLLOWER, QUEUE
from tests.simulation.world import World

# As in `test_simulation`.
pytestmark = pytest.mark.xdist_group("computing")

QUEUES = (QUEUE, FOLLOWER)
PARTITIONS = 4
SETTINGS = {
    "partition_count": PARTITIONS,
    "rebalance_delay": 0.0,
    "max_handoff_time": 30.0,
    "log": BUILTIN,
    "start": "earliest",
}
LEASE_SECONDS = 10.0
BATCH_SECONDS = 60.0
"""`maxBatchSeconds`; a trigger interval is shorter (`driver.refusals`)."""
TRIGGER_SECONDS = 59.0
HOUR_SECONDS = 3600.0


class Source(Consumer):
    """A source of a query: it has nothing to say about its lease while Spark does not ask."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        options = read_options({"queue": self.queue, "maxBatchSeconds": str(BATCH_SECONDS)})
        self.reader = StreamReaderWithLimits(options, 1, None)
        same = SimpleNamespace(next_offset=lambda start, most: start)
        self.reader._opened = cast(Any, SimpleNamespace(consumption=same))
        self.hangs = False
        self._offset: Json = self.reader.initialOffset()
        self._trigger()

    def _trigger(self) -> None:
        if not self.hangs:
            assert self.reader.next_offset(self._offset, None) == self._offset
        self.later(TRIGGER_SECONDS, self._trigger)

    def _perform(self, effect: programs.Effect, program: Any, done: Any) -> None:
        if isinstance(effect, programs.MayRenew) and not self.reader._is_driven():
            self.later(0.0, self._may_not, program, done)
        else:
            super()._perform(effect, program, done)

    def _may_not(self, program: Any, done: Any) -> None:
        now = self.now()
        self._step(program, done, programs.Sent(now, now, 0.5, False, None))


class Applications(World):
    """Two applications, with a source for each of two queues."""

    def __init__(self) -> None:
        calm = Config(
            replicas=1, settings=SETTINGS, latency=(0.0, 0.0, 0.0), drift=0.0, followed=True
        )
        super().__init__(Plan(1, calm, ()), recording=False)
        self.nodes.append(self._node("r0"))
        self.loop.run_until(1.0)
        self.loop.create_task(self._create())
        self.loop.run_until(3.0)

    def application(self) -> list[Source]:
        return [cast(Source, self.join(LEASE_SECONDS, False, queue=queue)) for queue in QUEUES]

    def play(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now + seconds)
        assert not [one.found for one in self.checkers.values() if one.found]

    def owners(self, queue: str) -> dict[int, tuple[str | None, int]]:
        """Owner and epoch of each partition."""
        rows = self.checkers[queue].partitions
        return {number: (row.owner, row.epoch) for number, row in rows.items()}

    def publish(self) -> None:
        for number in range(PARTITIONS):
            self.append(number)
        self.appended()

    def left(self) -> int:
        """Messages of both queues that are not committed."""
        return sum(checker.backlog() for checker in self.checkers.values())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Applications:
    monkeypatch.setattr(module, "Consumer", Source)
    monkeypatch.setattr(module, "MOST_STEPS", 2_000_000)
    world = Applications()
    monkeypatch.setattr(reader, "lease_time", lambda: world.loop.now)
    return world


def test_an_idle_hour_moves_nothing_and_ends_with_the_next_message(world: Applications) -> None:
    world.application()
    world.application()
    world.play(30)
    world.publish()
    world.play(5)
    assert world.left() == 0
    before = {queue: world.owners(queue) for queue in QUEUES}
    changes = {queue: world.checkers[queue].transactions for queue in QUEUES}
    for owners in before.values():
        assert len({owner for owner, _ in owners.values()}) == 2
    world.play(HOUR_SECONDS)
    assert {queue: world.owners(queue) for queue in QUEUES} == before
    assert {queue: world.checkers[queue].transactions for queue in QUEUES} == changes
    world.publish()
    world.play(5)
    assert world.left() == 0


def test_a_query_that_hangs_in_an_idle_hour_loses_its_partitions(world: Applications) -> None:
    first, second = world.application(), world.application()
    world.play(30)
    for source in second:
        source.hangs = True
    world.play(TRIGGER_SECONDS + BATCH_SECONDS + 2 * LEASE_SECONDS)
    for queue, source in zip(QUEUES, first, strict=True):
        assert source.core.bound is not None
        assert {owner for owner, _ in world.owners(queue).values()} == {source.core.bound.flow_id}
    world.publish()
    world.play(5)
    assert world.left() == 0
