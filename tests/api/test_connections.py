"""Connections without a socket: the answer of a long poll is written at once, counted in writes;
who makes room for others; and what stays of one that does.
"""

import asyncio
from typing import Any

import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from api.connections import Connection, OpenConnections
from api.streams import WRITE_WHOLE, DeferredCall
from tests.attacks.wire import Wire
from tests.service import Service, eventually


class Transport(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    @property
    def text(self) -> str:
        return b"".join(self.writes).decode()


class Polls:
    """An application that answers long polls, in the order in which it is told."""

    def __init__(self, body: bytes | None, *, by_uvicorn: bool = False) -> None:
        self.body, self.by_uvicorn = body, by_uvicorn
        self.changed: list[asyncio.Event] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        changed = asyncio.Event()
        self.changed.append(changed)
        if self.by_uvicorn:
            del scope[WRITE_WHOLE]
        await DeferredCall(changed.wait, self._answer).run(scope, receive, send)

    def _answer(self, _: object) -> Response:
        if self.body is None:
            return Response(status_code=204)
        return Response(self.body, media_type="application/json")


def connection_of(app: Polls, every: OpenConnections, host: str) -> Connection:
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    config.load()
    return Connection(config, ServerState(), {}, every, host, 10.0)


async def answered(app: Polls, *requests: str) -> Transport:
    """What a connection is answered to these requests, which arrive together."""
    connection = connection_of(app, OpenConnections(10, CollectorRegistry()), "127.0.0.1")
    transport = Transport()
    connection.connection_made(transport)
    connection.data_received("".join(requests).encode())
    for number in range(len(requests)):
        await settle()
        app.changed[number].set()
        await settle()
    connection.connection_lost(None)
    return transport


async def settle() -> None:
    """All that can go on has done so."""
    for _ in range(5):
        await asyncio.sleep(0)


def request(method: str = "GET", *lines: str) -> str:
    return "\r\n".join((f"{method} / HTTP/1.1", "Host: localhost", *lines, "", ""))


async def test_an_answer_is_one_write() -> None:
    assert len((await answered(Polls(b"{}"), request())).writes) == 1
    assert len((await answered(Polls(None), request())).writes) == 1


async def test_it_has_the_bytes_that_uvicorn_writes() -> None:
    for body in (b"{}", b"", None):
        theirs = await answered(Polls(body, by_uvicorn=True), request())
        assert (await answered(Polls(body), request())).text == theirs.text
        assert len(theirs.writes) == 2


async def test_rare_cases_are_answered_as_uvicorn_does() -> None:
    for rare in (request("HEAD"), request("GET", "Connection: close")):
        ours, theirs = await answered(Polls(b"{}"), rare), Polls(b"{}", by_uvicorn=True)
        expected = await answered(theirs, rare)
        assert ours.text == expected.text
        assert ours.is_closed is expected.is_closed


async def test_pipelined_requests_are_answered_one_after_another() -> None:
    transport = await answered(Polls(b"[]"), request(), request(), request())
    assert transport.text.count("HTTP/1.1 200 OK") == 3
    assert transport.text.count("[]") == 3


async def test_the_address_of_which_most_wait_makes_room() -> None:
    """Else whoever opens many, one after the other, would end those that honest clients keep."""
    every = OpenConnections(10, CollectorRegistry())
    hosts = ["127.0.0.1", "127.0.0.66", "127.0.0.66"]
    honest, first, second = (connection_of(Polls(None), every, host) for host in hosts)
    for one in (honest, first, second):
        assert every.joins(one)
    assert every.make_room()
    assert first not in every._open
    # Of one each, those of either address may go.
    assert every.make_room()
    assert len(every) == 1


def test_nothing_stays_of_a_connection_that_makes_room_while_it_opens(
    scripted: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would wait for it when it stops."""
    made = Connection.connection_made

    def ended(self: Connection, transport: asyncio.Transport) -> None:
        self.abort()
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", ended)
    with Wire(scripted.url) as wire:
        assert wire.closed_within(60)
    eventually(lambda: not scripted.server.server_state.connections)
