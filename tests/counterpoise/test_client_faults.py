"""The clients' reactions to answers that no healthy service gives; every call ends."""

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from counterpoise.client import AsyncClient, Client
from counterpoise.consumer import Consumer, DeadLetter, Retry
from counterpoise.errors import (
    BadAnswer,
    FlowGone,
    Invalid,
    InvalidSettings,
    NotCounterpoise,
    Refused,
    ServiceUnavailable,
    Unreachable,
)
from counterpoise.flow import AsyncFlow, Flow
from counterpoise.publisher import Publisher
from tests.counterpoise.faulty import Answer, Cut, Stall, asking, faulty_service, problem

CERTIFICATES = Path(__file__).parents[1] / "certificates"


@pytest.fixture
def faulty():
    with faulty_service() as service:
        yield service


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request):
    """`ask(url)` asks for a queue, with either client."""
    return asking(request.param, "queue", "flights")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (Cut(), Unreachable),
        (Cut(b"HTTP/1.1 200 OK\r\nContent-Le"), Unreachable),
        (Cut(HEAD + b'{"name": '), Unreachable),
        (Cut(b"SSH-2.0-OpenSSH_9.6\r\n"), Unreachable),
        (Stall(), Unreachable),
        (Stall(first=HEAD, drip=b" "), Unreachable),
        (Answer(200, text="<html>Sign in to the network</html>"), BadAnswer),
        (Answer(200, text=""), BadAnswer),
        (Answer(200, body=[]), BadAnswer),
        (Answer(200, body={"name": "flights"}), BadAnswer),
        (Answer(204), BadAnswer),
        (Answer(502, text="<html>Bad gateway</html>"), ServiceUnavailable),
        (Answer(404, text="<html>Not found</html>"), NotCounterpoise),
        (Answer(404, body={"detail": "Not Found"}), NotCounterpoise),
        (Answer(404, body={"code": 5, "message": "Method does not exist."}), NotCounterpoise),
        (Answer(302, text="", headers={"Location": "/login"}), NotCounterpoise),
        (problem(500, "internal"), ServiceUnavailable),
        (problem(503, "unavailable"), ServiceUnavailable),
        (problem(429, "too_many"), ServiceUnavailable),
        (problem(410, "flow_gone", reason="replaced"), FlowGone),
        (problem(409, "of_the_future"), Refused),
    ],
)
def test_each_answer_becomes_its_exception(faulty, ask, behaviour, error):
    faulty.script = lambda _: behaviour
    seconds = 0.5 if isinstance(behaviour, Stall) else 60
    with pytest.raises(error) as raised:
        ask(faulty.url, timeout_seconds=seconds)
    assert type(raised.value) is error


def test_a_closed_port_is_service_unavailable(ask):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(Unreachable, match="no service answers at http://127"):
        ask(url)


def speak_plainly(peer: socket.socket) -> None:
    peer.recv(1)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def show_a_certificate(peer: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first-key.pem")
    with suppress(OSError), context.wrap_socket(peer, server_side=True) as spoken:
        spoken.recv(1)


@contextmanager
def speaking(speak):
    """The address, for https, of a server whose only answer is `speak`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                speak(peer)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("speak", "said"),
    [
        (speak_plainly, "does not speak TLS: try http://127.0.0.1"),
        (show_a_certificate, "is not accepted: .* SSL_CERT_FILE names"),
    ],
)
def test_what_is_wrong_with_tls_is_said(ask, speak, said):
    with speaking(speak) as url, pytest.raises(Unreachable, match=said):
        ask(url)


def test_the_authority_of_the_environment_is_trusted_also_on_this_machine(ask, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "first.pem"))
    with speaking(show_a_certificate) as url, pytest.raises(Unreachable, match="was cut"):
        ask(url)


@pytest.mark.parametrize("named", ["no-such-file.pem", "README.md"])
def test_a_file_without_authorities_is_refused_before_the_first_call(monkeypatch, named):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / named))
    for make in (Client, AsyncClient):
        with pytest.raises(InvalidSettings, match=rf"SSL_CERT_FILE must name .*{named}"):
            make("https://service.invalid")


def test_without_the_environment_the_systems_authorities_are_trusted(monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    loaded = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda *_: loaded.append("the system's")
    )
    Client("https://service.invalid").close()
    assert loaded == ["the system's"]


@pytest.mark.parametrize(
    "url", ["flights", "ftp://x", "http://", "http://x/?a=b", "http://999.0.0.1"]
)
def test_an_invalid_address_is_refused(ask, url):
    with pytest.raises(InvalidSettings):
        ask(url)


@pytest.mark.parametrize("make", [Flow, AsyncFlow, Consumer, Publisher, DeadLetter])
@pytest.mark.parametrize("name", ["two words", "", "a/b", None, 5])
def test_so_is_a_name_that_no_queue_has(make, name):
    with pytest.raises(Invalid, match=f"not {name!r}"):
        make(name)


@pytest.mark.parametrize("name", ["two words", "", "a/b", 5])
def test_so_is_that_of_a_retry_queue(name):
    with pytest.raises(Invalid, match=f"not {name!r}"):
        Retry(name, after_seconds=[1])


@pytest.mark.parametrize("make", [Flow, AsyncFlow, Consumer, Publisher])
def test_what_no_client_could_use_is_refused_where_it_is_given(make, monkeypatch):
    with pytest.raises(InvalidSettings, match="a single one"):
        make("flights", url="http://a,b")
    with pytest.raises(InvalidSettings):
        make("flights", token="two words")
    monkeypatch.setenv("COUNTERPOISE_URL", "ftp://x")
    with pytest.raises(InvalidSettings, match="ftp://x"):
        make("flights")


@pytest.mark.parametrize(
    "make", [DeadLetter, lambda *args, **given: Retry(*args, after_seconds=[1], **given)]
)
def test_so_are_the_address_and_the_key_of_another_queue(make):
    with pytest.raises(InvalidSettings, match="a single one"):
        make("dead", url="http://a,b")
    with pytest.raises(InvalidSettings):
        make("dead", token="two words")


def test_retry_after_is_told(faulty, ask):
    faulty.script = lambda _: Answer(
        503, {"code": "unavailable", "detail": "No database."}, {"Retry-After": "7"}
    )
    with pytest.raises(ServiceUnavailable, match="No database") as raised:
        ask(faulty.url)
    assert raised.value.retry_after == 7.0


def test_an_invalid_argument_is_named(faulty, ask):
    errors = [{"field": "partition_count", "message": "must be at least 1"}]
    faulty.script = lambda _: problem(422, "invalid", detail="Not valid.", errors=errors)
    with pytest.raises(Invalid, match=r"Not valid\.; partition_count: must be at least 1"):
        ask(faulty.url)


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(faulty, ask, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    faulty.script = lambda _: problem(410, "flow_gone")
    with pytest.raises(FlowGone):
        ask(faulty.url)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5h://127.0.0.1:9"),  # needs a package
        ("HTTP_PROXY", "ftp://127.0.0.1:9"),
        ("NO_PROXY", "localhost,::1/128"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch, kind, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings, match=f"the proxy of the environment cannot.*{name}"):
        kind("http://queues.invalid")


def test_names_cannot_leave_their_place_in_the_path(faulty):
    with Client(faulty.url) as client:
        for name in ("../../a b?c#d", "", "a/b", "\udcff"):
            with pytest.raises(Invalid, match="A queue's name is 1 to 200 of the characters"):
                client.queue(name)
    assert not faulty.seen
