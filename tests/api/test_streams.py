"""Long polls and event streams: their content and their end; no stream delays the stop."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, MutableMapping
from datetime import datetime
from typing import Any

import httpx
import pytest

from api.routing import LONGEST_WAIT_SECONDS
from api.streams import EventStream, OpenCalls, event
from broker.calls.times import with_times
from broker.core.errors import FlowGone, Invalid
from broker.core.stored import ITEMS, KINDS
from broker.settings import load
from counterpoise import wire
from tests.api.conftest import AS_FLOW
from tests.api.scripted import ScriptedBroker, update
from tests.api.test_problems import problem
from tests.service import Service, eventually, running
from tests.unread import nothing_unread

UPDATES = "/queues/flights/flows/f-1/updates"
AS_STREAM = {**AS_FLOW, "Accept": "text/event-stream"}


def events(response: httpx.Response) -> Generator[dict[str, str], None, None]:
    """Each event of a stream as its fields; comments and the retry time are left out."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if not line:
            if "event" in fields:
                yield fields
            fields = {}
        else:
            name, _, value = line.partition(": ")
            fields[name] = value


def test_a_long_poll_answers_the_view(http: httpx.Client, broker: ScriptedBroker) -> None:
    async def view(*_: object) -> wire.Update:
        return update(9)

    broker.answers["updates.wait"] = view
    response = http.get(f"{UPDATES}?after=8&wait=30", headers=AS_FLOW)
    assert response.json() == {
        "queue": "flights",
        "flow_id": "f-1",
        "revision": 9,
        "active": True,
        "draining": False,
        "now": "2026-11-20T10:00:00.250000Z",
        "partitions": [
            {
                "partition": 0,
                "epoch": 3,
                "state": "revoking",
                "position": "1042",
                "handed_over": "graceful",
                "deadline": "2026-11-20T10:00:03.250000Z",
            },
            {"partition": 1, "epoch": 4, "state": "warming", "position": None},
        ],
    }
    assert broker.calls == [("updates.wait", (("flights", "f-1"), 8, 30.0))]


def test_a_long_poll_with_nothing_new(http: httpx.Client, broker: ScriptedBroker) -> None:
    response = http.get(f"{UPDATES}?after=9&wait=0.05", headers=AS_FLOW)
    assert response.status_code == 204
    assert not response.content
    assert broker.calls == [("updates.wait", (("flights", "f-1"), 9, 0.05))]


def test_a_stream_tells_the_view_under_its_revision(
    http: httpx.Client, broker: ScriptedBroker
) -> None:
    with http.stream("GET", f"{UPDATES}?after=2", headers=AS_STREAM) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        first = next(events(response))
    assert (first["id"], first["event"]) == ("3", "FlowChangeUpdate")
    assert json.loads(first["data"])["revision"] == 3


def test_a_stream_resumes(http: httpx.Client, broker: ScriptedBroker) -> None:
    for headers, after in ((AS_STREAM, 2), ({**AS_STREAM, "Last-Event-ID": "41"}, 41)):
        broker.reset()
        with http.stream("GET", f"{UPDATES}?after=2", headers=headers) as response:
            next(events(response))
        assert broker.calls == [("updates.watch", (("flights", "f-1"), after))]


@pytest.mark.parametrize("last", ["", "x", "-1", "1.5", str(2**63)])
@pytest.mark.parametrize("path", [UPDATES, "/queues/flights/events"])
def test_a_stream_resumes_only_after_a_revision(http: httpx.Client, path: str, last: str) -> None:
    headers = {**(AS_STREAM if path == UPDATES else {}), "Last-Event-ID": last}
    document = problem(http.get(path, headers=headers), 422, "invalid")
    assert document["errors"][0]["field"] == "Last-Event-ID"


def test_the_source_ends_when_the_reader_hangs_up(
    http: httpx.Client, broker: ScriptedBroker, scripted: Service
) -> None:
    with http.stream("GET", UPDATES, headers=AS_STREAM) as response:
        reading = events(response)  # httpx hangs up when this is not referenced
        next(reading)
        # Streams of earlier tests may still be about to notice that their readers are gone.
        eventually(lambda: broker.watching == 1 and len(scripted.app.state.open_calls) == 1)
        reading.close()
    eventually(lambda: broker.watching == 0 and len(scripted.app.state.open_calls) == 0)


def test_changes_of_a_queue(http: httpx.Client, broker: ScriptedBroker) -> None:
    headers = {"Last-Event-ID": "6"}
    with http.stream("GET", "/queues/flights/events", headers=headers) as response:
        change = next(events(response))
    assert (change["id"], change["event"]) == ("7", "change")
    times = ("deadline", "at", "until", "due", "began", "seen_at")
    told = dict.fromkeys(times, "2026-11-20T10:00:03.250000Z")
    assert json.loads(change["data"]) == {
        "queue": "flights",
        "revision": 7,
        "at": "2026-11-20T10:00:00.250000Z",
        "changes": [{"type": "revoked", "partition": 0, **told, "n": 1.5}],
    }
    assert ("monitoring.events", ("flights", 6)) in broker.calls


def test_each_time_of_a_record_is_known_by_its_name() -> None:
    kinds = (*KINDS.values(), *ITEMS.values())
    numbers = {
        name
        for kind in kinds
        for name, type_ in kind.__annotations__.items()
        if "float" in str(type_)
    }
    times = {name for name in numbers if isinstance(with_times(1.0, name), datetime)}
    assert {"at", "until", "deadline", "held_until"} <= times
    assert numbers - times == {"seconds", "lease_seconds", "moved"}


def test_events_of_an_unknown_queue_are_refused(http: httpx.Client) -> None:
    assert http.get("/queues/missing/events").status_code == 404


def test_the_service_stops_with_open_streams_and_polls() -> None:
    broker = ScriptedBroker()
    with running(broker.as_broker(), load(port=0, shutdown_seconds=120)) as service:
        ended: list[object] = []

        def poll() -> None:
            with service.http as http:
                http.timeout = 2 * LONGEST_WAIT_SECONDS
                answer = http.get(f"{UPDATES}?wait={LONGEST_WAIT_SECONDS}", headers=AS_FLOW)
                ended.append(answer.status_code)

        def stream(path: str, opened: threading.Semaphore) -> None:
            headers = AS_STREAM if path == UPDATES else {}
            with service.http as http, http.stream("GET", path, headers=headers) as response:
                found = events(response)
                next(found)
                opened.release()
                ended.append(list(found))

        opened = threading.Semaphore(0)
        threads = [threading.Thread(target=poll)]
        for path in (UPDATES, "/queues/flights/events"):
            threads.append(threading.Thread(target=stream, args=(path, opened)))
        for thread in threads:
            thread.start()
        assert opened.acquire(timeout=240)
        assert opened.acquire(timeout=240)
        eventually(lambda: len(service.app.state.open_calls) == 3)
        assert service.stop() < LONGEST_WAIT_SECONDS / 2
        for thread in threads:
            thread.join(240)
        assert sorted(map(str, ended)) == ["204", "[]", "[]"]
        assert broker.stopped


# The stream itself, without a server


class Wire:
    """Both ends of one ASGI call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.hung_up = asyncio.Event()
        self.changed = asyncio.Condition()
        self.ended = False

    async def receive(self) -> dict[str, object]:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, object]) -> None:
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        self.sent.append(body)
        if message["type"] == "http.response.body":
            self.ended = not message["more_body"]
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(240), self.changed:
            await self.changed.wait_for(condition)

    async def carry(self, stream: EventStream[bytes]) -> None:
        await stream({"type": "http"}, self.receive, self.send)  # type: ignore[arg-type]


async def _silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_silence_is_broken_by_comments() -> None:
    wire = Wire()
    call = asyncio.create_task(
        wire.carry(EventStream(_silence(), _as_bytes, OpenCalls(), keep_alive_seconds=0.01))
    )
    await wire.until(lambda: wire.sent.count(b":\n\n") >= 3)
    wire.hung_up.set()
    await call
    assert wire.ended


async def test_a_slow_reader_gets_the_latest_view_and_no_backlog() -> None:
    latest, asked = 0, 0
    sent: list[bytes] = []
    is_sending, may_go_on = asyncio.Event(), asyncio.Event()

    async def views() -> AsyncIterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield b"view %d" % latest

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()  # it never hangs up
        return {}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body", b"").startswith(b"view"):
            sent.append(message["body"])
            is_sending.set()
            await may_go_on.wait()
            may_go_on.clear()

    stream = EventStream(views(), _as_bytes, OpenCalls())
    call = asyncio.create_task(stream({"type": "http"}, receive, send))
    await is_sending.wait()
    for _ in range(10_000):
        latest += 1
        await asyncio.sleep(0)
    assert (sent, asked) == ([b"view 0"], 1)
    is_sending.clear()
    may_go_on.set()
    await is_sending.wait()
    assert (sent, asked) == ([b"view 0", b"view 10000"], 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_flow_that_leaves_ends_its_stream_with_the_problem() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield event("FlowChangeUpdate", b"{}", 1)
        raise FlowGone("f-1", "replaced")

    wire = Wire()
    await wire.carry(EventStream(source(), _as_bytes, OpenCalls()))
    assert wire.sent[2] == b"id: 1\nevent: FlowChangeUpdate\ndata: {}\n\n"
    assert wire.sent[3].startswith(b"event: problem\ndata: {")
    document = json.loads(wire.sent[3].partition(b"data: ")[2])
    assert (document["code"], document["reason"]) == ("flow_gone", "replaced")
    assert wire.ended


@pytest.mark.long
@pytest.mark.parametrize("ended", [False, True])
async def test_what_no_reader_is_there_to_hear_is_no_defect(ended: bool) -> None:
    """The source fails as the reader hangs up, or while it is ended because of that."""
    wire = Wire()

    async def source() -> AsyncIterator[bytes]:
        wire.hung_up.set()
        try:
            if ended:
                await asyncio.Event().wait()
        finally:
            raise FlowGone("f-1", "replaced")
        yield b""

    with nothing_unread():
        await wire.carry(EventStream(source(), _as_bytes, OpenCalls()))
    assert wire.ended


async def test_a_reader_that_cannot_resume_forgets_where_it_was() -> None:
    """A browser opens a stream again by itself, each time after the last id that it has."""

    async def source() -> AsyncIterator[bytes]:
        raise Invalid("start from now on")
        yield b""

    wire = Wire()
    await wire.carry(EventStream(source(), _as_bytes, OpenCalls()))
    assert wire.sent[2].startswith(b"id: \nevent: problem\ndata: {")
    assert wire.ended


async def test_streams_opened_after_the_stop_end_at_once() -> None:
    open_calls = OpenCalls()
    open_calls.end()
    wire = Wire()
    await wire.carry(EventStream(_silence(), _as_bytes, open_calls))
    assert wire.ended


async def test_a_call_that_is_cancelled_otherwise_stays_cancelled() -> None:
    open_calls = OpenCalls()
    task = asyncio.create_task(open_calls.waiting(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(open_calls) == 0


def _as_bytes(item: bytes) -> bytes:
    return item
