"""Fixtures of the API's tests: a real server, over a scripted broker or a real one."""

from collections.abc import Iterator

import httpx
import pytest

from broker.service import Broker
from broker.settings import load
from tests.api.conformance import conforms
from tests.api.consumer import create_queue
from tests.api.scripted import TOKEN, ScriptedBroker
from tests.databases import Databases
from tests.service import Service, running, settings_for

AS_FLOW = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def _broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture(scope="session")
def scripted(_broker: ScriptedBroker) -> Iterator[Service]:
    """A service over the scripted broker; its limit for bodies is 4 KiB."""
    settings = load(port=0, request_limit_bytes=4096, shutdown_seconds=3)
    with running(_broker.as_broker(), settings) as service:
        yield service


@pytest.fixture
def broker(_broker: ScriptedBroker) -> ScriptedBroker:
    """The scripted broker, with nothing called and nothing scripted."""
    _broker.reset()
    return _broker


@pytest.fixture
def http(broker: ScriptedBroker, scripted: Service) -> Iterator[httpx.Client]:
    with scripted.http as client:
        yield client


@pytest.fixture
def api(service: Service) -> Iterator[httpx.Client]:
    """A client of a real service; every answer is checked against openapi.yaml."""
    with service.http as client:
        client.event_hooks["response"] = [conforms]
        yield client


@pytest.fixture(scope="session")
def _refusing(databases: Databases) -> Iterator[httpx.Client]:
    with databases.lend() as url:
        settings = settings_for(url)
        with running(Broker(settings), settings) as service, service.http as client:
            create_queue(client, "q", 1)
            client.event_hooks["response"] = [conforms]
            yield client


@pytest.fixture
def refusing(_refusing: httpx.Client) -> Iterator[httpx.Client]:
    """As `api`, of a service that refusals share: its queue `q` has a partition and no message, and
    stays so.
    """
    yield _refusing
    items = _refusing.get("/queues/q/partitions").json()["items"]
    assert [one["end"] for one in items] == ["0"], "what the service does not refuse takes `api`"
