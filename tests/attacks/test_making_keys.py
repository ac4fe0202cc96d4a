"""Keys that make keys: none makes a stronger one, and strangers make none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from broker import access_keys as on_database
from broker.calls import key_administration
from broker.core.access import Role, key_id_of
from broker.exits import Exit
from broker.key_commands import app
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.errors import Unauthorized
from tests.api.access import Guarded, bearer
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]

SOON = datetime.now(UTC) + timedelta(hours=1)
LATER = SOON + timedelta(hours=1)


def make(url: str, key: str | None, headers: dict[str, str] | None = None, **body: Any) -> Any:
    """The answer to a call that makes a key."""
    given = {"role": "viewer", **body}
    return httpx.post(f"{url}/v1/keys", json=given, headers={**bearer(key), **(headers or {})})


def test_no_key_makes_a_stronger_one(secured: Guarded) -> None:
    """Neither for other queues, nor for longer; and only an administrator's makes any."""
    url = secured.service.url
    maker = secured.key("admin", "team-a.*", "shared", ends_at=SOON)
    ends = SOON.isoformat()
    for queues in (["*"], ["team-*"], ["team-b.x"], ["team-a.x", "team-b.x"], ["team-?.x"], []):
        answer = make(url, maker, queues=queues, ends_at=ends)
        assert answer.status_code == (403 if queues else 422), (queues, answer.text)
    for end in (None, LATER.isoformat()):
        assert make(url, maker, queues=["shared"], ends_at=end).status_code == 403
    for role in ("viewer", "publisher", "consumer"):
        assert make(url, secured.key(role), queues=["shared"]).status_code == 403
    made = make(url, maker, role="admin", queues=["team-a.?*"], name="next", ends_at=ends)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    again = made.json()["key"]
    assert key_id_of(again) == made.json()["id"]
    assert not made.json()["is_first"]
    # It makes no stronger one either.
    assert make(url, again, queues=["team-a.*"], ends_at=ends).status_code == 403
    assert make(url, again, queues=["team-a.x"], ends_at=ends).status_code == 201
    seen = httpx.get(f"{url}/v1/audit", headers=bearer(secured.root)).json()["items"]
    assert (seen[0]["call"], seen[0]["key_id"]) == ("create_key", key_id_of(again))
    assert {each["after"]["ends_at"] for each in seen[:2]} == {made.json()["ends_at"]}
    assert again[16:] not in str(seen)


def test_keys_are_listed_and_revoked_however_many_there_are(
    secured: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator of some queues can make any number, and all were read each time."""
    monkeypatch.setattr("broker.calls.key_administration.KEYS_AT_ONCE", 2)
    url, store = secured.service.url, secured.service.app.state.broker.key_administration._keys
    read: list[int] = []
    page = store.page

    async def counted(limit: int, after: str | None, *, everything: bool) -> Any:
        found = await page(limit, after, everything=everything)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "page", counted)
    maker = secured.key("admin", "many.*")
    made = [key_id_of(maker)]
    for number in range(6):
        made.append(make(url, maker, queues=[f"many.{number}"]).json()["id"])
        secured.key("viewer", "else")
    with secured.http as http:
        listed: list[str] = []
        cursor = ""
        while cursor is not None:
            answer = http.get(
                f"/v1/keys?limit=3{cursor and f'&cursor={cursor}'}", headers=bearer(maker)
            )
            listed += [one["id"] for one in answer.json()["items"]]
            cursor = answer.json()["next_cursor"]
        assert listed == made
        assert max(read) == 2
        read.clear()
        assert http.delete(f"/v1/keys/{made[3]}", headers=bearer(maker)).status_code == 200
        assert not read
        left = http.get("/v1/keys?limit=1000", headers=bearer(maker)).json()["items"]
        assert [one["id"] for one in left] == [*made[:3], *made[4:]]
        every = http.get("/v1/keys?all=true", headers=bearer(maker)).json()["items"]
        assert [one["id"] for one in every] == made


def test_no_end_of_a_key_keeps_others_from_the_list(secured: Guarded) -> None:
    """An end in the year 10000 was taken, and then no answer could show it: neither the list of all
    keys nor the audit."""
    url, beyond = secured.service.url, "9999-12-31T23:59:59-23:59"
    maker = secured.key("admin", "team-a.*")
    refused = make(url, maker, queues=["team-a.x"], ends_at=beyond)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "ends_at")
    assert "year 10000" in refused.text
    secured.create("in-time")
    moved = httpx.post(
        f"{url}/v1/queues/in-time/positions", json={"to": beyond}, headers=bearer(secured.root)
    )
    assert moved.status_code == 422
    last = make(url, maker, queues=["team-a.x"], ends_at="9999-12-31T23:59:59.9999999Z").json()
    with psycopg.connect(secured.url) as connection:
        # As a release before this one has stored it.
        later = "UPDATE counterpoise.keys SET ends_at = 253402387139 WHERE id = %s"
        connection.execute(later, [last["id"]])
    for path in ("keys?limit=1000", "audit"):
        listed = httpx.get(f"{url}/v1/{path}", headers=bearer(secured.root))
        assert listed.status_code == 200
        assert "9999-12-31T23:59:59.999999Z" in listed.text
    ran = CliRunner().invoke(app, ["list", "--database-url", secured.url])
    assert "9999-12-31T23:59:59Z" in ran.output


def test_a_page_goes_on_after_a_key_that_was_revoked_since(secured: Guarded) -> None:
    with secured.http as http:
        http.headers.update(bearer(secured.key("admin", "team-p.*")))
        made = [make(secured.service.url, secured.root, queues=["team-p.x"]) for _ in range(4)]
        ids = [each.json()["id"] for each in made]
        page = http.get("/v1/keys?limit=3").json()
        assert page["next_cursor"] == ids[1]
        assert http.delete(f"/v1/keys/{ids[1]}").status_code == 200
        page = http.get(f"/v1/keys?limit=3&cursor={ids[1]}").json()
        assert [each["id"] for each in page["items"]] == ids[2:]
        assert page["next_cursor"] is None
        for wrong in ("cursor=nonsense", "all=on"):
            assert http.get(f"/v1/keys?{wrong}").status_code == 422


def test_many_patterns_are_compared_with_pauses(
    secured: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may make keys may not hold up the calls of others with that."""
    pauses = 0

    async def paused(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1

    monkeypatch.setattr(key_administration, "asyncio", SimpleNamespace(sleep=paused))
    patterns = [f"team-a.{number}?" for number in range(100)]
    maker = secured.key("admin", *patterns)
    made = make(secured.service.url, maker, queues=patterns)
    assert (made.status_code, pauses) == (201, 33)
    httpx.get(f"{secured.service.url}/v1/keys", headers=bearer(maker))
    assert pauses > 33 + 33


def test_keys_of_others_are_neither_shown_nor_revoked(secured: Guarded) -> None:
    with Client(secured.service.url, token=secured.key("admin", "team-a.*")) as team:
        theirs = key_id_of(secured.key("viewer", "team-b.*")) or ""
        ours = team.create_key("consumer", ["team-a.x"], "etl")
        shown = {key.id: key for key in team.list_keys()}
        assert shown[ours.id].name == "etl"
        assert {key_id_of(secured.root), theirs}.isdisjoint(shown)
        with pytest.raises(Exception, match=r"Client.list_keys\(\) lists"):
            team.revoke_key(theirs)
        for _ in range(2):
            assert team.revoke_key(ours.id).state == "revoked"
        assert ours.id not in {key.id for key in team.list_keys()}
        assert ours.id in {key.id for key in team.list_keys(everything=True)}
        address = f"{secured.service.url}/v1/queues"
        eventually(lambda: httpx.get(address, headers=bearer(ours.key)).status_code == 401)


@pytest.fixture
def empty(databases: Databases) -> Iterator[str]:
    with databases.lend() as url:
        yield url


def test_the_first_key_is_made_on_this_machine_and_once(empty: str) -> None:
    given = settings_for(empty)
    with running(Broker(given), given) as service:
        url = service.url
        for headers in ({"X-Forwarded-For": "1.2.3.4"}, {"Sec-Fetch-Site": "cross-site"}):
            assert make(url, None, headers, role="admin").status_code in (401, 403)
        # Nobody could make the next one.
        weaker: list[dict[str, Any]]
        weaker = [{"role": "viewer"}, {"queues": ["a"]}, {"ends_at": SOON.isoformat()}]
        for each in weaker:
            assert make(url, None, **{"role": "admin", **each}).status_code == 403
        assert on_database.every(empty) == []
        made = asyncio.run(_race(service))
        assert sorted(answer.status_code for answer in made) == [201] + [401] * 7
        (first,) = [answer.json() for answer in made if answer.status_code == 201]
        assert first["is_first"]
        assert len(on_database.every(empty)) == 1
        with pytest.raises(Unauthorized), Client(url) as client:
            client.list_keys()
        with Client(url, token=first["key"]) as client:
            assert [key.id for key in client.list_keys()] == [first["id"]]


async def _race(service: Service) -> list[httpx.Response]:
    """Eight first keys at once."""
    async with httpx.AsyncClient(timeout=60) as http:
        address, body = f"{service.url}/v1/keys", {"role": "admin"}
        return await asyncio.gather(*(http.post(address, json=body) for _ in range(8)))


@pytest.mark.parametrize("given", [{"keys_optional": True}, {"host": "0.0.0.0", "insecure": True}])
def test_a_caller_without_a_key_makes_none_where_others_may_call(
    empty: str, given: dict[str, Any]
) -> None:
    """Where keys are being introduced, and where everybody is an administrator."""
    if "keys_optional" in given:
        on_database.create(empty, Role.VIEWER, ["*"], "")
    settings = settings_for(empty, **given)
    with running(Broker(settings), settings) as service:
        assert httpx.get(f"{service.url}/v1/queues").status_code == 200
        for role in ("admin", "viewer"):
            refused = make(service.url, None, role=role)
            assert refused.status_code == (401 if "keys_optional" in given else 403)
            assert "--database-url" in refused.json()["detail"]
        if "keys_optional" in given:
            (key,) = on_database.every(empty)
            assert httpx.delete(f"{service.url}/v1/keys/{key.id}").status_code == 401
            assert httpx.get(f"{service.url}/v1/keys").status_code == 401


def test_the_command_goes_to_the_service_and_names_it(
    secured: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COUNTERPOISE_DATABASE_URL", raising=False)
    monkeypatch.setenv("COUNTERPOISE_TOKEN", secured.key("admin", "team-a.*"))
    url = secured.service.url

    def said(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--url", url])

    made = said("create", "--role", "consumer", "--queue", "team-a.x", "--name", "etl")
    assert made.exit_code == 0, made.output
    assert f"Service: {url}" in made.stderr
    key_id = key_id_of(made.stdout.strip()) or ""
    assert "etl" in said("list").stdout
    revoked = said("revoke", key_id)
    assert revoked.stdout.strip() == f"{key_id} is revoked", revoked.output
    unknown = said("revoke", "000000000000")
    assert (unknown.exit_code, "keys list" in unknown.stderr) == (Exit.KEY, True)
    stronger = said("create", "--role", "viewer")
    assert stronger.exit_code == Exit.KEY
    assert "only for these queues" in stronger.stderr
    # A database that is named goes before the service.
    there = ["list", "--database-url", secured.url, "--url", url]
    assert "Database: " in CliRunner().invoke(app, there).stderr
