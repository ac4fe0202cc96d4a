"""Connections that are held, heads without end or halves of them, readers that never read."""

import contextlib
import json
import os
import resource
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from broker.certificate import Certificate
from broker.service import Broker
from tests.attacks.bystander import Bystander
from tests.attacks.wire import Wire
from tests.service import ServeProcess, Service, eventually, running, settings_for

pytestmark = pytest.mark.long

SHORT_SECONDS = 0.5
# Long enough for what is to come about on a machine that stalls.
LIMIT_SECONDS = 60.0
ATTACKER = "127.0.0.66"
PAIR = Path(__file__).parents[1] / "certificates"


@pytest.fixture
def strict(migrated_url: str) -> Iterator[Service]:
    """A service whose limits are reached soon: five idle connections of an address, half a second
    for a head, a second for a reader."""
    settings = settings_for(migrated_url, address_idle_connections=5)
    with running(Broker(settings), settings) as service:
        service.server.head_seconds = SHORT_SECONDS
        service.server.config.timeout_keep_alive = 1
        yield service


def ended(service: Service, reason: str) -> float:
    """How many connections were ended for it so far."""
    return service.app.state.connections.ended.labels(reason)._value.get()


@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"a" * 2**20, b"GET / HTTP/1.1\r\nx: " + b"a" * 2**20],
    ids=["path", "field"],
)
def test_a_head_without_end(target: Service, bystander: Bystander, endless: bytes) -> None:
    with Wire(target.url) as wire:
        sent = 0
        with contextlib.suppress(ConnectionError):
            wire.send(endless)
            while sent < 2**25:
                wire.send(b"a" * 65536)
                sent += 65536
        assert sent < 2**25, "the service took 32 MiB of a head"


def test_a_head_that_is_too_large(target: Service) -> None:
    for fields in (
        f"x: {'a' * 65536}\r\n",
        "".join(f"x-{n}: {'a' * 1000}\r\n" for n in range(70)),
        "x: y\r\n" * 101,
    ):
        with Wire(target.url) as wire:
            wire.send(f"GET /healthz HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode())
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 431
            assert b"head_too_large" in answer.body
            assert wire.closed_within(LIMIT_SECONDS)
    with Wire(target.url) as wire:
        wire.request("GET", "/healthz", b"", x="a" * 60000, **{f"x{n}": "y" for n in range(90)})
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 200


@pytest.mark.parametrize("half", [b"", b"GET /", b"GET / HTTP/1.1\r\nhost:", b"\r\n\r\n"])
def test_half_a_head(strict: Service, half: bytes) -> None:
    with Wire(strict.url) as wire:
        wire.send(half)
        assert wire.closed_within(LIMIT_SECONDS)
    assert ended(strict, "head_timeout") == (1 if half.startswith(b"G") else 0)


def test_a_head_drop_by_drop(strict: Service) -> None:
    with Wire(strict.url) as wire:
        wire.request("GET", "/healthz")
        assert wire.answer() is not None
        wire.send(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            deadline = time.monotonic() + LIMIT_SECONDS
            while not wire.closed_within(0.05):
                wire.send(b"x: y\r\n")
                assert time.monotonic() < deadline
    assert ended(strict, "head_timeout") == 1


def test_empty_lines_keep_no_connection(strict: Service) -> None:
    with Wire(strict.url) as wire:
        wire.request("GET", "/healthz")
        assert wire.answer() is not None
        with contextlib.suppress(ConnectionError):
            deadline = time.monotonic() + LIMIT_SECONDS
            while not wire.closed_within(0.05):
                wire.send(b"\r\n")
                assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/queues HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/queues HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        (
            b"POST /v1/queues HTTP/1.1\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\nnonsense\r\n"
        ),
        # What those send who look for open proxies.
        b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n",
        b"GET http://example.com HTTP/1.1\r\nhost: example.com\r\n\r\n",
    ],
)
def test_what_is_no_http(
    target: Service, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Wire(target.url) as wire:
        wire.send(nonsense)
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 400
        assert b"urn:counterpoise:problem:malformed" in answer.body
        assert wire.closed_within(LIMIT_SECONDS)
    assert not caplog.records


@pytest.mark.parametrize(
    "name", ["Authorization", "authorization", "Host", "Origin", "Sec-Fetch-Site"]
)
def test_a_field_that_decides_who_calls_comes_once(target: Service, name: str) -> None:
    host = urlsplit(target.url).netloc
    values = {"host": host, "origin": target.url, "sec-fetch-site": "same-origin"}
    field = f"{name}: {values.get(name.lower(), 'Bearer cpf_x')}\r\n"
    others = "" if name == "Host" else f"Host: {host}\r\n"
    head = f"GET /v1/queues HTTP/1.1\r\n{others}{field}"
    for more, status in (("", 200), (field, 400), (field.upper().replace("HTTP:", "http:"), 400)):
        with Wire(target.url) as wire:
            wire.send(f"{head}{more}\r\n".encode())
            answer = wire.answer()
        assert answer is not None
        if name.lower() == "authorization" and status == 200:
            status = 401
        assert answer.status == status
        if status == 400:
            assert json.loads(answer.body)["code"] == "malformed"
            assert "Authorization" in json.loads(answer.body)["detail"]


def test_an_upgrade_is_not_taken_and_not_logged(
    target: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with Wire(target.url) as wire:
        wire.request("GET", "/healthz", connection="upgrade", upgrade="websocket")
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 200
        wire.send(b"nonsense\r\n\r\n")
        assert wire.closed_within(LIMIT_SECONDS)
    assert not caplog.records


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_what_follows_a_request_for_an_upgrade_is_read(
    target: Service, is_chunked: bool, split: bool
) -> None:
    """Its body, and requests behind it: Java's client asks for HTTP/2 so, with every call."""
    body = json.dumps({"name": f"upgraded-{is_chunked}-{split}", "partition_count": 1}).encode()
    head = b"host: 127.0.0.1\r\n"
    asks = head + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAQ\r\n"
    of_body = b"content-type: application/json\r\n"
    if is_chunked:
        of_body += b"transfer-encoding: chunked\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        of_body += b"content-length: %d\r\n" % len(body)
    pieces = [
        b"GET /healthz HTTP/1.1\r\n%b\r\n" % asks,
        b"POST /v1/queues HTTP/1.1\r\n%b%b\r\n" % (asks, of_body),
        body,
        b"DELETE /v1/queues/none HTTP/1.1\r\n%bcontent-length: 0\r\n\r\n" % asks,
        b"GET /readyz HTTP/1.1\r\n%b\r\n" % head,
    ]
    expected = [200, 201, 404, 200]
    with Wire(target.url) as wire:
        if not split:
            wire.send(b"".join(pieces))
        for number, status in enumerate(expected):
            if split:
                wire.send(pieces[number + (number > 1)])
            if split and number == 1:
                wire.send(pieces[2])
            answer = wire.answer()
            assert answer is not None
            assert answer.status == status


def test_a_thousand_requests_at_once(target: Service, bystander: Bystander) -> None:
    with Wire(target.url) as wire, contextlib.suppress(ConnectionError):
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
        assert wire.closed_within(LIMIT_SECONDS)


def test_some_requests_at_once(target: Service) -> None:
    with Wire(target.url) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 15)
        for _ in range(15):
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 200


def test_connections_that_wait_are_bounded_for_each_address(strict: Service) -> None:
    """The attacker's own connections end, whatever they wait with: not a neighbour's."""
    crowd = strict.app.state.connections
    with contextlib.ExitStack() as stack:
        strict.server.config.timeout_keep_alive = 75
        strict.server.head_seconds = 60.0
        neighbours = stack.enter_context(Wire(strict.url))
        neighbours.request("GET", "/healthz")
        assert neighbours.answer() is not None
        wires = [stack.enter_context(Wire(strict.url, ATTACKER)) for _ in range(60)]
        for number, wire in enumerate(wires):
            # Those that are ended already cannot send.
            with contextlib.suppress(ConnectionError):
                if number % 3 == 1:
                    wire.send(b"GET / HT")
                elif number % 3 == 2:
                    wire.request("POST", "/v1/queues", content_length="9")
        eventually(lambda: ended(strict, "address") >= 55)
        assert ended(strict, "address") == 55
        eventually(lambda: len(crowd) <= 6)
        assert all(wire.closed_within(LIMIT_SECONDS) for wire in wires[:50])
        neighbours.request("GET", "/healthz")
        answer = neighbours.answer()
        assert answer is not None
        assert answer.status == 200


def test_a_poll_is_not_idle(strict: Service) -> None:
    """A neighbour behind the same address keeps his poll, whatever the attacker opens."""
    with strict.http as http, contextlib.ExitStack() as stack:
        http.post("/queues", json={"name": "q", "partition_count": 1, "rebalance_delay": 0})
        body = {"client_name": "neighbour", "lease_seconds": 600}
        flow = http.post("/queues/q/flows", json=body).json()
        poll = stack.enter_context(Wire(strict.url))
        headers = {"authorization": f"Bearer {flow['flow_token']}"}
        path = f"/queues/q/flows/{flow['flow_id']}/updates"

        def owned() -> bool:
            view = http.get(path, headers=headers).json()
            return len(view["partitions"]) == 1

        eventually(owned)
        after = http.get(path, headers=headers).json()["revision"]
        poll.request("GET", f"/v1{path}?after={after}&wait=60", b"", **headers)
        eventually(lambda: len(strict.app.state.open_calls) == 1)
        for _ in range(30):
            stack.enter_context(Wire(strict.url))
        eventually(lambda: ended(strict, "address") >= 20)
        with strict.http as again:
            again.patch("/queues/q", json={"partition_count": 2}).raise_for_status()
        answer = poll.answer()
        assert answer is not None
        assert answer.status == 200


GET = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n"


def reads_nothing(service: Service, requests: bytes) -> socket.socket:
    """A connection that has sent these requests, between small buffers."""
    listener: socket.socket = service.server.servers[0]._listener  # type: ignore[attr-defined]
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect(listener.getsockname())
    unread.sendall(requests)
    return unread


@pytest.mark.matrix("count", "last")
@pytest.mark.parametrize("count", [1, 2, 15])
@pytest.mark.parametrize("last", [b"connection: close\r\n", b""], ids=["closing", "open"])
def test_a_reader_who_does_not_read(strict: Service, count: int, last: bytes) -> None:
    """Also where the next answer cannot begin because of it: that connection stayed for ever."""
    with reads_nothing(strict, (GET + b"\r\n") * (count - 1) + GET + last + b"\r\n"):
        eventually(lambda: len(strict.app.state.connections) == 1)
        # Nobody else is connected; a second without any reading, and it is over.
        eventually(lambda: len(strict.app.state.connections) == 0)


@pytest.mark.parametrize(
    ("requests", "later"),
    [
        (GET + b"connection: close\r\n\r\n", b""),
        ((GET + b"\r\n") * 3, b""),
        (GET + b"\r\n", GET + b"\r\n"),
    ],
    ids=["closing", "more", "more later"],
)
def test_readers_who_do_not_read_are_bounded_for_each_address(
    strict: Service, requests: bytes, later: bytes
) -> None:
    """They were neither idle nor working, and so as many as the process may have files."""
    strict.server.config.timeout_keep_alive = 75
    crowd = strict.app.state.connections

    def came(count: int) -> bool:
        return len(crowd) + ended(strict, "address") >= count

    with contextlib.ExitStack() as stack:
        for number in range(20):
            unread = stack.enter_context(reads_nothing(strict, requests))
            eventually(partial(came, number + 1))
            eventually(lambda: all(one.flow and one.flow.write_paused for one in [*crowd._open]))
            unread.sendall(later)
        eventually(lambda: ended(strict, "address") == 15)
        assert len(crowd) == 5
    eventually(lambda: len(crowd) == 0)


def test_what_is_not_read_is_bounded_for_each_address(
    strict: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand connections of an address may wait, and an answer may have megabytes."""
    strict.server.config.timeout_keep_alive = 75
    size = len(httpx.get(f"{strict.url}/openapi.json").content)
    monkeypatch.setattr("api.connections.MOST_UNREAD_BYTES", 3 * size)
    crowd = strict.app.state.connections
    eventually(lambda: len(crowd) == 0)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(reads_nothing(strict, GET + b"\r\n"))
        eventually(lambda: ended(strict, "unread") == 2)
        assert len(crowd) == 3
        assert ended(strict, "address") == 0
    eventually(lambda: len(crowd) == 0)
    assert not crowd._unread


def test_a_slow_reader_gets_the_whole_answer(strict: Service) -> None:
    """As long as it reads at all; then its connection goes on."""
    whole = httpx.get(f"{strict.url}/openapi.json").content
    with reads_nothing(strict, (GET + b"\r\n") * 2) as slow:
        slow.settimeout(LIMIT_SECONDS)
        received = b""
        while received.count(whole) < 2:
            received += slow.recv(65536)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")


def test_half_a_handshake(migrated_url: str) -> None:
    certificate = Certificate(PAIR / "first.pem", PAIR / "first-key.pem")
    settings = settings_for(migrated_url)
    with running(Broker(settings), settings, certificate, head_seconds=SHORT_SECONDS) as service:
        crowd = service.app.state.connections
        with Wire(service.url) as silent, Wire(service.url) as plain:
            plain.send(b"GET / HTTP/1.1\r\n\r\n")
            assert plain.closed_within(LIMIT_SECONDS)
            assert silent.closed_within(LIMIT_SECONDS)
        eventually(lambda: len(crowd) == 0)
        assert ended(service, "handshake") == 2
        service.server.head_seconds = 60.0
        context = ssl.create_default_context(cafile=str(PAIR / "first.pem"))
        url = service.url.replace("http:", "https:")
        assert httpx.get(f"{url}/healthz", verify=context).status_code == 200


FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_running_out_of_files_costs_the_attacker_his_connections(
    migrated_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "serve.log"
    counterpoise = str(Path(sys.executable).with_name("counterpoise"))
    program = [sys.executable, "-c", FEW_FILES, counterpoise]
    with ServeProcess(log, ["--database-url", migrated_url], program=program) as service:
        assert service.process is not None
        pid = service.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (400, 400)
        somebody = Bystander(service.url, "neighbours")
        with contextlib.ExitStack() as stack:
            # More than are reserved are left: the service makes room before it has to.
            for _ in range(400):
                stack.enter_context(Wire(service.url, ATTACKER))
            eventually(lambda: "too many files are open" in log.read_text())
            assert httpx.get(f"{service.url}/healthz").status_code == 200
            # And now it has to.
            open_files = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files, open_files))
            for _ in range(20):
                stack.enter_context(Wire(service.url, ATTACKER))
            metrics = httpx.get(f"{service.url}/metrics").text
            assert 'connections_ended_total{reason="files"}' in metrics
            somebody.leave()
        assert not somebody.faults
