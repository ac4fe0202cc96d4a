"""A service and a Redis with a password, which service and consumers know from their settings."""

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
    """Where everything is. `access` is a secret."""

    service: Service
    client: Client
    redis: RedisServer
    access: str
    log: str

    def http(self, method: str, path: str, body: object = None) -> httpx.Response:
        """A call as any program makes it."""
        return httpx.request(method, f"{self.service.url}/v1{path}", json=body, timeout=30)

    def lag(self, queue: str) -> int | None:
        """Of all partitions; None while the log has not answered the service in time."""
        lags = [lag for _, lag in self.ends(queue)]
        return None if None in lags else sum(filter(None, lags))

    def ends(self, queue: str) -> list[tuple[str | None, int | None]]:
        """`end` and `lag` of each partition as the API shows them."""
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
    """A service that reaches a Redis, empty; consumers reach it by their environment."""
    access = f"redis://:{SECRET}@{locked_redis.address}"
    with locked_redis.client() as admin:
        admin.flushall()
    # One for another log comes first; it is not taken.
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", f"redis://:wrong@elsewhere {access}")
    settings = settings_for(migrated_url, log_urls=access)
    broker = Broker(settings)
    with running(broker, settings) as service, Client(service.url) as client:
        yield World(service, client, locked_redis, access, locked_redis.log("flights"))
