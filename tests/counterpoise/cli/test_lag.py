"""`counterpoise lag` on logs of every kind, between a publisher and a consumer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from counterpoise.cli import lag as lag_command
from counterpoise.cli import reading
from counterpoise.cli.app import app
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher
from tests.service import Service


@pytest.mark.long
@pytest.mark.matrix("log_settings")
def test_it_shows_the_unprocessed_part_of_the_published_messages(
    service: Service,
    log_settings: Callable[[int], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Kafka's ages come as far as the time allows.
    for module in (lag_command, reading):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 150.0)

    def lag(*options: str) -> str:
        told = CliRunner().invoke(app, ["lag", "flights", "--url", service.url, *options])
        assert told.exit_code == 0, told.output
        return told.output

    with Client(service.url) as client:
        client.create_queue("flights", rebalance_delay=0, **log_settings(2))
    with Publisher("flights", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(b"v", key=f"k{number}")
    assert "10 messages behind" in lag()
    before = json.loads(lag("--json"))
    ends = {one["partition"]: int(one["end"]) for one in before["partitions"]}
    assert (before["lag"], sum(ends.values())) == (10, 10)
    assert {one["position"] for one in before["partitions"]} == {None}
    ages = {one["partition"]: one["lag_seconds"] for one in before["partitions"]}
    assert {number for number, age in ages.items() if age is not None} == {
        number for number, end in ends.items() if end
    }
    assert before["lag_seconds"] == max(age for age in ages.values() if age is not None)
    assert re.search(r"10 messages behind in \S+; the oldest is \d+(\.\d)? s old", lag())
    Consumer("flights", lambda owned, batch: None, url=service.url, limit=10).run()
    after = json.loads(lag("--json"))
    assert (after["lag"], after["lag_seconds"]) == (0, 0.0)
    assert {one["lag_seconds"] for one in after["partitions"]} == {None}
    assert {one["partition"]: int(one["position"] or 0) for one in after["partitions"]} == ends
    assert "flights: 0 messages behind" in lag()
