"""`counterpoise history`: why a queue was rebalanced, in plain words."""

import json

import pytest

from counterpoise.calls import unbind
from counterpoise.client import Client
from tests.service import eventually


@pytest.fixture
def client(service):
    with Client(service.url) as client:
        yield client


def bind(client, name):
    return client.bind("a", name, lease_seconds=60.0)


def test_it_names_who_led_to_it_and_what_moved_also_of_flows_that_are_gone(run, client):
    run("queues", "create", "a", "-p", "4", "--rebalance-delay", "0", "--max-handoff-time", "0")
    assert "no rebalance yet" in run("history", "a").output
    one = bind(client, "etl-1")
    bind(client, "etl-2")
    eventually(lambda: [each.partitions for each in client.flows("a")] == [2, 2])
    client.send(unbind("a", one.flow_id, one.flow_token, "driver_lost"))
    said = run("history", "a").output
    assert said.splitlines() == [line.rstrip() for line in said.splitlines()]
    newest, forced, first = said.strip().split("\n\n")
    assert "etl-1 lost the Spark driver, which was killed" in newest
    assert "etl-1  etl-2  orphaned" in " ".join(newest.split()).replace(" ", "  ")
    assert "etl-2 bound" in forced
    assert "2 handoffs (2 forced)" in forced
    assert "forced: not released in time" in forced
    assert "etl-1 bound" in first
    assert "0-3" in first
    rows = json.loads(run("history", "a", "--json").output)
    assert [row["trigger"] for row in rows] == ["driver_lost", "bind", "bind"]
    assert [row["why"] for row in rows][1:] == ["etl-2 bound", "etl-1 bound"]
    assert {move["reason"] for move in rows[1]["moves"]} == {"not_released"}
    assert json.loads(run("history", "a", "--json", "--limit", "1").output) == rows[:1]


@pytest.mark.long
def test_a_pause_names_both_of_its_parts_silence_and_what_followed(run, client):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0", "--max-handoff-time", "0")
    client.bind("a", "etl-1", lease_seconds=1.0)
    bind(client, "etl-2")
    eventually(lambda: "did not renew the lease" in run("history", "a").output)
    newest = run("history", "a").output.split("\n\n")[0]
    assert "s silent)" in newest
    (move,) = json.loads(run("history", "a", "--json", "--limit", "1").output)[0]["moves"]
    # A lease of a second, by two clocks.
    assert move["seconds"] >= move["silent_seconds"] >= 0.9


def test_the_history_of_no_queue_is_one_line(run):
    assert "queues list" in run("history", "nothing", code=1).output


def test_a_service_takes_no_other_reason(client, run):
    run("queues", "create", "a", "-p", "1")
    one = bind(client, "etl-1")
    with pytest.raises(Exception, match="driver_lost"):
        client.send(unbind("a", one.flow_id, one.flow_token, "boredom"))
    assert client.flows("a")
