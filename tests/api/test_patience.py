"""A database that hangs: probes are answered within 2 s, calls within 8 s. In virtual time.

`tests/attacks/test_database.py` shows the same answers over a real database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.testing.loop import running, settle, virtual
from broker.testing.store import MemoryStore
from counterpoise import wire
from tests.api.test_waiting import Served

# docs/monitoring.md, docs/troubleshooting.md, and the contract, *HTTP*.
PROBE_SECONDS, CALL_SECONDS = 2.0, 8.0
POLL_SECONDS = 3.0
FLOW = "/v1/queues/orders/flows/{flow}"
CALLS: Mapping[str, tuple[str, str, object]] = {
    "list": ("GET", "/v1/queues", None),
    "create": ("POST", "/v1/queues", {"name": "n", "partition_count": 1}),
    "bind": ("POST", "/v1/queues/orders/flows", {"client_name": "d"}),
    "heartbeat": ("POST", f"{FLOW}/heartbeat", None),
    "poll": ("GET", f"{FLOW}/updates?after={2**40}&wait={POLL_SECONDS}", None),
    "drain": ("POST", f"{FLOW}/drain", None),
}


class Hanging(Served):
    """The application, over a database that can begin to hang."""

    async def bound(self) -> wire.Bound:
        await self.start(1)
        flow = await self.bind(1)
        await settle()
        return flow

    def hang(self) -> None:
        """From now on the database neither answers nor refuses."""

        async def never(_: object = None) -> Any:
            await asyncio.Event().wait()

        store: Any = self.broker.replica.store
        while not isinstance(store, MemoryStore):  # it is traced
            store = store._store
        store.hook = never
        self.broker.ready_check = never  # type: ignore[method-assign]

    async def answer(self, method: str, target: str, token: str, body: object) -> tuple[int, float]:
        """The status of a call's answer, and after how many seconds it came."""
        path, _, query = target.partition("?")
        headers = {"host": "127.0.0.1"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        content = b"" if body is None else json.dumps(body).encode()
        if content:
            headers |= {"content-type": "application/json", "content-length": f"{len(content)}"}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        received = [{"type": "http.request", "body": content}]
        sent: list[Any] = []

        async def receive() -> Any:
            if not received:
                await asyncio.Event().wait()
            return received.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        began = running().now
        await self.app(scope, receive, send)
        return sent[0]["status"], running().now - began


@pytest.mark.parametrize("moment", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", CALLS)
@virtual
async def test_a_call_gets_503_within_8_s(name: str, moment: float) -> None:
    one = Hanging()
    flow = await one.bound()
    await asyncio.sleep(moment)
    one.hang()
    method, target, body = CALLS[name]
    target = target.format(flow=flow.flow_id)
    token = "" if "{flow}" not in CALLS[name][1] else flow.flow_token
    status, seconds = await one.answer(method, target, token, body)
    assert status == 503
    assert seconds <= CALL_SECONDS + (POLL_SECONDS if name == "poll" else 0)


@pytest.mark.parametrize(("path", "status"), [("/readyz", 503), ("/metrics", 200)])
@virtual
async def test_a_probe_is_answered_within_2_s(
    path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Callable[..., object], *args: object) -> object:
        return work(*args)

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # there are no threads in virtual time
    one = Hanging()
    await one.bound()
    one.hang()
    got, seconds = await one.answer("GET", path, "", None)
    assert got == status
    assert seconds <= PROBE_SECONDS
