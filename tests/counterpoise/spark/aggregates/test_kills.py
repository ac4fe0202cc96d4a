"""Applications are killed and stopped while they count.

`test_situations.py` has the other ends: after the sink, and drained.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from counterpoise.publisher import Publisher
from tests.counterpoise.spark.aggregates.application import CountingApplication
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import Stage, staged
from tests.counterpoise.spark.waiting import until
from tests.service import Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]

PARTITIONS = 6
KEYS = 19
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = NOON + timedelta(days=3)


class CountingStage(Stage):
    """The stage, with the results in a database, and what they have to be."""

    def __init__(self, *args: Any, database: str) -> None:
        super().__init__(*args)
        self.database = database
        self.connection = psycopg.connect(database, autocommit=True)
        self.connection.execute(
            "CREATE TABLE hourly (window_start timestamptz, window_end timestamptz, key text,"
            " n bigint, total numeric, last bigint)"
        )
        self.expected: defaultdict[tuple[datetime, str], list[int]] = defaultdict(list)

    def counting(self, name: str, **options: Any) -> CountingApplication:
        results = {"database": self.database}
        application = CountingApplication(
            name, self.directory, self.url, "flights", self.drivers, results, **options
        )
        return self.add(application)

    def publish_at(self, at: datetime, count: int) -> None:
        with Publisher("flights", url=self.url) as publisher:
            for number in range(self.published, self.published + count):
                key = f"k{number % KEYS}"
                publisher.publish(str(number).encode(), key=key, published_at=at)
                self.expected[at.replace(minute=0), key].append(number)
        self.published += count

    def counted(self) -> bool:
        return self.committed() == self.published

    def results(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT window_start, key, n, total, last FROM hourly ORDER BY 1, 2, 3"
        ).fetchall()

    def end(self) -> None:
        super().end()
        self.connection.close()


@pytest.fixture
def stage(
    service: Service, drivers: Drivers, tmp_path: Path, database_url: str
) -> Iterator[CountingStage]:
    with staged(CountingStage, service, tmp_path, drivers, database=database_url) as stage:
        yield stage


@pytest.mark.matrix(of="crashes of writers")
def test_every_window_is_written_once_and_whole(stage: CountingStage) -> None:
    """Each round publishes within an hour of its own, out of order, and ends one application."""
    chance = random.Random(1)
    stage.queue(PARTITIONS, rebalance_delay=0.2, max_handoff_time=600)
    applications = [
        stage.counting(name, leaseSeconds=600, maxMessagesPerTrigger=60) for name in ("one", "two")
    ]
    for one in applications:
        one.start()
    until(lambda: all(stage.owned(one.name) for one in applications), "they share")
    one, two = applications
    for hour, (victim, how) in enumerate(((one, "before"), (two, "killed"), (two, "stopped"))):
        if how == "before":
            victim.hold(how)
        for minute in chance.sample(range(60), 4):
            stage.publish_at(NOON + timedelta(hours=hour, minutes=minute), KEYS * 3)
        if how == "before":
            until(victim.held, f"{victim.name} holds")
        if how == "stopped":
            victim.stop()
        else:
            victim.kill()
            stage.unbind(victim.name)
        victim.go_on()
        victim.start()
        until(lambda: all(stage.owned(one.name) for one in applications), "they share again")
    stage.publish_at(END, KEYS * 3)
    until(stage.counted, "everything is committed")
    wanted = sorted(
        (*of, len(numbers), sum(numbers), numbers[-1])
        for of, numbers in stage.expected.items()
        if of[0] < END
    )
    until(lambda: len(stage.results()) >= len(wanted), "all windows are closed")
    assert stage.results() == wanted
    assert {one.stop() for one in applications} == {0}
