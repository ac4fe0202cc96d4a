"""Calls on all partitions that a queue may have hold the event loop no longer than others.

Measured with `tests.attacks.holding`. If a call exceeds its limit, all calls are played again on a
fresh queue, and only one that exceeds it in both plays fails: a bug holds the loop each time, a
stall of the machine does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from broker.core.model import MOST_PARTITIONS
from broker.service import Broker
from tests.attacks.holding import as_in_a_process_of_its_own, hold_of
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

# Yardsticks that no call may take: about 0.1 s where 10⁶ additions take 0.035 s.
MOST_YARDSTICKS = 35.0


@pytest.fixture
def unlimited(databases: Databases) -> Iterator[Service]:
    with databases.lend() as url:
        settings = settings_for(url, address_requests_per_second=0, flow_requests_per_second=0)
        with running(Broker(settings), settings) as service, as_in_a_process_of_its_own():
            yield service


class Calls:
    """Calls by name, and those that held the loop for too long."""

    def __init__(self, service: Service, most_yardsticks: float) -> None:
        self.held: dict[str, float] = {}
        self._service = service
        self._most_yardsticks = most_yardsticks
        self._http = httpx.Client(base_url=f"{service.url}/v1", timeout=120)

    def close(self) -> None:
        self._http.close()

    def __call__(self, name: str, method: str, path: str, **options: Any) -> Any:
        return self.measured(name, lambda: self.send(method, path, **options))

    def measured(self, name: str, work: Callable[[], Any]) -> Any:
        answers: list[Any] = []
        yardsticks = hold_of(self._service, lambda: answers.append(work()))
        print(f"{name}: {yardsticks:.1f}")
        if yardsticks > self._most_yardsticks:
            self.held[name] = yardsticks
        return answers[0]

    def send(self, method: str, path: str, **options: Any) -> Any:
        answer = self._http.request(method, path, **options)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def first_of(self, path: str, size: int, headers: dict[str, str]) -> None:
        """The first so many bytes of an event stream."""
        accept = {"Accept": "text/event-stream", **headers}
        with self._http.stream("GET", path, headers=accept) as answer:
            for chunk in answer.iter_bytes():
                size -= len(chunk)
                if size <= 0:
                    return

    def until_owned(self, queue: str) -> None:
        path = f"/queues/{queue}/rebalance"
        eventually(lambda: not self.send("GET", path)["unassigned"])


def test_no_call_on_all_partitions_holds_the_loop(unlimited: Service) -> None:
    def held(queue: str) -> dict[str, float]:
        with contextlib.closing(Calls(unlimited, MOST_YARDSTICKS)) as call:
            play(call, queue, MOST_PARTITIONS)
            return call.held

    if first := held("first"):
        second = held("second")
        assert not first.keys() & second.keys(), f"the loop was held: {first}, {second}"


def play(call: Calls, queue: str, partitions: int) -> None:
    """Every call that may be on many partitions."""
    times = {"rebalance_delay": 0, "max_handoff_time": 600}
    spec = {"partition_count": partitions, "ordered_resize": False, **times}
    call("create", "POST", "/queues", json={"name": queue, **spec})
    flow = {"client_name": "a", "instance_id": "a", "lease_seconds": 600}
    call("bind", "POST", f"/queues/{queue}/flows", json=flow)
    bound = call.send("POST", f"/queues/{queue}/flows", json=flow)
    call.until_owned(queue)
    path, token = (
        f"/queues/{queue}/flows/{bound['flow_id']}",
        {"Authorization": f"Bearer {bound['flow_token']}"},
    )
    view = call("updates", "GET", f"{path}/updates", headers=token)
    assert len(view["partitions"]) == partitions
    call.measured("update stream", lambda: call.first_of(f"{path}/updates", 60 * partitions, token))
    items = [
        {"partition": one["partition"], "epoch": one["epoch"], "position": "0"}
        for one in view["partitions"]
    ]
    call("commit", "POST", f"{path}/commit", json={"partitions": items}, headers=token)
    call("release", "POST", f"{path}/release", json={"partitions": items}, headers=token)
    ready = [{"partition": one["partition"], "epoch": one["epoch"]} for one in items]
    call("ready", "POST", f"{path}/ready", json={"partitions": ready}, headers=token)
    positions = {str(number): "0" for number in range(partitions)}
    follower = {"name": f"{queue}-follower", "log": f"builtin:{queue}", "positions": positions}
    call("create at positions", "POST", "/queues", json=follower)
    call("delete the follower", "DELETE", f"/queues/{queue}-follower")
    call(
        "dry run", "POST", f"/queues/{queue}/positions?dry_run=true", json={"positions": positions}
    )
    call("set positions", "POST", f"/queues/{queue}/positions", json={"to": "earliest"})
    call("history", "GET", f"/queues/{queue}/rebalances?limit=1000&moves=true")
    resumed = {"Last-Event-ID": "0"}
    call.measured(
        "events", lambda: call.first_of(f"/queues/{queue}/events", 20 * partitions, resumed)
    )
    call(
        "second flow",
        "POST",
        f"/queues/{queue}/flows",
        json={"client_name": "b", "lease_seconds": 600},
    )
    status = call("status", "GET", f"/queues/{queue}/rebalance")
    assert status["handoffs"]
    call("drain", "POST", f"{path}/drain", headers=token)
    call("shrink", "PATCH", f"/queues/{queue}", json={"partition_count": partitions // 2})
    call("grow", "PATCH", f"/queues/{queue}", json={"partition_count": partitions})
    call("discard", "PATCH", f"/queues/{queue}?discard=true", json={"partition_count": 1})
    call("delete", "DELETE", f"/queues/{queue}?force=true")
