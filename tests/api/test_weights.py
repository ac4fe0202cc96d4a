"""Weights and maxima over HTTP: what a bind says, what lists show, and what is refused."""

import httpx

from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem


def test_lists_show_what_a_flow_is_bound_with(api: httpx.Client) -> None:
    create_queue(api, "q", 6, rebalance_delay=0)
    bind(api, "q", "a", weight=2).until("owned", 0, 1, 2, 3, 4, 5)
    bind(api, "q", "b", max_partitions=3)
    shown = api.get("/queues/q/flows").json()["items"]
    assert [(one.get("weight"), one.get("max_partitions")) for one in shown] == [
        (2, None),
        (None, 3),
    ]


def test_what_no_flow_may_take_is_a_condition(api: httpx.Client) -> None:
    create_queue(api, "q", 4, rebalance_delay=0)
    bind(api, "q", max_partitions=1).until("owned", 0)
    assert api.get("/queues/q").json()["conditions"] == {"over_capacity": 3}
    assert api.get("/queues").json()["items"][0]["conditions"] == {"over_capacity": 3}
    [said] = api.get("/queues/q/conditions").json()["items"]
    assert (said["kind"], said["flow_id"], said["partition"]) == ("over_capacity", None, None)
    assert said["text"].startswith("3 partitions")
    bind(api, "q").until("owned", 1, 2, 3)
    assert api.get("/queues/q").json()["conditions"] == {}


def test_a_queue_limits_the_weights(api: httpx.Client) -> None:
    create_queue(api, "q", 2, max_weight=5)
    body = {"client_name": "c", "instance_id": "i", "weight": 6}
    refused = problem(api.post("/queues/q/flows", json=body), 422, "invalid")
    assert "allows no weight above 5" in refused["detail"]
    assert api.patch("/queues/q", json={"max_weight": 6}).json()["max_weight"] == 6
    assert api.post("/queues/q/flows", json=body).status_code == 201


def test_bad_values_are_refused(api: httpx.Client) -> None:
    create_queue(api, "q", 2, access_type="exclusive")
    for wrong in ({"weight": 0}, {"weight": 1001}, {"weight": 1.5}, {"max_partitions": 0}):
        body = {"client_name": "c", "instance_id": "i", **wrong}
        problem(api.post("/queues/q/flows", json=body), 422, "invalid")
    body = {"client_name": "c", "instance_id": "i", "max_partitions": 1}
    assert "exclusive" in problem(api.post("/queues/q/flows", json=body), 422, "invalid")["detail"]
