"""A client of the service, and a stage for applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import Stage, staged
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


@pytest.fixture
def stage(service: Service, drivers: Drivers, tmp_path: Path) -> Iterator[Stage]:
    with staged(Stage, service, tmp_path, drivers) as stage:
        yield stage
