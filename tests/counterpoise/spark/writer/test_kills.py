"""Chains of two stages, killed and stuck at their appends: each message once, in order per key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from counterpoise.logs import open_log
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import KEYS, Stage, staged
from tests.counterpoise.spark.waiting import until
from tests.counterpoise.spark.writer.application import ChainApplication, made_of
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]

# So many that a task writes some of its rows before the last one.
HELD = 600


class ChainStage(Stage):
    """Three queues, and applications that carry messages from the first to the last."""

    QUEUES = ("flights", "middle")

    def chain(self, name: str, **options: Any) -> ChainApplication:
        return self.add(
            ChainApplication(
                name, self.directory, self.url, "flights", self.drivers, leaseSeconds=600, **options
            )
        )

    def results(self) -> list[list[str]]:
        """The values in each partition of the last queue."""
        view = self.client.log_access("results", "read")
        with closing(open_log(view.log, view.access, timeout_seconds=150)) as log:
            ends = log.bounds(range(16)).ends
            return [
                [
                    value.decode()
                    for batch in log.read(number, "0", end, max_messages=10**9)
                    for value in batch["value"].to_pylist()
                ]
                for number, end in ends.items()
            ]

    def expected(self) -> list[str]:
        return [value for number in range(self.published) for value in made_of(number)]

    def count(self) -> int:
        return sum(map(len, self.results()))

    def until_through(self) -> None:
        """Everything is written, and both stages have committed it."""
        until(lambda: self.count() >= len(self.expected()), "everything is in the last queue")
        until(self.nothing_left, "everything is committed")

    def nothing_left(self) -> bool:
        return all(one.lag == 0 for queue in self.QUEUES for one in self.client.partitions(queue))

    def shared(self, count: int) -> bool:
        """Whether so many applications have each a part of both queues, and nothing moves."""
        return all(
            self.client.rebalance_status(queue).status == "Ready"
            and len({one.owner for one in self.client.partitions(queue)} - {None}) == count
            for queue in self.QUEUES
        )

    def check(self) -> None:
        """Each once, and those of a key in order."""
        self.until_through()
        found = self.results()
        assert sorted(value for values in found for value in values) == sorted(self.expected())
        for values in found:
            for key in range(KEYS):
                own = [value for value in values if int(value.partition(".")[0]) % KEYS == key]
                assert own == sorted(own, key=lambda value: [*map(int, value.split("."))])


@pytest.fixture
def stage(service: Service, drivers: Drivers, tmp_path: Path) -> Iterator[ChainStage]:
    with staged(ChainStage, service, tmp_path, drivers) as stage:
        for name, count in zip((*stage.QUEUES, "results"), (4, 4, 3), strict=True):
            stage.client.create_queue(name, count, rebalance_delay=0.2, max_handoff_time=20.0)
        yield stage


def hold_amid(stage: ChainStage, victim: ChainApplication) -> None:
    """Publish, and hold a task of the victim while it has appended other rows of its batch."""
    before = stage.count()
    victim.hold_at(stage.published + HELD - 1)
    stage.publish(HELD)
    until(victim.held, "the victim holds")
    until(lambda: stage.count() > before, "others of its rows are written")


@pytest.mark.matrix(of="crashes of writers")
def test_killed_amid_its_appends(stage: ChainStage) -> None:
    victim, other = stage.chain("victim"), stage.chain("other")
    victim.start()
    stage.publish(200)
    stage.until_through()
    hold_amid(stage, victim)
    other.start()
    victim.kill()
    stage.unbind("victim")
    stage.check()
    # The killed one comes back with its old checkpoint, and repeats what it had planned.
    victim.go_on()
    victim.start()
    stage.publish(200)
    stage.check()


@pytest.mark.matrix(of="crashes of writers")
def test_superseded_amid_its_appends_and_awake_again(stage: ChainStage) -> None:
    victim, other = stage.chain("victim"), stage.chain("other")
    victim.start()
    stage.publish(200)
    stage.until_through()
    hold_amid(stage, victim)
    victim.stop_its_sources()
    stage.unbind("victim")
    other.start()
    stage.until_through()  # by the other one alone
    victim.go_on()
    until(lambda: not victim.held(), "the task of the superseded one goes on")
    victim.let_its_sources_go_on()
    victim.unbound_from_outside()
    victim.start()
    until(lambda: stage.shared(2), "both share again")
    stage.publish(200)
    stage.check()
