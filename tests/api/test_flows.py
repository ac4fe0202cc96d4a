"""The calls of flows, on a real service and database."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from api.routing import LONGEST_WAIT_SECONDS
from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem
from tests.api.test_streams import events
from tests.service import Service, eventually


def test_binding(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    consumer = bind(api, "q", lease_seconds=30)
    assert consumer.bound["lease_seconds"] == 30
    assert consumer.bound["log"] == "builtin:q"
    assert consumer.bound["log_access"]["url"].startswith("postgresql://")
    assert consumer.bound["queue_id"] == api.get("/queues/q").json()["id"]
    assert len(consumer.bound["flow_token"]) >= 32
    consumer.until("owned", 0, 1)
    assert consumer.view["active"]
    assert {each["handed_over"] for each in consumer.view["partitions"]} == {"initial"}


def test_a_bind_that_comes_late_replaces_no_later_one(api: httpx.Client) -> None:
    """Its client has given up waiting for it, and bound again."""
    create_queue(api, "q", 1)
    by_client = {"instance_id": "i", "binder": "program"}
    consumer = bind(api, "q", attempt=2, lease_seconds=60, **by_client)
    consumer.until("owned", 0)
    late = {"client_name": "c", "attempt": 1, **by_client}
    document = problem(api.post("/queues/q/flows", json=late), 409, "overtaken")
    assert "higher attempt" in document["detail"]
    assert consumer.outcomes("commit", consumer.item(0, position="5")) == ["ok"]
    assert bind(api, "q", attempt=3, **by_client).bound["flow_id"] != consumer.bound["flow_id"]
    problem(consumer.call("heartbeat", {}), 410, "flow_gone")


def test_a_queue_stays_exclusive_while_a_flow_keeps_state(api: httpx.Client) -> None:
    """Outside of the queue, where no handoff takes it along."""
    create_queue(api, "q", 2, access_type="exclusive")
    stateful: dict[str, Any] = {
        "client_name": "totals",
        "instance_id": "i",
        "keeps_state": True,
    }
    bind(api, "q", **stateful)
    shared = api.patch("/queues/q", json={"access_type": "non_exclusive"})
    assert "'totals'" in problem(shared, 409, "state_kept")["detail"]
    other = api.post("/queues/q/flows", json={**stateful, "instance_id": "j"})
    assert "'totals'" in problem(other, 409, "state_kept")["detail"]
    consumer = bind(api, "q", **stateful)
    bind(api, "q", "standby")
    kept = [one.get("keeps_state") for one in api.get("/queues/q/flows").json()["items"]]
    assert kept == [True, None]
    assert api.delete(consumer.path, headers=consumer.headers).status_code == 204
    api.patch("/queues/q", json={"access_type": "non_exclusive"}).raise_for_status()
    problem(api.post("/queues/q/flows", json=stateful), 409, "state_kept")


def test_a_token_is_never_told_again(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q")
    token = consumer.bound["flow_token"]
    for path in ("", "/flows", "/rebalance", "/rebalances", "/partitions"):
        assert token not in api.get(f"/queues/q{path}").text


def test_work_is_committed(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    consumer = bind(api, "q")
    consumer.until("owned", 0, 1)
    assert consumer.outcomes("commit", consumer.item(0, position="5"), seq=1) == ["ok"]
    late = consumer.item(0, position="3")
    assert consumer.outcomes("commit", late, seq=1) == ["ok"]
    ahead = {"partition": 1, "epoch": consumer.item(1)["epoch"] + 1, "position": "1"}
    absent = {"partition": 9, "epoch": 1, "position": "1"}
    outcomes = consumer.outcomes("commit", absent, ahead, consumer.item(0, position="6"), seq=2)
    assert outcomes == ["no_such_partition", "not_owner", "ok"]
    positions = [each["position"] for each in api.get("/queues/q/partitions").json()["items"]]
    assert positions == ["6", None]
    assert consumer.outcomes("commit") == []


def test_what_is_done_above_a_position_is_for_its_owner_and_the_next(api: httpx.Client) -> None:
    create_queue(api, "q", 1, max_handoff_time=600)
    first = bind(api, "q")
    first.until("owned", 0)
    for wrong in ("", "5", "5+", "5+1,", "a+1", "5 +1", "1+1," * 1000 + "1+1"):
        item = first.item(0, position="3", done_above=wrong)
        problem(first.call("commit", {"partitions": [item]}), 422, "invalid")
    assert first.outcomes("commit", first.item(0, position="3", done_above="5+4,1+2")) == ["ok"]
    (shown,) = api.get("/queues/q/partitions").json()["items"]
    assert (shown["position"], shown["done_above"]) == ("3", "5+4,1+2")
    first.call("drain", {})
    second = bind(api, "q")
    first.until("revoking", 0)
    assert first.outcomes("release", first.item(0, position="4", done_above="5+4")) == ["ok"]
    second.until("owned", 0)
    (owned,) = second.view["partitions"]
    assert (owned["position"], owned["done_above"]) == ("4", "5+4")
    assert second.outcomes("commit", second.item(0, position="5")) == ["ok"]
    (shown,) = api.get("/queues/q/partitions").json()["items"]
    assert "done_above" not in shown


def test_a_graceful_handoff(api: httpx.Client) -> None:
    create_queue(api, "q", 2, max_handoff_time=600)
    first = bind(api, "q")
    first.until("owned", 0, 1)
    second = bind(api, "q")
    first.until("revoking", 1)
    revoking = first.item(1, position="12")
    assert first.outcomes("ready", first.item(0)) == ["not_warming"]
    assert first.outcomes("release", first.item(0)) == ["not_revoking"]
    assert first.outcomes("release", revoking) == ["ok"]
    assert first.numbers("revoking") == []
    second.until("owned", 1)
    arrived = second.view["partitions"][0]
    assert arrived["epoch"] == revoking["epoch"] + 1
    assert (arrived["position"], arrived["handed_over"]) == ("12", "graceful")
    assert first.outcomes("release", revoking) == ["ok"], "a repeated release is harmless"
    stale = first.call("commit", {"partitions": [revoking]}).json()["results"][0]
    assert (stale["outcome"], stale["current_epoch"]) == ("stale_epoch", arrived["epoch"])


def test_a_forced_handoff(api: httpx.Client) -> None:
    create_queue(api, "q", 2, max_handoff_time=0.3)
    first = bind(api, "q")
    first.until("owned", 0, 1)
    second = bind(api, "q")
    second.until("owned", 1)
    assert second.view["partitions"][0]["handed_over"] == "forced"


def test_a_warm_up(api: httpx.Client) -> None:
    create_queue(api, "q", 2, max_handoff_time=600)
    first = bind(api, "q")
    first.until("owned", 0, 1)
    assert first.outcomes("commit", first.item(1, position="4")) == ["ok"]
    second = bind(api, "q", warmup=True)
    second.until("warming", 1)
    warming = second.view["partitions"][0]
    assert "handed_over" not in warming
    assert warming["position"] == "4"
    assert first.numbers("owned") == [0, 1]
    assert second.outcomes("ready", second.item(1)) == ["ok"]
    first.until("revoking", 1)
    first.outcomes("release", first.item(1, position="6"))
    second.until("owned", 1)
    assert second.outcomes("ready", {"partition": 1, "epoch": warming["epoch"]}) == ["ok"]


def test_draining(api: httpx.Client) -> None:
    create_queue(api, "q", 1, max_handoff_time=600)
    first = bind(api, "q")
    first.until("owned", 0)
    second = bind(api, "q")
    response = first.call("drain", {"timeout_seconds": 30})
    assert response.status_code == 202
    assert response.json()["draining"]
    first.until("revoking", 0)
    assert first.outcomes("release", first.item(0, position="1")) == ["ok"]
    second.until("owned", 0)
    eventually(lambda: not first.view["active"] or first.poll(0.2))
    assert not first.view["active"]
    assert first.unbind() == 204
    # By an administrator, without a body.
    assert api.post(f"{second.path}/drain").status_code == 202


def test_unbinding_is_repeatable_and_final(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q")
    assert consumer.unbind() == 204
    assert consumer.unbind() == 204
    assert api.delete(consumer.path).status_code == 204, "an administrator's is harmless too"
    for verb, body in (
        ("heartbeat", None),
        ("commit", {"partitions": []}),
        ("release", {"partitions": []}),
        ("ready", {"partitions": []}),
        ("drain", {}),
    ):
        document = problem(consumer.call(verb, body), 410, "flow_gone")
        assert document["reason"] == "unbound"
    response = api.get(f"{consumer.path}/updates", headers=consumer.headers)
    problem(response, 410, "flow_gone")


def test_a_replaced_flow_gets_the_reason_replaced(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    old = bind(api, "q", instance_id="i")
    old.until("owned", 0)
    new = bind(api, "q", instance_id="i")
    assert new.numbers("owned") == [0]
    assert new.view["partitions"][0]["handed_over"] == "replaced"
    assert problem(old.call("heartbeat"), 410, "flow_gone")["reason"] == "replaced"


def test_an_expired_lease(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q", lease_seconds=1)
    eventually(lambda: api.get("/queues/q").json()["flow_count"] == 0)
    assert problem(consumer.call("heartbeat"), 410, "flow_gone")["reason"] == "lease_expired"


def test_calls_with_a_wrong_token_or_flow_are_refused(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    create_queue(api, "r", 1)
    mine, other = bind(api, "q"), bind(api, "q")
    path = f"{mine.path}/heartbeat"
    problem(api.post(path), 401, "unauthorized")
    problem(api.post(path, headers=other.headers), 403, "forbidden")
    unknown = "/queues/q/flows/00000000-0000-4000-8000-000000000000/heartbeat"
    problem(api.post(unknown, headers=mine.headers), 404, "flow_not_found")
    elsewhere = f"/queues/r/flows/{mine.flow_id}/heartbeat"
    problem(api.post(elsewhere, headers=mine.headers), 404, "flow_not_found")
    problem(api.delete(mine.path, headers=other.headers), 403, "forbidden")
    problem(api.delete(unknown.removesuffix("/heartbeat")), 404, "flow_not_found")


def test_a_deleted_queue(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q")
    consumer.until("owned", 0)
    assert api.delete("/queues/q?force=true").status_code == 204
    problem(consumer.call("heartbeat"), 404, "queue_not_found")
    create_queue(api, "q", 1)
    response = consumer.call("heartbeat")
    assert response.status_code in (404, 410)


def test_a_heartbeat_says_until_when(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q")
    consumer.until("owned", 0)
    answer = consumer.call("heartbeat").json()
    assert answer["revision"] == consumer.view["revision"]


# Following the view


def test_a_long_poll_wakes_long_before_its_wait_is_over(service: Service) -> None:
    with service.http as http, service.http as admin:
        http.timeout = 2 * LONGEST_WAIT_SECONDS
        create_queue(admin, "q", 1)
        consumer = bind(http, "q", lease_seconds=600)
        consumer.until("owned", 0)
        woken: list[bool] = []
        thread = threading.Thread(target=lambda: woken.append(consumer.poll(LONGEST_WAIT_SECONDS)))
        thread.start()
        eventually(lambda: len(service.app.state.open_calls) == 1)
        admin.patch("/queues/q", json={"partition_count": 2}).raise_for_status()
        thread.join(LONGEST_WAIT_SECONDS / 2)
        assert woken == [True]
        consumer.until("owned", 0, 1)


def test_a_stream_follows_and_resumes(service: Service) -> None:
    with service.http as http, service.http as admin:
        create_queue(admin, "q", 1)
        consumer = bind(http, "q", lease_seconds=60)
        consumer.until("owned", 0)
        headers = {**consumer.headers, "Accept": "text/event-stream"}
        path = f"{consumer.path}/updates"
        with http.stream("GET", path, headers=headers) as response:
            found = events(response)
            first = next(found)
            assert int(first["id"]) == consumer.view["revision"]
            admin.patch("/queues/q", json={"partition_count": 2}).raise_for_status()
            changed = next(found)
            assert int(changed["id"]) > int(first["id"])
        headers["Last-Event-ID"] = first["id"]
        with http.stream("GET", path, headers=headers) as response:
            found = events(response)
            assert int(next(found)["id"]) >= int(changed["id"])
            # The flow leaves: the stream says so and ends.
            admin.delete(consumer.path).raise_for_status()
            rest = list(found)
        assert rest[-1]["event"] == "problem"
        assert '"flow_gone"' in rest[-1]["data"]


@pytest.mark.long
def test_a_stream_does_not_renew(service: Service) -> None:
    with service.http as http:
        create_queue(http, "q", 1)
        consumer = bind(http, "q", lease_seconds=4)
        headers = {**consumer.headers, "Accept": "text/event-stream"}
        with http.stream("GET", f"{consumer.path}/updates", headers=headers) as response:
            rest = list(events(response))
        assert '"lease_expired"' in rest[-1]["data"]


# Two services on one database


def test_two_services_are_one(services: Callable[[int], Sequence[Service]]) -> None:
    one, two = services(2)
    with one.http as here, two.http as there:
        create_queue(here, "q", 4, max_handoff_time=600)
        first = bind(here, "q", lease_seconds=60)
        first.until("owned", 0, 1, 2, 3)
        second = bind(there, "q", lease_seconds=60)
        first.until("revoking", 2, 3)
        items = [first.item(2, position="1"), first.item(3, position="2")]
        assert first.outcomes("release", *items) == ["ok", "ok"]
        second.until("owned", 2, 3)
        first.http, second.http = there, here
        assert first.outcomes("commit", first.item(0, position="9")) == ["ok"]
        assert second.outcomes("commit", second.item(2, position="3")) == ["ok"]
        states: list[Any] = [http.get("/queues/q/partitions").json() for http in (here, there)]
        assert states[0] == states[1]


@pytest.mark.long
@pytest.mark.parametrize("stop_first", [True, False])
def test_a_service_that_stops_costs_no_partition(
    services: Callable[[int], Sequence[Service]], stop_first: bool
) -> None:
    one, two = services(2)
    with one.http as here, two.http as there:
        create_queue(here, "q", 1)
        consumer = bind(here if stop_first else there, "q", lease_seconds=60)
        consumer.until("owned", 0)
        (one if stop_first else two).stop()
        consumer.http = there if stop_first else here
        assert consumer.outcomes("commit", consumer.item(0, position="1")) == ["ok"]
        assert consumer.numbers("owned") == [0]
