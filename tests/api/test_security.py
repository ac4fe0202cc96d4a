"""One hook decides who may call, and every route names its callers."""

import httpx
import pytest

from api.app import create_app
from api.openapi import all_routes
from api.routing import Route
from api.security import Also, Requirement
from broker.core.errors import FlowGone
from broker.settings import Settings, load
from tests.api.conftest import AS_FLOW
from tests.api.scripted import ScriptedBroker
from tests.api.test_problems import problem

FLOW = "/v1/queues/flights/flows/f-1"


def test_every_route_names_its_callers() -> None:
    app = create_app(ScriptedBroker().as_broker(), load())
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is served without the authorization hook"
        assert isinstance(route.requirement, Requirement)


def test_a_route_without_callers_cannot_be_built() -> None:
    async def careless() -> None: ...

    with pytest.raises(TypeError, match="names nobody"):
        Route("/careless", careless)


def test_nothing_changes_for_anyone() -> None:
    """Only what tells nothing about queues is for anyone, and to log in and out."""
    for route in all_routes():
        assert isinstance(route, Route)
        if route.requirement.also is Also.ANYONE and route.path != "/v1/session":
            assert route.methods == {"GET"}
            assert not route.path.startswith("/v1")


def test_a_flows_calls_need_its_token(http: httpx.Client, broker: ScriptedBroker) -> None:
    for method, path in (
        ("POST", "heartbeat"),
        ("GET", "updates"),
        ("POST", "commit"),
        ("POST", "release"),
        ("POST", "ready"),
    ):
        response = http.request(method, f"/queues/flights/flows/f-1/{path}")
        document = problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "flow_token" in document["detail"]
        response = http.request(
            method,
            f"/queues/flights/flows/f-1/{path}",
            headers={"Authorization": "Bearer another"},
        )
        problem(response, 403, "forbidden")
    assert not broker.calls


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "token-1"])
def test_other_schemes_are_not_understood(http: httpx.Client, header: str) -> None:
    response = http.post("/queues/flights/flows/f-1/heartbeat", headers={"Authorization": header})
    problem(response, 401, "unauthorized")


def test_a_flows_token_gives_no_administrator_rights(
    http: httpx.Client, broker: ScriptedBroker
) -> None:
    problem(http.delete("/queues/flights", headers=AS_FLOW), 403, "forbidden")
    assert not broker.calls


def test_an_administrator_or_the_flow_itself_may_unbind_and_drain(http: httpx.Client) -> None:
    for headers in ({}, AS_FLOW):
        assert http.delete("/queues/flights/flows/f-1", headers=headers).status_code == 204
        assert http.post("/queues/flights/flows/f-1/drain", headers=headers).status_code == 202
    other = {"Authorization": "Bearer another"}
    problem(http.delete("/queues/flights/flows/f-1", headers=other), 403, "forbidden")


def test_the_broker_learns_whether_an_administrator_drains(
    http: httpx.Client, broker: ScriptedBroker
) -> None:
    """An administrator's drain must not pass for a sign of life."""
    for headers, flow_id in (({}, None), (AS_FLOW, "f-1")):
        broker.calls.clear()
        http.post("/queues/flights/flows/f-1/drain", headers=headers)
        [caller] = [call[1][-1] for call in broker.calls if call[0] == "flows.drain"]
        assert caller.flow_id == flow_id


def test_a_repeated_unbind_is_harmless(http: httpx.Client, broker: ScriptedBroker) -> None:
    async def gone(*_: object) -> None:
        raise FlowGone("f-1", "unbound")

    broker.answers["bound_flows.authenticate"] = gone
    path = "/queues/flights/flows/f-1"
    assert http.delete(path, headers=AS_FLOW).status_code == 204
    problem(http.post(f"{path}/drain", headers=AS_FLOW), 410, "flow_gone")


def test_a_page_of_another_site_is_not_an_administrator(
    http: httpx.Client, broker: ScriptedBroker
) -> None:
    """A browser on the same machine reaches a loopback service for any page it shows."""
    for headers in (
        {"Origin": "https://example.com"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.example.com"},
        {"Host": "127.0.0.1.example.com:8640"},
    ):
        problem(http.post("/queues/flights/rebalance", headers=headers), 403, "forbidden")
    assert not broker.calls


def test_the_services_own_page_may(http: httpx.Client) -> None:
    origin = str(http.base_url).removesuffix("/v1/")
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    assert http.get("/queues", headers=headers).status_code == 200
    assert http.get("/queues", headers={"Host": "localhost:8640"}).status_code == 200
    assert http.get("/queues", headers={"Host": "[::1]:8640"}).status_code == 200


def from_afar(settings: Settings) -> httpx.AsyncClient:
    """A client of the application itself, as if it came over the network."""
    app = create_app(ScriptedBroker().as_broker(), settings)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://queues.example.com:8640"
    )


async def test_callers_from_other_machines_are_not_administrators() -> None:
    async with from_afar(load(host="0.0.0.0")) as client:
        for method, path in (
            ("POST", "/v1/queues"),
            ("GET", "/v1/queues"),
            ("POST", "/v1/queues/flights/flows"),
            ("POST", "/v1/queues/flights/log-access"),
            ("DELETE", FLOW),
        ):
            by_address = {"Host": "192.0.2.7:8640"}
            problem(await client.request(method, path, headers=by_address), 401, "unauthorized")
            problem(await client.request(method, path), 403, "forbidden")
        response = await client.post(f"{FLOW}/heartbeat", headers=AS_FLOW)
        assert response.status_code == 200
        assert (await client.get("/healthz")).status_code == 200


async def test_a_session_stays_within_tls() -> None:
    """No page of another host of the same domain can set or read the cookie of one with TLS."""
    app = create_app(ScriptedBroker().as_broker(), load())
    for scheme, page, name in (
        ("https", "https", "__Host-counterpoise"),
        ("http", "http", "counterpoise_session"),
        ("http", "https", "counterpoise_session"),  # behind a proxy with TLS
    ):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://localhost") as http:
            headers = {"Origin": f"{page}://localhost"}
            entered = await http.post("/v1/session", json={"key": "any"}, headers=headers)
            cookie = entered.headers["set-cookie"]
            assert cookie.startswith(f"{name}=session-1; ")
            assert ("; Secure" in cookie) == (page == "https")
            assert "Domain" not in cookie
