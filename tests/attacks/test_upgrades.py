"""A newer replica serves the same database: what it stores does not break this one's answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import psycopg
import pytest

from tests.service import Service

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
