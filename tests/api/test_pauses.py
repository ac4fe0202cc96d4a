"""Pausing and resuming over HTTP, on a real service and database."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem
from tests.service import eventually


def partition(api: httpx.Client, number: int) -> dict[str, Any]:
    items = api.get("/queues/flights/partitions").json()["items"]
    found: dict[str, Any] = items[number]
    return found


def test_the_owner_sees_a_pause_of_its_partition_and_its_end(api: httpx.Client) -> None:
    create_queue(api, "flights", 2, rebalance_delay=0)
    flow = bind(api, "flights")
    flow.until("owned", 0, 1)
    given = {"until": "2100-01-01T00:00:00Z", "reason": "wrong prices"}
    answer = api.post("/queues/flights/partitions/1/pause", json=given)
    assert answer.status_code == 200, answer.text
    [one] = answer.json()["partitions"]
    assert answer.json()["paused"] is None
    assert (one["partition"], one["pause"]["reason"]) == (1, "wrong prices")
    assert one["pause"]["until"] == "2100-01-01T00:00:00Z"
    assert flow.poll()
    views = {each["partition"]: each.get("paused") for each in flow.view["partitions"]}
    assert views == {0: None, 1: one["pause"]}
    assert partition(api, 1)["paused"] == one["pause"]
    assert partition(api, 0)["paused"] is None
    assert api.get("/queues/flights").json()["paused_partition_count"] == 1
    revision = flow.view["revision"]
    assert api.post("/queues/flights/partitions/1/pause", json=given).json() == answer.json()
    resumed = api.post("/queues/flights/partitions/1/resume")
    assert resumed.json()["partitions"] == []
    assert flow.poll()
    assert flow.view["revision"] == revision + 1
    assert not any("paused" in each for each in flow.view["partitions"])
    assert flow.outcomes("commit", flow.item(1, position="5")) == ["ok"]


def test_a_paused_queue_and_what_stays_of_it(api: httpx.Client) -> None:
    create_queue(api, "flights", 3)
    api.post("/queues/flights/partitions/2/pause", json={"reason": "own"})
    paused = api.post("/queues/flights/pause", json={"reason": "all"}).json()
    assert paused["paused"]["reason"] == "all"
    queue = api.get("/queues/flights").json()
    assert (queue["paused"], queue["paused_partition_count"]) == (paused["paused"], 3)
    assert api.get("/queues").json()["items"][0]["paused_partition_count"] == 3
    left = api.post("/queues/flights/resume").json()
    assert (left["paused"], [one["partition"] for one in left["partitions"]]) == (None, [2])
    assert api.post("/queues/flights/resume").json() == left


def test_a_pause_ends_by_itself(api: httpx.Client) -> None:
    create_queue(api, "flights", 1, rebalance_delay=0)
    flow = bind(api, "flights")
    flow.until("owned", 0)
    api.post("/queues/flights/pause", json={"seconds": 0.2})
    assert flow.poll()
    eventually(lambda: flow.poll(1.0) and "paused" not in flow.view["partitions"][0])
    assert partition(api, 0)["paused"] is None


def test_a_resize_says_that_it_waits_for_what_is_paused(api: httpx.Client) -> None:
    create_queue(api, "flights", 3, rebalance_delay=0, ordered_resize=False)
    flow = bind(api, "flights")
    flow.until("owned", 0, 1, 2)
    api.post("/queues/flights/partitions/0/pause", json={})
    api.patch("/queues/flights", json={"partition_count": 2})
    assert api.get("/queues/flights").json()["conditions"] == {}
    api.post("/queues/flights/partitions/2/pause", json={})
    assert api.get("/queues/flights").json()["conditions"] == {"resize_paused": 1}
    [said] = api.get("/queues/flights/conditions").json()["items"]
    assert (said["kind"], said["flow_id"], said["partition"]) == ("resize_paused", None, None)
    assert "partitions 0, 2 are paused" in said["text"]
    api.post("/queues/flights/partitions/2/resume")
    assert api.get("/queues/flights/conditions").json()["items"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"until": "2020-01-01T00:00:00Z"}, "over already"),
        ({"until": "2100-01-01T00:00:00"}, "RFC 3339"),
        ({"until": 4102444800}, "RFC 3339"),
        ({"until": "2100-01-01T00:00:00Z", "seconds": 5}, "one of"),
        ({"seconds": 0}, "greater than 0"),
        ({"seconds": 1e12}, "less than or equal"),
        ({"reason": ""}, "at least 1 character"),
        ({"reason": "x" * 201}, "at most 200 characters"),
        ({"reason": "a\x1b[2Jb"}, "control characters"),
        ({"reason": "a\u202eb"}, "control characters"),
        ({"reason": None}, "string"),
        ({"partitions": [1]}, "partitions"),
    ],
)
def test_what_is_refused(refusing: httpx.Client, body: dict[str, Any], said: str) -> None:
    for path in ("pause", "partitions/0/pause"):
        answer = refusing.post(f"/queues/q/{path}", json=body)
        problem(answer, 422, "invalid")
        assert said in answer.text
    (found,) = refusing.get("/queues/q/partitions").json()["items"]
    assert found["paused"] is None


def test_partitions_that_nobody_reads_are_refused(api: httpx.Client) -> None:
    create_queue(api, "flights", 1)
    for verb, body in (("pause", {}), ("resume", None)):
        answer = api.post(f"/queues/flights/partitions/7/{verb}", json=body)
        problem(answer, 422, "invalid")
        assert "Partition 7" in answer.json()["detail"]
        problem(api.post(f"/queues/nowhere/{verb}", json=body), 404, "queue_not_found")


def test_events_tell_of_both(api: httpx.Client) -> None:
    create_queue(api, "flights", 1)
    before = api.get("/queues/flights").json()["revision"]
    api.post("/queues/flights/partitions/0/pause", json={"reason": "why"})
    api.post("/queues/flights/partitions/0/resume")
    told: list[str] = []
    headers = {"Last-Event-ID": str(before)}
    with api.stream("GET", "/queues/flights/events", headers=headers) as stream:
        for line in stream.iter_lines():
            told += [kind for kind in ("Paused", "Resumed") if f'"type":"{kind}"' in line]
            if len(told) == 2:
                break
    assert told == ["Paused", "Resumed"]
