"""The proxy of the fault runs has the effects on connections that it documents."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.service import eventually


class Echo:
    """A server that sends its name, and then everything that it gets."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self.ended = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    connection.sendall(self._name + data)
            except OSError:
                pass
        self.ended += 1

    def close(self) -> None:
        # Wakes the thread that waits in accept; close alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo(b"1:")
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.url) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    host, port = proxy.url.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def broken(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def say(connection: socket.socket, what: bytes) -> bytes:
    connection.sendall(what)
    return connection.recv(100)


def test_cut_connections_break_and_can_be_mended(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as old:
        assert say(old, b"a") == b"1:a"
        proxy.cut()
        assert broken(old)
        with connect(proxy) as new:
            assert broken(new)
        assert proxy.refused == 1
        proxy.mend()
        with connect(proxy) as new:
            assert say(new, b"b") == b"1:b"
    eventually(lambda: echo.ended == 2)


def test_stalled_connections_get_no_data_until_mended(proxy: Proxy) -> None:
    with connect(proxy) as old:
        assert say(old, b"a") == b"1:a"
        proxy.stall()
        with connect(proxy) as new:
            for connection in (old, new):
                connection.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    say(connection, b"b")
            proxy.mend()
            for connection in (old, new):
                connection.settimeout(60)
                assert connection.recv(10) == b"1:b"


def test_half_open_connections_end_for_the_server_only(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as old:
        assert say(old, b"a") == b"1:a"
        proxy.half_open()
        eventually(lambda: echo.ended == 1)
        old.settimeout(0.1)
        with pytest.raises(TimeoutError):
            say(old, b"b")
        with connect(proxy) as new:
            assert say(new, b"c") == b"1:c"
            proxy.mend()
            old.settimeout(60)
            assert broken(old)
            assert say(new, b"d") == b"1:d"


def test_an_answer_is_lost_with_its_connection(proxy: Proxy) -> None:
    with connect(proxy) as old:
        assert say(old, b"a") == b"1:a"
        proxy.lose()
        old.sendall(b"b")
        assert broken(old)
    assert proxy.lost == 1
    with connect(proxy) as new:
        assert say(new, b"c") == b"1:c"


def test_delayed_data_comes_later(proxy: Proxy) -> None:
    proxy.delay(0.05)
    with connect(proxy) as connection:
        began = time.monotonic()
        assert say(connection, b"a") == b"1:a"
        assert time.monotonic() - began >= 0.1


def test_connections_go_to_servers_in_turn_and_skip_unreachable_ones(echo: Echo) -> None:
    other = Echo(b"2:")
    with Proxy(echo.url, other.url) as proxy:
        answers = []
        for _ in range(4):
            with connect(proxy) as connection:
                answers.append(say(connection, b"a"))
        assert sorted(answers) == [b"1:a", b"1:a", b"2:a", b"2:a"]
        other.close()
        for _ in range(3):
            with connect(proxy) as connection:
                assert say(connection, b"a") == b"1:a"


def test_a_server_that_is_to_be_avoided_gets_no_new_connection(echo: Echo) -> None:
    other = Echo(b"2:")
    with Proxy(echo.url, other.url) as proxy:

        def answers() -> set[bytes]:
            found = set()
            for _ in range(4):
                with connect(proxy) as connection:
                    found.add(say(connection, b"a"))
            return found

        proxy.avoid(other.url)
        assert answers() == {b"1:a"}
        proxy.avoid(None)
        assert answers() == {b"1:a", b"2:a"}
    other.close()


def test_a_proxy_that_closes_leaves_no_connection_open(echo: Echo) -> None:
    """It closes so many turns of its loop after a connection has come that asyncio is at each step
    of its way to accept that.
    """

    def come(turns: int, proxy: Proxy) -> None:
        stack.enter_context(connect(proxy))
        turn(turns, proxy._loop)

    def turn(to_come: int, loop: asyncio.AbstractEventLoop) -> None:
        if to_come:
            loop.call_soon(turn, to_come - 1, loop)
        else:
            loop.stop()

    with warnings.catch_warnings(record=True) as left, contextlib.ExitStack() as stack:
        warnings.simplefilter("always", ResourceWarning)
        for turns in range(8):
            proxy = Proxy(echo.url)
            proxy._loop.call_soon_threadsafe(come, turns, proxy)
            proxy._thread.join()
        gc.collect()
    assert [str(one.message) for one in left] == []
