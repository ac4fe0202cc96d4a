"""Somebody else at the attacked service: a flow that renews its lease while the attack goes on."""

from __future__ import annotations

import threading

import httpx

LEASE_SECONDS = 60.0
PAUSE_SECONDS = 0.2
ANSWER_SECONDS = 60.0


class Bystander:
    """One flow with one partition; `faults` is what went wrong for it so far."""

    def __init__(self, url: str, queue: str) -> None:
        self.faults: list[str] = []
        self.queue = queue
        self._http = httpx.Client(base_url=f"{url}/v1", timeout=ANSWER_SECONDS, verify=False)
        settings = {"name": queue, "partition_count": 1, "rebalance_delay": 0}
        self._http.post("/queues", json=settings).raise_for_status()
        bound = self._http.post(
            f"/queues/{queue}/flows",
            json={"client_name": "bystander", "lease_seconds": LEASE_SECONDS},
        )
        bound.raise_for_status()
        flow = bound.json()
        self._path = f"/queues/{queue}/flows/{flow['flow_id']}"
        self._headers = {"Authorization": f"Bearer {flow['flow_token']}"}
        self._owned = self._view()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._live, name="bystander")
        self._thread.start()

    def leave(self) -> None:
        """Stop, check that the partition is still owned under the same epoch, and unbind."""
        self._leaving.set()
        self._thread.join()
        try:
            if not self.faults and self._view() != self._owned:
                self.faults.append("lost the partition")
            self._http.delete(self._path, headers=self._headers)
            self._http.delete(f"/queues/{self.queue}?force=true")
        except httpx.HTTPError as error:
            self.faults.append(repr(error))
        finally:
            self._http.close()

    def _view(self) -> object:
        answer = self._http.get(f"{self._path}/updates", headers=self._headers)
        answer.raise_for_status()
        return answer.json()["partitions"]

    def _live(self) -> None:
        while not self._leaving.wait(PAUSE_SECONDS):
            try:
                answer = self._http.post(f"{self._path}/heartbeat", headers=self._headers)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                self.faults.append(repr(error))
                return
