"""`counterpoise queues pin` and `unpin`, and what other commands show of a pin."""

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


def test_partitions_are_pinned_and_unpinned(client: Client, run: Any) -> None:
    numbers = ("-p", "0", "-p", "1", "-p", "3")
    told = run("queues", "pin", "flights", "etl", *numbers, "--reason", "its cache").output
    assert told == "flights: partitions 0-1 3 are pinned to etl, without effect (its cache)\n"
    assert client.queue("flights").pinned_partition_count == 3
    assert "0-1 3 to etl, without effect (its cache)" in run("status", "flights").output
    shown = json.loads(run("queues", "unpin", "flights", "-p", "0", "--json").output)
    assert [one["partition"] for one in shown["partitions"]] == [1, 3]
    told = run("queues", "unpin", "flights", "-p", "1", "-p", "3").output
    assert told == "flights: nothing is pinned\n"


def test_the_service_refuses_what_cannot_be(client: Client, run: Any) -> None:
    assert "Partition 9" in run("queues", "pin", "flights", "etl", "-p", "9", code=1).output
    assert "--partition" in run("queues", "pin", "flights", "etl", code=2).output
    too_long = ("queues", "pin", "flights", "etl", "-p", "0", "--reason", "r" * 201)
    assert run(*too_long, "--dry-run", code=1).output == run(*too_long, code=1).output
