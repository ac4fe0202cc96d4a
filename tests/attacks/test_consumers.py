"""A consumer with a real key that says of its partitions what is not so: that they have ended, and
what comes after them. No message of others is lost by its word.
"""

from collections.abc import Callable, Iterator

import httpx
import pytest

from counterpoise.publisher import Publisher
from tests.api.consumer import Consumer, bind, create_queue
from tests.service import Service

pytestmark = pytest.mark.long

WHOLE = "00000000-ffffffff.0"


@pytest.fixture
def http(target: Service) -> Iterator[httpx.Client]:
    with target.http as client:
        yield client


@pytest.fixture
def attacker(http: httpx.Client, name_of_a_queue: Callable[[], str]) -> Consumer:
    """It owns the only partition of a dynamic queue."""
    queue = name_of_a_queue()
    create_queue(http, queue, 1, partitioning="dynamic")
    flow = bind(http, queue)
    flow.until("owned", 0)
    return flow


def publish(target: Service, queue: str, count: int = 3) -> None:
    with Publisher(queue, url=target.url) as publisher:
        for number in range(count):
            publisher.publish(b"v", f"key-{number}")


def split(flow: Consumer, partition: int = 0) -> list[dict[str, object]]:
    answer = flow.http.post(f"/queues/{flow.queue}/partitions/{partition}/split", json={})
    assert answer.status_code == 200, answer.text
    children: list[dict[str, object]] = answer.json()["children"]
    return children


def states(flow: Consumer) -> dict[int, str]:
    items = flow.http.get(f"/queues/{flow.queue}/partitions").json()["items"]
    return {one["partition"]: one["state"] for one in items}


@pytest.mark.parametrize("verb", ["release", "children"])
def test_a_partition_that_goes_on_is_not_finished(
    target: Service, attacker: Consumer, verb: str
) -> None:
    publish(target, attacker.queue)
    for position in ({}, {"position": "3"}):
        item = attacker.item(0, finished=True, **position)
        assert attacker.outcomes(verb, item) == ["not_ended"]
    (shown,) = attacker.http.get(f"/queues/{attacker.queue}/partitions").json()["items"]
    assert (shown["state"], shown["position"], shown["lag"]) == ("owned", None, 3)


@pytest.mark.parametrize("verb", ["release", "children"])
def test_a_sealed_partition_is_finished_at_its_end_with_all_that_comes_after(
    target: Service, attacker: Consumer, verb: str
) -> None:
    publish(target, attacker.queue)
    split(attacker)
    for position in ({}, {"position": "2"}):
        assert attacker.outcomes(verb, attacker.item(0, finished=True, **position)) == ["not_ended"]
    assert attacker.outcomes("commit", attacker.item(0, position="3")) == ["ok"]
    assert attacker.outcomes(verb, attacker.item(0, finished=True)) == ["ok"]
    assert states(attacker) == {0: "finished", 1: "owned", 2: "owned"}


def test_children_are_those_that_the_log_has(attacker: Consumer) -> None:
    invented = {"key": "00000000-0000000f.1", "parents": [WHOLE], "partition": 1}
    assert attacker.outcomes("children", attacker.item(0, children=[invented])) == [
        "conflicting_child"
    ]
    low, high = split(attacker)
    assert states(attacker) == {0: "owned", 1: "waiting", 2: "waiting"}
    for wrong in (
        invented,
        {**low, "partition": 3},
        {**low, "parents": [WHOLE, high["key"]]},
        {**low, "position": "1"},
    ):
        assert attacker.outcomes("children", attacker.item(0, children=[wrong])) == [
            "conflicting_child"
        ]
    nameless = {"key": low["key"], "parents": [WHOLE], "position": "0"}
    for right in ([low, high], [nameless]):
        assert attacker.outcomes("children", attacker.item(0, children=right)) == ["ok"]
    assert states(attacker) == {0: "owned", 1: "waiting", 2: "waiting"}


def test_a_retiring_partition_is_finished_at_its_end(
    target: Service, http: httpx.Client, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    create_queue(http, queue, 2)
    flow = bind(http, queue)
    flow.until("owned", 0, 1)
    publish(target, queue, 20)
    assert http.patch(f"/queues/{queue}", json={"partition_count": 1}).status_code == 200
    flow.until("retiring", 1)
    end = http.get(f"/queues/{queue}/partitions").json()["items"][1]["end"]
    assert int(end) > 0
    assert flow.outcomes("release", flow.item(1, position="0", finished=True)) == ["not_ended"]
    assert flow.outcomes("release", flow.item(1, position=end, finished=True)) == ["ok"]
