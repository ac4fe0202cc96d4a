"""The drivers that tests share: what is left in one fails the test, and a dead one is replaced.

This module is also the module of its jobs; the settings say what a job does.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.counterpoise.spark.application import Application
from tests.counterpoise.spark.jobs.drivers import Drivers, Ended, Job, LeftBehind
from tests.counterpoise.spark.jobs.program import Surroundings
from tests.counterpoise.spark.waiting import until
from tests.processes import Process, descendants, find, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control

pytestmark = [pytest.mark.xdist_group("drivers 2"), pytest.mark.matrix(of="drivers")]

STUB = "tests.counterpoise.spark.jobs.stub"
PARTITIONS = "spark.sql.shuffle.partitions"


class Careless(Application):
    """An application of numbers. `does`: what else it does."""

    module = "tests.counterpoise.spark.jobs.test_drivers"

    def __init__(self, directory: Path, drivers: Drivers, does: str = "") -> None:
        super().__init__("careless", directory, "", "", drivers, does=does)

    def pid(self) -> int:
        assert self._driver is not None
        return self._driver.pid


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    does = settings["options"]["does"]
    numbers = spark.readStream.format("rate").load()

    def write(batch: Any, _: int) -> None:
        assert does != "fail", "as it was told"

    if does == "leave a query and data":
        numbers.writeStream.format("noop").start()
        spark.range(3).cache().count()
    print(f"partitions: {spark.conf.get(PARTITIONS)}", flush=True)
    spark.conf.set(PARTITIONS, "7")
    control.run(numbers.writeStream.foreachBatch(write).start())


@pytest.fixture
def careless(drivers: Drivers, tmp_path: Path) -> Iterator[Any]:
    made: list[Careless] = []

    def make(does: str = "") -> Careless:
        made.append(Careless(tmp_path, drivers, does))
        return made[-1]

    yield make
    for application in made:
        application.end()


def lives(pid: int) -> bool:
    return find(pid) is not None


@pytest.mark.long
def test_what_a_job_leaves_fails_its_test_and_ends_its_driver(careless: Any) -> None:
    application = careless("leave a query and data")
    application.start()
    driver = application.pid()
    with pytest.raises(LeftBehind, match=r"a query runs: .*, 1 RDDs are kept"):
        application.stop()
    assert not lives(driver)
    clean = careless().start()
    assert clean.pid() != driver
    assert clean.stop() == 0


@pytest.mark.long
def test_a_job_that_fails_says_so_and_the_driver_goes_on(careless: Any) -> None:
    application = careless("fail")
    # It may have failed before anybody sees that it runs.
    application.launch()
    driver = application.pid()
    until(application.over, "it has failed")
    assert application.stop() == 1
    assert "as it was told" in application.said()
    assert lives(driver)


@pytest.mark.long
def test_the_next_job_finds_nothing_of_the_settings_of_the_one_before(
    drivers: Drivers, careless: Any
) -> None:
    driver = drivers.take()
    for _ in range(2):
        driver.start(Job(Careless.module, careless().settings()))
        until(driver.started, "it runs")
        driver.stop()
        ended = driver.until_job_ended()
        assert (ended.failure, ended.left) == (None, ())
        assert b"partitions: 1\n" in driver.said()
    drivers.give_back(driver, ended)


@pytest.mark.long
def test_an_application_that_comes_back_has_another_driver(careless: Any) -> None:
    application = careless()
    drivers = []
    for _ in range(2):
        application.start()
        drivers.append(application.pid())
        assert application.stop() == 0
    assert drivers[0] != drivers[1]


@pytest.mark.long
def test_a_driver_that_died_is_replaced(tmp_path: Path) -> None:
    with contextlib.closing(Drivers(tmp_path / "drivers", 3, STUB)) as drivers:
        # Once while it is idle, without any message.
        first = drivers.take()
        drivers.give_back(first, Ended(None, ()))
        family = killed_alone(first.pid)
        # Once during a job, whose test notices it.
        application = Careless(tmp_path, drivers).start()
        used = application.pid()
        assert used != first.pid
        until(lambda: not family & running(), "its children are gone")
        family = killed_alone(used)
        until(application.over, "the test notices")
        with pytest.raises(AssertionError, match="the driver died with -9"):
            application.stop()
        application.end()
        until(lambda: not family & running(), "its children are gone")
        # All drivers in the pool are usable.
        taken = [drivers.take() for _ in range(3)]
        assert {first.pid, used}.isdisjoint(driver.pid for driver in taken)
        for driver in taken:
            driver.start(Job(Careless.module, {}))
        for driver in taken:
            until(driver.started, "it runs")
            driver.stop()
            drivers.give_back(driver, driver.until_job_ended())


def killed_alone(pid: int) -> set[Process]:
    """SIGKILL to the driver without its JVM. Returns its children."""
    children = descendants(pid)
    assert children
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), "it is dead")
    return children


def test_a_change_of_the_surroundings_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = Surroundings.now()
    assert before.changed() == []
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", "redis://nowhere")
    monkeypatch.chdir(tmp_path)
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        environment, directory, handlers = before.changed()
    finally:
        signal.signal(signal.SIGTERM, former)
    assert "COUNTERPOISE_LOG_URL" in environment
    assert str(tmp_path) in directory
    assert "SIGTERM" in handlers
