"""A minimal HTTP client, so that the service is measured and not the client: kept connections,
JSON.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


class Caller:
    """Calls one service, with as many connections as concurrent calls."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close()

    async def open(self, connections: int) -> None:
        """Opens so many connections in advance, so that the first calls do not wait for them."""
        for _ in range(connections):
            self._idle.append(await self._connect())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._writers.append(writer)
        return reader, writer

    async def __call__(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> Any:
        """The body of the answer, None if there is none; a request body in bytes is sent unchanged.

        Raises RuntimeError for a status of 400 and more.
        """
        answer = await self.raw(method, path, body, token)
        return json.loads(answer) if answer else None

    async def raw(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> bytes:
        """As a call, without parsing the answer: a large one would hold this process up."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        head = f"{method} /v1{path} HTTP/1.1\r\nHost: {self._host}\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        if data:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        request = head.encode() + b"\r\n" + data
        first = b""
        while not first:  # an idle connection may have been closed by the service
            kept = bool(self._idle)
            reader, writer = self._idle.pop() if kept else await self._connect()
            writer.write(request)
            first = await reader.readline()
            if not first and not kept:
                raise ConnectionError(f"{method} {path}: closed without an answer")
        status, length = int(first.split()[1]), 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        answer = await reader.readexactly(length)
        self._idle.append((reader, writer))
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")
        return answer


async def until_it_owns(call: Caller, queue: str, bound: dict[str, Any], count: int) -> Any:
    """The view of a flow, first as `bind` returned it, once it has so many partitions."""
    path, after = f"/queues/{queue}/flows/{bound['flow_id']}/updates", 0
    while True:
        view = await call("GET", f"{path}?after={after}&wait=30", token=bound["flow_token"])
        if view is not None and len(view["partitions"]) >= count:
            return view
        after = after if view is None else view["revision"]
