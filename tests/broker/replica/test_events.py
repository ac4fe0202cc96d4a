"""What the service's log says of each queue."""

import logging

import pytest
from structlog.testing import capture_logs

from broker.core import records as r
from broker.core.records import Entry, Grant
from broker.replica.events import LOGGER, MOST_LINES, UNLOGGED, EventLog
from broker.testing.loop import settle, virtual
from tests.broker.shell import World, spec


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def told(*records: r.Record, narration: EventLog | None = None) -> list[dict[str, object]]:
    with capture_logs() as lines:
        (narration or EventLog()).note("orders", [Entry(7, 100.0, records)])
    assert all(line["queue"] == "orders" and line["revision"] == 7 for line in lines)
    names = ("queue", "revision", "log_level")
    return [{k: v for k, v in line.items() if k not in names} for line in lines]


def bound(flow_id: str, client_name: str) -> r.FlowBound:
    return r.FlowBound(flow_id, f"i-{flow_id}", client_name, 0, 10.0, False, 100.0)


def test_binds_and_departures_name_the_client() -> None:
    narration = EventLog()
    assert told(bound("f1", "etl"), narration=narration) == [
        {"event": "flow bound", "flow": "f1", "client": "etl"}
    ]
    left = r.FlowLeft("f1", "lease_expired", True, 101.0)
    assert told(left, narration=narration) == [
        {"event": "lease expired", "flow": "f1", "client": "etl", "reason": "lease_expired"}
    ]
    # A flow that bound at another replica has no name here.
    assert told(r.FlowLeft("f2", "unbound", False, 101.0)) == [
        {"event": "flow left", "flow": "f2", "reason": "unbound"}
    ]


def test_a_forced_handoff_names_partition_epoch_owner_successor_and_reason() -> None:
    narration = EventLog()
    told(bound("f1", "one"), bound("f2", "two"), narration=narration)
    grants = (
        Grant(3, "f1", "f2", 5, "forced", 3.0, True),
        Grant(4, "f1", "f2", 2, "graceful", 0.1, True),
    )
    assert told(r.Granted(grants, 100.0), narration=narration) == [
        {"event": "partitions granted", "forced": 1, "graceful": 1},
        {
            "event": "handoff forced",
            "partition": 3,
            "epoch": 5,
            "owner": "f1",
            "owner_client": "one",
            "successor": "f2",
            "successor_client": "two",
            "reason": "not released by its deadline",
            "seconds": 3.0,
        },
    ]


def test_a_grant_after_positions_were_set_is_no_forced_handoff() -> None:
    """The previous owner had left, so nothing was taken from it."""
    grants = (Grant(3, "f1", "f2", 5, "forced", 3.0, False),)
    assert told(r.Granted(grants, 100.0)) == [{"event": "partitions granted", "forced": 1}]


def test_a_partition_that_retires_again_has_no_positions_set() -> None:
    assert told(r.EpochsRaised((3,), 100.0)) == [{"event": "positions set", "partitions": 1}]
    assert told(r.EpochsRaised((3,), 100.0, "replaced")) == []


def test_thousands_of_forced_handoffs_are_counted() -> None:
    grants = tuple(Grant(n, "f1", "f2", 2, "forced", 3.0, True) for n in range(1000))
    lines = told(r.Granted(grants, 100.0))
    assert len(lines) == 1 + MOST_LINES + 1
    assert lines[-1] == {"event": "more handoffs forced", "partitions": 1000 - MOST_LINES}


def test_every_kind_of_record_is_told_or_left_out_on_purpose() -> None:
    tells = {
        r.FlowBound, r.FlowsAdmitted, r.FlowLeft, r.FlowDraining,
        r.HolddownStarted, r.HolddownSettled, r.RebalanceStarted, r.RebalanceFinished,
        r.GrantedOutside, r.Granted, r.EpochsRaised,
        r.PartitionsAdded, r.PartitionsRetired, r.PartitionsRemoved, r.SettingsChanged,
            r.ChildrenAdded, r.PartitionFinished, r.Paused, r.Resumed, r.Pinned, r.Unpinned,
    }  # fmt: skip
    assert tells | set(UNLOGGED) == set(r.Record.__args__)
    assert not tells & set(UNLOGGED)


def test_nothing_is_made_for_a_log_that_does_not_want_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    assert told(bound("f1", "etl")) == []


@virtual
async def test_the_life_of_a_queue_is_told_by_the_replica_that_committed_it() -> None:
    world = World()
    one, _ = await world.replica(), await world.replica()
    with capture_logs() as lines:
        await one.create_queue(spec())
        await one.join("orders", "first", lease=60)
        await settle()
    events = [line["event"] for line in lines if line.get("queue") == "orders"]
    assert events.count("flow bound") == 1
    assert "partitions granted" in events
