"""Services for the tests of the consumers' package, queues with logs of every kind, and Sparks."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.counterpoise.spark.jobs import pythons
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.small import LOCAL, SMALL
from tests.kafka_server import apache_kafka, kafka
from tests.redis_server import redis_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["apache_kafka", "kafka", "redis_server"]


@pytest.fixture(params=["builtin", "redis", "kafka"])
def log_settings(request: pytest.FixtureRequest) -> Callable[[int], dict[str, Any]]:
    """The arguments of `create_queue` for a log of each kind, with so many partitions."""

    def settings(partitions: int) -> dict[str, Any]:
        name = uuid.uuid4().hex
        if request.param == "kafka":
            # The topic determines the count.
            topics = request.getfixturevalue("kafka")
            topics.create_topic(name, partitions)
            return {"log": topics.log(name)}
        if request.param == "redis":
            log = request.getfixturevalue("redis_server").log(name)
            return {"partition_count": partitions, "log": log}
        return {"partition_count": partitions}

    return settings


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark in this process, with the source registered; two cores."""
    from counterpoise.spark import session

    directory: Path = tmp_path_factory.mktemp("spark")
    config = {**SMALL, "spark__local__dir": str(directory)}
    with pythons.spawned(directory) as python:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYSPARK_PYTHON", str(python))
            spark = session("tests", **config, spark__master=LOCAL)
        yield spark
        spark.stop()


# A test needs two applications at most, one of them killed, and a third driver that gets warm.
DRIVERS = 3


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """Sparks in processes of their own, for applications."""
    with contextlib.closing(Drivers(tmp_path_factory.mktemp("drivers"), DRIVERS)) as drivers:
        yield drivers
