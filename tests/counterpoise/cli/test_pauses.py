"""`counterpoise queues pause` and `resume`, and what other commands show of a pause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from counterpoise.client import Client
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Any:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0)
        yield client


def test_partitions_are_paused_and_resumed(client: Client, run: Any) -> None:
    told = run(
        *("queues", "pause", "flights", "-p", "0", "-p", "1", "-p", "3"),
        *("--until", "2100-01-01T00:00:00Z", "--reason", "wrong prices"),
    ).output
    assert told.startswith("flights: partitions 0-1 3 are paused until ")
    assert told.endswith(" (wrong prices)\n")
    assert run("queues", "resume", "flights", "-p", "0", "-p", "1", "-p", "3").output == (
        "flights: nothing is paused\n"
    )
    assert client.queue("flights").paused_partition_count == 0


def test_a_queue_is_paused_beside_a_partition(client: Client, run: Any) -> None:
    run("queues", "pause", "flights", "--partition", "2", "--reason", "own")
    run("queues", "pause", "flights", "--for", "10m")
    queue = client.queue("flights")
    assert queue.paused is not None
    assert queue.paused.until is not None
    assert (queue.paused.until - queue.paused.since).total_seconds() == pytest.approx(600)
    shown = json.loads(run("queues", "resume", "flights", "--json").output)
    assert shown["paused"] is None
    assert [one["partition"] for one in shown["partitions"]] == [2]


def test_other_commands_show_it(client: Client, run: Any) -> None:
    run("queues", "pause", "flights", "-p", "1", "--reason", "wrong\u00e9 prices")
    assert "1 partition paused" in run("queues", "list").output
    status = run("status", "flights").output
    assert "1 (wrong\u00e9 prices)" in status
    assert "unassigned, paused" in run("lag", "flights").output
    lag = json.loads(run("lag", "flights", "--json").output)
    reasons = [one["paused"] and one["paused"]["reason"] for one in lag["partitions"]]
    assert reasons == [None, "wrong\u00e9 prices", None, None]
    run("queues", "pause", "flights", "--reason", "all")
    assert "yes (all)" in run("queues", "show", "flights").output


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--for", "10"], "is no duration"),
        (["--for", "0m"], "is no duration"),
        (["--until", "tomorrow"], "is no time"),
        (["--for", "1m", "--until", "2100-01-01T00:00:00Z"], "either --for or --until"),
    ],
)
def test_a_bad_end_is_refused(client: Client, run: Any, options: list[str], said: str) -> None:
    assert said in run("queues", "pause", "flights", *options, code=2).output
    assert client.queue("flights").paused is None


def test_the_service_refuses_what_cannot_be(client: Client, run: Any) -> None:
    assert "Partition 9" in run("queues", "pause", "flights", "-p", "9", code=1).output
    past = ("--until", "2020-01-01T00:00:00Z")
    assert "over already" in run("queues", "pause", "flights", *past, code=1).output
