"""One key against the others of its queue: very many flows of it, and flows that come and go."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest

from broker.core import commands as c
from broker.core import records as r
from tests.api.access import Guarded, bearer, guarded
from tests.broker.core.world import World
from tests.counterpoise.cli.conftest import run_at
from tests.databases import Databases

pytestmark = pytest.mark.long

FLOWS = 3


@pytest.fixture(scope="module")
def strict(databases: Databases) -> Iterator[Guarded]:
    """A service with keys on which few flows, and few moves, are many."""
    with databases.lend() as url, guarded(url, key_flows=FLOWS, key_moves=1) as strict:
        yield strict


def bind(strict: Guarded, queue: str, key: str, instance: str, **given: object) -> httpx.Response:
    body = {"client_name": "etl", "lease_seconds": 60, "instance_id": instance, **given}
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
    assert 'counterpoise_http_refused_total{limit="key_flows"} ' in metrics


def test_a_bind_that_is_refused_is_not_in_progress(
    strict: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is delayed, and a thousand such binds a second took the places of all others."""
    strict.create("team-a.places")
    greedy = strict.key("consumer", "team-a.*")
    for number in range(FLOWS):
        bind(strict, "team-a.places", greedy, f"i-{number}")
    rates, held = strict.service.app.state.rates, []

    async def hold() -> None:
        held.append(len(rates.at_work))

    monkeypatch.setattr(rates, "hold", hold)
    refused = bind(strict, "team-a.places", greedy, "one more")
    assert (refused.status_code, held) == (429, [0])


def held_back(strict: Guarded, queue: str, honest: str) -> httpx.Response:
    """A bind to a new queue, with a key that has moved too much of it; `honest` has a flow, too."""
    strict.create(queue, partition_count=200, max_handoff_time=0)
    greedy = strict.key("consumer", "team-a.*")
    bind(strict, queue, honest, "honest")
    # It takes half of 200 partitions, and leaves: twice is what it may move.
    for _ in range(2):
        came = bind(strict, queue, greedy, "comes and goes").json()
        assert "held_until" not in came["update"]
        with strict.http as http:
            left = http.delete(
                f"/v1/queues/{queue}/flows/{came['flow_id']}", headers=bearer(came["flow_token"])
            )
        assert left.status_code == 204
    return bind(strict, queue, greedy, "comes and goes")


def test_who_has_moved_too_much_binds_and_waits(strict: Guarded) -> None:
    """It is told so, as is everybody who sees the queue; others bind as ever."""
    queue = "team-a.moving"
    path = f"/v1/queues/{queue}"
    viewer, honest = bearer(strict.keys["viewer"]), strict.key("consumer", "team-a.*")
    bound = held_back(strict, queue, honest)
    assert bound.status_code == 201
    update = bound.json()["update"]
    assert (update["active"], update["partitions"]) == (False, [])
    with strict.http as http:
        status = http.get(f"{path}/rebalance", headers=viewer).json()
        flows = http.get(f"{path}/flows", headers=viewer).json()["items"]
        metrics = http.get("/metrics", headers=viewer).text
    assert status["status"] == "Ready"
    assert status["held_back"] == {"flows": 1, "until": update["held_until"]}
    assert [flow.get("held_until") for flow in flows] == [None, update["held_until"]]
    assert f'counterpoise_flows_held_back_total{{queue="{queue}"}} 1.0' in metrics
    assert "held_until" not in bind(strict, queue, honest, "another").json()["update"]

    environment = {"COUNTERPOISE_TOKEN": strict.keys["viewer"]}

    def said(*arguments: str) -> str:
        result = run_at(strict.service.url, *arguments, environment=environment)
        return " ".join(result.output.split())

    waits = "1 consumer waits until"
    reason = "its key has moved as much as it may in an hour"
    shown = said("status", queue)
    assert waits in shown
    assert reason in shown
    assert "held back" in said("flows", "list", queue)


def greedy_beside_honest(strict: Guarded, queue: str, **settings: object) -> str:
    """A key for a new queue on which another key has a flow."""
    strict.create(queue, **settings)
    bind(strict, queue, strict.key("consumer", "team-a.*"), "honest")
    return strict.key("consumer", "team-a.*")


def test_a_key_that_claims_great_weights_again_and_again_has_moved_too_much(
    strict: Guarded,
) -> None:
    """It takes nearly everything, gives it back, and takes it again, all by binds."""
    queue = "team-a.weighing"
    greedy = greedy_beside_honest(strict, queue, partition_count=200, max_handoff_time=0)
    weights = itertools.cycle([1000, 1])
    for _ in range(6):
        update = bind(strict, queue, greedy, "greedy", weight=next(weights)).json()["update"]
        if "held_until" in update:
            break
    assert "held_until" in update


def test_a_consumer_claims_no_weight_above_that_of_the_queue_and_does_not_raise_it(
    strict: Guarded,
) -> None:
    queue = "team-a.equal"
    greedy = greedy_beside_honest(strict, queue, partition_count=4, max_weight=1)
    for weight in (2, 1000):
        assert bind(strict, queue, greedy, "greedy", weight=weight).status_code == 422
    with strict.http as http:
        path, greater = f"/v1/queues/{queue}", {"max_weight": 1000}
        assert http.patch(path, json=greater, headers=bearer(greedy)).status_code == 403
        queue_now = http.get(path, headers=bearer(strict.root)).json()
    assert (queue_now["max_weight"], queue_now["flow_count"]) == (1, 1)


def test_doctor_names_flows_that_wait_and_refusals(strict: Guarded) -> None:
    queue = "team-a.waiting"
    key = strict.key("consumer", "team-a.*")
    held_back(strict, queue, key)
    bound = [bind(strict, queue, key, f"i-{number}").status_code for number in range(FLOWS)]
    assert bound == [201, 201, 429], "the honest flow of this key is one of three"
    environment = {"COUNTERPOISE_TOKEN": strict.keys["admin"]}

    def doctor() -> dict[str, dict[str, str]]:
        arguments = ("doctor", "--json", "--queue", queue)
        result = run_at(strict.service.url, *arguments, environment=environment)
        return {one["check"]: one for one in json.loads(result.stdout)}

    found = doctor()
    while found["versions"]["state"] == "skipped":
        assert "in time" in found["versions"]["found"], found["versions"]
        found = doctor()
    waits = found[f"consumers of {queue}"]
    assert waits["state"] == "warning"
    assert "1 consumer waits until" in waits["found"]
    assert "COUNTERPOISE_KEY_MOVES" in waits["advice"]
    assert found["limits"]["state"] == "warning"
    assert "key_flows " in found["limits"]["found"]


class TestWhoComesAndGoesForEver:
    """Twelve flows of a key against four, for two hours of virtual time."""

    PARTITIONS = 16
    HOUR = 3600.0

    def attacked(self, quota: c.Quota | None) -> tuple[World, float]:
        """The queue afterwards, and which part of partition time the four owned."""
        orders = World(partitions=self.PARTITIONS, checked=False)
        four = [f"A{number}" for number in range(4)]
        for name in four:
            orders.bind(name, key_id="honest", quota=quota)
        orders.settle()
        began, owned, rounds = orders.now, 0, 0
        while orders.now < began + 2 * self.HOUR:
            rounds += 1
            twelve = [f"X{rounds}-{number}" for number in range(12)]
            for name in twelve:
                orders.bind(name, key_id="greedy", quota=quota)
            for second in range(17):
                if second == 10:
                    for name in twelve:
                        orders.unbind(name)
                orders.advance(1)
                owned += sum(len(orders.owned(name)) for name in four)
        return orders, owned / (self.PARTITIONS * (orders.now - began))

    def moves(self, orders: World) -> list[float]:
        """When the twelve took a partition from the four, in order."""
        return [
            record.at
            for record in orders.records
            if isinstance(record, r.RevokesStarted)
            for move in record.moves
            if move.successor.startswith("X") and move.owner.startswith("A")
        ]

    def test_what_they_take_is_bounded_and_the_others_go_on(self) -> None:
        orders, share = self.attacked(c.Quota(flows=1000, moves=12))
        moves, budget = self.moves(orders), 12 * self.PARTITIONS
        first = [at for at in moves if at < moves[0] + self.HOUR]
        later = [at for at in moves if at >= moves[0] + self.HOUR]
        # A full bucket, and what leaks from it; those that bind together join together.
        assert budget <= len(first) <= 2 * budget + self.PARTITIONS
        assert len(later) <= budget + self.PARTITIONS
        assert share > 0.85, share

    def test_without_a_budget_they_take_most_of_it(self) -> None:
        """So the test above can fail."""
        orders, share = self.attacked(None)
        assert len(self.moves(orders)) > 10 * 12 * self.PARTITIONS
        assert share < 0.7, share
