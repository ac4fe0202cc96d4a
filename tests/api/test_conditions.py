"""What consumers report, on a real service and database."""

from typing import Any

import httpx
import pytest

from tests.api.consumer import Consumer, bind, create_queue
from tests.api.test_problems import problem
from tests.service import eventually


def reported(api: httpx.Client, queue: str = "q") -> list[dict[str, Any]]:
    answer = api.get(f"/queues/{queue}/conditions")
    answer.raise_for_status()
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def counts(api: httpx.Client) -> dict[str, int]:
    """By the list of queues, and by the queue itself."""
    listed = {each["name"]: each["conditions"] for each in api.get("/queues").json()["items"]}
    shown: dict[str, int] = api.get("/queues/q").json()["conditions"]
    assert listed["q"] == shown
    return shown


def report(consumer: Consumer, seq: int, *conditions: dict[str, Any]) -> httpx.Response:
    return consumer.call("conditions", {"seq": seq, "conditions": list(conditions)})


def poison(consumer: Consumer, number: int, text: str = "at 7: ValueError: 7") -> dict[str, Any]:
    return {"kind": "quarantined", "text": text, **consumer.item(number)}


AWAY = {"kind": "log_away", "text": "no answer"}


def test_a_queue_that_is_ready_says_what_is_wrong(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    consumer = bind(api, "q", lease_seconds=60)
    consumer.until("owned", 0, 1)
    assert counts(api) == {}
    revision = api.get("/queues/q").json()["revision"]
    assert report(consumer, 1, poison(consumer, 1), AWAY).status_code == 204
    away, quarantined = reported(api)
    assert (away["kind"], away["partition"], away["epoch"]) == ("log_away", None, None)
    assert quarantined["text"] == "at 7: ValueError: 7"
    assert (quarantined["partition"], quarantined["epoch"]) == (1, 1)
    assert quarantined["flow_id"] == consumer.flow_id
    assert quarantined["client_name"]
    assert counts(api) == {"log_away": 1, "quarantined": 1}
    # What goes on keeps its time, whatever is said of it later.
    assert report(consumer, 2, poison(consumer, 1, "another text")).status_code == 204
    (still,) = reported(api)
    assert (still["since"], still["text"]) == (quarantined["since"], "another text")
    assert report(consumer, 3).status_code == 204
    assert (reported(api), counts(api)) == ([], {})
    assert api.get("/queues/q").json()["revision"] == revision


def test_a_condition_ends_when_the_partition_goes_to_another(api: httpx.Client) -> None:
    create_queue(api, "q", 2)
    one = bind(api, "q", lease_seconds=60)
    one.until("owned", 0, 1)
    report(one, 1, poison(one, 0), poison(one, 1))
    two = bind(api, "q", lease_seconds=60)
    one.until("revoking", 1)
    assert counts(api) == {"quarantined": 2}
    assert one.outcomes("release", one.item(1)) == ["ok"]
    two.until("owned", 1)
    assert [each["partition"] for each in reported(api)] == [0]
    # A stale or foreign epoch is stored and never shown.
    report(one, 2, {"kind": "quarantined", "text": "t", "partition": 1, "epoch": 2})
    report(two, 1, {"kind": "quarantined", "text": "t", "partition": 0, "epoch": 1})
    assert counts(api) == {}
    report(one, 3, poison(one, 0))
    assert one.http.delete(one.path, headers=one.headers).status_code == 204
    eventually(lambda: counts(api) == {})
    assert reported(api) == []
    problem(report(one, 4, AWAY), 410, "flow_gone")


def test_a_report_renews_the_lease(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q", lease_seconds=3600)
    ends = lambda: api.get("/queues/q/flows").json()["items"][0]["lease_expires_at"]  # noqa: E731
    before = ends()
    report(consumer, 1)
    assert ends() > before


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "quarantined", "text": "two\nlines", "partition": 0, "epoch": 1},
        {"kind": "quarantined", "text": "\x1b[31mred", "partition": 0, "epoch": 1},
        {"kind": "quarantined", "text": "\x9b31mred, with one character less"},
        {"kind": "quarantined", "text": "x" * 301, "partition": 0, "epoch": 1},
        {"kind": "quarantined", "text": ""},
        {"kind": "Quarantined!", "text": "t"},
        {"kind": "quarantined", "text": "t", "partition": 0},
        {"kind": "quarantined", "text": "t", "epoch": 1},
        {"kind": "quarantined", "text": "t", "partition": -1, "epoch": 1},
    ],
)
def test_nothing_unbounded_or_unreadable_is_taken(
    refusing: httpx.Client, wrong: dict[str, Any]
) -> None:
    problem(report(bind(refusing, "q"), 1, wrong), 422, "invalid")


@pytest.mark.long
def test_so_many_are_taken_and_no_more(api: httpx.Client) -> None:
    create_queue(api, "q", 1)
    consumer = bind(api, "q")
    problem(report(consumer, 1, *[AWAY] * 1001), 422, "invalid")
    assert report(consumer, 1, *[AWAY | {"text": "x" * 300}] * 1000).status_code == 204
