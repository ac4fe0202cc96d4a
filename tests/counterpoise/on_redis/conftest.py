"""A service and a Redis with a password, which service and consumers have in their settings."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from broker.service import Broker
from counterpoise.client import Client
from tests.redis_server import RedisServer
from tests.service import Service, running, settings_for

SECRET = "hunter2"


@dataclass
class World:
    """The addresses. `access` is a secret."""

    service: Service
    client: Client
    redis: RedisServer
    access: str
    log: str

    def http(self, method: str, path: str, body: object = None) -> httpx.Response:
        """A call like any program makes it."""
        return httpx.request(method, f"{self.service.url}/v1{path}", json=body, timeout=60)

    def lag(self, queue: str) -> int | None:
        """The lag of all partitions; None while the log has not answered the service in time."""
        lags = [lag for _, lag in self.ends(queue)]
        return None if None in lags else sum(filter(None, lags))

    def ends(self, queue: str) -> list[tuple[str | None, int | None]]:
        """`end` and `lag` of each partition in the API."""
        return [(one.end, one.lag) for one in self.client.partitions(queue)]


@pytest.fixture(scope="module")
def locked_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), requirepass=SECRET) as server:
        yield server


@pytest.fixture
def world(
    migrated_url: str,
    locked_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """A service with access to an empty Redis; consumers have it in their environment."""
    access = f"redis://:{SECRET}@{locked_redis.address}"
    with locked_redis.client() as admin:
        admin.flushall()
    # An access for another log comes first; it is not used.
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", f"redis://:wrong@elsewhere {access}")
    settings = settings_for(migrated_url, log_urls=access)
    broker = Broker(settings)
    with running(broker, settings) as service, Client(service.url) as client:
        yield World(service, client, locked_redis, access, locked_redis.log("flights"))
