"""The calls on queues, on a real service and database."""

import json
import re
import time
from typing import Any

import httpx
import pytest
from msgspec import to_builtins

from api.requests import BodyReader
from broker.core.model import MOST_PARTITIONS
from counterpoise import wire
from counterpoise.publisher import Publisher
from counterpoise.wire import MOST_INT32
from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem
from tests.api.test_streams import events
from tests.service import Service, eventually


def test_a_queue_with_its_defaults(api: httpx.Client) -> None:
    response = api.post("/queues", json={"name": "flights", "partition_count": 8})
    assert response.status_code == 201
    created = response.json()
    expected = {
        "name": "flights",
        "partition_count": 8,
        "operational_partition_count": 8,
        "access_type": "non_exclusive",
        "rebalance_delay": 5.0,
        "max_handoff_time": 3.0,
        "max_warmup_time": 600.0,
        "max_concurrent_handoffs": None,
        "log": "builtin:flights",
        "start": "earliest",
        "rebalance_status": "Ready",
        "scale_status": "Ready",
        "flow_count": 0,
        "active_flow_count": 0,
    }
    assert {name: created[name] for name in expected} == expected
    assert abs(_unix(created["created_at"]) - time.time()) < 60
    assert api.get("/queues/flights").json() == created


def test_falsy_settings_are_settings(api: httpx.Client) -> None:
    zeroes = {"rebalance_delay": 0, "max_handoff_time": 0, "max_warmup_time": 0}
    created = create_queue(api, "q", 1, **zeroes)
    assert {name: created[name] for name in zeroes} == zeroes


def test_names_at_the_edges(api: httpx.Client) -> None:
    for name in ("a", "x" * 200, "-", "_._", "0", "..."):
        create_queue(api, name, 1)
        assert api.get(f"/queues/{name}").json()["name"] == name


def test_a_name_is_taken_once(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    response = api.post("/queues", json={"name": "q", "partition_count": 2})
    problem(response, 409, "queue_exists")
    assert api.get("/queues/q").json()["partition_count"] == 1


def test_a_new_queue_needs_a_count(api: httpx.Client) -> None:
    document = problem(api.post("/queues", json={"name": "q"}), 422, "invalid")
    assert document["errors"][0]["field"] == "partition_count"


def test_queues_are_listed_by_name_in_pages(api: httpx.Client) -> None:
    names = [f"q{number:02}" for number in range(7)]
    for name in reversed(names):
        create_queue(api, name, 1)
    found: list[str] = []
    cursor: str | None = None
    pages = 0
    while cursor is not None or not pages:
        query: dict[str, str] = {"limit": "3"} | ({} if cursor is None else {"cursor": cursor})
        page = api.get("/queues", params=query).json()
        found += [each["name"] for each in page["items"]]
        cursor = page["next_cursor"]
        pages += 1
    assert (found, pages) == (names, 3)


def test_a_changed_setting(api: httpx.Client) -> None:
    before = create_queue(api, "q", 1)
    change = {"max_handoff_time": 10, "max_concurrent_handoffs": 1}
    after = api.patch("/queues/q", json=change).json()
    assert after["max_handoff_time"] == 10.0
    assert after["max_concurrent_handoffs"] == 1
    assert after["revision"] > before["revision"]
    assert (
        api.patch("/queues/q", json={"max_concurrent_handoffs": None}).json()[
            "max_concurrent_handoffs"
        ]
        is None
    )
    assert api.patch("/queues/q", json={}).json()["max_handoff_time"] == 10.0


@pytest.mark.parametrize("name", ["name", "id", "revision", "flow_count"])
def test_unchangeable_fields_are_refused(api: httpx.Client, name: str) -> None:
    create_queue(api, "q", 1)
    problem(api.patch("/queues/q", json={name: "x"}), 422, "invalid")


@pytest.mark.parametrize("name", ["name", "log", "partitioning", "positions"])
def test_what_only_a_creation_sets_is_said_to_be_so(api: httpx.Client, name: str) -> None:
    create_queue(api, "q", 1)
    answer = problem(api.patch("/queues/q", json={name: "x"}), 422, "invalid")
    assert answer["detail"] == f"{name}: set when the queue is created, and cannot be changed"


def test_growing_and_shrinking(api: httpx.Client) -> None:
    create_queue(api, "q", 2, ordered_resize=False)
    consumer = bind(api, "q")
    consumer.until("owned", 0, 1)
    assert api.patch("/queues/q", json={"partition_count": 4}).json()["partition_count"] == 4
    consumer.until("owned", 0, 1, 2, 3)
    shrunk = api.patch("/queues/q", json={"partition_count": 1}).json()
    assert (shrunk["partition_count"], shrunk["operational_partition_count"]) == (1, 4)
    assert shrunk["scale_status"] == "ScalingDown"
    consumer.until("retiring", 1, 2, 3)
    assert consumer.outcomes("release", consumer.item(3, finished=True)) == ["ok"]
    discarded = api.patch("/queues/q?discard=true", json={"partition_count": 1}).json()
    assert discarded["operational_partition_count"] == 1
    assert discarded["scale_status"] == "Ready"
    consumer.until("retiring")
    assert consumer.numbers("owned") == [0]


def test_deleting(api: httpx.Client) -> None:
    first = create_queue(api, "q", 1)
    bind(api, "q")
    problem(api.delete("/queues/q"), 409, "queue_in_use")
    assert api.delete("/queues/q?force=true").status_code == 204
    problem(api.get("/queues/q"), 404, "queue_not_found")
    problem(api.delete("/queues/q"), 404, "queue_not_found")
    assert create_queue(api, "q", 1)["id"] != first["id"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("GET", "/rebalance", None),
        ("POST", "/rebalance", None),
        ("GET", "/rebalances", None),
        ("GET", "/partitions", None),
        ("GET", "/flows", None),
        ("GET", "/events", None),
        ("POST", "/positions", {"to": "earliest"}),
        ("POST", "/log-access", {"purpose": "read"}),
        ("POST", "/flows", {"client_name": "c"}),
        ("DELETE", "/flows/f-1", None),
        ("POST", "/flows/f-1/drain", None),
    ],
)
def test_every_call_on_an_unknown_queue_is_refused(
    refusing: httpx.Client, method: str, path: str, body: dict[str, Any] | None
) -> None:
    content: Any = {} if body is None else {"json": body}
    response = refusing.request(method, f"/queues/none{path}", **content)
    problem(response, 404, "queue_not_found")


def test_the_status_of_a_holddown_and_rebalancing_at_once(api: httpx.Client) -> None:
    create_queue(api, "q", 2, rebalance_delay=600)
    assert api.get("/queues/q/rebalance").json()["status"] == "Ready"
    bind(api, "q")
    status = api.get("/queues/q/rebalance").json()
    assert (status["status"], status["trigger"]) == ("Holddown", "bind")
    assert 500 < _unix(status["holddown_until"]) - _unix(status["since"]) <= 601
    assert status["unassigned"] == [0, 1]
    response = api.post("/queues/q/rebalance")
    assert response.status_code == 202
    eventually(lambda: api.get("/queues/q/rebalance").json()["status"] == "Ready")
    status = api.get("/queues/q/rebalance").json()
    assert (status["trigger"], status["unassigned"], status["spread"]) == (None, [], 0)
    assert status["last_rebalance"]["granted"] == 2


def test_partitions_flows_and_history(api: httpx.Client) -> None:
    create_queue(api, "q", 3, max_handoff_time=600)
    first = bind(api, "q", "first")
    first.until("owned", 0, 1, 2)
    second = bind(api, "q", "second")
    first.until("revoking", 2)
    partitions = api.get("/queues/q/partitions").json()["items"]
    assert [each["partition"] for each in partitions] == [0, 1, 2]
    assert partitions[2]["state"] == "revoking"
    assert partitions[2]["owner"] == first.flow_id
    assert partitions[2]["successor"] == second.flow_id
    assert partitions[2]["deadline"] is not None
    handoff = api.get("/queues/q/rebalance").json()["handoffs"]
    assert [(each["from"], each["to"], each["phase"]) for each in handoff] == [
        (first.flow_id, second.flow_id, "revoking")
    ]
    assert first.outcomes("release", first.item(2, position="7")) == ["ok"]
    second.until("owned", 2)
    flows = api.get("/queues/q/flows").json()["items"]
    assert [(each["client_name"], each["partitions"]) for each in flows] == [
        ("first", 2),
        ("second", 1),
    ]
    assert "token" not in json.dumps(flows)
    history = api.get("/queues/q/rebalances", params={"limit": 1}).json()
    assert history["items"][0]["moves"] == []
    assert history["items"][0]["more_moves"] == 1
    history = api.get("/queues/q/rebalances", params={"limit": 1, "moves": "true"}).json()
    moves = history["items"][0]["moves"]
    assert [(each["partition"], each["outcome"]) for each in moves] == [(2, "graceful")]
    assert (moves[0]["from"], moves[0]["to"]) == (first.flow_id, second.flow_id)
    assert history["next_cursor"] is not None
    older = api.get("/queues/q/rebalances", params={"cursor": history["next_cursor"]}).json()
    assert older["items"][0]["id"] < history["items"][0]["id"]


def test_pages_of_partitions(api: httpx.Client) -> None:
    create_queue(api, "q", 5)
    first = api.get("/queues/q/partitions?limit=2").json()
    assert [each["partition"] for each in first["items"]] == [0, 1]
    rest = api.get("/queues/q/partitions", params={"cursor": first["next_cursor"]}).json()
    assert [each["partition"] for each in rest["items"]] == [2, 3, 4]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("collection", ["", "/q/partitions", "/q/flows", "/q/rebalances"])
@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=", "cursor=%00"])
def test_bad_pages(refusing: httpx.Client, collection: str, query: str) -> None:
    problem(refusing.get(f"/queues{collection}?{query}"), 422, "invalid")


def test_an_invented_cursor_is_not_a_defect(refusing: httpx.Client) -> None:
    for collection in ("", "/q/partitions", "/q/flows", "/q/rebalances"):
        response = refusing.get(f"/queues{collection}", params={"cursor": "nonsense"})
        assert response.status_code in (200, 422)


def test_positions_are_set_and_raise_epochs(api: httpx.Client) -> None:
    create_queue(api, "q", 3)
    consumer = bind(api, "q")
    consumer.until("owned", 0, 1, 2)
    before = {each["partition"]: each["epoch"] for each in consumer.view["partitions"]}
    answer = api.post("/queues/q/positions", json={"positions": {"0": "0", "2": None}}).json()
    assert [(each["partition"], each["position"]) for each in answer["partitions"]] == [
        (0, "0"),
        (2, None),
    ]
    for each in answer["partitions"]:
        assert each["epoch"] > before[each["partition"]]
    stale = {"partition": 0, "epoch": before[0], "position": "9"}
    assert consumer.outcomes("commit", stale) == ["stale_epoch"]
    assert api.get("/queues/q/partitions").json()["items"][0]["position"] == "0"
    for to in ("earliest", "latest", "2013-01-01T00:00:00Z", "2013-01-01T00:00:00+02:00"):
        everywhere = api.post("/queues/q/positions", json={"to": to}).json()
        assert [each["partition"] for each in everywhere["partitions"]] == [0, 1, 2]


def test_a_dry_run_says_what_would_be_read_again_or_skipped(service: Service) -> None:
    with service.http as api, Publisher("q", url=service.url) as publisher:
        create_queue(api, "q", 2)
        for number in range(6):
            publisher.publish(b"v", key=f"k{number}")
        publisher.flush()
        consumer = bind(api, "q")
        consumer.until("owned", 0, 1)
        before = {one["partition"]: one for one in api.get("/queues/q/partitions").json()["items"]}
        end = int(before[0]["end"])
        assert end > 1
        consumer.outcomes("commit", {"partition": 0, "epoch": 1, "position": str(end - 1)})

        def preview(body: dict[str, Any]) -> list[tuple[Any, ...]]:
            answer = api.post("/queues/q/positions?dry_run=true", json=body)
            return [
                (one["partition"], one["previous"], one["read_again"], one["skipped"])
                for one in answer.json()["partitions"]
            ]

        # One message of partition 0 is left, and it has an age; none where nothing is.
        unread = api.get("/queues/q/partitions").json()["items"]
        assert [one["lag_seconds"] is None for one in unread] == [False, not unread[1]["lag"]]
        other = before[1]["lag"]
        assert preview({"to": "latest"}) == [(0, str(end - 1), 0, 1), (1, None, 0, other)]
        assert preview({"to": "earliest"}) == [(0, str(end - 1), end - 1, 0), (1, None, 0, 0)]
        assert preview({"positions": {"0": None}}) == [(0, str(end - 1), end - 1, 0)]
        problem(
            api.post("/queues/q/positions?dry_run=true", json={"positions": {"0": "77"}}),
            422,
            "invalid",
        )
        # What is done above the position is forgotten by every call that sets it.
        item = {"partition": 0, "epoch": 1, "position": "0", "done_above": f"1+{end - 1}"}
        assert consumer.outcomes("commit", item) == ["ok"]
        for at, again, skipped in ((0, end - 1, 0), (1, end - 1, 1), (end, 0, end)):
            of_one = preview({"positions": {"0": str(at)}})
            assert of_one == [(0, "0", again, skipped)]
        # Nothing has changed: the owner goes on under its epoch.
        item = {"partition": 0, "epoch": 1, "position": str(end)}
        assert consumer.outcomes("commit", item) == ["ok"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": "earliest", "positions": {"0": "1"}},
        {"to": "tomorrow"},
        {"to": "2013-01-01T00:00:00"},
        {"to": None},
        {"positions": {}},
        {"positions": {"x": "1"}},
        {"positions": {"-1": "1"}},
        {"positions": {"01": "1"}},
        {"positions": {"0": 1}},
        {"positions": {"7": "1"}},
        {"positions": {"2147483648": "1"}},
        {"positions": {"0": "nonsense"}},
        {"positions": {"0": "1"}},
    ],
)
def test_bad_positions(refusing: httpx.Client, body: dict[str, Any]) -> None:
    problem(refusing.post("/queues/q/positions", json=body), 422, "invalid")


@pytest.mark.parametrize(
    "to", ["tomorrow", "2013-02-30T00:00:00Z", "2013-01-01", None, 7, ["latest"]]
)
def test_an_error_names_the_field_as_the_caller_does(refusing: httpx.Client, to: object) -> None:
    told = problem(refusing.post("/queues/q/positions", json={"to": to}), 422, "invalid")
    assert [error["field"] for error in told["errors"]] == ["to"]


def test_the_largest_number_of_a_partition_can_be_named() -> None:
    """A dynamic queue may have it, if its log numbers the partitions."""
    given = {"positions": {str(MOST_INT32): "1"}}
    assert to_builtins(BodyReader(wire.PositionsRequest).read(given)) == given


@pytest.mark.long
def test_as_many_positions_as_a_queue_may_have_partitions_come_with_a_new_queue(
    api: httpx.Client, service: Service
) -> None:
    service.wait_for_the_database()
    count = MOST_PARTITIONS
    positions = {str(number): f"{10**18 + number}" for number in range(count)}
    create_queue(api, "q", count, log="other://q", positions=positions)
    last = api.get("/queues/q/partitions", params={"cursor": str(count - 3)}).json()["items"]
    assert {str(one["partition"]): one["position"] for one in last} == {
        str(number): positions[str(number)] for number in range(count - 2, count)
    }
    more = {"name": "r", "partition_count": count, "log": "other://r"}
    refused = api.post("/queues", json={**more, "positions": {**positions, f"{count}": "1"}})
    assert "positions" in str(problem(refused, 422, "invalid")["errors"])
    wrong = {"x": "1", **dict(list(positions.items())[1:])}
    told = problem(api.post("/queues", json={**more, "positions": wrong}), 422, "invalid")
    assert [error["field"] for error in told["errors"]] == ["positions.x.[key]"]


@pytest.mark.parametrize("purpose", ["read", "publish"])
def test_access_to_the_log(api: httpx.Client, purpose: str) -> None:
    create_queue(api, "q", 3)
    access = api.post("/queues/q/log-access", json={"purpose": purpose}).json()
    assert (access["log"], access["log_name"], access["partition_count"]) == ("builtin:q", "q", 3)
    assert access["access"]["url"].startswith("postgresql://")
    assert _unix(access["access"]["expires_at"]) > time.time() + 600


def test_a_queue_that_reads_the_log_of_another(api: httpx.Client) -> None:
    create_queue(api, "q", 3)
    response = api.post("/queues", json={"name": "audit", "log": "builtin:q"})
    assert response.json()["partition_count"] == 3
    for wrong in ({"log": "builtin:none"}, {"log": "builtin:q", "partition_count": 4}):
        problem(api.post("/queues", json={"name": "r", **wrong}), 422, "invalid")


def test_every_change_is_an_event(service: Service) -> None:
    with service.http as http:
        created = create_queue(http, "q", 1)
        with http.stream("GET", "/queues/q/events") as response:
            found = events(response)
            with service.http as other:
                bind(other, "q").until("owned", 0)
                last = other.get("/queues/q").json()["revision"]
            told = [next(found)]
            while int(told[-1]["id"]) < last:
                told.append(next(found))
        revisions = [int(each["id"]) for each in told]
        assert revisions == list(range(created["revision"] + 1, last + 1))
        assert all(json.loads(each["data"])["changes"] for each in told)
        resume = {"Last-Event-ID": str(last - 1)}
        with http.stream("GET", "/queues/q/events", headers=resume) as response:
            assert int(next(events(response))["id"]) == last


def test_the_service_itself(service: Service) -> None:
    with httpx.Client(base_url=service.url) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        ready = http.get("/readyz").json()
        assert ready["status"] == "ready"
        assert re.fullmatch("[0-9a-f]{16}", ready["database"])
        with service.http as calls:
            create_queue(calls, "q", 3)
        metrics = http.get("/metrics").text
        assert 'counterpoise_queue_partitions{queue="q"} 3.0' in metrics
        assert 'path="/v1/queues",status="201"' in metrics
        with service.http as calls:
            bind(calls, "q").until("owned", 0, 1, 2)
        bound = 'counterpoise_rebalances_total{queue="q",trigger="bind"} 1.0'
        eventually(lambda: bound in http.get("/metrics").text)
        metrics = http.get("/metrics").text
        assert 'counterpoise_grants_total{handed_over="initial",queue="q"} 3.0' in metrics
        assert 'counterpoise_flows_bound_total{queue="q"} 1.0' in metrics
        for path in ("/", "/docs"):
            page = http.get(path)
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "https://" not in page.text, "the page is to be self-contained"


def _unix(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
