"""The tables are the specification: only listed transitions happen, and all of them do."""

from __future__ import annotations

import pytest

from broker.core import records as r
from broker.core.replay import replay_all
from broker.core.transitions import (
    LIFE_TRANSITIONS,
    PARTITION_TRANSITIONS,
    QUEUE_TRANSITIONS,
    Life,
    LifeEvent,
    PartitionEvent,
    QueueEvent,
    State,
    Status,
    diagram,
)
from tests.broker.core.world import World


def test_every_status_and_state_can_be_reached_and_left() -> None:
    for table, all_of in (
        (QUEUE_TRANSITIONS, Status),
        (PARTITION_TRANSITIONS, State),
        (LIFE_TRANSITIONS, Life),
    ):
        # A partition that follows others begins by waiting.
        assert set(table.values()) | ({State.WAITING} & set(all_of)) == set(all_of)
        assert {before for before, _ in table} == set(all_of)


def test_every_event_is_of_use() -> None:
    assert {event for _, event in QUEUE_TRANSITIONS} == set(QueueEvent)
    assert {event for _, event in PARTITION_TRANSITIONS} == set(PartitionEvent)
    assert {event for _, event in LIFE_TRANSITIONS} == set(LifeEvent)


def test_a_revoke_cannot_be_taken_back() -> None:
    for event in PartitionEvent:
        after = PARTITION_TRANSITIONS.get((State.REVOKING, event))
        assert after is not State.WARMING
        assert after is not State.OWNED or event is PartitionEvent.GRANTED


def test_nothing_but_rebalancing_leads_to_a_handoff_in_progress() -> None:
    assert (Status.REBALANCING, QueueEvent.HOLDDOWN_STARTED) not in QUEUE_TRANSITIONS


@pytest.mark.parametrize(
    "record",
    [
        r.RebalanceFinished(0.0),
        r.HolddownSettled(0.0),
        r.HandoffsCalledOff((0,)),
        r.WarmupsEnded((0,), True, 1.0, 0.0),
        r.PartitionsRemoved((0,), (), "finished", 0.0),
        r.PartitionsAdded(1, 2, 0.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_does_not_fit_is_refused(record: r.Record) -> None:
    orders = World.owning({"A": [0, 1]})
    with pytest.raises((AssertionError, KeyError)):
        replay_all(orders.queue, [record], 3)


def test_the_diagram_shows_every_transition() -> None:
    for table in (QUEUE_TRANSITIONS, PARTITION_TRANSITIONS, LIFE_TRANSITIONS):
        lines = diagram(table).splitlines()
        assert lines[0] == "stateDiagram-v2"
        assert len(lines) == len(table) + 1
    assert "    warming --> revoking: revoked" in diagram(PARTITION_TRANSITIONS)
