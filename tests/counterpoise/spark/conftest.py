"""A client of the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from counterpoise.client import Client
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client
