"""Keys come to a service whose clients run; and what clients do with keys."""

from __future__ import annotations

import time
from contextlib import ExitStack

import httpx
import pytest

from broker import access_keys
from broker.core.access import Role, key_id_of
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.errors import Forbidden, Unauthorized
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from tests.api.access import Guarded, bearer
from tests.attacks.keys import rest_of
from tests.databases import Databases
from tests.service import eventually, running, settings_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]


def test_clients_work_with_their_keys(secured: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a consumer and a publisher have them: in the environment."""
    secured.create("orders")
    url = secured.service.url
    monkeypatch.setenv("COUNTERPOISE_TOKEN", secured.key("publisher", "orders"))
    with Publisher("orders", url=url) as publisher:
        publisher.publish(b"x", "k")
    with pytest.raises(Forbidden), Flow("orders", url=url):
        pass
    monkeypatch.setenv("COUNTERPOISE_TOKEN", secured.key("consumer", "orders"))
    with Flow("orders", url=url) as flow:
        eventually(lambda: len(flow.partitions) == 2)
    with pytest.raises(Forbidden), Publisher("orders", url=url) as publisher:
        publisher.publish(b"x", "k")
    monkeypatch.delenv("COUNTERPOISE_TOKEN")
    with pytest.raises(Unauthorized), Flow("orders", url=url):
        pass


def test_keys_come_while_clients_run(databases: Databases) -> None:
    """The steps of docs/operations.md; the clients before them send no key."""
    with databases.lend() as url, ExitStack() as stack:
        optional = settings_for(url, keys_optional=True)
        first = stack.enter_context(running(Broker(optional), optional))
        with Client(first.url) as client:
            client.create_queue("orders", 2, rebalance_delay=0)
        old = stack.enter_context(Flow("orders", url=first.url, instance_id="etl-1"))
        eventually(lambda: len(old.partitions) == 2)
        key = access_keys.create(url, Role.CONSUMER, ("orders",), "etl").text

        # Optional: whoever has no key goes on as before, and the key is valid.
        required = settings_for(url)
        closed = stack.enter_context(running(Broker(required), required))
        with Client(first.url) as client:
            client.queues()
            client.log_access("orders", "read")
        with Client(first.url, token=key) as client:
            assert [queue.name for queue in client.queues()] == ["orders"]
            with pytest.raises(Forbidden):
                client.delete_queue("orders")
        events = f"{first.url}/v1/queues/orders/events"
        with httpx.stream("GET", events, headers={"Last-Event-ID": "1"}, timeout=60) as stream:
            lines = (line for line in stream.iter_lines() if line[:1] not in ("", ":"))
            assert [next(lines), next(lines)] == ["retry: 1000", "id: 2"]

        # Required: a flow that is bound goes on; all else needs the key.
        def served() -> bool:
            return httpx.get(f"{closed.url}/v1/queues").status_code == 401

        eventually(served)
        assert old.commit({0: "1"}) == {0: "ok"}
        with Client(closed.url) as client, pytest.raises(Unauthorized):
            client.log_access("orders", "read")
        with Flow("orders", url=closed.url, instance_id="etl-1", token=key) as new:
            eventually(lambda: len(new.partitions) == 1)
            eventually(lambda: len(old.partitions) == 1)


def test_the_first_key_closes_the_service(databases: Databases) -> None:
    with databases.lend() as url:
        settings = settings_for(url)
        with running(Broker(settings), settings) as service, httpx.Client(timeout=60) as http:
            address = f"{service.url}/v1/queues"
            assert http.get(address).status_code == 200
            made = http.post(address, json={"name": "open", "partition_count": 1})
            assert made.status_code == 201
            with http.stream("GET", f"{address}/open/events") as stream:
                lines = stream.iter_lines()
                next(lines)
                key = access_keys.create(url, Role.VIEWER, ("*",), "first").key
                assert rest_of(lines)[0] == "event: problem"
            eventually(lambda: http.get(address).status_code == 401)
            # For good.
            access_keys.revoke(url, key.id)
            assert http.get(address).status_code == 401


def test_the_last_use_is_written_now_and_then(secured: Guarded) -> None:
    key = secured.key("viewer")
    id = key_id_of(key)

    def used(id: str | None = id) -> float | None:
        [found] = [each for each in access_keys.every(secured.url) if each.id == id]
        return found.last_used_at

    assert used() is None
    began = time.time()
    with secured.http as http:
        # A stranger who knows its id, which is no secret, uses another key.
        other = secured.key("viewer")
        assert http.get("/v1/queues", headers=bearer(f"cp_{id}_{'0' * 64}")).status_code == 401
        http.get("/v1/queues", headers=bearer(other))
        others = key_id_of(other)
        eventually(lambda: used(others) is not None)
        assert used() is None
        for _ in range(3):
            http.get("/v1/queues", headers=bearer(key))
        eventually(lambda: used() is not None)
        first = used()
        http.get("/v1/queues", headers=bearer(key))
    assert first is not None
    assert began - 1 < first < time.time() + 1  # the clock of the database
    assert used() == first
