"""Calls on very many partitions hold the event loop no longer than others.

Measured with `tests.attacks.holding`; the tests take fewer partitions than a queue may have, and
allow as much less.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from broker.service import Broker
from tests.attacks.holding import as_in_a_process_of_its_own, hold_of
from tests.databases import Databases
from tests.service import Service, eventually, running, settings_for

# Partitions, and the yardsticks that no call may take. The costliest take 4 and 12; six calls take
# 15 to 23 for 10,000 partitions if the work is not done in pieces.
SOME, MANY = (10_000, 15.0), (30_000, 40.0)


@pytest.fixture
def unlimited(databases: Databases) -> Iterator[Service]:
    with databases.lend() as url:
        settings = settings_for(url, address_requests_per_second=0, flow_requests_per_second=0)
        with running(Broker(settings), settings) as service, as_in_a_process_of_its_own():
            yield service


class Calls:
    """Calls by name, and those that held the loop for too long."""

    def __init__(self, service: Service, most_yardsticks: float) -> None:
        self.held: list[str] = []
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
            self.held.append(f"{name}: {yardsticks:.1f}")
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
        eventually(lambda: not self.send("GET", path)["unassigned"], 120)


@pytest.mark.parametrize(
    ("partitions", "most_yardsticks"), [SOME, pytest.param(*MANY, marks=pytest.mark.long)]
)
def test_no_call_on_very_many_partitions_holds_the_loop(
    unlimited: Service, partitions: int, most_yardsticks: float
) -> None:
    with contextlib.closing(Calls(unlimited, most_yardsticks)) as call:
        play(call, partitions)
    assert not call.held


def play(call: Calls, partitions: int) -> None:
    """Every call that may be on many partitions."""
    spec = {"partition_count": partitions, "rebalance_delay": 0, "max_handoff_time": 600}
    numbers = iter(range(100))
    call.measured(
        "create", lambda: call.send("POST", "/queues", json={"name": f"q{next(numbers)}", **spec})
    )
    flow = {"client_name": "a", "instance_id": "a", "lease_seconds": 600}
    call("bind", "POST", "/queues/q0/flows", json=flow)
    bound = call.send("POST", "/queues/q0/flows", json=flow)
    call.until_owned("q0")
    path, token = (
        f"/queues/q0/flows/{bound['flow_id']}",
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
    call("dry run", "POST", "/queues/q0/positions?dry_run=true", json={"positions": positions})
    call("set positions", "POST", "/queues/q0/positions", json={"to": "earliest"})
    call("history", "GET", "/queues/q0/rebalances?limit=1000")
    resumed = {"Last-Event-ID": "0"}
    call.measured("events", lambda: call.first_of("/queues/q0/events", 20 * partitions, resumed))
    call("second flow", "POST", "/queues/q0/flows", json={"client_name": "b", "lease_seconds": 600})
    status = call("status", "GET", "/queues/q0/rebalance")
    assert status["handoffs"]
    call("drain", "POST", f"{path}/drain", headers=token)
    call("shrink", "PATCH", "/queues/q0", json={"partition_count": partitions // 2})
    call("grow", "PATCH", "/queues/q0", json={"partition_count": partitions})
    call("discard", "PATCH", "/queues/q0?discard=true", json={"partition_count": 1})
    call("delete", "DELETE", "/queues/q0?force=true")
