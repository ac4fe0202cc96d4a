"""A consumer in plain HTTP, so that the tests depend only on the contract."""

from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Consumer:
    """A bound flow; `view` is the last FlowChangeUpdate that it got."""

    http: httpx.Client
    queue: str
    bound: dict[str, Any]
    view: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.view = self.bound["update"]

    @property
    def flow_id(self) -> str:
        flow_id: str = self.bound["flow_id"]
        return flow_id

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.bound['flow_token']}"}

    @property
    def path(self) -> str:
        return f"/queues/{self.queue}/flows/{self.flow_id}"

    def call(self, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
        if body is None:
            return self.http.post(f"{self.path}/{verb}", headers=self.headers)
        return self.http.post(f"{self.path}/{verb}", json=body, headers=self.headers)

    def outcomes(self, verb: str, *items: dict[str, Any], seq: int | None = None) -> list[str]:
        """Commit, release or ready; takes over the view in the answer."""
        body: dict[str, Any] = {"partitions": list(items)}
        if seq is not None:
            body["seq"] = seq
        response = self.call(verb, body)
        response.raise_for_status()
        answer = response.json()
        self.view = answer["update"]
        assert [each["partition"] for each in answer["results"]] == [
            each["partition"] for each in items
        ]
        return [each["outcome"] for each in answer["results"]]

    def poll(self, wait_seconds: float = 5.0) -> bool:
        """Whether there was an update within the time."""
        response = self.http.get(
            f"{self.path}/updates",
            params={"after": self.view["revision"], "wait": wait_seconds},
            headers=self.headers,
        )
        response.raise_for_status()
        if response.status_code == 204:
            return False
        assert response.json()["revision"] > self.view["revision"]
        self.view = response.json()
        return True

    def until(self, state: str, *partitions: int) -> None:
        """Follow the view until exactly these partitions are in this state."""
        for _ in range(50):
            if self.numbers(state) == list(partitions):
                return
            self.poll(1.0)
        raise AssertionError(f"{self.numbers(state)} are {state}, not {partitions}: {self.view}")

    def numbers(self, state: str) -> list[int]:
        return sorted(
            each["partition"] for each in self.view["partitions"] if each["state"] == state
        )

    def item(self, partition: int, **more: Any) -> dict[str, Any]:
        """A partition with the epoch under which the view has it, for `outcomes`."""
        found = [each for each in self.view["partitions"] if each["partition"] == partition]
        return {"partition": partition, "epoch": found[0]["epoch"], **more}

    def unbind(self) -> int:
        return self.http.delete(self.path, headers=self.headers).status_code


def create_queue(http: httpx.Client, name: str, count: int, **settings: Any) -> dict[str, Any]:
    body = {"name": name, "partition_count": count, "rebalance_delay": 0, **settings}
    response = http.post("/queues", json=body)
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


def bind(http: httpx.Client, queue: str, client_name: str = "c", **options: Any) -> Consumer:
    response = http.post(
        f"/queues/{queue}/flows", json={"client_name": client_name, "lease_seconds": 60, **options}
    )
    assert response.status_code == 201, response.text
    return Consumer(http, queue, response.json())
