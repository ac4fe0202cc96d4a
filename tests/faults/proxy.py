"""A TCP proxy on loopback that breaks the network on purpose: its servers become unreachable, slow
or silent, and then reachable again.

    proxy = Proxy("http://127.0.0.1:8001", "http://127.0.0.1:8002")   # passed on in turns
    Client(proxy.url)
    proxy.cut()        # every connection breaks, new ones at once (a process that died)
    proxy.delay(0.2)   # every piece of data comes so much later, both ways (a slow network)
    proxy.stall()      # nothing passes, nothing breaks (a network that swallows packets)
    proxy.lose()       # the next answer breaks its connection (a server that died behind its work)
    proxy.half_open()  # the servers see an end, the clients see nothing (a host that lost power)
    proxy.mend()       # as if nothing had been

One thread with an event loop carries all connections. Each method returns when its effect is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Weather = Literal["fair", "cut", "stalled"]


class _Line:
    """One client's connection and, unless it is half open, a connection to a server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.half_open = False
        self.asked = False
        """Whether the server has sent nothing since the client's last bytes."""

    def end(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Listens on a port of its own and passes all data on, both ways."""

    def __init__(self, url: str, *more_urls: str) -> None:
        """The URLs are those of the servers. `self.url` is the first one, through the proxy.

        A new connection goes to the next server in turn, or to the one after it if that refuses.
        """
        parts = urlsplit(url)
        each = [parts, *map(urlsplit, more_urls)]
        self._targets = [(one.hostname or "127.0.0.1", one.port or 0) for one in each]
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
        self.refused = 0
        self.passed_on = 0
        self._weather: Weather = "fair"
        self._delay_seconds = 0.0
        self._to_lose = 0
        self.lost = 0
        self._turn = 0
        self._avoided: tuple[str, int] | None = None
        self._lines: set[_Line] = set()
        self._carried: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._passing = asyncio.Event()
        self._passing.set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._started.wait(240), "the proxy does not start"

    # Effects on the network

    def cut(self) -> None:
        """Break all connections, and every new one at once."""
        self._do(self._cut)

    def delay(self, seconds: float) -> None:
        """Delay every piece of data so much."""
        self._do(lambda: setattr(self, "_delay_seconds", seconds))

    def lose(self, answers: int = 1) -> None:
        """Break the connections on which the next answers come, and pass nothing of these on."""
        self._do(lambda: setattr(self, "_to_lose", answers))

    def stall(self) -> None:
        """Hold all data back and break nothing; new connections are accepted and get no data."""
        self._do(self._stall)

    def half_open(self) -> None:
        """End all connections for the servers only. New ones work."""
        self._do(self._half_open)

    def mend(self) -> None:
        """Let everything through again, also the data that was held back."""
        self._do(self._mend)

    def avoid(self, url: str | None) -> None:
        """Give no new connection to this server (which has said that it is not ready). None: avoid
        no server.
        """
        parts = urlsplit(url or "")
        avoided = (parts.hostname or "127.0.0.1", parts.port or 0) if url else None
        self._do(lambda: setattr(self, "_avoided", avoided))

    def close(self) -> None:
        """Close all connections and stop listening."""
        if not self._loop.is_running():
            return
        self.cut()
        self._do(self._loop.stop)
        self._thread.join(240)
        assert not self._thread.is_alive(), "the proxy's loop does not end"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, sock=self._listener)
        )
        try:
            # What comes earlier to stop it would be forgotten.
            self._loop.call_soon(self._started.set)
            self._loop.run_forever()
        finally:
            # asyncio takes some turns to accept a connection. Closed or cancelled amid them, it
            # would leave that open, and the garbage collection would print it in another test.
            self._loop.remove_reader(self._listener)
            for _ in range(10):
                self._loop.run_until_complete(asyncio.sleep(0))
            server.close()
            while tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for client in self._carried:
                client.close()
            self._loop.run_until_complete(asyncio.sleep(0))  # what was closed is gone
            self._loop.close()

    def _do(self, action: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                action()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(240), "the proxy's loop is stuck"

    def _cut(self) -> None:
        self._weather = "cut"
        for line in self._lines:
            line.end()
        self._lines.clear()
        self._passing.set()

    def _stall(self) -> None:
        self._weather = "stalled"
        self._passing.clear()

    def _half_open(self) -> None:
        for line in self._lines:
            line.half_open = True
            line.server.transport.abort()

    def _mend(self) -> None:
        self._weather = "fair"
        self._delay_seconds = 0.0
        self._to_lose = 0
        self._passing.set()
        for line in [one for one in self._lines if one.half_open]:
            # The host is up again, and does not know these connections.
            line.end()

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        # Kept until it is closed: a task that is cancelled before it begins closes nothing.
        self._carried[client] = self._loop.create_task(self._carry_to_its_end(reader, client))

    async def _carry_to_its_end(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        # Cancelled when the proxy closes; asyncio would print that as an error of ours.
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(client):
            await self._carry(reader, client)
        del self._carried[client]

    async def _carry(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._weather == "cut":
            self.refused += 1
            client.transport.abort()
            return
        await self._passing.wait()
        found = await self._connect()
        if found is None:
            self.refused += 1
            client.transport.abort()
            return
        self.passed_on += 1
        replies, server = found
        line = _Line(client, server)
        self._lines.add(line)
        try:
            await asyncio.gather(
                self._pass(reader, server, line), self._pass(replies, client, line)
            )
        finally:
            line.end()
            self._lines.discard(line)

    def _is_lost(self, line: _Line) -> bool:
        """Whether to lose what has come from the server: the begin of an answer."""
        if not line.asked or not self._to_lose:
            return False
        self._to_lose -= 1
        self.lost += 1
        return True

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        self._turn += 1
        for number in range(len(self._targets)):
            host, port = self._targets[(self._turn + number) % len(self._targets)]
            if (host, port) == self._avoided:
                continue
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, port)
        return None

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, line: _Line
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                await self._passing.wait()
                if line.half_open:
                    if sink is line.client:
                        break
                    continue
                if sink is line.client and self._is_lost(line):
                    line.end()
                    return
                line.asked = sink is line.server
                sink.write(data)
                await sink.drain()
        if line.half_open and sink is line.client:
            # The server's end; the client is not told.
            return
        await self._passing.wait()
        line.end()
