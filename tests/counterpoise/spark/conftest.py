"""One Spark session for all tests that can share a process, and a client of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.application import SMALL
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark with the source registered; two cores."""
    from counterpoise.spark import session

    directory: Path = tmp_path_factory.mktemp("spark")
    spark = session("tests", **SMALL, spark__master="local[2]", spark__local__dir=str(directory))
    yield spark
    spark.stop()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client
