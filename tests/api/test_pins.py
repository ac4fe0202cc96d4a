"""Pinning and unpinning over HTTP, on a real service and database."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem


def pins(api: httpx.Client) -> list[dict[str, Any] | None]:
    return [one["pinned"] for one in api.get("/queues/flights/partitions").json()["items"]]


def test_a_partition_moves_to_the_consumer_that_it_is_pinned_to(api: httpx.Client) -> None:
    create_queue(api, "flights", 2, rebalance_delay=0)
    flow = bind(api, "flights", client_name="etl-1")
    flow.until("owned", 0, 1)
    given = {"client_name": "etl-2", "reason": "its cache"}
    answer = api.post("/queues/flights/partitions/0/pin", json=given)
    assert answer.status_code == 200, answer.text
    [one] = answer.json()["partitions"]
    assert (one["partition"], one["pin"]["reason"], one["pin"]["flow_id"]) == (0, "its cache", None)
    assert api.post("/queues/flights/partitions/0/pin", json=given).json() == answer.json()
    queue = api.get("/queues/flights").json()
    assert (queue["pinned_partition_count"], queue["conditions"]) == (1, {"pin_unmet": 1})
    assert api.get("/queues").json()["items"][0]["conditions"] == {"pin_unmet": 1}
    [said] = api.get("/queues/flights/conditions").json()["items"]
    assert (said["kind"], said["flow_id"], said["partition"]) == ("pin_unmet", None, None)
    assert "partition 0 pinned to 'etl-2': no consumer of this name takes part" in said["text"]
    api.post("/queues/flights/partitions/1/pin", json={"client_name": "x" * 200})
    both = api.get("/queues/flights/conditions").json()["items"]
    assert [len(one["text"]) <= 300 for one in both] == [True, True]
    assert api.get("/queues/flights/conditions?limit=1").json()["items"] == [said]
    api.post("/queues/flights/partitions/1/unpin")
    other = bind(api, "flights", client_name="etl-2")
    flow.until("revoking", 0)
    assert flow.outcomes("release", flow.item(0)) == ["ok"]
    other.until("owned", 0)
    assert pins(api) == [{**one["pin"], "flow_id": other.flow_id}, None]
    assert api.get("/queues/flights/conditions").json()["items"] == []
    assert api.post("/queues/flights/partitions/0/unpin").json()["partitions"] == []
    assert pins(api) == [None, None]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "client_name"),
        ({"client_name": ""}, "client_name"),
        ({"client_name": "x" * 201}, "client_name"),
        ({"client_name": "etl", "reason": "x" * 201}, "reason"),
        ({"client_name": "etl", "until": "2100-01-01T00:00:00Z"}, "until"),
    ],
)
def test_a_bad_pin_is_refused(api: httpx.Client, body: dict[str, Any], said: str) -> None:
    create_queue(api, "flights", 1)
    refused = api.post("/queues/flights/partitions/0/pin", json=body)
    assert said in str(problem(refused, 422, "invalid"))
    assert pins(api) == [None]


def test_a_partition_that_does_not_exist_is_refused(api: httpx.Client) -> None:
    create_queue(api, "flights", 1)
    for call, body in (("pin", {"client_name": "etl"}), ("unpin", None)):
        refused = api.post(f"/queues/flights/partitions/9/{call}", json=body)
        assert "does not exist" in str(problem(refused, 422, "invalid"))
