"""What was open when a large queue came is freed when it ends.

All that is in memory at that moment is taken out of the garbage collector's sight
(`broker.replica.replica`). What leaves a reference cycle later stays in memory for ever. So a
caller who opens streams again and again beside large queues could fill the memory. The objects that
stay are counted here: there must be none, of whatever is open for as long as its caller likes.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker.service import Broker
from tests.attacks.wire import Wire
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

EACH = 5
LARGE = 50
EVENTS = "/v1/queues/{}/events"
STREAM = {"accept": "text/event-stream"}
# Modules of objects that belong to calls.
OURS = ("api.", "broker.", "uvicorn.", "starlette.", "fastapi.")


@pytest.fixture(scope="module")
def target(databases: Databases) -> Iterator[Service]:
    with databases.lend() as url:
        settings = settings_for(url, flow_streams=2 * EACH)
        with running(Broker(settings), settings) as service:
            yield service


class Callers:
    """Calls that wait, each on a connection of its own."""

    def __init__(self, service: Service, stack: contextlib.ExitStack) -> None:
        self._service = service
        self._stack = stack
        self._http = stack.enter_context(service.http)
        self.waiting = 0

    def create(self, queue: str, partitions: int = 1) -> None:
        # The view of a flow does not change during the holddown.
        spec = {"name": queue, "partition_count": partitions, "rebalance_delay": 3600}
        self._http.post("/queues", json=spec).raise_for_status()

    def delete(self, queue: str) -> None:
        self._http.delete(f"/queues/{queue}?force=true").raise_for_status()

    def bind(self, queue: str, name: str) -> tuple[str, dict[str, str], int]:
        """The flow's path, its credential, and the revision of its view."""
        answer = self._http.post(f"/queues/{queue}/flows", json={"client_name": name})
        bound = answer.raise_for_status().json()
        path = f"/v1/queues/{queue}/flows/{bound['flow_id']}"
        token = {"authorization": f"Bearer {bound['flow_token']}"}
        return path, token, bound["update"]["revision"]

    def unbind(self, flow: tuple[str, dict[str, str], int]) -> None:
        path, token, _ = flow
        path = path.removeprefix("/v1")
        eventually(lambda: self._http.delete(path, headers=token).status_code == 204)

    def connect(self) -> Wire:
        return self._stack.enter_context(Wire(self._service.url))

    def send(self, data: bytes) -> None:
        self.connect().send(data)

    def ask(self, path: str) -> None:
        """A call that is answered; its connection stays open."""
        wire = self.connect()
        wire.request("GET", path)
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 200

    def follow(self, path: str, **headers: str) -> None:
        """A stream, or a poll."""
        self.connect().request("GET", path, b"", **headers)
        self.waiting += 1

    def poll(self, flow: tuple[str, dict[str, str], int]) -> None:
        path, token, after = flow
        self.follow(f"{path}/updates?after={after}&wait=30", **token)

    def until_all_wait(self) -> None:
        replica = self._service.app.state.broker.replica

        def count() -> int:
            all_watches = [one.notifier.watches for one in replica._coordinators.values()]
            watches = [watch for each in all_watches for one in each.values() for watch in one]
            return sum(watch._future is not None for watch in watches)

        eventually(lambda: count() == self.waiting)


def in_cycles() -> Counter[str]:
    """The types of objects that belong to calls, are garbage, and are out of sight."""
    gc.collect()
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(one).__qualname__ for one in gc.garbage if _is_ours(one))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
        gc.freeze()


def _is_ours(one: Any) -> bool:
    # By its type alone: `isinstance` asks a weak proxy, whose object may be gone.
    kind = type(one)
    module = one.f_globals.get("__name__", "") if kind is types.FrameType else kind.__module__
    return f"{module}.".startswith(OURS)


def before() -> list[object]:
    """Objects of ours that earlier tests left. Who holds the list keeps them from being garbage."""
    gc.unfreeze()
    return [one for one in gc.get_objects() if _is_ours(one)]


def test_what_was_open_when_a_large_queue_came_is_freed(
    target: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = before()
    state = target.app.state
    replica = state.broker.replica
    monkeypatch.setattr("broker.replica.replica.MANY", LARGE)
    with contextlib.ExitStack() as stack:
        callers = Callers(target, stack)
        for queue in ("stays", "goes", "unused"):
            callers.create(queue)
        leaves = callers.bind("stays", "leaves")
        for number in range(EACH):
            callers.follow(EVENTS.format("stays"), **STREAM)
            callers.follow(EVENTS.format("goes"), **STREAM)
            callers.follow(f"{leaves[0]}/updates", **leaves[1], **STREAM)
            flow = callers.bind("stays", f"polls-{number}")
            callers.poll(flow)
            stack.callback(callers.unbind, flow)
            callers.ask("/v1/queues/stays")
            callers.send(
                b"POST /v1/queues HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{"
            )
            # The second request waits for the end of the first.
            head = b"GET /v1/queues/stays/events HTTP/1.1\r\nhost: localhost\r\n"
            callers.send(2 * (head + b"accept: text/event-stream\r\n\r\n"))
            callers.waiting += 1
        callers.until_all_wait()
        callers.create("large", LARGE)
        callers.unbind(leaves)
        callers.delete("goes")
        acceptor: Any = target.server.servers[0]
        acceptor.loop.call_soon_threadsafe(replica._drop, replica._ids["unused"])
        eventually(lambda: "unused" not in replica._ids)
    eventually(lambda: not len(state.open_calls))
    eventually(lambda: not len(state.connections))
    assert in_cycles() == Counter()
    left.clear()


def test_a_stream_with_a_request_behind_it_ends_with_its_connection(target: Service) -> None:
    """It is not left to the next write, which would fail like a defect."""
    state = target.app.state
    with contextlib.ExitStack() as stack, structlog.testing.capture_logs() as logs:
        callers = Callers(target, stack)
        callers.create("piped")
        with Wire(target.url) as wire:
            head = b"GET /v1/queues/piped/events HTTP/1.1\r\nhost: localhost\r\n"
            wire.send(2 * (head + b"accept: text/event-stream\r\n\r\n"))
            eventually(lambda: len(state.open_streams))
        eventually(lambda: not len(state.open_streams))
    assert not [entry for entry in logs if entry["log_level"] == "error"]
