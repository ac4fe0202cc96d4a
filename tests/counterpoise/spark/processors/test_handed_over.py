"""Ready processors give the same rows, however the partition moves and micro-batches are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from counterpoise.spark import Count, Last, Windows
from counterpoise.spark.processors import DuplicateFilter, JoinByKey, WindowAggregate
from counterpoise.spark.processors.clock import TIME, PartitionTime
from tests.counterpoise.spark.processors.worlds import (
    SECOND,
    Application,
    handed_over,
    in_tenure,
    message,
)

KEYS = ("a", "b", "c")
KINDS = ("order", "payment")


def log(seed: int, count: int = 120) -> list[Row]:
    """Messages whose times go on by about a second, out of order; some have none."""
    random = Random(seed)
    return [
        message(
            number,
            None if random.random() < 0.05 else number + random.randint(-8, 3),
            key=random.choice(KEYS),
            id=random.randint(0, 12),
            kind=random.choice((*KINDS, "other")),
        )
        for number in range(count)
    ]


def with_clock(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """The rows that have a time, each with the partition time."""
    latest = None
    for row in rows:
        if row[TIME] is not None:
            latest = row[TIME] if latest is None else max(latest, row[TIME])
            yield row, latest


def windows() -> WindowAggregate:
    spec = Windows("at", 10, slide_seconds=5, delay_seconds=2)
    return WindowAggregate("n long, last int", {"n": Count(), "last": Last("id")}, spec)


@pytest.mark.parametrize("seed", range(12))
def test_windows_in_handoffs_and_crashes(seed: int) -> None:
    rows = log(seed)
    found = handed_over(windows, rows, seed)
    assert len(found) > 20
    wanted: Counter[tuple[str, int]] = Counter()
    closed_by: dict[int, str] = {}
    for row, now in with_clock(rows):
        ended = {end for _, end in wanted if end <= now - 2 * SECOND}
        for end in sorted(ended - closed_by.keys()):
            closed_by[end] = row["position"]
        for end in (row[TIME] // (5 * SECOND) * 5 * SECOND + k * SECOND for k in (5, 10)):
            if end > now - 2 * SECOND:
                wanted[row["key"], end] += 1
    assert {(one["key"], one["window_end"]): one["n"] for one in found} == {
        place: n for place, n in wanted.items() if place[1] in closed_by
    }
    assert all(closed_by[one["window_end"]] == one["position"] for one in found)
    assert [one["position"] for one in found] == sorted((one["position"] for one in found), key=int)
    assert found == handed_over(windows, rows, seed + 1000, crashes=True)


def duplicates() -> DuplicateFilter:
    return DuplicateFilter(["id"], time="at", horizon_seconds=15)


@pytest.mark.parametrize("seed", range(12))
def test_ids_in_handoffs_and_crashes(seed: int) -> None:
    rows = [row for row in log(seed) if row[TIME] is not None]
    wanted, passed = [], dict[int, int]()
    for row, now in with_clock(rows):
        if row["id"] not in passed or now - passed[row["id"]] > 15 * SECOND:
            passed[row["id"]] = now
            wanted.append(row["position"])
    assert 0.8 * len(rows) > len(wanted) > 20
    for crashes in (False, True):
        found = handed_over(duplicates, rows, seed, crashes=crashes)
        assert [one["position"] for one in found] == wanted


def pairs(**changes: Any) -> JoinByKey:
    return JoinByKey("kind", KINDS, ["id"], within_seconds=8, time="at", **changes)


@pytest.mark.parametrize("seed", range(12))
def test_pairs_in_handoffs_and_crashes(seed: int) -> None:
    rows = log(seed)
    wanted, before = [], list[Row]()
    for row, now in with_clock(rows):
        wanted += [
            (row["position"], frozenset((row["position"], other["position"])))
            for other in before
            if {row["kind"], other["kind"]} == set(KINDS) and other["key"] == row["key"]
            if abs(row[TIME] - other[TIME]) <= 8 * SECOND and now - other[TIME] <= 8 * SECOND
        ]
        before.append(row)
    assert len(wanted) > 20
    for crashes in (False, True):
        found = handed_over(pairs, rows, seed, crashes=crashes)
        ends = [frozenset((one["left_position"], one["right_position"])) for one in found]
        assert [(one["position"], pair) for one, pair in zip(found, ends, strict=True)] == wanted


@pytest.mark.parametrize(
    ("times", "clock"),
    [
        pytest.param([5, 3, 9, 8], [5, 5, 9, 9], id="usual"),
        pytest.param([5, 500, 6, 7], [5, 5, 6, 7], id="one is wrong"),
        pytest.param([500, 5, 6, 7], [500, 5, 6, 7], id="the first one is wrong"),
        pytest.param([5, 900, 6, 500, 7], [5, 5, 6, 6, 7], id="some are wrong"),
        pytest.param([5, 500, None, 501, 7], [5, 5, 5, 501, 501], id="after a silence"),
        pytest.param([5, 500, 495, 7], [5, 5, 500, 500], id="after a silence, out of order"),
        pytest.param([5, 105, 205, 305], [5, 5, 105, 205], id="always far apart"),
        pytest.param([None, 5, None], [None, 5, 5], id="without times"),
    ],
)
def test_the_partition_time(times: list[int | None], clock: list[int | None]) -> None:
    now, found = PartitionTime(), []
    for time in times:
        now = now.after(time, 10)
        found.append(now.now)
    assert found == clock


@pytest.mark.parametrize("make", [windows, duplicates, pairs])
@pytest.mark.parametrize("seed", range(4))
def test_rows_dated_far_ahead_change_nothing_else(
    seed: int, make: Callable[[], StatefulProcessor]
) -> None:
    """They are as rows without a time, but for windows and pairs of their own time."""
    rows = log(seed)
    years = (Row(**{**row.asDict(), TIME: (900 - n) * 10**13}) for n, row in enumerate(rows))
    far = [there if row[TIME] is None else row for row, there in zip(rows, years, strict=True)]
    assert far != rows
    for crashes in (False, True):
        assert handed_over(make, far, seed, crashes=crashes) == handed_over(
            make, rows, seed, crashes=crashes
        )


def test_a_pair_has_the_columns_of_its_two_rows() -> None:
    application = Application(pairs())
    application.read([message(0, 1, key="a", kind="payment", id=7)], 1)
    (pair,) = application.read([message(1, 2, key="a", kind="order", id=8)], 1)
    assert pair.asDict() == {
        "partition": 0,
        "position": "1",
        "key": "a",
        "left_partition": 0,
        "left_position": "1",
        "left_id": 8,
        "right_partition": 0,
        "right_position": "0",
        "right_id": 7,
    }


def test_no_header_stops_a_join() -> None:
    join = JoinByKey("kind", KINDS, ["headers"], within_seconds=8, time="at")
    application = Application(join)
    headers = {"@": "time"}, {"@": "bytes", "is": "aGk="}
    for position, (kind, given) in enumerate(zip(KINDS, headers, strict=True)):
        # Spark gives a map as pairs.
        row = message(position, 1, key="a", kind=kind, headers=list(given.items()))
        found = application.read([row], 1)
    (pair,) = found
    sides = [pair["left_headers"], pair["right_headers"]]
    # And so it takes them back.
    taken = pa.array(sides, pa.map_(pa.string(), pa.string())).to_pylist()
    assert tuple(map(dict, taken)) == headers


def test_a_window_has_the_map_of_its_last_row() -> None:
    window = WindowAggregate("last map<string,string>", {"last": Last("headers")}, Windows("at", 8))
    application = Application(window)
    application.read([message(0, 1, key="a", headers=[("@", "time")])], 1)
    (closed,) = application.read([message(1, 9, key="a", headers=None)], 1)
    taken = pa.array([closed["last"]], pa.map_(pa.string(), pa.string()))
    assert taken.to_pylist() == [[("@", "time")]]


def sides(count: int) -> list[list[Row]]:
    """Two aligned logs: message n of each makes one pair."""
    return [
        [message(n, n, partition=6 + side, key=f"k{n}", kind=kind, id=n) for n in range(count)]
        for side, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_sides_of_a_group_are_restored_side_by_side(ahead: int) -> None:
    """The first new rows of one side may come before the history of the other one is complete."""
    one, other = sides(10)[ahead], sides(10)[1 - ahead]
    old, new = Application(pairs(aligned=2)), Application(pairs(aligned=2))
    # The old owner: 6 of one side, 3 of the other one.
    found = old.read([*one[:6]], 1) + old.read([*other[:3]], 1)
    assert [pair["key"] for pair in found] == ["k0", "k1", "k2"]
    assert "position" not in found[0], "no position says which range the pair is of"
    out = new.read(one[:5], 2, replay=True) + new.read(other[:2], 3, replay=True)
    # New messages before the last ones of both histories, k2 and k5.
    out += new.read(other[3:8], 3)
    out += new.read(other[2:3], 3, replay=True) + new.read(one[5:6], 2, replay=True)
    out += new.read(one[6:], 2) + new.read(other[8:], 3)
    assert sorted(pair["key"] for pair in out) == [f"k{n}" for n in range(3, 10)]


def test_a_mark_of_both_positions_would_lose_pairs() -> None:
    """Why the fenced sink refuses pairs of aligned logs: it could drop what lies below both marks,
    but the pair of two such rows may come later, because the sides are restored side by side.
    """
    one, other = sides(6)
    old, new = Application(pairs(aligned=2)), Application(pairs(aligned=2))
    written = [pair["key"] for pair in old.read(one[:4], 1) + old.read(other[:2], 1)]
    assert written == ["k0", "k1"]
    # The new owner reads on in one side while the history of the other one is on its way.
    assert new.read(other[:2], 2, replay=True) + new.read(one[:3], 3, replay=True) == []
    assert [pair["key"] for pair in new.read(other[2:4], 2)] == ["k2"]
    marks = {6: 4, 7: 4}
    (late,) = new.read(one[3:4], 3, replay=True)
    assert late["key"] == "k3", "it was never written"
    places = ((late[f"{side}_partition"], late[f"{side}_position"]) for side in ("left", "right"))
    assert all(int(position) < marks[partition] for partition, position in places)


def test_a_side_that_lags_finds_the_open_messages_of_the_other_one() -> None:
    one, other = sides(40)
    application = Application(pairs(aligned=2))
    out = application.read(other[:1], 1)
    for portion in (one[:20], one[20:], other[1:]):
        out += application.read(portion, 1)
    assert len(out) == 40


def test_after_a_crash_pairs_of_a_group_come_again_and_none_is_missing() -> None:
    one, other = sides(8)
    old, new = Application(pairs(aligned=2)), Application(pairs(aligned=2))
    # It has written them, and dies before it commits anything after k1.
    found = old.read(one[:5], 1) + old.read(other[:4], 1)
    assert new.read(one[:2], 2, replay=True) + new.read(other[:2], 3, replay=True) == []
    found += new.read(other[2:], 3) + new.read(one[2:], 2)
    keys = Counter(pair["key"] for pair in found)
    assert keys == Counter([f"k{n}" for n in range(8)]) + Counter(["k2", "k3"])


def test_a_key_that_moves_to_another_partition_begins_anew() -> None:
    made: list[tuple[Callable[[], StatefulProcessor], list[int]]]
    made = [(windows, []), (duplicates, [0]), (pairs, [])]
    for make, before in made:
        old, new = Application(make()), Application(make())
        given = [message(0, 1, key="a", id=7, kind="order")]
        assert [int(one["position"]) for one in old.read(given, 1)] == before
        moved = [message(0, 1, partition=1, key="a", id=7, kind="payment")]
        assert [int(one["position"]) for one in new.read(moved, 2)] == before
        # What has opened a window closes it where it is.
        for application, partition in ((old, 0), (new, 1)):
            last = message(1, 100, partition, key="b", id=8, kind="other")
            out = application.read([last], 1 + partition)
            assert [one["n"] for one in out if make is windows] == [1] * 2 * (make is windows)


def test_sides_that_come_back_drop_what_they_left() -> None:
    one, other = sides(8)
    application = Application(pairs(aligned=2))
    application.read([*one[:4], *other[:2]], 1)
    # Both come back under other tenures; meanwhile the other owner has made k2, k3 and k4.
    history = [*in_tenure(one[:5], 4, replay=True), *in_tenure(other[:5], 5, replay=True)]
    assert application.read_as_given(history) == []
    out = application.read(one[5:], 4) + application.read(other[5:], 5)
    assert sorted(pair["key"] for pair in out) == ["k5", "k6", "k7"]


def test_a_heartbeat_moves_the_time_and_is_nothing_else() -> None:
    spec = Windows("at", 10)
    application = Application(WindowAggregate("n long", {"n": Count()}, spec, heartbeat="beat"))
    application.read([message(0, 1, key="a", beat=False)], 1)
    (closed,) = application.read([message(1, 10, key="", beat=True)], 1)
    assert (closed["key"], closed["n"], closed["position"]) == ("a", 1, "1")
    assert application.read([message(2, 100, key="", beat=True)], 1) == []
    filtered = DuplicateFilter(["key"], time="at", horizon_seconds=5, heartbeat="beat")
    seen = Application(filtered)
    for position, (at, beat, passes) in enumerate(
        [(1, False, True), (2, False, False), (9, True, False), (3, False, True)]
    ):
        assert bool(seen.read([message(position, at, key="a", beat=beat)], 1)) == passes


@pytest.mark.parametrize(
    ("name", "make"), [("partials", windows), ("ids", duplicates), ("open", pairs)]
)
def test_state_stays_small(name: str, make: Callable[[], StatefulProcessor]) -> None:
    application = Application(make())
    for number in range(500):
        kind = KINDS[number % 2]
        application.read([message(number, number, key=f"k{number}", id=number, kind=kind)], 1)
    assert application.handle.held(name) < 40
