"""Who may call what: each call of openapi.yaml × each caller, as the contract's table says.

The calls come from openapi.yaml, so a new one fails here until the contract has a row for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.access import CALLERS, Guarded, bearer, guarded, table
from tests.api.conformance import document
from tests.databases import Databases
from tests.service import eventually

pytestmark = pytest.mark.xdist_group("access")

OWN, FOREIGN = "team-a.orders", "team-b.orders"
REFUSED = {401, 403}
NO_KEY = "000000000000"
NOBODYS = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"

OPERATIONS = sorted(
    f"{method.upper()} {path}"
    for path, methods in document()["paths"].items()
    for method in methods
)
ON_A_QUEUE = [call for call in OPERATIONS if "{queue}" in call]
ON_A_FLOW = [call for call in OPERATIONS if "{flow}" in call]
# Those that the contract says to answer `text/event-stream`.
STREAMS = sorted(
    f"GET {path}"
    for path, methods in document()["paths"].items()
    if "get" in methods
    and "text/event-stream" in methods["get"]["responses"].get("200", {}).get("content", {})
)
WRONG_KEY = "cp_000000000000_" + "0" * 64
BODIES: dict[str, Any] = {
    "POST /v1/queues": {"name": "team-a.new", "partition_count": 1},
    "POST /v1/keys": {"role": "viewer", "queues": ["team-a.orders"]},
    "PATCH /v1/queues/{queue}": {"max_handoff_time": 4.0},
    "POST /v1/queues/{queue}/messages": {"value": "x"},
    "POST /v1/queues/{queue}/positions": {"to": "earliest"},
    "POST /v1/queues/{queue}/partitions/{partition}/split": {},
    "POST /v1/queues/{queue}/partitions/{partition}/merge": {"with": 1},
    "POST /v1/queues/{queue}/pause": {"reason": "a test"},
    "POST /v1/queues/{queue}/partitions/{partition}/pause": {"seconds": 60},
    "POST /v1/queues/{queue}/log-access": {"purpose": "read"},
    "POST /v1/queues/{queue}/flows": {"client_name": "etl"},
    "POST /v1/queues/{queue}/flows/{flow}/commit": {"partitions": []},
    "POST /v1/queues/{queue}/flows/{flow}/release": {"partitions": []},
    "POST /v1/queues/{queue}/flows/{flow}/ready": {"partitions": []},
    "POST /v1/queues/{queue}/flows/{flow}/children": {"partitions": []},
    "POST /v1/queues/{queue}/flows/{flow}/conditions": {"seq": 1, "conditions": []},
}


@pytest.fixture(scope="module")
def team(databases: Databases) -> Iterator[Guarded]:
    with databases.lend() as url, guarded(url) as team:
        team.create(OWN)
        team.create(FOREIGN)
        yield team


@pytest.fixture(scope="module")
def http(team: Guarded) -> Iterator[httpx.Client]:
    with team.http as http:
        yield http


def send(
    http: httpx.Client,
    call: str,
    token: str | None,
    *,
    queue: str = OWN,
    flow: str = NOBODYS,
    body: Any = None,
    accept: str = "*/*",
) -> tuple[int, Any]:
    """The status and body of the answer; of a stream only the status."""
    method, path = call.split()
    # Of a caller before, who has logged in.
    http.cookies.clear()
    body = BODIES.get(call) if body is None else body
    request = http.build_request(
        method,
        path.format(queue=queue, flow=flow, partition=0, key=NO_KEY),
        json=body,
        headers={**bearer(token), "Accept": accept},
    )
    response = http.send(request, stream=True)
    try:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return response.status_code, None
        response.read()
        is_json = "json" in response.headers.get("content-type", "")
        return response.status_code, response.json() if is_json else response.text
    finally:
        response.close()


def test_the_contract_has_each_call() -> None:
    assert set(table()) == set(OPERATIONS)


@pytest.mark.parametrize("call", OPERATIONS)
def test_each_caller_may_what_the_contract_says(
    team: Guarded, http: httpx.Client, call: str
) -> None:
    for caller in CALLERS:
        flow, token = NOBODYS, team.keys.get(caller)
        if caller == "flow" or call in ON_A_FLOW:
            # The same instance: so a flow whose call ended it is followed by another, and the
            # others do not pile up.
            flow, flow_token = team.bind(OWN, team.keys["consumer"], "one")
            token = flow_token if caller == "flow" else token
        cell = table()[call][caller]
        purposes = ("read", "publish") if call.endswith("/log-access") else ("",)
        for purpose in purposes:
            body = {"purpose": purpose} if purpose else None
            if call == "POST /v1/session":
                body = {"key": team.keys["viewer"]}
            status, answer = send(http, call, token, flow=flow, body=body)
            if cell == "✓" or (cell and cell == purpose):
                assert status not in REFUSED, (call, caller, purpose, answer)
                assert status < 500, (call, caller, purpose, answer)
            else:
                expected = 401 if caller == "without" else 403
                assert status == expected, (call, caller, purpose, answer)


@pytest.mark.parametrize("call", STREAMS)
def test_each_caller_may_follow_what_the_contract_says(team: Guarded, call: str) -> None:
    """As the call that it is, also with the header that makes it a stream; none leaves one open."""
    with team.http as http:

        def status(token: str | None, queue: str = OWN) -> int:
            found, answer = send(
                http, call, token, queue=queue, flow=flow, accept="text/event-stream"
            )
            assert (found == 200) == (answer is None), answer
            return found

        for caller in CALLERS:
            flow, flow_token = team.bind(OWN, team.keys["consumer"])
            token = {"without": None, "flow": flow_token, **team.keys}[caller]
            may = 200 if table()[call][caller] else 401 if caller == "without" else 403
            assert status(token) == may, caller
        _, others_token = team.bind(OWN, team.keys["consumer"])
        assert status(others_token) == 403
        assert status(WRONG_KEY) == 401
        assert status(team.root) == (403 if call in ON_A_FLOW else 200)
        for queue in (FOREIGN, "team-b.none"):
            assert status(team.keys["admin"], queue) == 403
    eventually(lambda: len(team.service.app.state.open_streams) == 0)


@pytest.mark.parametrize("call", ON_A_QUEUE)
def test_a_key_of_other_queues_learns_nothing(team: Guarded, http: httpx.Client, call: str) -> None:
    """The answer is the same whether the queue exists or not."""
    for token in team.keys.values():
        answers = [send(http, call, token, queue=queue) for queue in (FOREIGN, "team-b.none")]
        assert [status for status, _ in answers] == [403, 403], (call, answers)
        details = {str(body["detail"]).replace("orders", "none") for _, body in answers}
        assert len(details) == 1


@pytest.mark.parametrize("call", ON_A_QUEUE)
def test_a_token_of_another_flow_opens_nothing(
    team: Guarded, http: httpx.Client, call: str
) -> None:
    own, _ = team.bind(OWN, team.keys["consumer"])
    theirs, token = team.bind(FOREIGN, team.root)
    status, answer = send(http, call, token, flow=own)
    assert status == 403, (call, answer)
    if call in ON_A_FLOW:
        # Its own flow, but in the path of another queue.
        for queue in (OWN, "team-a.none"):
            status, answer = send(http, call, token, queue=queue, flow=theirs)
            assert (status, answer["code"]) == (404, "flow_not_found"), (call, queue, answer)
    else:
        assert send(http, call, token, queue="team-a.none")[0] == 403


@pytest.mark.parametrize("call", [call for call in OPERATIONS if not table()[call]["without"]])
@pytest.mark.parametrize(
    "token",
    [
        WRONG_KEY,
        "cp_",
        "invented",
        "x" * 5000,
    ],
)
def test_an_invented_credential_is_refused(
    team: Guarded, http: httpx.Client, call: str, token: str
) -> None:
    """A stranger learns of no queue: the answers for one that exists and none are the same."""
    answers = [send(http, call, token, queue=queue) for queue in (OWN, "team-a.none")]
    assert answers[0] == answers[1]
    status, answer = answers[0]
    if call in ON_A_FLOW and not token.startswith("cp_0"):
        assert (status, answer["code"]) == (404, "flow_not_found")
    else:
        assert (status, answer["code"]) == (401, "unauthorized")


def test_a_secret_must_be_the_keys_own(team: Guarded, http: httpx.Client) -> None:
    ours, other = team.keys["viewer"], team.root
    mixed = ours[:16] + other[16:]
    for token in (mixed, ours[:-1] + ("0" if ours[-1] != "0" else "1"), ours.upper(), ours + "0"):
        assert send(http, "GET /v1/queues", token)[0] == 401
    assert send(http, "GET /v1/queues", ours)[0] == 200


def test_lists_show_the_callers_queues_alone(team: Guarded, http: httpx.Client) -> None:
    for token, expected in ((team.root, {OWN, FOREIGN}), (team.keys["viewer"], {OWN})):
        _, page = send(http, "GET /v1/queues", token)
        assert {item["name"] for item in page["items"]} - {"team-a.new"} == expected
        _, exposition = send(http, "GET /metrics", token)
        for queue in (OWN, FOREIGN):
            assert (f'queue="{queue}"' in exposition) == (queue in expected)


def test_lists_of_a_few_queues_have_pages(team: Guarded, http: httpx.Client) -> None:
    """A page is full although queues between are left out, and `_` is no wildcard."""
    for name in ("team-c_1", "team-cx1", "team-c_2", "team-cy2", "team-c_3"):
        team.create(name)
    token = bearer(team.key("viewer", "team-c_?"))
    names, cursor = [], None
    while True:
        query = {"limit": "2"} if cursor is None else {"limit": "2", "cursor": cursor}
        page = http.get("/v1/queues", params=query, headers=token).json()
        names.append([item["name"] for item in page["items"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == [["team-c_1", "team-c_2"], ["team-c_3"]]


def test_a_key_makes_queues_within_its_patterns(team: Guarded, http: httpx.Client) -> None:
    admin = team.keys["admin"]
    for name, log, expected in (
        ("team-b.new", None, 403),
        ("team-a.spy", f"builtin:{FOREIGN}", 403),
        ("team-a.spy", "builtin:team-b.none", 403),
        ("team-a.spy", "redis://127.0.0.1:1/0/team-b.orders", 403),
        ("team-a.spy", "kafka://127.0.0.1:1/team-b.orders", 403),
        ("team-a.copy", f"builtin:{OWN}", 201),
    ):
        body = {"name": name, "partition_count": 2, **({"log": log} if log else {})}
        status, answer = send(http, "POST /v1/queues", admin, body=body)
        assert status == expected, (name, log, answer)


def test_a_publisher_of_a_copy_may_not_append_to_the_log_behind_it(
    team: Guarded, http: httpx.Client
) -> None:
    team.create("team-a.view", log=f"builtin:{FOREIGN}")
    call = "POST /v1/queues/{queue}/log-access"
    for role, purpose, expected in (
        ("publisher", "publish", 403),
        ("admin", "publish", 403),
        ("consumer", "read", 200),
    ):
        body = {"purpose": purpose}
        status, answer = send(http, call, team.keys[role], queue="team-a.view", body=body)
        assert status == expected, answer


def test_a_foreign_follower_is_not_named(team: Guarded, http: httpx.Client) -> None:
    team.create("team-a.source")
    team.create("team-b.secret", log="builtin:team-a.source")
    delete = "DELETE /v1/queues/{queue}"
    status, answer = send(http, delete, team.keys["admin"], queue="team-a.source")
    assert (status, answer["code"]) == (409, "queue_in_use")
    assert "team-b" not in answer["detail"]
    _, answer = send(http, delete, team.root, queue="team-a.source")
    assert "team-b.secret" in answer["detail"]
