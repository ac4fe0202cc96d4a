"""`counterpoise audit` against a real service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from click.testing import CliRunner

from counterpoise.cli.app import app
from counterpoise.cli.history import changed
from counterpoise.client import Client
from counterpoise.wire import AuditItem
from tests.service import Service


def test_it_tells_who_changed_what(service: Service) -> None:
    def audit(*options: str) -> str:
        told = CliRunner().invoke(app, ["audit", "--url", service.url, *options])
        assert told.exit_code == 0, told.output
        return told.output

    with Client(service.url) as client:
        client.create_queue("flights", 2)
        client.create_queue("orders", 2)
        client.change_queue("flights", max_handoff_time=4.0, partition_count=3)
        client.delete_queue("orders")
    lines = [line.split() for line in audit().splitlines()]
    assert [line[2:4] for line in lines[1:]] == [
        ["delete_queue", "orders"],
        ["change_queue", "flights"],
        ["create_queue", "orders"],
        ["create_queue", "flights"],
    ]
    text = audit("--queue", "flights", "--limit", "1")
    assert "max_handoff_time: 3 -> 4, partition_count: 2 -> 3" in text
    assert "127.0.0.1" in text
    assert "orders" not in text
    [item] = json.loads(audit("--queue", "flights", "--limit", "1", "--json"))
    assert item["before"]["partition_count"] == 2


def item(before: Any, after: Any) -> str:
    now = datetime.now(UTC)
    return changed(AuditItem(1, now, "drain", None, "f", None, None, None, before, after))


def test_what_changed_in_a_few_words() -> None:
    assert item(None, {"name": "flights"}) == "flights"
    assert item({"client_name": "etl"}, None) == "f"
    assert item({"a": 1, "revision": 3}, {"a": 1, "revision": 4}) == ""
    assert item({"a": 1, "b": None}, {"a": 2, "b": "x"}) == "a: 1 -> 2, b: none -> x"
    positions = {"positions": {"0": "5", "1": None}}, {"positions": {"0": "0", "1": None}}
    assert item(*positions) == "positions.0: 5 -> 0"
    assert item({str(n): 0 for n in range(9)}, {str(n): 1 for n in range(9)}) == "9 values"
