"""The metrics of a live service: each queue with its lag, rebalances and conditions."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.metrics import Lags
from broker.calls.views import LagView
from broker.core import records as r
from broker.core.errors import QueueNotFound
from broker.core.records import Entry
from broker.replica.events import OTHER, EventCounters, QueueLabels
from counterpoise.publisher import Publisher
from tests.api.access import Guarded, bearer, guarded
from tests.api.consumer import bind, create_queue
from tests.databases import Databases
from tests.service import Service, eventually


def samples(text: str) -> dict[str, float]:
    """By name and labels, as written."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def scraped(service: Service) -> dict[str, float]:
    return samples(httpx.get(f"{service.url}/metrics").text)


def test_a_queue_that_falls_behind_is_seen(service: Service, api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    with Publisher("q", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(b"x", f"k{number}")
    consumer = bind(api, "q", lease_seconds=60)
    consumer.until("owned", 0, 1)
    poison = {"kind": "quarantined", "text": "t", **consumer.item(1)}
    assert consumer.call("conditions", {"seq": 1, "conditions": [poison]}).status_code == 204
    seen: dict[str, float] = {}

    def behind() -> bool:
        seen.clear()
        seen.update(scraped(service))
        return seen.get('counterpoise_queue_lag_messages{queue="q"}') == 10

    eventually(behind)
    by_partition = [
        value for name, value in seen.items() if name.startswith("counterpoise_partition_lag")
    ]
    assert (len(by_partition), sum(by_partition)) == (2, 10)
    assert seen['counterpoise_queue_lag_unknown_partitions{queue="q"}'] == 0
    assert 0 < seen['counterpoise_queue_lag_seconds{queue="q"}'] < 3600
    assert seen['counterpoise_queue_conditions{kind="quarantined",queue="q"}'] == 1
    assert seen['counterpoise_queue_rebalance_status{queue="q",status="Ready"}'] == 1


def test_a_log_of_an_unknown_kind_has_no_lag_and_is_not_taken_for_one_that_is_away(
    service: Service, api: httpx.Client
) -> None:
    create_queue(api, "q", 2)
    create_queue(api, "foreign", 2, log="nats://logs.example:4222/foreign")
    lag = 'counterpoise_queue_lag_unknown_partitions{queue="%s"}'
    eventually(lambda: lag % "q" in scraped(service))
    seen = scraped(service)
    assert 'counterpoise_queue_partitions{queue="foreign"}' in seen
    assert [name for name in seen if "_lag_" in name and "foreign" in name] == []


@pytest.mark.long
def test_the_time_from_publish_to_commit_is_seen_by_itself(
    service: Service, api: httpx.Client
) -> None:
    create_queue(api, "q", 1)
    with Publisher("q", url=service.url) as publisher:
        publisher.publish(b"x")
    consumer = bind(api, "q", lease_seconds=60)
    consumer.until("owned", 0)
    assert consumer.outcomes("commit", consumer.item(0) | {"position": "1"}) == ["ok"]
    # The service looks every few seconds.
    name = "counterpoise_publish_to_committed_seconds"
    eventually(lambda: scraped(service).get(name + '_count{queue="q"}') == 1)
    assert 0 <= scraped(service)[name + '_sum{queue="q"}'] < 3600


def test_handoffs_and_refusals_are_counted_with_their_queue(
    service: Service, api: httpx.Client
) -> None:
    create_queue(api, "q", 2)
    one = bind(api, "q", lease_seconds=60)
    one.until("owned", 0, 1)
    two = bind(api, "q", lease_seconds=60)
    one.until("revoking", 1)
    moved = one.item(1)
    assert one.outcomes("release", moved) == ["ok"]
    two.until("owned", 1)
    assert one.outcomes("commit", moved | {"position": "0"}) == ["stale_epoch"]
    eventually(
        lambda: scraped(service).get('counterpoise_handoffs_total{outcome="graceful",queue="q"}')
    )
    seen = scraped(service)
    assert seen['counterpoise_handoff_duration_seconds_count{queue="q"}'] == 1
    refused = 'counterpoise_flow_results_total{call="commit",outcome="stale_epoch",queue="q"}'
    assert seen[refused] == 1
    assert seen["counterpoise_commit_batch_calls_count"] >= 1
    assert seen["counterpoise_database_round_trip_duration_seconds_count"] >= 3
    # With the queue its series end.
    assert api.delete("/queues/q?force=true").status_code == 204
    eventually(lambda: not any('queue="q"' in name for name in scraped(service)))


@pytest.fixture(scope="module")
def team(databases: Databases) -> Iterator[Guarded]:
    with databases.lend() as url, guarded(url) as team:
        team.create("team-a.orders")
        team.create("team-b.secret")
        yield team


def test_no_series_tells_of_a_queue_of_others(team: Guarded) -> None:
    team.bind("team-a.orders", team.keys["consumer"])
    team.bind("team-b.secret", team.root)
    with team.http as http:

        def told(key: str) -> str:
            return http.get("/metrics", headers=bearer(key)).text

        bound = 'counterpoise_flows_bound_total{queue="team-b.secret"} 1.0'
        eventually(lambda: bound in told(team.root))
        mine = told(team.keys["viewer"])
    assert 'counterpoise_flows_bound_total{queue="team-a.orders"} 1.0' in mine
    assert "team-b" not in mine


def bound_once(tally: EventCounters, queue: str) -> None:
    flow = r.FlowBound("f", "i", "etl", 1, 10.0, False, 1.0)
    tally.note(queue, [Entry(1, 1.0, (flow,), None, "c")])


def counted(tally: EventCounters, name: str = "counterpoise_flows_bound_total") -> dict[str, float]:
    return {
        one.labels["queue"]: one.value
        for collector in tally.collectors
        for family in collector.collect()
        for one in family.samples
        if one.name == name
    }


def test_the_number_of_series_is_bounded_and_follows_the_queues() -> None:
    tally = EventCounters(QueueLabels(most=2))
    for queue in ("a", "b", "c", "d", "a"):
        bound_once(tally, queue)
    assert counted(tally) == {"a": 2, "b": 1, OTHER: 2}
    tally.queues.keep({"b", "c", "d"})
    bound_once(tally, "d")
    assert counted(tally) == {"b": 1, OTHER: 2, "d": 1}


def test_series_that_begin_at_zero_are_bounded_and_end_with_their_queue() -> None:
    tally = EventCounters(QueueLabels(most=1))
    tally.queues.show(["a", "b"])
    assert counted(tally) == {}
    held = {"a": 0.0, OTHER: 0.0}
    assert counted(tally, "counterpoise_flows_held_back_total") == held
    tally.queues.keep({"b"})
    assert counted(tally, "counterpoise_flows_held_back_total") == {OTHER: 0.0}
    tally.queues.show(["b"])
    assert counted(tally, "counterpoise_flows_held_back_total") == {"b": 0.0, OTHER: 0.0}


class Logs:
    """A broker whose logs answer when they are told to."""

    def __init__(self) -> None:
        self.monitoring = self
        self.asked: list[str] = []
        self.answers = asyncio.Event()

    async def lag(self, name: str) -> LagView:
        self.asked.append(name)
        if not name.startswith("quick"):
            await self.answers.wait()
        if name == "gone":
            raise QueueNotFound(name)
        return LagView(len(name), 0, 0.0, {})


async def test_lag_is_measured_in_the_background_and_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.metrics.FIRST_LAG_SECONDS", 0.01)
    clock = [100.0]
    logs: Any = Logs()
    lags = Lags(logs, lambda: clock[0])
    assert await lags.of(["a", "gone"]) == {}
    assert await lags.of(["a", "gone"]) == {}
    assert sorted(logs.asked) == ["a", "gone"]
    logs.answers.set()
    async with asyncio.timeout(240):
        while not (found := await lags.of(["a"])):
            pass
    assert found == {"a": LagView(1, 0, 0.0, {})}
    asked = len(logs.asked)
    await lags.of(["a"])
    assert len(logs.asked) == asked
    clock[0] += 11
    await lags.of(["a"])
    assert len(logs.asked) == asked + 1


async def test_logs_that_hang_keep_no_other_lag_from_being_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither one for which others wait already, nor as many as are measured at once."""
    monkeypatch.setattr("api.metrics.FIRST_LAG_SECONDS", 0.01)
    logs: Any = Logs()
    lags = Lags(logs)
    hanging = [f"hangs {number}" for number in range(9)]
    assert await lags.of(hanging[:1]) == {}
    async with asyncio.timeout(240):
        while "quick" not in await lags.of([*hanging, "quick"]):
            pass
    assert sorted(logs.asked) == [*hanging, "quick"]
    logs.answers.set()
    async with asyncio.timeout(240):
        while len(await lags.of(hanging)) < 9:
            pass
    assert sorted(logs.asked) == [*hanging, "quick"]


def test_every_metric_has_a_help_and_a_name_by_the_conventions(service: Service) -> None:
    text = httpx.get(f"{service.url}/metrics").text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.M))
    for name, kind in types.items():
        assert helps.get(name), name
        assert name.startswith(("counterpoise_", "process_", "python_")), name
        if name.startswith("counterpoise_") and not name.endswith("_created"):
            assert (kind == "counter") == name.endswith("_total"), name
