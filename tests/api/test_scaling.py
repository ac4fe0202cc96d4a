"""The number of consumers for an autoscaler, of a live service."""

from typing import Any

import httpx
import pytest

from counterpoise.publisher import Publisher
from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem
from tests.service import Service, eventually


def asked(api: httpx.Client, **query: int) -> dict[str, Any]:
    answer = api.get("/queues/q/scaling", params=query)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def test_it_follows_the_lag_up_to_the_partitions(service: Service, api: httpx.Client) -> None:
    create_queue(api, "q", 3)
    with Publisher("q", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(b"x", f"k{number}")
    eventually(lambda: asked(api, lag_per_consumer=5)["lag"] == 10)
    answer = asked(api, lag_per_consumer=5)
    assert answer.pop("lag_seconds") > 0
    assert answer == {
        "queue": "q",
        "consumers": 2,
        "why": "lag",
        "present": 0,
        "partition_count": 3,
        "lag": 10,
    }
    assert asked(api, lag_per_consumer=1)["consumers"] == 3
    assert asked(api, lag_per_consumer=1, maximum=2)["consumers"] == 2
    assert asked(api, lag_per_consumer=1000, minimum=2)["consumers"] == 2


def test_nobody_is_taken_away_from_a_queue_that_has_just_been_changed(api: httpx.Client) -> None:
    create_queue(api, "q", 3)
    for _ in range(2):
        bind(api, "q", lease_seconds=60)
    eventually(lambda: asked(api)["lag"] == 0)
    told = asked(api, quiet_seconds=3600)
    assert (told["consumers"], told["present"]) == (2, 2)
    assert told["why"] in ("quiet", "holding")


@pytest.mark.parametrize(
    "wrong",
    ["lag_per_consumer=0", "quiet_seconds=-1", "minimum=x", "maximum=0", "max_lag_seconds=0"],
)
def test_wrong_questions_are_refused(refusing: httpx.Client, wrong: str) -> None:
    problem(refusing.get(f"/queues/q/scaling?{wrong}"), 422, "invalid")
    problem(refusing.get("/queues/none/scaling"), 404, "queue_not_found")
