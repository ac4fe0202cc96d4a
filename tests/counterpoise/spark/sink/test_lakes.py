"""What is special to lakes: files, schemas, other tools, and writers that really run at once."""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.transforms import DayTransform
from sqlalchemy.exc import OperationalError

from counterpoise.logs import InvalidPosition
from counterpoise.spark import FencedSink
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.delta import DeltaLake, statistics
from counterpoise.spark.sink.iceberg import IcebergLake
from counterpoise.spark.sink.lake import (
    COMMIT_SECONDS,
    TARGET_BYTES,
    Lake,
    conformed,
    unknown_columns,
)
from tests.counterpoise.spark.sink.lakes import Delta, Iceberg
from tests.counterpoise.spark.sink.places import COLUMNS, MARK, batch, once, rows_of, then

pytestmark = pytest.mark.long

Lakes = Delta | Iceberg
Task = Callable[[], Iterable[pa.RecordBatch]]

LAST = "\U0010ffff"
UTC_TIME = pa.timestamp("us", tz="UTC")
WIDE = pa.schema(
    [
        *COLUMNS,
        ("epoch", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("body", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
)


@pytest.fixture(params=[Delta, Iceberg])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lakes:
    place: Lakes = request.param(tmp_path)
    return place


@pytest.fixture
def delta(tmp_path: Path) -> Delta:
    return Delta(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


def task(rows: list[dict[str, Any]], schema: pa.Schema) -> Task:
    return lambda: [pa.RecordBatch.from_pylist(rows, schema)]


def wide(count: int) -> list[dict[str, Any]]:
    return [
        {
            "partition": 0,
            "position": str(at),
            "value": f"v{at}",
            "epoch": 1,
            "at": datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(days=at % 2, microseconds=at),
            "body": b"\x00\xff",
            "headers": [("n", str(at))],
        }
        for at in range(count)
    ]


def append(lake: Lakes, rows: pa.Table) -> None:
    """As another tool, without a fence."""
    if isinstance(lake, Delta):
        write_deltalake(lake.uri, rows, mode="append")
    else:
        lake.table().append(rows)


def files(lake: Lakes) -> int:
    if isinstance(lake, Delta):
        return len(lake.table().file_uris())
    return int(lake.table().inspect.files().num_rows)


def test_the_columns_of_the_source_are_kept_as_they_are(lake: Lakes) -> None:
    lake.write([Slice(0, 1, "0", "3")], task(wide(3), WIDE), schema=WIDE)
    rows = sorted(lake.rows(), key=lambda one: int(one["position"]))
    assert rows == wide(3)


def test_another_tools_append_makes_no_file_anew(lake: Lakes) -> None:
    lake.write([Slice(0, 1, "0", "3")], rows_of(0, 0, 3))
    runs = []

    @once
    def other() -> None:
        append(lake, pa.Table.from_batches([batch(rows_of(7, 0, 5))]))

    def rows() -> Iterable[pa.RecordBatch]:
        runs.append(1)
        yield from then(rows_of(0, 3, 6), other)()

    assert lake.write([Slice(0, 1, "3", "6")], rows) == {0: "written"}
    assert len(runs) == 1
    assert (lake.positions(0), lake.positions(7)) == ([*range(6)], [*range(5)])
    assert lake.high_water() == {0: (1, "6")}


def test_a_writer_that_is_superseded_reads_nothing_again(lake: Lakes) -> None:
    """The log may have been trimmed behind its successor."""
    runs = []

    @once
    def succeed() -> None:
        lake.write([Slice(0, 2, "0", "6")], rows_of(0, 0, 6))

    def rows() -> Iterable[pa.RecordBatch]:
        runs.append(1)
        yield from then(rows_of(0, 0, 3), succeed)()

    [result] = lake.results([Slice(0, 1, "0", "3")], rows)
    assert (result.outcome, result.written, result.dropped) == ("superseded", 0, 3)
    assert len(runs) == 1
    assert lake.positions(0) == [*range(6)]


def test_a_task_writes_one_file_and_more_if_it_has_much(lake: Lakes) -> None:
    parts: list[Task] = [
        lambda: [batch(rows_of(0, 0, 2) + rows_of(1, 0, 2)), batch(rows_of(1, 2, 4))],
        lambda: [batch(rows_of(1, 4, 6))],
    ]
    ranges = [Slice(0, 1, "0", "2"), Slice(1, 1, "0", "6")]
    lake.write(ranges, *parts)
    assert files(lake) == 2
    lake.write(
        [Slice(0, 1, "2", "6")],
        lambda: [batch(rows_of(0, 2, 3)), batch(rows_of(0, 3, 6))],
        target=lake.target(target_bytes=1),
    )
    assert files(lake) == 4
    assert (lake.positions(0), lake.positions(1)) == ([*range(6)], [*range(6)])


def test_rows_of_a_partition_may_come_in_any_order_in_any_task(lake: Lakes) -> None:
    """So nothing has to be brought together."""
    tasks = [
        rows_of(p, at, at + 1) + rows_of(1 - p, 5 - at, 6 - at) for p in (0, 1) for at in range(3)
    ]
    ranges = [Slice(0, 1, "0", "6"), Slice(1, 1, "0", "6")]
    results = lake.results(ranges, *tasks)
    assert [(one.written, one.dropped) for one in results] == [(6, 0), (6, 0)]
    assert (lake.positions(0), lake.positions(1)) == ([*range(6)], [*range(6)])


def test_chosen_columns_and_what_the_table_lacks(lake: Lakes) -> None:
    narrow = ("partition", "position")
    one, two, three = (Slice(0, 1, str(at), str(at + 1)) for at in range(3))
    lake.write([one], rows_of(0, 0, 1), target=lake.target(columns=narrow))
    with pytest.raises(InvalidSink, match="the table has no column value"):
        lake.write([two], rows_of(0, 1, 2))
    lake.write([two], rows_of(0, 1, 2), target=lake.target(new_columns="ignore"))
    lake.write([three], rows_of(0, 2, 3), target=lake.target(new_columns="add"))
    lake.write([Slice(0, 1, "3", "4")], rows_of(0, 3, 4), target=lake.target(columns=narrow))
    rows = sorted(lake.rows(), key=lambda one: int(one["position"]))
    assert [one["value"] for one in rows] == [None, None, "p0-2", None]
    with pytest.raises(InvalidSink, match="no column nonsense"):
        lake.write([one], rows_of(0, 0, 1), target=lake.target(columns=("nonsense",)))


def test_a_value_that_does_not_fit_is_refused(lake: Lakes) -> None:
    lake.write([Slice(0, 1, "0", "3")], rows_of(0, 0, 3))
    other = pa.schema(
        [*(one for one in COLUMNS if one.name != "value"), ("value", pa.list_(pa.int64()))]
    )
    row = {"partition": 0, "position": "3", "value": [1]}
    with pytest.raises(InvalidSink, match="column value of the rows does not fit"):
        lake.write([Slice(0, 1, "3", "4")], task([row], other), schema=other)
    assert lake.high_water() == {0: (1, "3")}


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.float64(), 1e300, pa.float32()),
        (pa.int64(), 1_764_216_000, UTC_TIME),
        (UTC_TIME, datetime(2026, 1, 1, 12, tzinfo=UTC), pa.int64()),
        (UTC_TIME, datetime(2026, 1, 1, 12, tzinfo=UTC), pa.date32()),
    ],
)
def test_no_conversion_loses_a_part_of_a_value(
    kind: pa.DataType, value: object, kept: pa.DataType
) -> None:
    rows = pa.table({"value": pa.array([None, value], kind)})
    with pytest.raises(InvalidSink, match="column value of the rows does not fit"):
        conformed(rows, pa.schema([("value", kept)]))
    nothing = conformed(
        pa.table({"value": pa.array([1.5, math.inf])}), pa.schema([("value", pa.float32())])
    )
    assert nothing.column("value").to_pylist() == [1.5, math.inf]


def test_columns_within_a_struct_are_not_left_out() -> None:
    """Arrow's cast drops them."""
    two = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    table = pa.schema([("s", pa.struct([("a", pa.int64())]))])
    one = table.field("s").type
    for wrap in (lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)):
        more, less = (pa.schema([("s", wrap(kind))]) for kind in (two, one))
        for policy in ("refuse", "add"):
            with pytest.raises(InvalidSink, match=r"no column s\.b"):
                unknown_columns(more, less, policy)
        assert unknown_columns(more, less, "ignore") == []
        assert unknown_columns(less, more, "refuse") == []


def test_columns_that_differ_by_case_alone_are_refused() -> None:
    rows, table = pa.schema([("Value", pa.string())]), pa.schema([("value", pa.string())])
    for policy in ("refuse", "ignore", "add"):
        with pytest.raises(InvalidSink, match="a column Value, and the table a column value"):
            unknown_columns(rows, table, policy)


def test_columns_that_the_rows_never_lack_may_be_null_in_the_table(lake: Lakes) -> None:
    """Those of another application's rows, and of those before it was added."""
    schema = pa.schema([*COLUMNS, pa.field("kind", pa.string(), nullable=False)])
    row = {"partition": 0, "position": "1", "value": "v", "kind": "k"}
    lake.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    added = lake.target(new_columns="add")
    lake.write([Slice(0, 1, "1", "2")], task([row], schema), schema=schema, target=added)
    lake.write([Slice(0, 1, "2", "3")], rows_of(0, 2, 3))
    table: Any = lake.table()
    found = table.to_pyarrow_table() if isinstance(lake, Delta) else table.scan().to_arrow()
    assert found.schema.field("kind").nullable
    assert sorted(str(one["kind"]) for one in found.to_pylist()) == ["None", "None", "k"]


def test_rows_without_a_column_that_the_table_requires_are_refused(lake: Lakes) -> None:
    schema = pa.schema([*COLUMNS, pa.field("kind", pa.string(), nullable=False)])
    if isinstance(lake, Delta):
        DeltaTable.create(lake.uri, schema)
    else:
        lake.catalog().create_table(lake.name, schema)
    with pytest.raises(InvalidSink, match="requires the column kind"):
        lake.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    row = {"partition": 0, "position": "0", "value": "v", "kind": "k"}
    both = task([row], schema)
    assert lake.write([Slice(0, 1, "0", "1")], both, schema=schema) == {0: "written"}


def test_a_position_beyond_64_bits_is_refused(lake: Lakes) -> None:
    with pytest.raises(InvalidPosition):
        lake.write([Slice(0, 1, "0", str(2**63))], rows_of(0, 0, 1))


def test_applications_at_once_write_each_message_once(lake: Lakes) -> None:
    """The table is not there yet. Each range is written by two, as if both owned its partition."""
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            for at in range(0, 6, 2):
                partition = number % 2
                ranges = [Slice(partition, 1 + number // 2, str(at), str(at + 2))]
                lake.write(ranges, rows_of(partition, at, at + 2))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (lake.positions(0), lake.positions(1)) == ([*range(6)], [*range(6)])
    assert lake.high_water() == {0: (2, "6"), 1: (2, "6")}


# ------------------------------------------------------------------ merging by key


def merge(
    lake: Lakes, start: int, rows: list[tuple[int, int, str]], epoch: int = 1
) -> dict[int, str]:
    """`value` is the key, of partition 0 from `start` on, `position` what is replaced."""
    end = str(start + len(rows))
    target = lake.target(keys=("value",))
    return lake.write([Slice(0, epoch, str(start), end)], rows, target=target)


def values(lake: Lakes) -> dict[str, int]:
    rows = lake.rows()
    found = {one["value"]: int(one["position"]) for one in rows}
    assert len(found) == len(rows)
    return found


def test_rows_replace_those_of_their_key(lake: Lakes) -> None:
    assert merge(lake, 0, [(0, 0, "a"), (0, 1, "b"), (0, 2, "a")]) == {0: "written"}
    assert values(lake) == {"a": 2, "b": 1}
    assert merge(lake, 3, [(0, 3, "c"), (0, 4, "b")]) == {0: "written"}
    assert values(lake) == {"a": 2, "b": 4, "c": 3}
    assert merge(lake, 3, [(0, 3, "c"), (0, 4, "b")]) == {0: "repeated"}
    assert values(lake) == {"a": 2, "b": 4, "c": 3}


def test_a_frozen_writer_replaces_nothing_of_its_successor(lake: Lakes) -> None:
    merge(lake, 0, [(0, 0, "a")])

    @once
    def succeed() -> None:
        assert merge(lake, 1, [(0, 1, "b"), (0, 2, "a"), (0, 3, "b")], 2) == {0: "written"}

    target = lake.target(keys=("value",))
    stale = then([(0, 1, "b"), (0, 2, "a")], succeed)
    assert lake.write([Slice(0, 1, "1", "3")], stale, target=target) == {0: "superseded"}
    assert values(lake) == {"a": 2, "b": 3}
    assert lake.high_water() == {0: (2, "4")}


def test_rows_that_change_nothing_move_the_high_water(lake: Lakes) -> None:
    target = lake.target(columns=("value",), keys=("value",))
    for at in range(2):
        lake.write([Slice(0, 1, str(at), str(at + 1))], [(0, at, "a")], target=target)
    assert lake.rows() == [{"value": "a"}]
    assert lake.high_water() == {0: (1, "2")}

    @once
    def succeed() -> None:
        lake.write([Slice(0, 2, "2", "4")], [(0, 2, "a")], target=target)

    stale = then([(0, 2, "z")], succeed)
    assert lake.write([Slice(0, 1, "2", "3")], stale, target=target) == {0: "superseded"}
    assert lake.rows() == [{"value": "a"}]


def test_a_table_that_has_a_key_twice(lake: Lakes) -> None:
    lake.write([Slice(0, 1, "0", "2")], [(0, 0, "a"), (0, 1, "a")])
    if isinstance(lake, Delta):
        merge(lake, 2, [(0, 2, "a")])
        assert [one["position"] for one in lake.rows()] == ["2", "2"]
    else:
        with pytest.raises(InvalidSink, match=r"several rows of one key \(value\)"):
            merge(lake, 2, [(0, 2, "a")])


def test_a_sink_without_a_table_has_nothing_to_forget(lake: Lakes) -> None:
    assert lake.target().forget("sink", "flights") == 0


def test_keys_that_are_null_or_not_written_are_refused(lake: Lakes) -> None:
    one = [Slice(0, 1, "0", "1")]
    null = task([{"partition": 0, "position": "0", "value": None}], COLUMNS)
    with pytest.raises(InvalidSink, match="key value is null"):
        lake.write(one, null, target=lake.target(keys=("value",)))
    target = lake.target(columns=("position",), keys=("value",))
    with pytest.raises(InvalidSink, match="lack the keys value"):
        lake.write(one, rows_of(0, 0, 1), target=target)


# ------------------------------------------------------------------ Delta


def test_appends_beside_optimize(delta: Delta) -> None:
    for at in range(3):
        delta.write([Slice(0, 1, str(at), str(at + 1))], rows_of(0, at, at + 1))

    @once
    def optimize() -> None:
        assert delta.table().optimize.compact()["numFilesRemoved"] == 3

    assert delta.write([Slice(0, 1, "3", "5")], then(rows_of(0, 3, 5), optimize)) == {0: "written"}
    assert delta.positions(0) == [*range(5)]
    assert files(delta) == 2


def test_high_waters_survive_the_upkeep_of_a_delta_table(delta: Delta) -> None:
    for at in range(3):
        delta.write([Slice(0, 1, str(at), str(at + 1))], rows_of(0, at, at + 1))
    table = delta.table()
    table.optimize.compact()
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.cleanup_metadata()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert delta.high_water() == {0: (1, "3")}
    assert delta.write([Slice(0, 1, "2", "4")], rows_of(0, 2, 4)) == {0: "written"}
    assert delta.positions(0) == [*range(4)]


@pytest.mark.parametrize("keys", [(), ("value",)])
def test_a_delta_log_that_is_cleaned_meanwhile_holds_no_writer_up(
    delta: Delta, keys: tuple[str, ...]
) -> None:
    """The version that the writer has read is gone from it, and a checkpoint is there."""
    delta.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))

    @once
    def clean() -> None:
        delta.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        for at in range(3):
            delta.write([Slice(1, 1, str(at), str(at + 1))], rows_of(1, at, at + 1))
        table = delta.table()
        table.create_checkpoint()
        table.cleanup_metadata()
        assert not (Path(delta.uri) / "_delta_log" / f"{2:020}.json").exists()

    task = then(rows_of(0, 1, 3), clean)
    target = delta.target(keys=keys)
    assert delta.write([Slice(0, 1, "1", "3")], task, target=target) == {0: "written"}
    assert (delta.positions(0), delta.positions(1)) == ([*range(3)], [*range(3)])
    assert delta.high_water() == {0: (1, "3"), 1: (1, "3")}


def test_a_restore_moves_the_rows_and_not_the_fence(delta: Delta) -> None:
    """Writing them again takes `forget`."""
    for at in range(3):
        delta.write([Slice(0, 1, str(at), str(at + 1))], rows_of(0, at, at + 1))
    delta.table().restore(2)
    assert delta.positions(0) == [0, 1]
    assert delta.write([Slice(0, 1, "2", "3")], rows_of(0, 2, 3)) == {0: "repeated"}
    assert delta.target().forget("s", "flights") == 1
    assert delta.write([Slice(0, 1, "2", "3")], rows_of(0, 2, 3)) == {0: "written"}
    assert delta.positions(0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets transactions"),
        ({"delta.columnMapping.mode": "name"}, r"rules that .*columnMapping"),
    ],
)
def test_a_delta_table_that_would_break_the_fence_or_be_broken_is_refused(
    delta: Delta, settings: dict[str, str], words: str
) -> None:
    DeltaTable.create(delta.uri, COLUMNS, configuration=settings)
    with pytest.raises(InvalidSink, match=words):
        delta.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))


def test_a_delta_table_with_constraints_is_refused(delta: Delta) -> None:
    DeltaTable.create(delta.uri, COLUMNS).alter.add_constraint({"few": "partition < 3"})
    with pytest.raises(InvalidSink, match=r"delta\.constraints\.few"):
        delta.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))


def test_what_a_delta_table_never_takes_is_not_tried_again(delta: Delta) -> None:
    DeltaTable.create(delta.uri, COLUMNS, configuration={"delta.appendOnly": "true"})
    assert merge(delta, 0, [(0, 0, "a")]) == {0: "written"}
    with pytest.raises(InvalidSink, match="append-only"):
        merge(delta, 1, [(0, 1, "a")])
    log = Path(delta.uri) / "_delta_log" / f"{0:020}.json"
    text = log.read_text().replace(
        '"minWriterVersion":2', '"minWriterVersion":7,"writerFeatures":["ofTomorrow"]'
    )
    log.write_text(text)
    with pytest.raises(InvalidSink, match="ofTomorrow"):
        delta.write([Slice(0, 1, "1", "2")], rows_of(0, 1, 2))


def test_a_delta_table_by_all_of_its_columns_is_refused(delta: Delta) -> None:
    for there in (False, True):
        if there:
            DeltaTable.create(delta.uri, COLUMNS, partition_by=COLUMNS.names)
        target = delta.target(partition_by=() if there else tuple(COLUMNS.names))
        with pytest.raises(InvalidSink, match="partitioned by all of its columns"):
            delta.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1), target=target)


def test_a_delta_table_by_days_and_texts(delta: Delta) -> None:
    schema = pa.schema([*COLUMNS, ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC"))])
    noon = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
    values = ["a b/c=d%", "ü", None, "", "a b/c=d%"]
    rows = [
        {"partition": 0, "position": str(at), "value": value, "day": date(2026, 1, 2), "at": noon}
        for at, value in enumerate(values)
    ]
    target = delta.target(partition_by=("day", "value", "at"))
    delta.write([Slice(0, 1, "0", "5")], task(rows, schema), schema=schema, target=target)
    assert files(delta) == 3
    found = sorted(delta.rows(), key=lambda one: int(one["position"]))
    assert found == [one | {"value": one["value"] or None} for one in rows]
    only = delta.table().to_pyarrow_table(filters=[("value", "=", "ü")])
    assert only.column("position").to_pylist() == ["1"]
    with pytest.raises(InvalidSink, match="partitioned by"):
        delta.write(
            [Slice(0, 1, "5", "6")], rows_of(0, 5, 6), target=delta.target(partition_by=("day",))
        )


def test_statistics_of_a_delta_file_are_bounds(delta: Delta) -> None:
    rows = pa.Table.from_pylist(
        [*wide(5), wide(1)[0] | {"epoch": None, "value": "x" * 40, "at": None}], WIDE
    )
    found = json.loads(json.dumps(statistics(rows)))
    assert found["numRecords"] == 6
    assert found["nullCount"] | {"epoch": 1, "at": 1} == found["nullCount"]
    assert (found["minValues"]["epoch"], found["maxValues"]["partition"]) == (1, 0)
    assert found["minValues"]["at"] == "2026-01-01T12:00:00.000Z"
    assert found["maxValues"]["at"] == "2026-01-02T12:00:00.001Z"
    assert (found["minValues"]["value"], found["maxValues"]["value"]) == ("v0", "x" * 32 + LAST)
    assert "headers" not in found["nullCount"]
    delta.write([Slice(0, 1, "0", "5")], task(wide(5), WIDE), schema=WIDE)
    table = delta.table()
    assert table.count() == 5
    late = datetime(2026, 1, 2, 12, tzinfo=UTC)
    assert table.to_pyarrow_table(filters=[("at", ">", late)]).num_rows == 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["x" * 40, "x" * 32 + LAST + "y"]),
        (pa.bool_(), [True]),
        (pa.float32(), [1.5]),
        (pa.float64(), [-0.1, math.inf]),
        (pa.decimal128(4, 2), [Decimal("-1.25"), Decimal("99.99")]),
        (pa.decimal128(38, 0), [Decimal(10**37 + 1)]),
        (pa.date32(), [date.min, date.max]),
        # The log has milliseconds, and rounded up, the last time is in the year 10000.
        (UTC_TIME, [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    ],
)
def test_filters_find_values_of_each_type(
    delta: Delta, kind: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([*COLUMNS, ("kind", kind)])
    for at, value in enumerate(values):
        row = {"partition": 0, "position": str(at), "value": "v", "kind": value}
        delta.write([Slice(0, 1, str(at), str(at + 1))], task([row], schema), schema=schema)
    for value in values:
        found = delta.table().to_pyarrow_table(filters=[("kind", "=", pa.scalar(value, kind))])
        assert found.column("kind").to_pylist() == [value]


def test_times_that_the_log_of_delta_cannot_have_are_written(delta: Delta) -> None:
    schema = pa.schema([*COLUMNS, ("at", UTC_TIME), ("day", pa.date32())])
    beyond = [pa.array([2**60]).cast(UTC_TIME), pa.array([2**30], pa.int32()).cast(pa.date32())]
    rows = pa.RecordBatch.from_arrays([*batch(rows_of(0, 0, 1)).columns, *beyond], schema=schema)
    assert delta.write([Slice(0, 1, "0", "1")], lambda: [rows], schema=schema) == {0: "written"}
    assert delta.table().count() == 1


def test_unsafe_renames_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSink, match="UNSAFE_RENAME"):
        DeltaLake("s3://a/b", {"allow_unsafe_rename": "true"}, (), "refuse")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(InvalidSink, match="UNSAFE_RENAME"):
        FencedSink.to_delta("s3://a/b", name="n")


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSink, match="new_columns is one of refuse, ignore, add, not 'some'"):
        FencedSink.to_delta("lake", name="n", new_columns="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidSink, match="name"):
        FencedSink.to_delta("lake", name="")
    for option in ("columns", "merge_on", "partition_by"):
        letters: Any = {option: "day"}
        with pytest.raises(InvalidSink, match=r"\['day'\] and not 'day'"):
            FencedSink.to_delta("lake", name="n", **letters)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidSink, match=r"counterpoise\[delta\]"):
        FencedSink.to_delta("lake", name="n")
    with pytest.raises(InvalidSink, match=r"counterpoise\[iceberg\]"):
        FencedSink.to_iceberg("lake", "db.events", name="n")


def test_secrets_of_a_lake_are_not_shown(tmp_path: Path) -> None:
    options = {"aws_secret_access_key": "sEcReT"}
    sink = FencedSink.to_delta(f"s3://u:sEcReT@{tmp_path}", name="n", storage_options=options)
    properties = {"type": "sql", "uri": "sqlite:///:memory:", "token": "sEcReT"}
    other = FencedSink.to_iceberg(properties, "db.events", name="n")
    for one in (sink, other):
        assert "sEcReT" not in f"{one!r} {one._target!r} {one._target.key} {one._target.remedy}"
    delta = Delta(tmp_path)
    delta.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    table = DeltaLake(delta.uri, options, (), "refuse")
    assert "sEcReT" not in repr(table.snapshot(MARK, [0], COLUMNS).files())


# ------------------------------------------------------------------ Iceberg


def test_an_iceberg_table_by_days_and_texts(iceberg: Iceberg) -> None:
    with iceberg.catalog().create_table("db.events", WIDE).update_spec() as update:
        update.add_field("at", DayTransform(), "day")
        update.add_identity("value")
    rows = [one | {"value": "ü/ "} for one in wide(4)]
    assert iceberg.write([Slice(0, 1, "0", "4")], task(rows, WIDE), schema=WIDE) == {0: "written"}
    assert files(iceberg) == 2
    assert sorted(iceberg.rows(), key=lambda one: int(one["position"])) == rows


def test_a_catalog_may_be_one_that_is_there(iceberg: Iceberg) -> None:
    table = IcebergLake(iceberg.catalog(), iceberg.name, "refuse")
    target = Lake(table, None, (), TARGET_BYTES, COMMIT_SECONDS)
    assert iceberg.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), target=target) == {0: "written"}
    assert iceberg.positions(0) == [0, 1]


def test_a_commit_that_a_locked_catalog_refuses_has_written_nothing(tmp_path: Path) -> None:
    """SQLite keeps its transaction open then, and its connection would read it as committed."""
    properties = Iceberg(tmp_path).properties
    iceberg = Iceberg(tmp_path, {**properties, "uri": f"{properties['uri']}?timeout=0"})
    target = iceberg.target()
    iceberg.write([Slice(0, 1, "0", "3")], rows_of(0, 0, 3), target=target)
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM iceberg_tables").fetchall()
        for _ in range(2):
            with pytest.raises(OperationalError, match="database is locked"):
                iceberg.write([Slice(0, 1, "3", "6")], rows_of(0, 3, 6), target=target)
    assert iceberg.high_water() == {0: (1, "3")}
    assert iceberg.write([Slice(0, 1, "3", "6")], rows_of(0, 3, 6), target=target) == {0: "written"}
    assert iceberg.positions(0) == [*range(6)]


def test_files_of_an_older_partitioning_are_written_anew(iceberg: Iceberg) -> None:
    iceberg.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2))

    @once
    def repartition() -> None:
        with iceberg.table().update_spec() as update:
            update.add_identity("value")

    outcomes = iceberg.write([Slice(0, 1, "2", "4")], then(rows_of(0, 2, 4), repartition))
    assert outcomes == {0: "written"}
    assert iceberg.positions(0) == [0, 1, 2, 3]
    assert files(iceberg) == 3


def test_retries_that_somebody_switched_on_let_no_stale_writer_through(iceberg: Iceberg) -> None:
    iceberg.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2))
    with iceberg.table().transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "20"})

    @once
    def succeed() -> None:
        assert iceberg.write([Slice(0, 2, "2", "6")], rows_of(0, 2, 6)) == {0: "written"}

    outcomes = iceberg.write([Slice(0, 1, "2", "4")], then(rows_of(0, 2, 4), succeed))
    assert outcomes == {0: "superseded"}
    assert iceberg.positions(0) == [*range(6)]


def test_manifests_are_merged_and_snapshots_may_be_expired(iceberg: Iceberg) -> None:
    iceberg.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    with iceberg.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for at in range(1, 8):
        iceberg.write([Slice(0, 1, str(at), str(at + 1))], rows_of(0, at, at + 1))
    assert iceberg.table().inspect.manifests().num_rows < 4
    assert len(iceberg.table().snapshots()) == 8
    iceberg.table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(iceberg.table().snapshots()) == 1
    assert iceberg.high_water() == {0: (1, "8")}
    assert iceberg.write([Slice(0, 1, "7", "9")], rows_of(0, 7, 9)) == {0: "written"}
    assert iceberg.positions(0) == [*range(9)]


@pytest.mark.parametrize("keys", [(), ("value",)])
def test_a_snapshot_that_is_expired_meanwhile_holds_no_writer_up(
    iceberg: Iceberg, keys: tuple[str, ...]
) -> None:
    """Spark's own procedure removes the files of old snapshots, too."""
    iceberg.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    before = iceberg.table().current_snapshot()

    @once
    def expire() -> None:
        iceberg.write([Slice(1, 1, "0", "2")], rows_of(1, 0, 2))
        iceberg.table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        Path(before.manifest_list.removeprefix("file://")).unlink()

    task, target = then(rows_of(0, 1, 3), expire), iceberg.target(keys=keys)
    assert iceberg.write([Slice(0, 1, "1", "3")], task, target=target) == {0: "written"}
    assert (iceberg.positions(0), iceberg.positions(1)) == ([*range(3)], [0, 1])
    assert iceberg.high_water() == {0: (1, "3"), 1: (1, "2")}


def test_a_file_that_the_present_snapshot_lacks_is_an_error(iceberg: Iceberg) -> None:
    iceberg.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))
    Path(iceberg.table().current_snapshot().manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(FileNotFoundError):
        iceberg.write([Slice(0, 1, "1", "3")], rows_of(0, 1, 3))


def test_a_rollback_moves_the_rows_and_not_the_fence(iceberg: Iceberg) -> None:
    for at in range(3):
        iceberg.write([Slice(0, 1, str(at), str(at + 1))], rows_of(0, at, at + 1))
    before = iceberg.table().history()[1].snapshot_id
    with iceberg.table().manage_snapshots() as manage:
        manage.rollback_to_snapshot(before)
    assert iceberg.positions(0) == [0, 1]
    assert iceberg.write([Slice(0, 1, "2", "3")], rows_of(0, 2, 3)) == {0: "repeated"}
    assert iceberg.target().forget("s", "flights") == 1
    assert iceberg.write([Slice(0, 1, "2", "3")], rows_of(0, 2, 3)) == {0: "written"}
    assert iceberg.positions(0) == [0, 1, 2]
