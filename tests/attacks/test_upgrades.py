"""Replicas of this release and a later one serve one database, and none spoils what another one
serves. What the later one has done is written down here as SQL.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import psycopg
import pytest

from tests.api.consumer import bind, create_queue
from tests.counterpoise.cli.conftest import run_at
from tests.service import Service

pytestmark = pytest.mark.long

NEWER = [
    {"kind": "WeatherChanged", "at": 1.0, "wind": ["north"]},
    {"kind": "GrantedOutside", "rebalance_id": 900, "trigger": "weather", "at": 1.0, "why": "wind"},
    {
        "kind": "Granted",
        "grants": [[0, None, "a-flow", 7, "blown over", 1.5, False, "more"]],
        "at": 1.0,
    },
]


@pytest.fixture
def database(target: Service) -> Iterator[psycopg.Connection]:
    url = target.settings.database_url
    assert url is not None
    with closing(psycopg.connect(url.get_secret_value(), autocommit=True)) as connection:
        yield connection


def test_history_and_events_pass_on_what_they_do_not_know(
    target: Service, database: psycopg.Connection, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": queue, "partition_count": 1}).raise_for_status()
        (queue_id,) = database.execute(
            "SELECT id FROM counterpoise.queues WHERE name = %s", [queue]
        ).fetchone()  # type: ignore[misc]
        database.execute(
            "INSERT INTO counterpoise.records (queue_id, revision, at, records, rebalance_id,"
            " commit_id) VALUES (%s, 2, 1.0, %s, 900, 'newer')",
            [queue_id, json.dumps(NEWER)],
        )
        last = {"id": 900, "trigger": "weather", "started_at": 1.0, "finished_at": 1.0}
        figures = {"handoffs": 0, "forced": 0, "granted": 1, "gusts": 3}
        database.execute(
            "UPDATE counterpoise.queues SET revision = 2, last_rebalance = %s WHERE id = %s",
            [json.dumps(last | figures), queue_id],
        )
        history = http.get(f"/queues/{queue}/rebalances?moves=true")
        assert history.status_code == 200, history.text
        (entry,) = history.json()["items"]
        assert (entry["id"], entry["trigger"], entry["granted"]) == (900, "weather", 1)
        assert entry["moves"][0]["outcome"] == "blown over"
        (event,) = [
            json.loads(line.removeprefix("data: "))
            for line in events(http, queue)
            if line.startswith("data: ")
        ]
        kinds = [change["type"] for change in event["changes"]]
        assert kinds == ["WeatherChanged", "GrantedOutside", "Granted"]
        assert event["changes"][0]["wind"] == ["north"]
        assert event["changes"][2]["grants"][0]["more"] == ["more"]
        assert http.get("/queues").status_code == 200
        status = http.get(f"/queues/{queue}/rebalance")
        assert status.status_code == 200, status.text
        assert status.json()["last_rebalance"]["trigger"] == "weather"


def events(http: httpx.Client, queue: str) -> Iterator[str]:
    """The lines of the stream after the first revision, up to the end of an event."""
    with http.stream("GET", f"/queues/{queue}/events", headers={"Last-Event-ID": "1"}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield line
                return


def test_this_replica_does_not_change_what_only_a_newer_one_knows(
    target: Service, database: psycopg.Connection, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": queue, "partition_count": 1}).raise_for_status()
        # The newer replica has raised it, and this one has the queue in memory.
        for change in ("level = 99", "revision = revision + 1"):
            database.execute(f"UPDATE counterpoise.queues SET {change} WHERE name = %s", [queue])
            answer = http.patch(f"/queues/{queue}", json={"rebalance_delay": 1})
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert f"'{queue}' uses what only a newer release knows" in answer.json()["detail"]
        assert http.get("/queues").status_code == 200


def test_a_queue_that_cannot_be_loaded_is_named_and_can_be_deleted(
    target: Service, database: psycopg.Connection, name_of_a_queue: Callable[[], str]
) -> None:
    queue, other = name_of_a_queue(), name_of_a_queue()
    with target.http as http:
        create_queue(http, queue, 1, partitioning="dynamic")
        create_queue(http, other, 1)
        flow = bind(http, queue)
        # A partition of a dynamic queue has a key.
        database.execute(
            "INSERT INTO counterpoise.partitions"
            " (queue_id, number, state, epoch, retiring, next_handed_over)"
            " SELECT id, 7, 'unassigned', 0, false, 'initial' FROM counterpoise.queues"
            " WHERE name = %s",
            [queue],
        )
        database.execute(
            "UPDATE counterpoise.queues SET revision = revision + 1 WHERE name = %s", [queue]
        )
        for answer in (
            http.get(f"/queues/{queue}"),
            http.patch(f"/queues/{queue}", json={"rebalance_delay": 1}),
            http.post(f"/queues/{queue}/flows", json={"client_name": "a"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (500, "queue_unreadable")
            assert f"queue '{queue}' do not fit" in answer.json()["detail"]
            assert "[7]" in answer.json()["detail"]
        assert flow.call("heartbeat").status_code == 200
        assert flow.call("conditions", {"seq": 1, "conditions": []}).status_code == 204
        assert queue in [each["name"] for each in http.get("/queues?limit=1000").json()["items"]]
        assert http.get(f"{target.url}/metrics").status_code == 200
        for options in ([], ["--queue", queue, "--queue", other]):
            said = json.loads(run_at(target.url, "doctor", "--json", *options, code=1).stdout)
            [found] = [one for one in said if one["check"] == f"queue {queue}"]
            assert found["state"] == "wrong"
            assert f"'{queue}' do not fit" in found["found"]
            assert f"log of {other}" in [one["check"] for one in said]
        # A pattern is no name.
        assert http.delete(f"/queues/{queue[:-1]}%3F").status_code in (404, 422)
        assert "deleted" in run_at(target.url, "queues", "delete", queue, "--force").stdout
        assert http.get(f"/queues/{queue}").status_code == 404
        assert http.get(f"/queues/{other}").status_code == 200
