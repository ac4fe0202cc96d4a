"""`--dry-run` of the commands: what they say, and that nothing changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.service import Service


@pytest.fixture
def client(service: Service) -> Any:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0)
        yield client


def test_each_command_says_what_it_would_do(client: Client, run: Any, service: Service) -> None:
    with Publisher("flights", url=service.url) as publisher:
        for number in range(6):
            publisher.publish(b"v", key=f"k{number}")
    bound = client.bind("flights", "etl")
    client.pause_partition("flights", 3)
    revision = client.queue("flights").revision

    def said(*command: str) -> list[str]:
        return run(*command, "--dry-run").output.splitlines()

    assert said("queues", "resize", "flights", "6") == [
        "flights: partitions 4-5 would begin",
        "flights: partitions 4-5 would go from nobody to etl",
        "flights: partition count: 4 → 6",
    ]
    assert said("queues", "resize", "flights", "3") == [
        "flights: partition 3 would be read to the end, then removed",
        "flights: partition count: 4 → 3",
        "flights: condition resize paused: 1",
    ]
    assert said("queues", "change", "flights", "--retention-seconds", "60") == [
        "flights: retention seconds: 86,400 → 60"
    ]
    assert said("queues", "pause", "flights") == ["flights: partitions 0-2 would be paused"]
    assert said("queues", "pause", "flights", "-p", "3", "--reason", "r") == [
        "flights: nothing would change"
    ]
    assert said("queues", "resume", "flights", "-p", "3", "-p", "0") == [
        "flights: partition 3 would be resumed",
        "flights: nothing would change",
    ]
    assert said("rebalance", "flights") == ["flights: nothing would change"]
    drained = said("consumers", "drain", "flights", "etl")
    assert drained[0] == (
        "flights: partitions 0-3 would stay with a consumer that drains; nobody may take over"
    )
    assert said("consumers", "unbind", "flights", "etl") == [
        "flights: partitions 0-3 would be taken unreleased; what is in progress comes again",
        "flights: partitions 0-3 would have no owner",
        "flights: etl would end",
    ]
    assert said("queues", "delete", "flights", "--force") == [
        "flights: at most 6 messages not processed would be lost",
        "flights: its log would be deleted",
        "flights: partitions 0-3 would be removed at once",
        "flights: partitions 0-3 would be taken unreleased; what is in progress comes again",
        "flights: etl would end",
    ]
    assert run("queues", "delete", "flights", "--dry-run", code=1).output
    shown = json.loads(run("queues", "resize", "flights", "6", "--dry-run", "--json").output)
    assert shown["added"] == [4, 5]
    two = run("queues", "pause", "flights", "-p", "0", "-p", "1", "--dry-run", "--json").output
    assert [one["paused"] for one in json.loads(two)] == [[0], [1]]
    assert client.queue("flights").revision == revision
    assert [flow.flow_id for flow in client.flows("flights")] == [bound.flow_id]


def test_a_split_and_a_merge_are_foreseen(client: Client, run: Any) -> None:
    client.create_queue("tokens", 1, partitioning="dynamic")
    split = run("partitions", "split", "tokens", "0", "--dry-run").output.splitlines()
    assert split == [
        "tokens: partition 0 would be read to the end, then removed",
        "tokens: partitions 1-2 would begin",
    ]
    client.split_partition("tokens", 0)
    merged = run("partitions", "merge", "tokens", "1", "2", "--dry-run").output.splitlines()
    assert merged[:2] == [
        "tokens: partitions 1-2 would be read to the end, then removed",
        "tokens: partition 3 would begin",
    ]
    assert len(client.lineage("tokens")) == 3
