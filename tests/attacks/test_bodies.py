"""Bodies that cost much: in time of the event loop, and in memory while they wait."""

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator

import httpx
import pytest

from api.bodies import SMALL_BYTES
from api.openapi import all_routes
from api.routing import Route
from broker.service import Broker
from broker.settings import Settings
from tests.attacks.bystander import Bystander
from tests.attacks.holding import MOST_YARDSTICKS, as_in_a_process_of_its_own, hold_each_time
from tests.attacks.wire import Wire
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

MOST_BYTES = Settings().request_limit_bytes
ATTACKER = "127.0.0.66"


@pytest.fixture(scope="module")
def unlimited(databases: Databases) -> Iterator[Service]:
    """A service without rates, so that many costly requests may follow each other."""
    with databases.lend() as url:
        settings = settings_for(url, address_requests_per_second=0, flow_requests_per_second=0)
        with running(Broker(settings), settings) as service, as_in_a_process_of_its_own():
            yield service


@pytest.fixture(scope="module")
def flow(unlimited: Service) -> tuple[str, dict[str, str]]:
    """A flow's path, and its headers: it may make every call that names partitions."""
    return bound_to(unlimited, {"name": "q", "partition_count": 4, "rebalance_delay": 0})


def bound_to(service: Service, queue: dict[str, object]) -> tuple[str, dict[str, str]]:
    """The path and the headers of a flow of this new queue."""
    with service.http as http:
        http.post("/queues", json=queue).raise_for_status()
        path = f"/queues/{queue['name']}/flows"
        answer = http.post(path, json={"client_name": "c", "lease_seconds": 600}).json()
        headers = {"Authorization": f"Bearer {answer['flow_token']}"}
        return f"/v1{path}/{answer['flow_id']}", headers


def bodies(size: int) -> Iterator[tuple[str, bytes]]:
    """Hostile bodies of at most `size` bytes, each with a name."""

    def repeated(start: bytes, unit: bytes, end: bytes) -> bytes:
        return start + unit * ((size - len(start) - len(end)) // len(unit)) + end

    for field, opening, closing in ((b"partitions", b"[", b"]"), (b"positions", b"{", b"}")):
        start, end = b'{"' + field + b'":' + opening, closing + b"}"
        name = field.decode()
        yield f"{name}: numbers", repeated(start, b"0,", b"0" + end)
        yield f"{name}: floats", repeated(start, b"1.5e300,", b"0" + end)
        yield f"{name}: lists", repeated(start, b"[],", b"[]" + end)
        yield f"{name}: objects", repeated(start, b"{},", b"{}" + end)
        yield f"{name}: wrong items", repeated(start, b'{"a":0,"b":[1]},', b"{}" + end)
        yield f"{name}: wrong pairs", repeated(start, b'"x":0,', b'"0":1' + end)
        yield f"{name}: right pairs", repeated(start, b'"7":"1",', b'"0":1' + end)
        item = b'{"partition":1,"epoch":1,"position":"1"}'
        yield f"{name}: right items", repeated(start, item + b",", item + end)
        quoted = b'{"partition":1,"epoch":1,"position":"}\\",{]["},'
        yield f"{name}: misleading items", repeated(start, quoted, item + end)
        one = b'{"partition":1,"epoch":1,"position":"'
        yield f"{name}: one large item", repeated(start + one, b"1", b'"}' + end)
        yield f"{name}: one escaped item", repeated(start + one, b"\\u0031", b'"}' + end)
        yield f"{name}: an item without end", repeated(start + one, b'\\"', b"")
        many = b"".join(b'"k%x":0,' % number for number in range(size // 16))
        yield f"{name}: one item of many fields", (start + b"{" + many + b'"z":0}' + end)[:size]
    condition = b'{"kind":"quarantined","text":"x"}'
    start, end = b'{"seq":1,"conditions":[', condition + b"]}"
    yield "conditions", repeated(start, condition + b",", end)
    child = b'{"key":"k","parents":["a","b"],"position":"1"}'
    many_of = b'{"partitions":[{"partition":1,"epoch":1,"children":['
    yield "children of one item", repeated(many_of, child + b",", child + b"]}]}")
    thousand = many_of.partition(b"[")[2] + b",".join([child] * 1000) + b"]}"
    if size > 2 * len(thousand):
        start, end = b'{"partitions":[', thousand + b"]}"
        yield "items of many children", repeated(start, thousand + b",", end)
    parents = b'{"key":"k","parents":['
    yield (
        "a child of many parents",
        repeated(many_of + parents, b'"p",', b'"p"]}]}]}'),
    )
    unknown = b",".join(b'"partition_coun%x":0' % number for number in range(size // 24))
    yield "many unknown fields", b"{" + unknown + b"}"
    yield "one field again and again", repeated(b"{", b'"name":"a",', b'"name":"a"}')
    yield "deep lists", b"[" * size
    yield "deep objects", repeated(b"", b'{"a":', b"")
    yield "blanks", b" " * (size - 2) + b"{}"
    yield "a long name", repeated(b'{"', b"n", b'":0}')
    yield "a long text", repeated(b'{"client_name":"', b"n", b'"}')
    yield "a long number", repeated(b'{"partition_count":', b"1", b"}")
    yield "no JSON", b"\xff" * size
    noise = random.Random(7)
    for number in range(4):
        text = "".join(noise.choices('{}[]",:\\0 ax', k=min(size, 2**18)))
        yield f"noise {number}", ('{"partitions":[' + text).encode()


def with_bodies() -> Iterator[tuple[str, str]]:
    """Method and path of every call that has a body."""
    for route in all_routes():
        assert isinstance(route, Route)
        route.complete()
        if route.taken is not None:
            yield next(iter(route.methods or ())), route.path


@pytest.mark.matrix("size")
@pytest.mark.parametrize("size", [SMALL_BYTES, MOST_BYTES])
def test_no_body_holds_the_loop(
    unlimited: Service, flow: tuple[str, dict[str, str]], size: int
) -> None:
    path_of_flow, token = flow
    held: list[str] = []
    calls = list(with_bodies())
    assert len(calls) > 8
    with httpx.Client(base_url=unlimited.url, timeout=60) as http:
        for method, template in calls:
            path = template.replace("/v1/queues/{queue}/flows/{flow}", path_of_flow)
            path = path.replace("{queue}", "q").replace("{partition}", "0")
            assert "{" not in path
            headers = token if path.startswith(path_of_flow) else {}
            # A list, a mapping, a list of lists, and both a list and a mapping stand for all bodies
            # that may be large.
            large = ("/commit", "/positions", "/children", "/queues")
            if size > SMALL_BYTES and not path.endswith(large):
                continue
            for name, body in bodies(size):

                def send(
                    method: str = method,
                    path: str = path,
                    headers: dict[str, str] = headers,
                    body: bytes = body,
                ) -> None:
                    content = {"Content-Type": "application/json", **headers}
                    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
                        answer = http.request(method, path, content=body, headers=content)
                        assert answer.status_code < 500
                        assert len(answer.content) < 65536 or answer.status_code == 200

                yardsticks = hold_each_time(unlimited, send)
                if yardsticks > MOST_YARDSTICKS:
                    held.append(f"{yardsticks:.1f}: {method} {path} {size} bytes, {name}")
    assert not held


def test_no_report_of_children_holds_the_loop(unlimited: Service) -> None:
    """As many names as a call may have: new ones, then known ones, then an unknown one."""
    keys = [f"{number}".rjust(180, "k") for number in range(9)]
    roots = [{"key": key} for key in keys]
    queue = {"name": "d", "partitioning": "dynamic", "partitions": roots, "log": "other://d"}
    path, headers = bound_to(unlimited, {**queue, "rebalance_delay": 0})
    sent = itertools.count()
    with httpx.Client(base_url=unlimited.url, timeout=60, headers=headers) as http:

        def report(name: str, last: str, expected: str) -> None:
            children = [{"key": f"{name}-{n}", "parents": [*keys[:8], last]} for n in range(204)]
            item = {"partition": 0, "epoch": 1, "children": children}
            answer = http.post(f"{path}/children", json={"partitions": [item]})
            assert answer.raise_for_status().json()["results"][0]["outcome"] == expected

        for send in (
            lambda: report(f"new {next(sent)}", keys[8], "ok"),
            lambda: report("new 0", keys[8], "ok"),
            lambda: report("other", "unknown", "unknown_parent"),
        ):
            assert hold_each_time(unlimited, send) < MOST_YARDSTICKS


def test_no_head_holds_the_loop(unlimited: Service) -> None:
    held = []
    with httpx.Client(base_url=unlimited.url, timeout=60) as http:
        for path in (
            "/v1/queues?" + "a=&" * 20000,
            "/v1/queues?" + "limit=1&" * 7500,
            "/v1/queues?" + "a" * 60000,
            "/v1/queues?cursor=" + "%ff" * 20000,
            "/v1/queues/" + "%61" * 20000,
            "/v1/queues/" + "a/" * 30000,
            "/v1" + "/" * 59000,
        ):

            def send(path: str = path) -> None:
                answer = http.get(path)
                assert answer.status_code < 500
                assert len(answer.content) < 2000

            yardsticks = hold_each_time(unlimited, send)
            if yardsticks > MOST_YARDSTICKS:
                held.append(f"{yardsticks:.1f}: {path[:40]}")
    assert not held


def test_no_cookie_holds_the_loop(unlimited: Service) -> None:
    """Python's own parser takes time that rises with the square of the number of quotes."""
    with httpx.Client(base_url=unlimited.url, timeout=60) as http:
        for cookie in ("x=y;" * 15_000, 'x="' + '\\"' * 30_000 + '"'):

            def send(cookie: str = cookie) -> None:
                answer = http.delete("/v1/session", headers={"cookie": cookie})
                assert answer.status_code == 204

            assert hold_each_time(unlimited, send) < MOST_YARDSTICKS


def test_unknown_fields_are_named_but_not_all(target: Service, bystander: Bystander) -> None:
    body = {"name": "q", "partition_cound": 1, **{f"partition_coun{n}": 0 for n in range(1000)}}
    with target.http as http:
        answer = http.post("/queues", json=body)
    assert answer.status_code == 422
    found = answer.json()["errors"]
    unknown = [item for item in found if "did you mean 'partition_count'" in item["message"]]
    assert len(unknown) == 5
    assert unknown[0]["field"] == "partition_cound"


def test_wrong_items_of_a_large_body_are_named(
    unlimited: Service, flow: tuple[str, dict[str, str]]
) -> None:
    """As those of a small one are, with their place in the whole."""
    path, headers = flow
    items: list[object] = [{"partition": 0, "epoch": 1, "position": "1"}] * 2000
    for wrong, message in (
        ({"partition": 0, "epoch": 1, "positions": "1"}, "did you mean 'position'"),
        ({"partition": "0", "epoch": 1, "position": "1"}, "integer"),
    ):
        body = {"seq": 1, "partitions": [*items, wrong, *items]}
        answer = httpx.post(f"{unlimited.url}{path}/commit", json=body, headers=headers)
        assert answer.status_code == 422
        found = answer.json()["errors"]
        assert any(item["field"].startswith("partitions.2000.") for item in found)
        assert any(message in item["message"] for item in found)
    positions = {"positions": {**{str(n): "1" for n in range(2000)}, "7000": "", "x": "1"}}
    answer = httpx.post(f"{unlimited.url}/v1/queues/q/positions", json=positions)
    assert {item["field"] for item in answer.json()["errors"]} == {
        "positions.7000",
        "positions.x.[key]",
    }


def test_a_large_body_is_read_as_a_small_one(unlimited: Service) -> None:
    """Quotes, blanks and the order of fields mislead nobody."""
    # In a log of a kind that the service does not know, a position may be any text.
    path, headers = bound_to(unlimited, {"name": "t", "partition_count": 4, "log": "other://t"})
    items = [
        {"position": 'a}],{\\"[' + "x" * (number % 50), "epoch": 10**9, "partition": number}
        for number in range(3000)
    ]
    for text in (
        json.dumps({"partitions": items, "seq": 5}),
        json.dumps({"seq": 5, "partitions": items}, indent=4),
    ):
        assert len(text) > SMALL_BYTES
        content = {"Content-Type": "application/json", **headers}
        answer = httpx.post(f"{unlimited.url}{path}/commit", content=text, headers=content)
        assert answer.status_code == 200
        results = answer.json()["results"]
        assert [item["partition"] for item in results] == list(range(3000))
        assert results[0]["outcome"] == "not_owner"
        for spoiled in (text + "}", text[:-1], text.replace('"epoch"', "epoch", 1), "x" + text):
            answer = httpx.post(f"{unlimited.url}{path}/commit", content=spoiled, headers=content)
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["field"] == "body"


@pytest.mark.parametrize("items", [1, 3000])
@pytest.mark.parametrize(
    ("twice", "name"),
    [
        ('{"seq":1,"seq":2,"partitions":[ITEMS]}', "seq"),
        ('{"partitions":[ITEMS],"seq":1,"partitions":[ITEMS]}', "partitions"),
        ('{"partitions":[ITEMS,{"partition":1,"epoch":1,"epoch":2,"position":"1"}]}', "epoch"),
        (
            (
                '{"partitions":[ITEMS,{"partition":1,"epoch":1,"position":"\\u003A",'
                '"p\\u006fsition":"1"}]}'
            ),
            "position",
        ),
        ('{"positions":{PAIRS,"0":"7"}}', "0"),
        ('{"positions":{PAIRS,"9":"::","9":"7"}}', "9"),
    ],
)
def test_a_field_that_is_there_twice_is_refused(
    unlimited: Service, flow: tuple[str, dict[str, str]], twice: str, name: str, items: int
) -> None:
    """In bodies of any size: nobody knows which of the two is meant."""
    path, headers = flow
    body = twice.replace(
        "ITEMS", ",".join(['{"partition":0,"epoch":1,"position":"1:"}'] * items)
    ).replace("PAIRS", ",".join(f'"{10 * number}":"1"' for number in range(items)))
    call = "/v1/queues/q/positions" if "positions" in twice else f"{path}/commit"
    sent = {"Content-Type": "application/json", **({} if "positions" in twice else headers)}
    answer = httpx.post(f"{unlimited.url}{call}", content=body, headers=sent)
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"body: an object has the field '{name}' twice"


def test_only_calls_on_partitions_have_large_bodies(target: Service) -> None:
    with target.http as http:
        body = {"name": "q" * SMALL_BYTES, "partition_count": 1}
        # Also not where the name of a queue is that of a large call, or by another method.
        for method, path in (("PATCH", "/queues/commit"), ("GET", "/queues")):
            answer = http.request(method, path, json=body)
            assert answer.status_code == 413
            assert str(SMALL_BYTES) in answer.json()["detail"]


def test_bodies_that_wait_have_a_budget(
    migrated_url: str, name_of_a_queue: Callable[[], str]
) -> None:
    """One address cannot fill it, and what it took is given back when it hangs up."""
    settings = settings_for(migrated_url, request_limit_bytes=2**20, body_budget_bytes=2**22)
    with running(Broker(settings), settings) as service, contextlib.ExitStack() as stack:
        somebody = Bystander(service.url, name_of_a_queue())
        budget = service.app.state.budget
        wires = []
        for number in range(8):
            wire = stack.enter_context(Wire(service.url, ATTACKER))
            length = {"content_length": str(2**19)}
            if number % 2:
                length = {"transfer_encoding": "chunked"}
            path = "/v1/queues/q/positions"
            wire.request("POST", path, b"", content_type="application/json", **length)
            wires.append(wire)
        # The first and the third; one that does not say its length counts as the largest.
        eventually(lambda: budget.taken == 2**20)
        answers = [wire.answer() for number, wire in enumerate(wires) if number not in (0, 2)]
        assert all(answer is not None and answer.status == 429 for answer in answers)
        body = {"positions": {str(n): "1" for n in range(4000)}}
        answer = httpx.post(f"{service.url}/v1/queues/missing/positions", json=body)
        assert answer.status_code == 404
        for wire in wires:
            wire.socket.close()
        eventually(lambda: budget.taken == 0)
        somebody.leave()
        assert not somebody.faults
