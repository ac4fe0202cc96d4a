"""Event streams: very many of one viewer, of one flow, of one address."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from broker.core.stored import ShownEntry
from broker.service import Broker
from broker.store.postgres import PostgresStore
from tests.api.access import Guarded, bearer, guarded
from tests.attacks.wire import Answer, Wire
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

ATTACKER = "127.0.0.66"
LIMIT_SECONDS = 60.0
OF_A_KEY, OF_A_FLOW, OF_AN_ADDRESS = 4, 2, 9
MANY = 60
CHANGES = 5


@pytest.fixture(scope="module")
def strict(databases: Databases) -> Iterator[Guarded]:
    """A service with keys on which few streams are many."""
    limits = {
        "key_streams": OF_A_KEY,
        "flow_streams": OF_A_FLOW,
        "address_streams": OF_AN_ADDRESS,
    }
    with databases.lend() as url, guarded(url, **limits) as strict:
        strict.create("team-a.orders")
        yield strict


@pytest.fixture
def stack(strict: Guarded) -> Iterator[contextlib.ExitStack]:
    """What it has opened is closed, and the service knows that, when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack
    eventually(lambda: len(strict.service.app.state.open_streams) == 0)


def asked(wire: Wire, path: str, **headers: str) -> Answer:
    """The head of a stream, or the answer that there is none."""
    wire.request("GET", path, b"", accept="text/event-stream", **headers)
    answer = wire.answer()
    assert answer is not None
    return answer


class Crowd:
    """Who opens many streams."""

    def __init__(self, url: str, stack: contextlib.ExitStack) -> None:
        self.url = url
        self.stack = stack

    def opens(self, path: str, token: str, source: str = "", **headers: str) -> Answer:
        """The answer; its connection stays open."""
        wire = self.stack.enter_context(Wire(self.url, source))
        if token:
            headers["authorization"] = f"Bearer {token}"
        return asked(wire, path, **headers)

    def leaves(self) -> None:
        self.stack.close()


@pytest.fixture
def crowd(strict: Guarded, stack: contextlib.ExitStack) -> Crowd:
    return Crowd(strict.service.url, stack)


EVENTS = "/v1/queues/team-a.orders/events"


def refused_by(strict: Guarded, limit: str) -> float:
    return strict.service.app.state.rates.refused.labels(limit)._value.get()


def ended_for_files(service: Service) -> float:
    return service.app.state.connections.ended.labels("files")._value.get()


def assert_refused(answer: Answer, setting: str, most: int) -> None:
    """The answer names the limit and says what to do."""
    assert answer.status == 429
    document = json.loads(answer.body)
    assert document["code"] == "too_many_requests"
    assert setting in document["detail"]
    assert f" {most} event streams" in document["detail"]
    assert "close" in document["detail"]
    assert "\r\nretry-after: " in answer.head.lower()


def test_the_streams_of_a_key_are_bounded(strict: Guarded, crowd: Crowd) -> None:
    """A session is its key's; other keys have theirs; who closes one may open one."""
    viewer = strict.keys["viewer"]
    before = refused_by(strict, "key_streams")
    with strict.http as http:
        login = http.post("/v1/session", json={"key": viewer})
        cookie = "; ".join(f"{name}={value}" for name, value in login.cookies.items())
    with Wire(crowd.url) as one:
        assert asked(one, EVENTS, authorization=f"Bearer {viewer}").status == 200
        assert crowd.opens(EVENTS, "", cookie=cookie).status == 200
        for _ in range(OF_A_KEY - 2):
            assert crowd.opens(EVENTS, viewer).status == 200
        assert_refused(crowd.opens(EVENTS, viewer), "COUNTERPOISE_KEY_STREAMS", OF_A_KEY)
        assert_refused(crowd.opens(EVENTS, "", cookie=cookie), "COUNTERPOISE_KEY_STREAMS", OF_A_KEY)
        assert crowd.opens(EVENTS, strict.keys["consumer"]).status == 200
        assert refused_by(strict, "key_streams") == before + 2
    with strict.http as http:
        metrics = http.get("/metrics", headers=bearer(strict.root)).text
    assert 'counterpoise_http_refused_total{limit="key_streams"}' in metrics
    assert "counterpoise_http_open_streams " in metrics
    eventually(lambda: len(strict.service.app.state.open_streams) == OF_A_KEY)
    assert crowd.opens(EVENTS, viewer).status == 200


def test_the_streams_of_a_flow_are_bounded(strict: Guarded, crowd: Crowd) -> None:
    for _ in range(2):
        flow, token = strict.bind("team-a.orders", strict.keys["consumer"])
        path = f"/v1/queues/team-a.orders/flows/{flow}/updates"
        for _ in range(OF_A_FLOW):
            assert crowd.opens(path, token).status == 200
        assert_refused(crowd.opens(path, token), "COUNTERPOISE_FLOW_STREAMS", OF_A_FLOW)
        # It is no renewal, and a poll is no stream.
        with strict.http as http:
            assert http.get(path, headers=bearer(token)).status_code == 200


def test_the_streams_of_an_address_are_bounded(strict: Guarded, crowd: Crowd) -> None:
    """Whatever keys it has; not those of a neighbour."""
    keys = [strict.key("viewer", "team-a.*") for _ in range(OF_AN_ADDRESS // OF_A_KEY + 1)]
    tokens = [key for key in keys for _ in range(OF_A_KEY)][: OF_AN_ADDRESS + 1]
    for token in tokens[:-1]:
        assert crowd.opens(EVENTS, token, ATTACKER).status == 200
    answer = crowd.opens(EVENTS, tokens[-1], ATTACKER)
    assert_refused(answer, "COUNTERPOISE_ADDRESS_STREAMS", OF_AN_ADDRESS)
    assert crowd.opens(EVENTS, tokens[-1]).status == 200


def test_streams_make_room_where_no_file_is_left(migrated_url: str) -> None:
    """The longest open one of the address that has the most, and nobody else's."""
    settings = settings_for(migrated_url)
    with running(Broker(settings), settings) as service, contextlib.ExitStack() as stack:
        state = service.app.state
        with service.http as http:
            http.post("/queues", json={"name": "q", "partition_count": 1}).raise_for_status()

        def stream(source: str) -> Wire:
            wire = stack.enter_context(Wire(service.url, source))
            assert asked(wire, "/v1/queues/q/events").status == 200
            return wire

        stream("")
        crowd = [stream(ATTACKER) for _ in range(5)]
        eventually(lambda: len(state.connections) == 6)
        state.connections.most = 6
        with Wire(service.url) as neighbour:
            neighbour.request("GET", "/healthz")
            answer = neighbour.answer()
            assert answer is not None
            assert answer.status == 200
        assert crowd[0].closed_within(LIMIT_SECONDS)
        assert len(state.open_streams) == 5
        assert ended_for_files(service) == 1


# What a change costs


@pytest.fixture(scope="module")
def followed(databases: Databases) -> Iterator[Guarded]:
    """A service with keys and the usual limits, and two teams' queues."""
    with databases.lend() as url, guarded(url) as followed:
        followed.create("team-a.orders")
        followed.create("team-b.orders")
        yield followed


def store_of(service: Service) -> PostgresStore:
    store = service.app.state.broker.replica.store
    assert isinstance(store, PostgresStore)
    return store


def change(followed: Guarded, queue: str, seconds: float) -> None:
    with followed.http as http:
        answer = http.patch(
            f"/v1/queues/{queue}",
            json={"max_handoff_time": seconds},
            headers=bearer(followed.root),
        )
        assert answer.status_code == 200, answer.text


def revisions(wire: Wire, count: int) -> Sequence[int]:
    """The revisions of the next so many events."""
    found: list[int] = []
    with wire.socket.makefile("rb") as lines:
        for line in lines:
            if line.startswith(b"id: "):
                found.append(int(line[4:]))
                if len(found) == count:
                    break
    return found


def waiting_for_changes(service: Service, queue: str) -> int:
    """How many streams of the queue have read all that there is, and wait."""
    coordinators = service.app.state.broker.replica._coordinators.values()
    watches = next(one.notifier.watches for one in coordinators if one.name == queue)
    return sum(watch._future is not None for watch in watches.get("", ()))


def test_a_change_is_read_once_for_all_streams(
    followed: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(followed.service)
    reads = 0
    changes_after = store.changes_after

    async def counted(*place: Any) -> Sequence[ShownEntry]:
        nonlocal reads
        reads += 1
        return await changes_after(*place)

    with contextlib.ExitStack() as stack:
        wires = []
        for _ in range(MANY):
            # A connection has only some seconds for its first request.
            wires.append(wire := stack.enter_context(Wire(followed.service.url)))
            headers = {"authorization": f"Bearer {followed.keys['viewer']}"}
            assert asked(wire, EVENTS, **headers).status == 200
        eventually(lambda: waiting_for_changes(followed.service, "team-a.orders") == MANY)
        monkeypatch.setattr(store, "changes_after", counted)
        seen = set()
        for n in range(CHANGES):
            change(followed, "team-a.orders", 10.0 + n)
            seen.add(tuple(tuple(revisions(wire, 1)) for wire in wires))
        assert reads == CHANGES
        assert all(len(set(each)) == 1 for each in seen)
        assert len(seen) == CHANGES


def test_a_commit_of_another_team_does_not_wait_for_a_viewers_streams(
    followed: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the reads for the streams take: each holds its connection until the commit is
    answered.
    """
    store = store_of(followed.service)
    most = followed.service.settings.key_streams
    assert most > 10 * followed.service.settings.database_pool_size
    release: list[Callable[[], object]] = []
    changes_after = store.changes_after

    async def held(*place: Any) -> Sequence[ShownEntry]:
        loop, may_go_on = asyncio.get_running_loop(), asyncio.Event()
        async with store._connections.single():
            release.append(lambda: loop.call_soon_threadsafe(may_go_on.set))
            await may_go_on.wait()
        return await changes_after(*place)

    flow, token = followed.bind("team-b.orders", followed.root)
    path = f"/v1/queues/team-b.orders/flows/{flow}"
    with contextlib.ExitStack() as stack, followed.http as http:
        for number in range(most):
            # A connection has only some seconds for its first request.
            wire = stack.enter_context(Wire(followed.service.url))
            headers = {"authorization": f"Bearer {followed.keys['viewer']}"}
            if number % 2:
                headers["last_event_id"] = "0"
            assert asked(wire, EVENTS, **headers).status == 200
        eventually(lambda: waiting_for_changes(followed.service, "team-a.orders") == most)

        def owned() -> list[dict[str, Any]]:
            view = http.get(f"{path}/updates", headers=bearer(token)).json()
            return [one for one in view["partitions"] if one["state"] == "owned"]

        eventually(lambda: len(owned()) == 2)
        monkeypatch.setattr(store, "changes_after", held)
        try:
            change(followed, "team-a.orders", 99.0)
            eventually(lambda: release)
            item = {"partition": 0, "epoch": owned()[0]["epoch"], "position": "0"}
            answer = http.post(f"{path}/commit", json={"partitions": [item]}, headers=bearer(token))
            assert answer.status_code == 200, answer.text
            assert len(release) <= 2
        finally:
            monkeypatch.undo()
            for each in release:
                each()
        assert httpx.get(f"{followed.service.url}/readyz").status_code == 200
