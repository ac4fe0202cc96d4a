"""HTTP/1.0, HEAD and expectations on the wire: every answer ends where its client expects it.

A client of HTTP/1.0 knows no chunks, no interim answers and no Host. Many proxies speak it unless
they are told otherwise.
"""

from collections.abc import Iterator

import httpx
import pytest

from broker.service import Broker
from tests.api.consumer import Consumer, bind, create_queue
from tests.attacks.wire import Wire
from tests.databases import Databases
from tests.service import Service, running, settings_for

PATHS = {
    "a list": "/v1/queues",
    "a queue": "/v1/queues/q",
    "a problem": "/v1/queues/none",
    "a page": "/",
    "a module": "/dashboard/main.js",
    "metrics": "/metrics",
    "readiness": "/readyz",
    "the document": "/openapi.json",
}
EVENTS = "/v1/queues/q/events"


@pytest.fixture(scope="module")
def target(databases: Databases) -> Iterator[Service]:
    with databases.lend() as url:
        settings = settings_for(url)
        with running(Broker(settings), settings) as service, service.http as http:
            create_queue(http, "q", 2, rebalance_delay=3600)
            yield service


@pytest.fixture
def api(target: Service) -> Iterator[httpx.Client]:
    with target.http as client:
        yield client


@pytest.fixture
def wire(target: Service) -> Iterator[Wire]:
    with Wire(target.url) as wire:
        yield wire


@pytest.fixture
def consumer(api: httpx.Client) -> Consumer:
    return bind(api, "q", lease_seconds=3600)


def parts(answer: bytes) -> tuple[dict[str, str], bytes]:
    """The fields of an answer, the status line under "", and its body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return {"": status, **dict(line.split(": ", 1) for line in lines)}, body


@pytest.mark.parametrize("fields", [{}, {"connection": "keep-alive"}], ids=["", "keep-alive"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_an_answer_has_a_length_and_ends_the_connection(
    wire: Wire, path: str, fields: dict[str, str]
) -> None:
    wire.request("GET", path, b"", version="1.0", **fields)
    head, body = parts(wire.rest())
    assert head["connection"] == "close"
    assert "transfer-encoding" not in head
    assert int(head["content-length"]) == len(body) > 0


def test_a_poll_without_news_has_no_body(wire: Wire, consumer: Consumer) -> None:
    path = f"/v1{consumer.path}/updates?after={consumer.view['revision']}&wait=0.01"
    wire.request("GET", path, b"", version="1.0", **consumer.headers)
    head, body = parts(wire.rest())
    assert head[""] == "HTTP/1.1 204 No Content"
    assert not {"transfer-encoding", "content-length"} & set(head)
    assert not body


def test_a_stream_has_no_chunks_and_ends_with_the_connection(
    wire: Wire, consumer: Consumer
) -> None:
    fields = {**consumer.headers, "accept": "text/event-stream"}
    wire.request("GET", f"/v1{consumer.path}/updates", b"", version="1.0", **fields)
    begun = b""
    while not begun.endswith(b"\n\n"):
        begun += wire.socket.recv(1)
    assert consumer.unbind() == 204
    head, body = parts(begun + wire.rest())
    assert head["connection"] == "close"
    assert not {"transfer-encoding", "content-length"} & set(head)
    *events, end = body.split(b"\n\n")
    assert events[0] == b"retry: 1000"
    assert events[-1].startswith(b"event: problem\ndata: {")
    assert not end


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_only_http_1_1_is_told_to_go_on(wire: Wire, version: str) -> None:
    body = b'{"name": "q", "partition_count": 2}'
    fields = {"content_type": "application/json", "content_length": str(len(body))}
    wire.request("POST", "/v1/queues", b"", version=version, expect="100-continue", **fields)
    if version == "1.1":
        interim = wire.answer()
        assert interim is not None
        assert interim.status == 100
    wire.send(body)
    answer = wire.answer()
    assert answer is not None
    assert answer.status == 409


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_head_of_a_stream_is_all_that_is_asked_for(
    target: Service, wire: Wire, version: str
) -> None:
    wire.request("HEAD", EVENTS, version=version)
    answer = wire.answer()
    assert answer is not None
    assert answer.status == 200
    assert "content-type: text/event-stream" in answer.head
    if version == "1.1":
        # The connection is free again.
        wire.request("GET", "/healthz", connection="close")
        assert wire.rest().endswith(b'{"status":"ok"}')
    else:
        assert not wire.rest()
    assert not len(target.app.state.open_streams)


@pytest.mark.parametrize(
    "request_line",
    ["GET /healthz HTTP/1.1", *(f"GET /healthz HTTP/{n}\r\nHost: x" for n in (2.0, 0.9))],
)
def test_what_is_no_http_of_ours_is_refused(wire: Wire, request_line: str) -> None:
    wire.send(f"{request_line}\r\n\r\n".encode())
    answer = wire.answer()
    assert answer is not None
    assert answer.status == 400
    assert b'"code":"malformed"' in answer.body
    assert not wire.rest()


def test_a_probe_may_come_without_a_host_in_http_1_0(wire: Wire) -> None:
    wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert parts(wire.rest())[0][""] == "HTTP/1.1 200 OK"
