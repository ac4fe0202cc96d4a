"""What a program's log says of its flow, without callbacks."""

import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.flow.base import MOST_IN_A_LINE, LogLines
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.view import Granted, Owned
from tests.counterpoise.leases import LONG_SECONDS, expire
from tests.service import Service, eventually


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "counterpoise.flow"]


def test_a_flow_tells_what_it_gets_and_loses(
    service: Service, migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Client(service.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=3600)
        with Flow("flights", url=service.url, client_name="one", lease_seconds=LONG_SECONDS) as one:
            eventually(lambda: len(one.partitions) == 2)
            flow_id = one.flow_id
            with Flow("flights", url=service.url, client_name="two"):
                revoked = "queue flights: revoked: partition 1 epoch 1"
                eventually(lambda: revoked in said(caplog))
                expire(migrated_url, flow_id)
                lost = "queue flights: lost: partition 0 epoch 1, 1 epoch 1"
                eventually(lambda: lost in said(caplog))
                lines = said(caplog)
    assert f"queue flights: bound as one (flow {flow_id})" in lines
    assert "queue flights: granted (initial): partition 0 epoch 1, 1 epoch 1" in lines
    # The requests themselves are many, and say nothing.
    assert not [record for record in caplog.records if record.name == "httpx"]


def test_requests_of_the_program_stay_in_its_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, logger="httpx")  # a command of an earlier test may have set it
    with Client(service.url) as client, service.http as http:
        client.queues()
        assert not [record for record in caplog.records if record.name == "httpx"]
        http.get(f"{service.url}/healthz")
    assert [record.name for record in caplog.records if record.name == "httpx"] == ["httpx"]


def test_many_partitions_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    core = FlowCore(FlowSettings("flights", "me", "i"))
    owned = [Owned(number, 1, "owned", None, "initial") for number in range(1000)]
    LogLines().write(core, [Granted(one) for one in owned])
    (line,) = said(caplog)
    assert line.endswith(f"{MOST_IN_A_LINE - 1} epoch 1 and {1000 - MOST_IN_A_LINE} more")


def test_a_flow_that_is_held_back_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    core, lines = FlowCore(FlowSettings("flights", "me", "i")), LogLines()
    until = datetime(2026, 11, 20, 10, 20, tzinfo=UTC)
    for held_until in (None, until, until, None):
        core.view = replace(core.view, held_until=held_until)
        lines.write(core, [])
    (line,) = said(caplog)
    assert "waits until 2026-11-20 10:20:00" in line
    assert "as much of the queue as it may in an hour" in line
