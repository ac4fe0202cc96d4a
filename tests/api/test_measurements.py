"""The last hour of a queue, of a live service."""

import httpx

from tests.api.consumer import create_queue
from tests.api.test_problems import problem


def test_a_new_queue_has_no_measurements_yet(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    assert api.get("/queues/q/measurements").json() == {"items": []}
    problem(api.get("/queues/none/measurements"), 404, "queue_not_found")
