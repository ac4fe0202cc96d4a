"""The contract of targets: each message once, whatever the target, and whoever writes beside it.

A writer is *frozen* here between reading the high-waters and committing: meanwhile others write.
That is deterministic; a random campaign may never stop a writer there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from counterpoise.logs import InvalidPosition
from counterpoise.spark.errors import InvalidRows, SinkGap
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.fence import HighWaterKey
from tests.counterpoise.spark.sink.mariadb import MariaDbServer
from tests.counterpoise.spark.sink.places import (
    COLUMNS,
    MariaDb,
    Place,
    Postgres,
    once,
    rows_of,
    then,
)

if TYPE_CHECKING:
    from tests.counterpoise.spark.sink.object_store import ObjectStore

LONG = (pytest.mark.long, pytest.mark.matrix(of="the contract of targets"))


@pytest.fixture(
    params=[
        "postgres",
        pytest.param("delta", marks=LONG),
        pytest.param("iceberg", marks=LONG),
        pytest.param("mariadb", marks=LONG),
        pytest.param("delta in S3", marks=LONG),
        pytest.param("iceberg in a REST catalog", marks=LONG),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return Postgres(request.getfixturevalue("database_url"))
    if request.param == "mariadb":
        server: MariaDbServer = request.getfixturevalue("mariadb")
        return MariaDb(server.new_database())
    from tests.counterpoise.spark.sink.lakes import LAKES, Delta, Iceberg
    from tests.counterpoise.spark.sink.object_store import BUCKET

    if request.param in LAKES:
        return LAKES[request.param](tmp_path)
    store: ObjectStore = request.getfixturevalue("object_store")
    number = next(_numbers)
    if request.param == "delta in S3":
        return Delta(f"s3://{BUCKET}/{number}", store.options)
    return Iceberg(tmp_path, store.properties, f"db.events_{number}")


_numbers = itertools.count()


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    from tests.counterpoise.spark.sink.object_store import running_store

    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


def test_the_ranges_of_a_micro_batch_are_written_and_the_high_waters_say_so(place: Place) -> None:
    ranges = [Slice(0, 1, "0", "3"), Slice(4, 2, "10", "12")]
    results = place.results(ranges, rows_of(0, 0, 3) + rows_of(4, 10, 12))
    assert [(one.partition, one.epoch, one.outcome, one.written) for one in results] == [
        (0, 1, "written", 3),
        (4, 2, "written", 2),
    ]
    assert (place.positions(0), place.positions(4)) == ([0, 1, 2], [10, 11])
    assert place.rows()[0]["value"].startswith("p")
    assert place.high_water() == {0: (1, "3"), 4: (2, "12")}


def test_a_repeated_range_writes_nothing_and_raises_the_epoch(place: Place) -> None:
    for epoch, outcome in ((1, "written"), (1, "repeated"), (5, "repeated")):
        [result] = place.results([Slice(0, epoch, "0", "3")], rows_of(0, 0, 3))
        assert (result.outcome, result.written + result.dropped) == (outcome, 3)
    assert place.positions(0) == [0, 1, 2]
    assert place.high_water() == {0: (5, "3")}
    assert place.write([Slice(0, 4, "3", "5")], rows_of(0, 3, 5)) == {0: "superseded"}


def test_an_overlapping_range_is_cut(place: Place) -> None:
    place.write([Slice(0, 1, "0", "5")], rows_of(0, 0, 5))
    [result] = place.results([Slice(0, 2, "2", "8")], rows_of(0, 2, 8))
    assert (result.outcome, result.written, result.dropped) == ("written", 3, 3)
    assert place.positions(0) == list(range(8))


def test_a_range_without_rows_moves_the_high_water(place: Place) -> None:
    """Otherwise the next range would look like one after a gap."""
    place.write([Slice(0, 1, "0", "5"), Slice(1, 1, "0", "5")], rows_of(1, 0, 5))
    assert place.high_water() == {0: (1, "5"), 1: (1, "5")}
    assert place.write([Slice(0, 1, "5", "6")], rows_of(0, 5, 6)) == {0: "written"}
    assert place.positions(0) == [5]


def test_holes_in_the_log_are_no_gaps(place: Place) -> None:
    """Only the positions 0, 7 and 40 of [0, 100) exist."""
    sparse = [(0, 0, "a"), (0, 7, "b"), (0, 40, "c")]
    assert place.write([Slice(0, 1, "0", "100")], sparse) == {0: "written"}
    assert place.write([Slice(0, 1, "100", "300")], [(0, 222, "d")]) == {0: "written"}
    assert place.positions(0) == [0, 7, 40, 222]


@pytest.mark.long
def test_a_range_that_was_not_read_moves_nothing(place: Place) -> None:
    """Partition 1 was skipped, its new owner writes it."""
    place.write([Slice(0, 1, "0", "5")], rows_of(0, 0, 5))
    assert 1 not in place.high_water()
    assert place.write([Slice(1, 2, "0", "5")], rows_of(1, 0, 5)) == {1: "written"}
    assert place.positions(1) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_one_superseded_range_does_not_hinder_the_others(place: Place) -> None:
    place.write([Slice(0, 5, "0", "2")], rows_of(0, 0, 2))
    ranges = [Slice(0, 4, "0", "9"), Slice(1, 4, "0", "2")]
    outcomes = place.write(ranges, rows_of(0, 0, 9) + rows_of(1, 0, 2))
    assert outcomes == {0: "superseded", 1: "written"}
    assert (place.positions(0), place.positions(1)) == ([0, 1], [0, 1])
    assert place.high_water() == {0: (5, "2"), 1: (4, "2")}


def test_a_gap_is_refused_or_accepted(place: Place) -> None:
    place.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2))
    late = Slice(0, 1, "4", "6")
    with pytest.raises(SinkGap, match="positions 2 to 4"):
        place.write([late], rows_of(0, 4, 6))
    assert place.high_water() == {0: (1, "2")}
    [result] = place.results([late], rows_of(0, 4, 6), on_gap="accept")
    assert (result.outcome, result.gap) == ("written", ("2", "4"))
    assert place.positions(0) == [0, 1, 4, 5]


def test_a_task_that_fails_leaves_nothing_of_its_range(place: Place) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    one = Slice(0, 1, "0", "4")
    with pytest.raises(ZeroDivisionError):
        place.write([one], then(rows_of(0, 0, 2), fail))
    assert place.positions(0) == []
    assert place.write([one], rows_of(0, 0, 4)) == {0: "written"}
    assert place.positions(0) == [0, 1, 2, 3]


def test_a_frozen_writer_is_superseded_by_its_successor(place: Place) -> None:
    """The successor has other messages too, so no comparison of the data would show it."""
    successor = Slice(0, 2, "0", "8")

    @once
    def succeed() -> None:
        assert place.write([successor], rows_of(0, 0, 8)) == {0: "written"}

    outcomes = place.write_at_last([Slice(0, 1, "0", "5")], then(rows_of(0, 0, 5), succeed))
    assert outcomes == {0: "superseded"}
    assert place.positions(0) == list(range(8))
    assert place.high_water() == {0: (2, "8")}


@pytest.mark.long
def test_a_frozen_writer_is_superseded_by_a_successor_that_wrote_no_row(place: Place) -> None:
    """All rows of the successor's range were filtered, so it has changed the high-water alone."""

    @once
    def succeed() -> None:
        assert place.write([Slice(0, 2, "0", "3")], rows_of(1, 0, 0)) == {0: "written"}

    outcomes = place.write_at_last([Slice(0, 1, "0", "5")], then(rows_of(0, 0, 5), succeed))
    assert outcomes == {0: "superseded"}
    assert place.positions(0) == []
    assert place.high_water() == {0: (2, "3")}


@pytest.mark.long
def test_a_frozen_writer_is_superseded_by_a_repetition(place: Place) -> None:
    """The successor finds everything written, and only raises the epoch."""
    place.write([Slice(0, 1, "0", "3")], rows_of(0, 0, 3))

    @once
    def succeed() -> None:
        assert place.write([Slice(0, 2, "0", "3")], rows_of(0, 0, 3)) == {0: "repeated"}

    outcomes = place.write_at_last([Slice(0, 1, "3", "5")], then(rows_of(0, 3, 5), succeed))
    assert outcomes == {0: "superseded"}
    assert place.positions(0) == [0, 1, 2]
    assert place.high_water() == {0: (2, "3")}


@pytest.mark.long
def test_a_frozen_writer_writes_the_rest_of_what_another_attempt_wrote(place: Place) -> None:
    """Under one epoch, as when a micro-batch is planned again."""

    @once
    def other() -> None:
        place.write([Slice(0, 1, "0", "3")], rows_of(0, 0, 3))

    outcomes = place.write_at_last([Slice(0, 1, "0", "5")], then(rows_of(0, 0, 5), other))
    assert outcomes == {0: "written"}
    assert place.positions(0) == [0, 1, 2, 3, 4]
    assert place.high_water() == {0: (1, "5")}


@pytest.mark.long
def test_writers_of_other_partitions_do_not_hinder_each_other(place: Place) -> None:
    @once
    def other() -> None:
        assert place.write([Slice(1, 1, "0", "3")], rows_of(1, 0, 3)) == {1: "written"}

    outcomes = place.write([Slice(0, 1, "0", "3")], then(rows_of(0, 0, 3), other))
    assert outcomes == {0: "written"}
    assert (place.positions(0), place.positions(1)) == ([0, 1, 2], [0, 1, 2])
    assert place.high_water() == {0: (1, "3"), 1: (1, "3")}


@pytest.mark.long
def test_the_other_ranges_of_a_frozen_writer_are_written(place: Place) -> None:
    @once
    def succeed() -> None:
        assert place.write([Slice(1, 2, "0", "3")], rows_of(1, 0, 3)) == {1: "written"}

    ranges = [Slice(0, 1, "0", "3"), Slice(1, 1, "0", "3")]
    outcomes = place.write_at_last(ranges, then(rows_of(0, 0, 3) + rows_of(1, 0, 0), succeed))
    assert outcomes == {0: "written", 1: "superseded"}
    assert (place.positions(0), place.positions(1)) == ([0, 1, 2], [0, 1, 2])
    assert place.high_water() == {0: (1, "3"), 1: (2, "3")}


@pytest.mark.long
def test_sinks_queues_and_logs_do_not_know_each_other(place: Place) -> None:
    """Whatever signs their names have."""
    marks = [
        HighWaterKey("s", "q-1", "log-1", "flights"),
        HighWaterKey("s.flights", "q-1", "log-1", "flights"),
        HighWaterKey("s/flights", "q-1", "log-1", "flights"),
        HighWaterKey("s", "q-2", "log-1", "flights"),
        HighWaterKey("s", "q-1", "log:2/0", "flights"),
        HighWaterKey("ſ %2F ü", "q-1", "log-1", "flüge"),
    ]
    for mark in marks:
        assert place.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), mark=mark) == {0: "written"}
    for mark in marks:
        assert place.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), mark=mark) == {0: "repeated"}
    assert sorted(place.positions(0)) == sorted([0, 1] * len(marks))


@pytest.mark.long
def test_forgetting_takes_the_next_range_as_the_first(place: Place) -> None:
    other = HighWaterKey("s", "q-2", "log-2", "trains")
    for mark in (HighWaterKey("s", "q-1", "log-1", "flights"), other):
        ranges = [Slice(0, 3, "0", "9"), Slice(1, 3, "0", "2")]
        place.write(ranges, rows_of(0, 0, 9) + rows_of(1, 0, 2), mark=mark)
    assert place.target().forget("s", "flights") == 2
    assert place.target().forget("t", "flights") == 0
    assert place.high_water() == {0: (3, None), 1: (3, None)}
    # An older epoch stays out.
    assert place.write([Slice(0, 2, "0", "3")], rows_of(0, 0, 3)) == {0: "superseded"}
    assert place.write([Slice(0, 3, "4", "6")], rows_of(0, 4, 6)) == {0: "written"}
    assert place.write([Slice(0, 3, "0", "9")], rows_of(0, 0, 9), mark=other) == {0: "repeated"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, 5, "x"), (0, 9, "x")], "partition 0 with positions from 9 to 9"),
        ([(0, 4, "of a timer"), (0, 5, "x")], "positions from 4 to 4"),
        ([(7, 5, "x")], "rows of partition 7, of which this micro-batch has read nothing"),
    ],
)
def test_rows_of_other_origin_are_refused(
    place: Place, rows: list[tuple[int, int, str]], words: str
) -> None:
    """A row before its range too, although such a row was written once."""
    place.write([Slice(0, 1, "0", "5")], rows_of(0, 0, 5))
    with pytest.raises(InvalidRows, match=words):
        place.write([Slice(0, 1, "5", "8")], rows)
    assert len(place.rows()) == 5
    assert place.high_water() == {0: (1, "5")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("partition", "position", "error"),
    [(None, "0", InvalidRows), (0, None, InvalidRows), (0, "7-0", InvalidPosition)],
)
def test_rows_without_a_partition_or_a_readable_position_are_refused(
    place: Place, partition: int | None, position: str | None, error: type[Exception]
) -> None:
    row = {"partition": partition, "position": position, "value": "x"}
    with pytest.raises(error):
        place.write([Slice(0, 1, "0", "2")], lambda: [pa.RecordBatch.from_pylist([row], COLUMNS)])
    assert place.rows() == []


def test_rows_of_a_replay_are_left_out(place: Place) -> None:
    schema = COLUMNS.append(pa.field("replay", pa.bool_()))
    rows = [
        {"partition": p, "position": at, "value": "x", "replay": replay}
        for p, at, replay in [(9, "3", True), (0, "0", False), (0, "1", True), (0, "2", None)]
    ]

    def task() -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist(rows, schema)]

    assert place.write([Slice(0, 1, "0", "3")], task, schema=schema) == {0: "written"}
    assert place.positions(0) == [0, 2]
