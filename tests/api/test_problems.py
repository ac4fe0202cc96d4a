"""Every error in a request is answered by a problem document that says what to do."""

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.problems import CODES
from broker.core.errors import BrokerError, FlowGone, Unavailable
from tests.api.conformance import conforms
from tests.api.conftest import AS_FLOW
from tests.api.scripted import ScriptedBroker
from tests.service import Service


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The document, after checks that apply to all of them."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["type"] == f"urn:counterpoise:problem:{code}"
    assert document["title"] == CODES[code][1]
    assert document["detail"].strip()
    return document


def test_every_refusal_of_the_broker_has_a_status() -> None:
    def kinds(kind: type[BrokerError]) -> Iterator[type[BrokerError]]:
        for child in kind.__subclasses__():
            yield child
            yield from kinds(child)

    assert {kind.code for kind in kinds(BrokerError)} <= set(CODES)


def test_unknown_path(http: httpx.Client) -> None:
    assert "/v1/queue" in problem(http.get("/queue"), 404, "not_found")["detail"]
    problem(http.get("/queues/"), 404, "not_found")


def test_wrong_method_says_which_are_right(http: httpx.Client) -> None:
    response = http.put("/queues/flights", json={})
    assert "DELETE, GET, HEAD, PATCH" in problem(response, 405, "method_not_allowed")["detail"]
    assert response.headers["allow"] == "DELETE, GET, HEAD, PATCH"
    assert http.put("/queues/flights/partitions/0/split").headers["allow"] == "POST"


def test_head_answers_as_get_does_without_the_body(http: httpx.Client) -> None:
    root = http.base_url.copy_with(path="/")
    for url in (root.join("/healthz"), root.join("/docs"), root.join("/v1/queues/flights"), root):
        whole, head = http.get(url), http.head(url)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        kept = ("content-type", "content-length", "location")
        assert [head.headers.get(one) for one in kept] == [whole.headers.get(one) for one in kept]
    assert http.head("/queues/flights/positions").status_code == 405


def test_a_path_ends_where_it_ends(http: httpx.Client) -> None:
    """`$` of a regular expression is also before an end of line: past the rules of a proxy."""
    for path in ("/v1/queues%0A", "/healthz%0A", "/v1/queues/flights/rebalance%0A"):
        problem(http.get(http.base_url.copy_with(path="/").join(path)), 404, "not_found")


def test_unknown_queue(http: httpx.Client) -> None:
    assert "missing" in problem(http.get("/queues/missing"), 404, "queue_not_found")["detail"]


@pytest.mark.parametrize("name", ["a b", "a%00b", "é", "x" * 201, "a%0A"])
def test_a_name_no_queue_can_have(http: httpx.Client, broker: ScriptedBroker, name: str) -> None:
    document = problem(http.get(f"/queues/{name}"), 422, "invalid")
    assert document["errors"][0]["field"] == "queue"
    assert not broker.calls


def test_unknown_field_names_the_nearest(http: httpx.Client) -> None:
    body = {"name": "q", "partition_count": 1, "rebalanse_delay": 3}
    document = problem(http.post("/queues", json=body), 422, "invalid")
    assert document["errors"] == [
        {"field": "rebalanse_delay", "message": "unknown; did you mean 'rebalance_delay'?"}
    ]
    assert "rebalance_delay" in document["detail"]


def test_unknown_field_within_an_item(http: httpx.Client) -> None:
    body = {"partitions": [{"partition": 0, "epoch": 1, "position": "1", "finished": True}]}
    response = http.post("/queues/flights/flows/f-1/commit", json=body, headers=AS_FLOW)
    assert problem(response, 422, "invalid")["errors"] == [
        {
            "field": "partitions.0.finished",
            "message": "unknown; valid are done_above, epoch, partition, position, reached_cut",
        }
    ]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "two words", "1 to 200 of the characters"),
        ("log", "kafka://", "kafka://host:9092/orders"),
    ],
)
def test_a_pattern_is_told_in_words(http: httpx.Client, field: str, value: str, said: str) -> None:
    body = {"name": "q", "partition_count": 1, field: value}
    (error,) = problem(http.post("/queues", json=body), 422, "invalid")["errors"]
    assert error["field"] == field
    assert said in error["message"]
    assert "pattern" not in error["message"]


def test_a_field_is_named_as_it_is_sent(http: httpx.Client) -> None:
    response = http.post("/queues/flights/partitions/0/merge", json={"other": 1})
    assert {"field": "other", "message": "unknown; valid are with"} in problem(
        response, 422, "invalid"
    )["errors"]


def test_unknown_field_of_an_optional_body(http: httpx.Client) -> None:
    response = http.post("/queues/flights/flows/f-1/drain", json={"timeout": 3}, headers=AS_FLOW)
    message = problem(response, 422, "invalid")["errors"][0]["message"]
    assert "timeout_seconds" in message


def test_unknown_query_parameter(http: httpx.Client, broker: ScriptedBroker) -> None:
    document = problem(http.delete("/queues/flights?forse=true"), 422, "invalid")
    assert document["errors"] == [{"field": "forse", "message": "unknown; did you mean 'force'?"}]
    problem(http.get("/queues/flights?x=1"), 422, "invalid")
    assert not broker.calls


@pytest.mark.parametrize(
    "query",
    ["force=yes", "force=1", "force=", "force=true&force=true", "force=True"],
)
def test_a_flag_is_true_or_false(http: httpx.Client, broker: ScriptedBroker, query: str) -> None:
    document = problem(http.delete(f"/queues/flights?{query}"), 422, "invalid")
    assert document["errors"][0]["field"] == "force"
    assert not broker.calls


@pytest.mark.parametrize("limit", ["1%0C", "%201", "1_0", "+1", "1.0", "%EF%BC%91"])
def test_a_limit_is_digits(http: httpx.Client, limit: str) -> None:
    document = problem(http.get(f"/queues?limit={limit}"), 422, "invalid")
    assert document["errors"][0]["field"] == "limit"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"partition_count": 1}, "name"),
        ({"name": "q", "partition_count": 0}, "partition_count"),
        ({"name": "q", "partition_count": 4097}, "partition_count"),
        ({"name": "q", "partition_count": "8"}, "partition_count"),
        ({"name": "q", "partition_count": True}, "partition_count"),
        ({"name": "q", "partition_count": 1.5}, "partition_count"),
        ({"name": "q/r", "partition_count": 1}, "name"),
        ({"name": "", "partition_count": 1}, "name"),
        ({"name": "q\n", "partition_count": 1}, "name"),
        ({"name": ".", "partition_count": 1}, "name"),
        ({"name": "..", "partition_count": 1}, "name"),
        ({"name": "q", "partition_count": 1, "access_type": "shared"}, "access_type"),
        ({"name": "q", "partition_count": 1, "rebalance_delay": -0.1}, "rebalance_delay"),
        ({"name": "q", "partition_count": 1, "rebalance_delay": 3600.1}, "rebalance_delay"),
        ({"name": "q", "partition_count": 1, "max_concurrent_handoffs": 0}, "max_concurrent"),
        ({"name": "q", "partition_count": 1, "log": "redis://user:pw@host/0"}, "log"),
        ({"name": "q", "partition_count": 1, "start": None}, "start"),
    ],
)
def test_a_bad_setting_is_named(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    document = problem(http.post("/queues", json=body), 422, "invalid")
    assert document["errors"][0]["field"].startswith(field)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"name": NaN, "partition_count": Infinity}',
        b'{"name": "\\ud800", "partition_count": 1}',
        b"[" * 3000,
        b'{"name": "q", "partition_count": ' + b"9" * 4000 + b"}"[:60],
    ],
)
def test_a_body_of_the_wrong_type_is_refused(http: httpx.Client, content: bytes) -> None:
    response = http.post("/queues", content=content, headers={"Content-Type": "application/json"})
    assert problem(response, 422, "invalid")["errors"]


@pytest.mark.parametrize("setting", ["partition_count", "access_type", "rebalance_delay", "start"])
def test_null_is_refused_where_a_value_is_required(http: httpx.Client, setting: str) -> None:
    response = http.patch("/queues/flights", json={setting: None})
    assert problem(response, 422, "invalid")["errors"][0]["field"] == setting


@pytest.mark.parametrize(
    "text", ["a\u0000b", "a\nb", "", "x" * 201], ids=["nul", "newline", "empty", "long"]
)
def test_texts_are_printable_and_short(http: httpx.Client, text: str) -> None:
    problem(http.post("/queues/flights/flows", json={"client_name": text}), 422, "invalid")
    body = {"client_name": "c", "instance_id": text}
    problem(http.post("/queues/flights/flows", json=body), 422, "invalid")


def test_numbers_no_database_can_hold(http: httpx.Client, broker: ScriptedBroker) -> None:
    for item in ({"partition": 2**31, "epoch": 1}, {"partition": 0, "epoch": 2**63}):
        body = {"partitions": [{**item, "position": "1"}]}
        response = http.post("/queues/flights/flows/f-1/commit", json=body, headers=AS_FLOW)
        problem(response, 422, "invalid")
    assert not broker.calls


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "after=1.5", "wait=61", "wait=nan", "wait=-1", "wait="]
)
def test_numbers_of_a_long_poll(http: httpx.Client, query: str) -> None:
    response = http.get(f"/queues/flights/flows/f-1/updates?{query}", headers=AS_FLOW)
    field = query.partition("=")[0]
    assert problem(response, 422, "invalid")["errors"][0]["field"] == field


def test_other_media_types(http: httpx.Client) -> None:
    for headers in ({"Content-Type": "text/plain"}, {}):
        response = http.post("/queues", content=b"{}", headers=headers)
        problem(response, 415, "unsupported_media_type")


def test_a_declared_length_above_the_limit(http: httpx.Client, broker: ScriptedBroker) -> None:
    response = http.post("/queues", json={"name": "x" * 5000})
    assert "4096" in problem(response, 413, "too_large")["detail"]
    assert not broker.calls


def test_a_chunked_body_above_the_limit(http: httpx.Client, broker: ScriptedBroker) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    response = http.post("/queues", content=chunks(), headers={"Content-Type": "application/json"})
    problem(response, 413, "too_large")
    assert not broker.calls


def test_a_body_within_the_limit_passes_chunked(http: httpx.Client) -> None:
    content = iter([b'{"name": "q",', b'"partition_count": 1}'])
    response = http.post("/queues", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 201


def test_more_is_never_read_than_the_limit(scripted: Service) -> None:
    """If a client keeps sending, the connection is cut instead of read to the end."""
    address = ("127.0.0.1", int(scripted.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(
            b"POST /v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000000\r\n\r\n"
        )
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        while connection.recv(65536):
            pass  # ends: the service closes


def test_a_flow_that_has_left_says_why(http: httpx.Client, broker: ScriptedBroker) -> None:
    async def gone(*_: object) -> None:
        raise FlowGone("f-1", "lease_expired")

    broker.answers["flows.heartbeat"] = gone
    response = http.post("/queues/flights/flows/f-1/heartbeat", headers=AS_FLOW)
    assert problem(response, 410, "flow_gone")["reason"] == "lease_expired"


def test_a_flow_may_have_left_before_its_bind_is_answered(
    http: httpx.Client, broker: ScriptedBroker
) -> None:
    async def gone(*_: object) -> None:
        raise FlowGone("f-1", "lease_expired")

    broker.answers["flows.bind"] = gone
    response = http.post("/queues/flights/flows", json={"client_name": "c"})
    conforms(response)
    problem(response, 410, "flow_gone")


def test_without_a_database(http: httpx.Client, broker: ScriptedBroker) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("The service cannot reach its database.", retry_after_seconds=2)

    broker.answers["queues.get"] = away
    response = http.get("/queues/flights")
    problem(response, 503, "unavailable")
    assert response.headers["retry-after"] == "2"


@pytest.mark.long
def test_a_defect_shows_no_internals(
    http: httpx.Client, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("password=hunter2")

    broker.answers["queues.get"] = broken
    response = http.get("/queues/flights")
    document = problem(response, 500, "internal")
    assert "hunter2" not in response.text
    assert "RuntimeError" not in response.text
    assert re.search(r"under the id [0-9a-f]{8};", document["detail"])


def test_problems_are_plain_json(http: httpx.Client) -> None:
    assert json.loads(http.get("/nowhere").content)["code"] == "not_found"
