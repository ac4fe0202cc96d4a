"""A flood harms only its sender: rates, refusals, and slow readers."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.bodies import BodyBudget, Limits, arrive
from api.head import Head
from api.metrics import Metrics
from api.rates import MOST_AT_WORK, Bucket, Rates
from api.streams import OpenCalls
from broker.core.model import MOST_PARTITIONS
from broker.replica.events import EventCounters
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow import Flow
from tests.api.conformance import conforms
from tests.api.test_problems import problem
from tests.service import Service, eventually, running, settings_for


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> Rates:
    """10 a second for a flow, 100 for an address, with bursts of ten times as many."""
    return Rates(10, 100, CollectorRegistry(), 2**20, clock)


def request(
    path: str = "/v1/queues", token: str = "", host: str = "192.0.2.1", length: int = 0
) -> Scope:
    headers = [(b"content-length", str(length).encode())] if length else []
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    return {**scope, "client": (host, 5000)}


def head(
    path: str = "/v1/queues", token: str = "", host: str = "192.0.2.1", length: int = 0
) -> Head:
    return Head(request(path, token, host, length))


def came(rates: Rates, path: str = "/v1/queues", token: str = "", length: int = 0) -> Head:
    """A request that keeps its caller's rate."""
    one = head(path, token, length=length)
    assert not rates.wait_seconds(one)
    return one


def asked(rates: Rates, one: Head, times: int) -> int:
    """The number of these requests that were not refused."""
    return sum(not rates.wait_seconds(one) for _ in range(times))


def limits(app: ASGIApp, rates: Rates, body_seconds: float = 60.0) -> Limits:
    metrics = Metrics(OpenCalls(), EventCounters())
    return Limits(app, 2**20, BodyBudget(2**22, 2**20), rates, metrics, body_seconds)


def test_a_burst_and_then_the_rate() -> None:
    bucket = Bucket(10, burst_seconds=2)
    assert [bucket.take("a", 1, 100.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take("a", 1, 100.0) == pytest.approx(0.1)
    assert bucket.take("a", 5, 100.0) == pytest.approx(0.5)
    assert bucket.take("b", 1, 100.0) == 0.0
    assert bucket.take("a", 1, 100.11) == 0.0
    assert bucket.take("a", 1, 100.11) > 0.0
    assert bucket.take("a", 20, 103.0) == 0.0


def test_more_than_a_burst_takes_a_whole_one() -> None:
    bucket = Bucket(10, burst_seconds=2)
    assert bucket.take("a", 1000, 100.0) == 0.0
    assert bucket.take("a", 1, 150.0) > 0.0
    assert bucket.take("a", 1, 200.0) == 0.0


def test_no_limit() -> None:
    bucket = Bucket(0)
    assert not any(bucket.take("a", 100, 1.0) for _ in range(10_000))


def test_callers_are_forgotten_the_longest_silent_first() -> None:
    bucket = Bucket(10, most=2)
    for caller in ("a", "b", "a", "c"):
        bucket.take(caller, 1, 100.0)
    assert ("a" in bucket, "b" in bucket, "c" in bucket) == (True, False, True)


def test_flows_at_one_address_do_not_share_a_rate(rates: Rates) -> None:
    for token in ("one", "other"):
        rates.admit(token)
    assert asked(rates, head(token="one"), 1000) == 100
    assert asked(rates, head(token="other"), 50) == 50


def test_a_flood_without_a_token_touches_no_flow_at_its_address(rates: Rates) -> None:
    rates.admit("known")
    assert asked(rates, head(), 5000) == 1000
    assert asked(rates, head(token="known"), 50) == 50
    assert asked(rates, head(token="bound elsewhere"), 50) == 50
    assert asked(rates, head("/readyz"), 50) == 50
    assert asked(rates, head(host="192.0.2.2"), 50) == 50


def test_made_up_tokens_share_the_rate_of_their_address(rates: Rates) -> None:
    assert sum(not rates.wait_seconds(head(token=str(n))) for n in range(5000)) == 1000


def test_an_ipv6_site_is_one_caller(rates: Rates) -> None:
    hosts = (f"2001:db8:0:1:{n:x}:2:3:4" for n in range(5000))
    assert sum(not rates.wait_seconds(head(host=host)) for host in hosts) == 1000
    assert rates.wait_seconds(head(host="2001:db8:0:2:1:2:3:4")) == 0.0


def test_big_bodies_count_more(rates: Rates) -> None:
    rates.admit("known")
    assert asked(rates, head(token="known", length=10 * 65536), 100) == 9


def test_with_too_much_at_work_renewals_go_first(rates: Rates) -> None:
    rates.admit("known")
    rates.at_work |= {*range(MOST_AT_WORK)}
    flow = "/v1/queues/q/flows/f"
    assert not rates.too_much(came(rates, f"{flow}/heartbeat", "known"))
    assert not rates.too_much(came(rates, f"{flow}/updates", "known"))
    assert not rates.too_much(came(rates, "/readyz"))
    # A queue may be named `updates`.
    assert rates.too_much(came(rates, "/v1/queues/updates", "known"))
    assert rates.too_much(came(rates, f"{flow}/commit", "known"))
    assert rates.too_much(came(rates, f"{flow}/heartbeat", "unknown"))
    assert rates.too_much(came(rates))


async def test_a_caller_has_one_big_body_on_its_way(rates: Rates) -> None:
    rates.admit("known")
    held: list[Callable[[], object]] = []
    assert await rates.begin(came(rates, token="known", length=65536), held)
    assert not await rates.begin(came(rates, token="known", length=65536), [])
    assert await rates.begin(came(rates, token="known", length=65535), [])
    while held:
        held.pop()()
    assert await rates.begin(came(rates, token="known", length=65536), held)
    # All others of the address are one caller; theirs waits for the one on its way.
    other = asyncio.ensure_future(rates.begin(came(rates, length=65536), []))
    await asyncio.sleep(0)
    assert not await rates.begin(came(rates, token="made up", length=65536), [])
    other.cancel()


async def test_big_bodies_are_worked_on_one_at_a_time_and_small_ones_meanwhile(
    rates: Rates,
) -> None:
    """Each waits for its turn until its answer begins, in the order of arrival."""
    turns: list[str] = []
    may_answer = {token: asyncio.Event() for token in ("a", "b", "c", "d")}
    answered: list[str] = []

    async def work(scope: Scope, _: Receive, send: Send) -> None:
        await arrive(scope)
        token = scope["headers"][-1][1].decode().removeprefix("Bearer ")
        turns.append(token)
        await may_answer[token].wait()
        if token == "b":
            raise RuntimeError("a defect")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = limits(work, rates)

    async def ask(token: str, length: int) -> None:
        async def body() -> Message:
            return {"type": "http.request", "body": b" " * length}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.append(f"{token} {message['status']}")

        rates.admit(token)
        scope = request("/v1/queues/q/positions", token, length=length)
        scope["headers"].insert(0, (b"content-type", b"application/json"))
        await app(scope, body, send)

    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        asked = []
        for token in ("a", "b", "c"):
            asked.append(tasks.create_task(ask(token, 65536)))
            await asyncio.sleep(0)
        small = tasks.create_task(ask("d", 65535))
        may_answer["d"].set()
        await small
        assert (turns, answered) == (["a", "d"], ["d 200"])
        # Those that wait for their turn leave the places of others alone.
        assert len(rates.at_work) == 1
        asked[2].cancel()
        for token in ("a", "b"):
            may_answer[token].set()
        await asyncio.wait(asked)
    assert turns == ["a", "d", "b"]
    assert not rates.at_work
    may_answer["c"].set()
    await ask("c", 65536)
    assert answered == ["d 200", "a 200", "b 500", "c 200"]


# A service


@pytest.fixture
def strict(migrated_url: str) -> Iterator[Service]:
    """4 requests a second for a flow, in bursts of 40; 500 for an address."""
    settings = settings_for(
        migrated_url, flow_requests_per_second=4, address_requests_per_second=500
    )
    with running(Broker(settings), settings) as service:
        yield service


def test_a_caller_over_its_rate_gets_429(strict: Service) -> None:
    now = 100.0
    strict.app.state.rates._monotonic = lambda: now
    with strict.http as http, Client(strict.url) as client:
        http.event_hooks["response"] = [conforms]
        http.post("/queues", json={"name": "q", "partition_count": 2}).raise_for_status()
        flows = [http.post("/queues/q/flows", json={"client_name": "c"}).json() for _ in range(2)]
        paths = [f"/queues/q/flows/{flow['flow_id']}/heartbeat" for flow in flows]
        tokens = [{"Authorization": f"Bearer {flow['flow_token']}"} for flow in flows]
        for _ in range(40):
            assert http.post(paths[0], headers=tokens[0]).status_code == 200
        answer = http.post(paths[0], headers=tokens[0])
        problem(answer, 429, "too_many_requests")
        assert answer.headers["retry-after"] == "1"
        assert http.post(paths[1], headers=tokens[1]).status_code == 200
        assert len(client.flows("q")) == 2
        now += 0.25
        assert http.post(paths[0], headers=tokens[0]).status_code == 200
        assert http.post(paths[0], headers=tokens[0]).status_code == 429
        metrics = httpx.get(f"{strict.url}/metrics").text
        assert 'counterpoise_http_refused_total{limit="flow"}' in metrics


@pytest.mark.long
def test_a_flow_that_is_told_to_wait_waits_and_goes_on(strict: Service) -> None:
    with Client(strict.url) as client:
        client.create_queue("q", 1, rebalance_delay=0)
        with Flow("q", url=strict.url, lease_seconds=60.0) as flow:
            eventually(lambda: flow.partitions)
            flow_id = flow.flow_id
            for position in range(50):
                assert flow.commit({0: str(position)}, timeout_seconds=150) == {0: "ok"}

            def commit_without_patience() -> None:
                for _ in range(100):
                    flow.commit({0: "1"}, timeout_seconds=1)

            with pytest.raises(ServiceUnavailable) as caught:
                commit_without_patience()
            assert (caught.value.code, caught.value.retry_after) == ("too_many_requests", 1.0)
            assert (flow.status, flow.flow_id) == ("bound", flow_id)


def test_slow_bodies_do_not_block_other_callers(service: Service) -> None:
    parts = urlsplit(service.url)
    head = (
        "POST /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    )
    with contextlib.ExitStack() as stack, Client(service.url) as client:
        client.create_queue("q", 1, rebalance_delay=0)
        for _ in range(MOST_AT_WORK):
            slow = stack.enter_context(socket.create_connection((parts.hostname, parts.port)))
            slow.sendall(head.encode())
        with Flow("q", url=service.url) as flow:
            eventually(lambda: flow.partitions)
            assert flow.commit({0: "1"}) == {0: "ok"}
        assert not service.app.state.rates.at_work


def test_of_a_long_list_the_first_item_that_is_wrong_is_named(service: Service) -> None:
    """An answer that named each error would be larger than the request, and take longer."""
    with service.http as http, Client(service.url) as client:
        client.create_queue("q", 1)
        bound = client.bind("q", "c")
        answer = http.post(
            f"/queues/q/flows/{bound.flow_id}/commit",
            json={"partitions": [{"partition": 0}] * 10_000},
            headers={"Authorization": f"Bearer {bound.flow_token}"},
        )
    fields = [item["field"] for item in problem(answer, 422, "invalid")["errors"]]
    assert fields == ["partitions.0.epoch", "partitions.0.position"]


def test_of_many_wrong_positions_few_are_named(service: Service) -> None:
    with service.http as http, Client(service.url) as client:
        client.create_queue("q", 1)
        bound = client.bind("q", "c")
        items = [{"partition": number, "epoch": 1, "position": "x"} for number in range(1000)]
        commit = http.post(
            f"/queues/q/flows/{bound.flow_id}/commit",
            json={"partitions": items},
            headers={"Authorization": f"Bearer {bound.flow_token}"},
        )
        unknown = {"positions": {str(number): "0" for number in range(1, 1001)}}
        positions = http.post("/queues/q/positions", json=unknown)
    for answer in (commit, positions):
        assert problem(answer, 422, "invalid")["errors"]
        assert len(answer.content) < 8192


@pytest.mark.parametrize("wrong", ["keys", "values"])
def test_more_positions_than_a_queue_may_have_are_counted_and_not_checked(
    service: Service, wrong: str
) -> None:
    many = range(MOST_PARTITIONS + 1)
    positions = {f"x{one}": "0" for one in many} if wrong == "keys" else dict.fromkeys(many, 7)
    with service.http as http, Client(service.url) as client:
        client.create_queue("q", 1)
        answer = http.post("/queues/q/positions", json={"positions": positions})
    (said,) = problem(answer, 422, "invalid")["errors"]
    assert said["field"] == "positions"
    assert f"{MOST_PARTITIONS}" in said["message"].replace(",", "")


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    said: list[Message] = []

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        said.append(message)

    async def work(scope: Scope, *_: object) -> None:
        await arrive(scope)
        raise AssertionError

    app = limits(work, Rates(0, 0, CollectorRegistry()), body_seconds=0.01)
    scope = request(length=10)
    scope["headers"].append((b"content-type", b"application/json"))
    await app(scope, never, send)
    assert said[0]["status"] == 408
    assert json.loads(said[1]["body"])["code"] == "body_timeout"
    assert app.budget.taken == 0


async def test_a_body_of_unknown_length_keeps_only_what_it_has() -> None:
    """While the call is carried out, which may take long; the rest is free for others."""
    taken = []

    async def body() -> Message:
        return {"type": "http.request", "body": b'{"a": "b"}'}

    async def drop(_: Message) -> None:
        """The answer is of no matter here."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await arrive(scope)
        taken.append(app.budget.taken)
        await send({"type": "http.response.start", "status": 204, "headers": []})

    app = limits(call, Rates(0, 0, CollectorRegistry()))
    scope = request("/v1/queues/q/positions")
    scope["headers"] += [
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
    ]
    await app(scope, body, drop)
    assert (taken, app.budget.taken) == ([10], 0)


def test_a_budget_leaves_room_for_others() -> None:
    budget = BodyBudget(total=4000, largest=500)
    greedy, a, b, c, d = (head(host=f"192.0.2.{n}") for n in range(5))
    assert budget.take(greedy, 600)
    assert budget.take(greedy, 400)
    assert not budget.take(greedy, 1)
    assert all(budget.take(one, 1000) for one in (a, b, c))
    assert not budget.take(d, 1)
    budget.give_back(greedy, 600)
    assert budget.take(d, 600)
    for one, size in ((greedy, 400), (a, 1000), (b, 1000), (c, 1000), (d, 600)):
        budget.give_back(one, size)
    assert budget.taken == 0
    assert budget.take(d, 1000)


def test_the_flows_of_one_address_do_not_fill_the_budget(rates: Rates) -> None:
    """Four of one key took all of it with bodies that did not come, and nobody could commit."""
    budget = BodyBudget(total=4000, largest=500)
    flows = []
    for token in ("one", "two", "three"):
        rates.admit(token)
        flows.append(came(rates, token=token))
    assert all(budget.take(one, 1000) for one in flows[:2])
    assert not budget.take(flows[2], 1)
    assert not budget.take(head(), 1)
    assert budget.take(head(host="192.0.2.2"), 1000)
    budget.give_back(flows[0], 1000)
    assert budget.take(flows[2], 1000)


def test_the_largest_body_always_fits_the_budget() -> None:
    assert BodyBudget(total=10, largest=1000).take(head(), 1000)


@pytest.mark.long
def test_a_slow_reader_gets_only_the_latest_view(service: Service) -> None:
    """For a reader that does not read, only its connection's buffers are filled."""
    changes = 60
    with Client(service.url) as client, contextlib.closing(socket.socket()) as reader:
        client.create_queue("q", 3000, rebalance_delay=0)
        bound = client.bind("q", "slow", lease_seconds=300)
        eventually(lambda: len(client.partitions("q")) == 3000)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        parts = urlsplit(service.url)
        reader.connect((parts.hostname, parts.port))
        request = (
            f"GET /v1/queues/q/flows/{bound.flow_id}/updates HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {bound.flow_token}\r\nAccept: text/event-stream\r\n\r\n"
        )
        reader.sendall(request.encode())
        for change in range(changes):
            client.change_queue("q", partition_count=3001 + change)
        reader.settimeout(60)
        seen: list[int] = []
        with reader.makefile("rb") as lines:
            while not seen or seen[-1] < 3000 + changes:
                line = lines.readline()
                if line.startswith(b"data: {"):
                    seen.append(len(json.loads(line[6:])["partitions"]))
        assert len(seen) < changes / 2
