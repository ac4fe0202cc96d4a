"""Attacks on sessions that may change something for some minutes (docs, *Security*, *The page*)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from api.openapi import all_routes
from api.routing import Route
from broker.core.access import digest, key_id_of
from tests.api.access import Guarded, bearer
from tests.attacks.keys import let_end, revoke
from tests.service import Service, eventually

UNLOCK, LOCK, SESSION = "/v1/session/unlock", "/v1/session/lock", "/v1/session"
COOKIE = "counterpoise_session"


def own(http: httpx.Client) -> dict[str, str]:
    """What a browser says of a call of the service's own page."""
    origin = str(http.base_url).rstrip("/")
    return {"Origin": origin, "Sec-Fetch-Site": "same-origin"}


@contextmanager
def entered(secured: Guarded, key: str) -> Iterator[httpx.Client]:
    """A browser that has logged in, whose page makes the calls."""
    with secured.http as http:
        http.headers.update(own(http))
        assert http.post(SESSION, json={"key": key}).status_code == 200
        yield http


@contextmanager
def unlocked(secured: Guarded, key: str) -> Iterator[httpx.Client]:
    with entered(secured, key) as http:
        assert http.post(UNLOCK, json={"key": key}).status_code == 200
        yield http


def changes(http: httpx.Client, queue: str) -> bool:
    """Whether the browser can change a queue; nothing but a refusal may keep it from it."""
    answer = http.patch(f"/v1/queues/{queue}", json={"max_handoff_time": 5.0})
    assert answer.status_code in (200, 401, 403), answer.text
    return answer.status_code == 200


@pytest.fixture
def queue(secured: Guarded, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "unlocked-" + request.node.name.partition("[")[0][-40:].strip("_")
    secured.create(name)
    yield name
    with secured.http as http:
        http.delete(f"/v1/queues/{name}", headers=bearer(secured.root))


def test_a_session_changes_something_only_while_it_is_unlocked(
    secured: Guarded, queue: str
) -> None:
    with entered(secured, secured.root) as browser:
        assert browser.get(SESSION).json()["unlocked_until"] is None
        assert not changes(browser, queue)
        said = browser.post(UNLOCK, json={"key": secured.root}).json()
        assert said["unlocked_until"] == browser.get(SESSION).json()["unlocked_until"] is not None
        assert changes(browser, queue)
        # A call does not prolong the time.
        assert browser.get(SESSION).json()["unlocked_until"] == said["unlocked_until"]
        assert browser.post(LOCK).json()["unlocked_until"] is None
        assert browser.post(LOCK).status_code == 200
        assert not changes(browser, queue)
        assert browser.get(f"/v1/queues/{queue}").status_code == 200
    with secured.http as http:
        acts = http.get("/v1/audit?limit=2", headers=bearer(secured.root)).json()["items"]
    assert [act["call"] for act in acts] == ["change_queue", "unlock_session"]
    assert {act["key_id"] for act in acts} == {key_id_of(secured.root)}


def test_the_time_is_over_at_every_replica(secured: Guarded, other: Service, queue: str) -> None:
    with unlocked(secured, secured.root) as browser:
        cookie = browser.cookies[COOKIE]
        with httpx.Client(base_url=other.url, timeout=60, cookies={COOKIE: cookie}) as elsewhere:
            elsewhere.headers.update(own(elsewhere))
            assert changes(elsewhere, queue)
            with psycopg.connect(secured.url, autocommit=True) as connection:
                connection.execute(
                    "UPDATE counterpoise.sessions SET unlocked_until ="
                    " extract(epoch FROM clock_timestamp()) - 0.001 WHERE hash = %s",
                    (digest(cookie),),
                )
            for one in (browser, elsewhere):
                assert not changes(one, queue)
                assert one.get(SESSION).json()["unlocked_until"] is None


def test_no_other_session_gets_it(secured: Guarded, queue: str) -> None:
    with (
        entered(secured, secured.root) as before,
        unlocked(secured, secured.root) as browser,
        entered(secured, secured.root) as after,
    ):
        assert [changes(one, queue) for one in (before, browser, after)] == [False, True, False]
        # Logging in again, also in the same browser, is another session.
        assert browser.post(SESSION, json={"key": secured.root}).status_code == 200
        assert not changes(browser, queue)


def test_it_ends_with_the_session(secured: Guarded, queue: str) -> None:
    with unlocked(secured, secured.root) as browser:
        stolen = {COOKIE: browser.cookies[COOKIE]}
        assert browser.delete(SESSION).status_code == 204
        with httpx.Client(base_url=secured.service.url, cookies=stolen, timeout=60) as thief:
            thief.headers.update(own(thief))
            assert not changes(thief, queue)
            assert thief.post(UNLOCK, json={"key": secured.root}).status_code == 401


@pytest.mark.parametrize("end", [revoke, let_end])
def test_it_ends_with_the_key(
    secured: Guarded, queue: str, end: Callable[[Guarded, str], None]
) -> None:
    key = secured.key("admin", queue, ends_at=datetime.now(UTC) + timedelta(hours=1))
    with unlocked(secured, key) as browser:
        assert changes(browser, queue)
        end(secured, key)
        eventually(lambda: not changes(browser, queue))


def test_only_the_key_of_the_session_unlocks_it(secured: Guarded, queue: str) -> None:
    mine, stronger = secured.key("viewer", queue), secured.root
    wrong = mine[:-1] + ("0" if mine[-1] != "0" else "1")
    with entered(secured, mine) as browser:
        assert browser.post(UNLOCK, json={"key": stronger}).status_code == 403
        assert browser.post(UNLOCK, json={"key": wrong}).status_code == 401
        assert browser.get(SESSION).json()["unlocked_until"] is None
        # Its rights stay those of its key.
        assert browser.post(UNLOCK, json={"key": mine}).status_code == 200
        assert not changes(browser, queue)
    with unlocked(secured, secured.key("admin", "unlocked-elsewhere.*")) as browser:
        assert not changes(browser, queue)


def test_a_caller_without_a_session_unlocks_nothing(secured: Guarded, queue: str) -> None:
    _flow, token = secured.bind(queue, secured.root)
    with secured.http as http:
        body = {"key": secured.root}
        for path, given, status in (
            (UNLOCK, None, 401),
            (UNLOCK, secured.root, 422),
            (UNLOCK, token, 403),
            (LOCK, None, 401),
            (LOCK, token, 403),
        ):
            answer = http.post(path, json=body, headers={**own(http), **bearer(given)})
            assert answer.status_code == status, answer.text


@pytest.mark.parametrize("path", [UNLOCK, LOCK, "/v1/queues/{queue}/rebalance"])
def test_a_page_of_another_site_gets_nothing_of_it(secured: Guarded, queue: str, path: str) -> None:
    """Its browser sends the cookie in spite of all: that it reads no answer is no help."""
    with unlocked(secured, secured.root) as browser:
        host = httpx.URL(secured.service.url)
        assert host.port is not None
        for said in (
            {"Origin": "https://example.com", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "https://example.com"},
            # Another program on the same host: cookies do not know ports.
            {"Origin": f"http://{host.host}:{host.port + 1}", "Sec-Fetch-Site": "same-site"},
            {"Origin": f"http://{host.host}:{host.port + 1}", "Sec-Fetch-Site": "same-origin"},
            # One that says nothing, or not enough.
            {},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
        ):
            for name in ("Origin", "Sec-Fetch-Site"):
                browser.headers.pop(name, None)
            answer = browser.post(
                path.format(queue=queue), json={"key": secured.root}, headers=said
            )
            assert answer.status_code == 403, (said, answer.text)
        browser.headers.update(own(browser))
        assert changes(browser, queue)


def test_an_unlocked_session_gets_nothing_that_outlasts_it(secured: Guarded, queue: str) -> None:
    with unlocked(secured, secured.root) as browser:
        for method, path, body in (
            ("POST", "/v1/keys", {"role": "admin", "queues": ["*"]}),
            ("DELETE", f"/v1/keys/{key_id_of(secured.keys['viewer'])}", None),
            ("POST", f"/v1/queues/{queue}/flows", {"client_name": "etl"}),
            ("POST", f"/v1/queues/{queue}/log-access", {"purpose": "read"}),
            ("POST", f"/v1/queues/{queue}/log-access", {"purpose": "publish"}),
        ):
            answer = browser.request(method, path, json=body)
            assert answer.status_code == 403, (path, answer.text)


def test_the_calls_of_an_unlocked_session_are_those_that_are_listed_here() -> None:
    """A new call is not one of them by accident."""
    on_queue = "/v1/queues/{queue}"
    of_partition = f"{on_queue}/partitions/{{partition}}"
    routes = [route for route in all_routes() if isinstance(route, Route)]
    found = {
        f"{method} {route.path}"
        for route in routes
        if route.requirement.unlocked_may
        for method in route.methods or ()
    }
    assert found == {
        "POST /v1/queues",
        f"PATCH {on_queue}",
        f"DELETE {on_queue}",
        f"POST {on_queue}/rebalance",
        f"POST {on_queue}/positions",
        f"POST {on_queue}/messages",
        f"POST {on_queue}/redrive",
        *(
            f"POST {place}/{what}"
            for place in (on_queue, of_partition)
            for what in ("pause", "resume")
        ),
        f"POST {of_partition}/dead-letter",
        f"POST {of_partition}/pin",
        f"POST {of_partition}/unpin",
        f"POST {of_partition}/split",
        f"POST {of_partition}/merge",
        f"DELETE {on_queue}/flows/{{flow}}",
        f"POST {on_queue}/flows/{{flow}}/drain",
    }
    locked = {route.path for route in routes if route.requirement.locked_may}
    assert locked == {UNLOCK, LOCK}
