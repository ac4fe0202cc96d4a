"""The audit: each administrative call is in it, with its change or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import psycopg
import pytest

from broker.core.access import key_id_of
from broker.service import Broker
from broker.settings import Settings
from counterpoise.client import Client
from tests.api.access import Guarded, bearer
from tests.attacks.keys import revoke
from tests.service import settings_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]


async def _upkeep(settings: Settings) -> None:
    broker = Broker(settings)
    await broker.start()
    try:
        await broker.upkeep()
    finally:
        await broker.stop()


def test_each_administrative_call_is_in_the_audit(secured: Guarded) -> None:
    admin = secured.key("admin", "audited*")
    with Client(secured.service.url, token=admin) as client, secured.http as http:
        client.create_queue("audited", 2, rebalance_delay=0)
        client.change_queue("audited", max_handoff_time=4.0)
        client.change_queue("audited", partition_count=3)
        flow, token = secured.bind("audited", secured.root)
        another, _ = secured.bind("audited", secured.root)
        client.drain("audited", another)
        client.unbind("audited", another)
        client.set_positions("audited", "earliest")
        client.rebalance_now("audited")
        client.unbind("audited", flow, token)
        client.delete_queue("audited")
        with pytest.raises(Exception, match="partition_count"):
            client.create_queue("audited-too", 0)
        items = client.audit("audited")
        assert (
            http.get("/v1/audit?queue=audited", headers=bearer(secured.key("viewer"))).status_code
            == 403
        )
        assert [item["id"] for item in pages(http, admin)] == [item.id for item in items]
    assert [item.call for item in items] == [
        "delete_queue",
        "rebalance_now",
        "set_positions",
        "unbind",
        "drain",
        "change_queue",
        "change_queue",
        "create_queue",
    ]
    assert {item.key_id for item in items} == {key_id_of(admin)}
    assert {item.address for item in items} == {"127.0.0.1"}
    deleted, _, positions, unbound, drained, resized, changed, created = items
    assert (created.before, created.after and created.after["partition_count"]) == (None, 2)
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before["max_handoff_time"], changed.after["max_handoff_time"]) == (3.0, 4.0)
    assert resized.after is not None
    assert resized.after["partition_count"] == 3
    assert (drained.flow_id, unbound.flow_id, unbound.after) == (another, another, None)
    assert positions.after is not None
    assert positions.after["partitions"] == 3
    assert (deleted.before and deleted.before["partition_count"], deleted.after) == (3, None)


def pages(http: httpx.Client, key: str) -> list[Any]:
    """The audit in pages of three."""
    items: list[Any] = []
    query = {"limit": "3"}
    while True:
        page = http.get("/v1/audit", params=query, headers=bearer(key)).json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        query["cursor"] = page["next_cursor"]


def test_the_audit_is_committed_with_the_change_or_neither_is(secured: Guarded) -> None:
    secured.create("atomic")
    with psycopg.connect(secured.url, autocommit=True) as connection, secured.http as http:
        connection.execute("ALTER TABLE counterpoise.audit RENAME TO away")
        try:
            for method, path, body in (
                ("PATCH", "/v1/queues/atomic", {"max_handoff_time": 9.0}),
                ("POST", "/v1/queues", {"name": "atomic-2", "partition_count": 1}),
                ("DELETE", "/v1/queues/atomic", None),
            ):
                answer = http.request(method, path, json=body, headers=bearer(secured.root))
                assert answer.status_code == 503
        finally:
            connection.execute("ALTER TABLE counterpoise.away RENAME TO audit")
        queue = http.get("/v1/queues/atomic", headers=bearer(secured.root)).json()
        assert queue["max_handoff_time"] == 3.0
        assert http.get("/v1/queues/atomic-2", headers=bearer(secured.root)).status_code == 404


def test_the_audit_of_keys_is_for_keys_of_all_queues(secured: Guarded) -> None:
    made = secured.key("viewer", "secret-name-*")
    revoke(secured, made)
    with secured.http as http:
        found = http.get("/v1/audit?limit=2", headers=bearer(secured.root)).json()["items"]
        assert [item["call"] for item in found] == ["revoke_key", "create_key"]
        assert found[0]["after"]["database_user"]
        assert made not in str(found)
        team = pages(http, secured.key("admin", "team-a.*"))
        assert not [item for item in team if item["queue"] is None]


def test_old_rows_of_the_audit_are_trimmed(secured: Guarded) -> None:
    with psycopg.connect(secured.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO counterpoise.audit (at, call, queue) VALUES"
            " (extract(epoch FROM now()) - 91 * 86400, 'drain', 'trimmed'),"
            " (extract(epoch FROM now()) - 89 * 86400, 'unbind', 'trimmed')"
        )
        settings = settings_for(secured.url)

        asyncio.run(_upkeep(settings))
        kept = connection.execute("SELECT call FROM counterpoise.audit WHERE queue = 'trimmed'")
        assert kept.fetchall() == [("unbind",)]
