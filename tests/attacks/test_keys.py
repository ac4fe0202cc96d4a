"""Attacks with keys: what a holder of one may not, and what a revoked one still may (nothing)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import psycopg
import pytest

from broker.core.access import key_id_of
from counterpoise.client import Client
from tests.api.access import Guarded, bearer
from tests.attacks.keys import let_end, rest_of, revoke
from tests.service import Service, eventually

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]


def refused(address: str, key: str) -> bool:
    """Whether the key is not accepted there."""
    return httpx.get(address, headers=bearer(key)).status_code == 401


def owned_by(client: Client, queue: str, flow_id: str) -> bool:
    """Whether this flow owns all partitions."""
    return {partition.owner for partition in client.partitions(queue)} == {flow_id}


def test_a_revoked_key_ends_on_all_replicas(secured: Guarded, other: Service) -> None:
    key = secured.key("viewer")
    addresses = [f"{service.url}/v1/queues" for service in (secured.service, other)]
    for address in addresses:
        assert httpx.get(address, headers=bearer(key)).status_code == 200
    revoke(secured, key)
    for address in addresses:
        eventually(partial(refused, address, key))


def test_a_key_ends_at_its_end(secured: Guarded) -> None:
    secured.create("ending")
    key = secured.key("consumer", ends_at=datetime.now(UTC) + timedelta(hours=1))
    flow, token = secured.bind("ending", key)
    beat = f"{secured.service.url}/v1/queues/ending/flows/{flow}/heartbeat"
    assert httpx.post(beat, headers=bearer(token)).status_code == 200
    let_end(secured, key)
    eventually(lambda: _gone(beat, token) == "key_ended")
    eventually(partial(refused, f"{secured.service.url}/v1/queues", key))


def _gone(beat: str, token: str) -> object:
    answer = httpx.post(beat, headers=bearer(token))
    return answer.json()["reason"] if answer.status_code == 410 else None


def test_flows_of_a_revoked_key_leave_and_others_take_over(
    secured: Guarded, other: Service
) -> None:
    secured.create("shared")
    stolen, kept = secured.key("consumer", "shared"), secured.key("consumer", "shared")
    first, token = secured.bind("shared", stolen)
    second, second_token = secured.bind("shared", kept)
    with Client(secured.service.url, token=secured.root) as client:
        eventually(lambda: {p.owner for p in client.partitions("shared")} == {first, second})
        revoke(secured, stolen)
        beat = f"{other.url}/v1/queues/shared/flows/{first}/heartbeat"
        eventually(lambda: _gone(beat, token) == "key_ended")
        eventually(lambda: {p.owner for p in client.partitions("shared")} == {second})
    # What it still holds is of no use: neither its queue nor credentials of the log.
    root = f"{secured.service.url}/v1/queues/shared"
    assert httpx.get(root, headers=bearer(token)).status_code == 401
    access = httpx.post(f"{root}/log-access", json={"purpose": "read"}, headers=bearer(token))
    assert access.status_code == 401
    beat = f"{root}/flows/{second}/heartbeat"
    assert httpx.post(beat, headers=bearer(second_token)).status_code == 200


def test_open_streams_of_a_revoked_key_end(secured: Guarded) -> None:
    secured.create("watched")
    key = secured.key("viewer", "watched")
    address = f"{secured.service.url}/v1/queues/watched/events"
    with httpx.stream("GET", address, headers=bearer(key), timeout=60) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        next(lines)
        revoke(secured, key)
        rest = rest_of(lines)
    assert rest[0] == "event: problem"
    assert '"unauthorized"' in rest[1]


def test_a_session_of_a_revoked_key_ends(secured: Guarded) -> None:
    key = secured.key("admin")
    with secured.http as browser:
        entered = browser.post("/v1/session", json={"key": key})
        assert entered.status_code == 200
        assert browser.get("/v1/queues").status_code == 200
        revoke(secured, key)
        eventually(lambda: browser.get("/v1/queues").status_code == 401)


def test_nobody_takes_the_place_of_a_flow_with_another_key(secured: Guarded) -> None:
    """Whoever may list flows knows their `instance_id`s."""
    secured.create("place")
    victim, thief = secured.key("consumer", "place"), secured.key("consumer", "place")
    flow, token = secured.bind("place", victim, "etl-1")
    with Client(secured.service.url, token=secured.root) as client:
        eventually(lambda: {p.owner for p in client.partitions("place")} == {flow})
        secured.bind("place", thief, "etl-1")
        bound = {each.flow_id for each in client.flows("place")}
        assert len(bound) == 2
        assert flow in bound
        # The same key does take it.
        again, _ = secured.bind("place", victim, "etl-1")
        assert flow not in {each.flow_id for each in client.flows("place")}
        eventually(lambda: again in {p.owner for p in client.partitions("place")})
        listed = {each.flow_id: each.raw["key_id"] for each in client.flows("place")}
        assert listed[again] == key_id_of(victim)
    beat = f"{secured.service.url}/v1/queues/place/flows/{flow}/heartbeat"
    assert _gone(beat, token) == "replaced"


def test_nobody_goes_on_where_another_instance_was_with_another_key(secured: Guarded) -> None:
    """`replaced` tells a consumer that it is the one that was there before."""
    secured.create("away", rebalance_delay=60.0)
    victim, thief = secured.key("consumer", "away"), secured.key("consumer", "away")
    told = {}
    for key in (thief, victim):
        with Client(secured.service.url, token=victim) as client, secured.http as http:
            flow, token = secured.bind("away", victim, "etl-1")
            http.post("/v1/queues/away/rebalance", headers=bearer(secured.root))
            eventually(partial(owned_by, client, "away", flow))
            client.unbind("away", flow, token)
            again, token = secured.bind("away", key, "etl-1")
            view = client.poll("away", again, token, 0, 0)
            assert view is not None
            told[key] = {partition.handed_over for partition in view.partitions}
            client.unbind("away", again, token)
    assert told == {thief: {"orphaned"}, victim: {"replaced"}}


def test_a_session_only_reads(secured: Guarded) -> None:
    secured.create("seen")
    with secured.http as browser:
        entered = browser.post("/v1/session", json={"key": secured.root})
        cookie = entered.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
            assert part in cookie
        assert secured.root not in cookie
        assert browser.get("/v1/session").json()["role"] == "admin"
        assert browser.get("/v1/audit").status_code == 200
        for method, path in (
            ("DELETE", "/v1/queues/seen"),
            ("PATCH", "/v1/queues/seen"),
            ("POST", "/v1/queues/seen/rebalance"),
            ("POST", "/v1/queues/seen/flows"),
            ("POST", "/v1/queues/seen/log-access"),
        ):
            body = {"purpose": "read"} if path.endswith("access") else {}
            assert browser.request(method, path, json=body).status_code in (403, 422)
            if method == "DELETE":
                assert browser.request(method, path).status_code == 403
        # A page of another site, whose browser sends the cookie in spite of all.
        foreign = {"Origin": "https://example.com", "Sec-Fetch-Site": "cross-site"}
        assert browser.get("/v1/queues", headers=foreign).status_code == 403
        assert (
            browser.post("/v1/session", json={"key": secured.root}, headers=foreign).status_code
            == 403
        )
        assert browser.delete("/v1/session").status_code == 204
        stolen = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        assert httpx.get(f"{secured.service.url}/v1/queues", headers=stolen).status_code == 401


def test_a_key_has_so_many_sessions(secured: Guarded) -> None:
    key = secured.key("viewer")
    with secured.http as browser:
        for _ in range(105):
            assert browser.post("/v1/session", json={"key": key}).status_code == 200
        assert browser.get("/v1/session").status_code == 200
    with psycopg.connect(secured.url) as connection:
        count = "SELECT count(*) FROM counterpoise.sessions WHERE key_id = %s"
        assert connection.execute(count, (key_id_of(key),)).fetchone() == (100,)


def test_a_reader_of_the_tables_cannot_call(secured: Guarded) -> None:
    """Nothing in the database is a credential: neither as it is nor as text of any kind."""
    secured.create("leaked")
    flow, _ = secured.bind("leaked", secured.root)
    with secured.http as browser:
        browser.post("/v1/session", json={"key": secured.root})
    with psycopg.connect(secured.url) as connection:
        found = [
            hash
            for table, column in (("keys", "hash"), ("sessions", "hash"), ("flows", "token_hash"))
            for (hash,) in connection.execute(f"SELECT {column} FROM counterpoise.{table}".encode())
        ]
        ids = [id for (id,) in connection.execute("SELECT id FROM counterpoise.keys")]
    guesses = {
        form for hash in found for form in (hash.hex(), *(f"cp_{id}_{hash.hex()}" for id in ids))
    }
    assert len(guesses) > 10
    with secured.http as http:
        for guess in sorted(guesses)[:200]:
            assert http.get("/v1/queues", headers=bearer(guess)).status_code == 401
            cookie = {"Cookie": f"counterpoise_session={guess}"}
            assert http.get("/v1/queues", headers=cookie).status_code == 401
        beat = f"/v1/queues/leaked/flows/{flow}/heartbeat"
        assert http.post(beat, headers=bearer(found[-1].hex())).status_code == 403


def test_a_page_shows_nothing_and_runs_only_its_own(secured: Guarded) -> None:
    secured.create("hidden-name")
    with secured.http as http:
        nonces = set()
        for _ in range(2):
            for path in ("/", "/docs"):
                page = http.get(path)
                policy = page.headers["content-security-policy"]
                nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
                nonces.add(nonce)
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert page.headers["x-frame-options"] == "DENY"
                assert page.text.count("<script") == page.text.count(f'<script nonce="{nonce}"')
                assert page.text.count("<style") == page.text.count(f'<style nonce="{nonce}">')
                assert "hidden-name" not in page.text
                assert "{{" not in page.text.partition("<script")[0]
        assert len(nonces) == 4
        assert "hidden-name" not in http.get("/openapi.json").text
        assert http.get("/metrics").status_code == 401
