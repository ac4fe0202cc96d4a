"""Records as JSON, and how neighbouring records are merged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.core import records as r
from broker.core.draft import merged
from broker.core.records import Cut
from broker.core.stored import from_json, shown_from_json, shown_values, to_json, understood

MOVE, GRANT = r.Move(1, "A", "B"), r.Grant(1, "A", "B", 2, "graceful", 0.5, True)

EVERY: list[r.Record] = [
    r.SettingsChanged(
        {"partition_count": 3, "access_type": "exclusive", "max_concurrent_handoffs": None}
    ),
    r.FlowBound("A", "i", "etl", 0, 10.0, True, 1.0),
    r.FlowBound("A", "i", "etl", 0, 10.0, True, 1.0, "b", 2, "key", 61.0, 7.5),
    r.FlowBound("A", "i", "etl", 0, 10.0, True, 1.0, keeps_state=True),
    r.FlowsAdmitted(("A", "B"), 61.0),
    r.FlowLeft("A", "unbound", True, 1.0),
    r.FlowLeft("A", "lease_expired", True, 1.0, 0.5),
    r.FlowDraining("A", None),
    r.HolddownStarted("bind", 5.0, 2, 0.0),
    r.HolddownSettled(1.0),
    r.RebalanceStarted(1, "bind", 1.0),
    r.PairsFirst(5.0, 2),
    r.RebalanceFinished(1.0),
    r.GrantedOutside(1, "unbind", 1.0),
    r.Granted((GRANT,), 1.0),
    r.Released(1, "A", 1.0),
    r.ReleasedInPart(1),
    r.WarmupsStarted((MOVE,), 9.0, 1.0),
    r.RevokesStarted((MOVE,), 9.0, 1.0),
    r.WarmupsEnded((1, 2), True, 9.0, 1.0),
    r.HandoffsRedirected((r.Redirect(1, None),), None, 1.0),
    r.WarmupsReady((1,)),
    r.HandoffsCalledOff((1,)),
    r.PartitionsAdded(0, 3, 1.0),
    r.PartitionsRetired((1,)),
    r.PartitionsRemoved((1,), (r.Ended(1, "A", "B", 2, 0.5),), "discarded", 1.0),
    r.EpochsRaised((1,), 1.0),
    r.Paused((1, 2), 60.0, "the warehouse is restored", 1.0),
    r.Paused((), None, None, 1.0),
    r.Resumed((1,), "ended", 60.0),
    r.Pinned((3,), "etl", "its cache", 1.0),
    r.Unpinned((3,), 60.0),
    r.DeadlinesMoved(1, 1.0, 60.0),
    r.ClockWentBack(2, -60.0),
    r.CutsAwaited(3.0, 1),
    r.CutsTaken(2, 4, 6, (Cut(0, "17", True), Cut(1, "9", False))),
    r.CutsReached((1,)),
    r.ChildrenAdded((r.Child(7, "c", ("a", "b")), r.Child(8, "d", ())), 1.0),
    r.WaitsEnded((7, 8), 1.0),
    r.PartitionFinished(3, "A", 1.0),
    r.FinishedRemoved((3,), 1.0),
]


def test_the_list_above_is_complete() -> None:
    assert {type(record) for record in EVERY} == set(r.Record.__args__)


@pytest.mark.parametrize("record", EVERY, ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record: r.Record) -> None:
    again = from_json(json.loads(json.dumps(to_json(record))))
    assert again == record
    for name in ("grants", "moves", "redirects", "ended", "children"):
        for one, other in zip(getattr(again, name, ()), getattr(record, name, ()), strict=True):
            assert type(one) is type(other)


def test_an_unknown_field_is_not_ignored() -> None:
    """It may change the meaning of the record in a newer version."""
    values = to_json(r.DeadlinesMoved(1, 2.0, 3.0)) | {"but_not": [4]}
    with pytest.raises(KeyError, match="but_not"):
        from_json(values)


def test_an_unknown_kind_is_not_guessed() -> None:
    with pytest.raises(KeyError, match="PartitionsSplit"):
        from_json({"kind": "PartitionsSplit", "at": 1.0})


def test_nor_is_a_known_kind_with_other_items_or_less_than_it_needs() -> None:
    for values in (
        {"kind": "RevokesStarted", "moves": [(1, "A", "B", "more")], "deadline": 1.0, "at": 1.0},
        {"kind": "RevokesStarted", "moves": [(1, "A")], "deadline": 1.0, "at": 1.0},
        {"kind": "RevokesStarted", "moves": [(1, "A", "B")]},
    ):
        with pytest.raises(KeyError):
            from_json(values)


def test_a_change_of_an_unknown_setting_is_passed_on_and_not_replayed() -> None:
    """The replica loads the queue anew; no call meets an error."""
    values = {"kind": "SettingsChanged", "changes": {"colour": "red", "max_handoff_time": 5.0}}
    with pytest.raises(KeyError, match="colour"):
        from_json(values)
    record = shown_from_json(values)
    assert understood(record) == r.SettingsChanged({"max_handoff_time": 5.0})
    assert shown_values(record) == values


def test_for_showing_what_is_known_is_read_and_the_rest_passed_on() -> None:
    granted = r.Granted((r.Grant(1, None, "A", 1, "initial", None, False),), 1.0)
    values = json.loads(json.dumps(to_json(granted)))
    assert shown_from_json(values) == granted
    values["grants"][0].append("new")
    values["cause"] = "weather"
    record = shown_from_json(values)
    assert understood(record) == granted
    shown = shown_values(record)
    assert shown["cause"] == "weather"
    assert shown["grants"] == [{**granted.grants[0]._asdict(), "more": ["new"]}]
    unknown = shown_from_json({"kind": "PartitionsSplit", "at": 1.0})
    assert understood(unknown) is None
    assert shown_values(unknown) == {"kind": "PartitionsSplit", "at": 1.0}


def test_equal_neighbours_are_merged() -> None:
    records: list[Any] = [
        r.WarmupsStarted((r.Move(1, "A", "B"),), 9.0, 1.0),
        r.WarmupsStarted((r.Move(2, "A", "B"),), 9.0, 1.0),
        r.WarmupsStarted((r.Move(3, "A", "B"),), 8.0, 1.0),
        r.HandoffsCalledOff((4,)),
        r.HandoffsCalledOff((5,)),
        r.Released(6, "A", 1.0),
        r.Released(7, "A", 1.0),
    ]
    assert merged(records) == [
        r.WarmupsStarted((r.Move(1, "A", "B"), r.Move(2, "A", "B")), 9.0, 1.0),
        r.WarmupsStarted((r.Move(3, "A", "B"),), 8.0, 1.0),
        r.HandoffsCalledOff((4, 5)),
        r.Released(6, "A", 1.0),
        r.Released(7, "A", 1.0),
    ]


def test_records_between_equal_ones_keep_their_place() -> None:
    records: list[Any] = [
        r.HandoffsCalledOff((4,)),
        r.FlowDraining("A", None),
        r.HandoffsCalledOff((5,)),
    ]
    assert merged(records) == records
