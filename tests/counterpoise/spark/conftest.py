"""One Spark session for all tests that can share a process, and a client of the service.

A run with many tests that start applications has the archive of `small.py` made beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.small import LOCAL, SMALL, ArchiveBeside, java_options
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# From so many on it pays to make the archive that their Sparks start with.
MANY_APPLICATIONS = 5


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin the archive when many tests start applications; those before them take their time."""
    applications = [
        item
        for item in session.items
        if item.get_closest_marker("long") and "stage" in getattr(item, "fixturenames", ())
    ]
    if len(applications) >= MANY_APPLICATIONS and not session.config.option.collectonly:
        session.config.add_cleanup(ArchiveBeside().close)  # also of a run that is broken off


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark with the source registered; two cores."""
    from counterpoise.spark import session

    directory: Path = tmp_path_factory.mktemp("spark")
    spark = session(
        "tests",
        **SMALL,
        spark__master=LOCAL,
        spark__local__dir=str(directory),
        spark__driver__extraJavaOptions=java_options(),
    )
    yield spark
    spark.stop()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client
