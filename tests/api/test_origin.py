"""Which requests without a key count as an administrator's."""

import httpx
import pytest

from api.security import host_name, is_own_name
from broker.settings import load
from tests.api.conftest import AS_FLOW
from tests.api.scripted import ScriptedBroker
from tests.api.test_problems import problem
from tests.api.test_security import FLOW, from_afar

PROXIED = (
    {"Forwarded": "for=192.0.2.1"},
    {"X-Forwarded-For": "192.0.2.1"},
    {"x-forwarded-proto": "https"},
    {"X-Real-IP": "192.0.2.1"},
    {"Via": "1.1 proxy"},
)


@pytest.mark.parametrize("headers", PROXIED)
def test_a_caller_through_a_proxy_is_not_an_administrator(
    http: httpx.Client, broker: ScriptedBroker, headers: dict[str, str]
) -> None:
    document = problem(http.get("/queues", headers=headers), 401, "unauthorized")
    assert "proxy" in document["detail"]
    assert not broker.calls


def test_a_flow_may_come_through_a_proxy(http: httpx.Client) -> None:
    for headers in PROXIED:
        answer = http.post(FLOW.removeprefix("/v1") + "/heartbeat", headers={**headers, **AS_FLOW})
        assert answer.status_code == 200


async def test_on_an_insecure_service_every_caller_is_an_administrator() -> None:
    async with from_afar(load(host="0.0.0.0", insecure=True)) as client:
        for headers in ({"Host": "192.0.2.7:8640"}, {"Host": "[2001:db8::1]:8640"}, *PROXIED):
            answer = await client.get("/v1/queues", headers={"Host": "192.0.2.7", **headers})
            assert answer.status_code == 200
        foreign = {"Host": "192.0.2.7", "Origin": "https://example.com"}
        problem(await client.get("/v1/queues", headers=foreign), 403, "forbidden")


async def test_a_name_that_was_rebound_is_refused() -> None:
    """Its pages would have the same origin as the service; only the name differs."""
    async with from_afar(load(host="0.0.0.0", insecure=True)) as client:
        own = {"Origin": "http://queues.example.com:8640", "Sec-Fetch-Site": "same-origin"}
        for path in ("/v1/queues", "/metrics", "/"):
            document = problem(await client.get(path, headers=own), 403, "forbidden")
            assert "--allowed-hosts" in document["detail"]
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200


async def test_allowed_names() -> None:
    settings = load(host="0.0.0.0", insecure=True, allowed_hosts="a.org, queues.example.com")
    async with from_afar(settings) as client:
        assert (await client.get("/v1/queues")).status_code == 200
    async with from_afar(load(host="0.0.0.0", insecure=True, allowed_hosts="a.org")) as client:
        problem(await client.get("/v1/queues"), 403, "forbidden")
        # A given list applies to every request.
        problem(await client.post(f"{FLOW}/heartbeat", headers=AS_FLOW), 403, "forbidden")
    async with from_afar(load(host="0.0.0.0", insecure=True)) as client:
        assert (await client.post(f"{FLOW}/heartbeat", headers=AS_FLOW)).status_code == 200


@pytest.mark.parametrize(
    ("host", "local", "remote"),
    [
        ("127.0.0.1", True, True),
        ("LOCALHOST:8640", True, True),
        ("[::1]:8640", True, True),
        ("192.0.2.7:8640", False, True),
        ("[2001:db8::1]", False, True),
        ("a.Example.com.:8640", True, True),
        ("example.com", False, False),
        ("aexample.com", False, False),
        ("a.example.com.evil.org", False, False),
        ("other.org:1", True, True),
        ("192.0.2.7.evil.org", False, False),
        ("", False, False),
        ("[", False, False),
    ],
)
def test_names(host: str, local: bool, remote: bool) -> None:
    names = "*.example.com other.org"
    for address, expected in (("127.0.0.1", local), ("0.0.0.0", remote)):
        settings = load(host=address, allowed_hosts=names)
        assert is_own_name(host_name(host), settings) is expected
