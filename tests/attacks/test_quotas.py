"""One key against the others of its queue: very many flows of it, and flows that come and go."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.access import Guarded, bearer, guarded
from tests.databases import Databases

FLOWS = 3


@pytest.fixture(scope="module")
def strict(databases: Databases) -> Iterator[Guarded]:
    """A service with keys on which few flows are many."""
    with databases.lend() as url, guarded(url, key_flows=FLOWS) as strict:
        yield strict


def bind(strict: Guarded, queue: str, key: str, instance: str) -> httpx.Response:
    body = {"client_name": "etl", "lease_seconds": 60, "instance_id": instance}
    with strict.http as http:
        return http.post(f"/v1/queues/{queue}/flows", json=body, headers=bearer(key))


def test_the_flows_of_a_key_on_a_queue_are_bounded(strict: Guarded) -> None:
    """Each queue counts for itself, and each key; who binds again is not refused."""
    strict.create("team-a.orders")
    strict.create("team-a.other")
    greedy, honest = strict.key("consumer", "team-a.*"), strict.key("consumer", "team-a.*")
    for number in range(FLOWS):
        assert bind(strict, "team-a.orders", greedy, f"i-{number}").status_code == 201
    refused = bind(strict, "team-a.orders", greedy, "one more")
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_requests"
    assert "COUNTERPOISE_KEY_FLOWS" in refused.json()["detail"]
    assert f" {FLOWS} flows" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    assert bind(strict, "team-a.orders", greedy, "i-0").status_code == 201
    assert bind(strict, "team-a.other", greedy, "i-0").status_code == 201
    assert bind(strict, "team-a.orders", honest, "i-0").status_code == 201
    with strict.http as http:
        queue = http.get("/v1/queues/team-a.orders", headers=bearer(strict.root)).json()
        metrics = http.get("/metrics", headers=bearer(strict.root)).text
    assert queue["flow_count"] == FLOWS + 1
    assert 'counterpoise_http_refused_total{limit="key_flows"} 1.0' in metrics
