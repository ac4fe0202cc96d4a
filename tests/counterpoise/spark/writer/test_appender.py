"""The work of a task that writes: how rows become appends, and which repeated rows are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from counterpoise.keys import hash_of
from counterpoise.logs import AppendResult, Message
from counterpoise.logs.memory import MemoryLogs
from counterpoise.spark.channel.running_batch import BatchPlan
from counterpoise.spark.errors import InvalidRows
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink import queue
from counterpoise.spark.sink.queue import QueueSink, QueueTask
from counterpoise.spark.sink.rows import Remainder
from counterpoise.spark.writer import appender
from counterpoise.spark.writer.appender import TargetQueue, append_all, appends, check_columns
from counterpoise.spark.writer.numbering import (
    ROW_BITS,
    AtLeastOnce,
    ByPosition,
    ByRow,
    Input,
)
from counterpoise.wire import LogAccess, LogView
from tests.log_support import texts

FLIGHTS = Input("queue", "log")
PARTITIONS = 4


def rows(*made: tuple[int, int, str], key: Callable[[str], str | None] = str) -> pa.RecordBatch:
    """Rows of (partition, position, value)."""
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([one[0] for one in made], pa.int32()),
            "position": pa.array([str(one[1]) for one in made], pa.string()),
            "value": pa.array([one[2].encode() for one in made], pa.binary()),
            "key": pa.array([key(one[2]) for one in made], pa.string()),
        }
    )


class Output:
    """A queue in memory, and what is in it."""

    def __init__(self) -> None:
        self.logs = MemoryLogs()
        self.logs.ensure("out", PARTITIONS)
        access = LogAccess(self.logs.access)
        self.target = TargetQueue(LogView("builtin:out", PARTITIONS, access, "out"))

    def write(self, *batches: pa.RecordBatch, name: str = "app") -> AppendResult:
        return append_all(self.target, ByPosition(name, FLIGHTS), batches)

    def texts(self) -> list[list[str]]:
        from counterpoise.logs import open_log

        log = open_log("builtin:out", self.logs.access, timeout_seconds=1)
        return [texts(log, partition) for partition in sorted(log.bounds(range(9)).ends)]


@pytest.fixture
def output() -> Output:
    return Output()


# ------------------------------------------------------------------ rows become messages


def test_every_column_arrives(output: Output) -> None:
    at = datetime(2013, 1, 1, tzinfo=UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["text", ""], pa.string()),
            "key": pa.array(["k", None], pa.string()),
            "headers": pa.array(
                [[("a", "1"), ("b", None)], None], pa.map_(pa.string(), pa.string())
            ),
            "published_at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "epoch": pa.array([1, 1], pa.int64()),
        }
    )
    (one,) = appends([batch], AtLeastOnce())
    assert one.messages == [
        Message(b"text", "k", {"a": "1", "b": ""}, at),
        Message(b"", None, None, None),
    ]


def test_a_key_goes_where_the_queue_routes_it(output: Output) -> None:
    output.write(rows(*((0, n, f"k{n}") for n in range(50))))
    for partition, values in enumerate(output.texts()[:PARTITIONS]):
        assert values == [f"k{n}" for n in range(50) if hash_of(f"k{n}") % PARTITIONS == partition]


def test_messages_without_a_key_are_spread(output: Output) -> None:
    output.write(rows(*((0, n, str(n)) for n in range(40)), key=lambda _: None))
    assert [len(values) for values in output.texts()[:PARTITIONS]] == [10] * PARTITIONS


def test_rows_that_a_warm_up_replays_are_left_out(output: Output) -> None:
    batch = rows((0, 1, "old"), (0, 2, "new"), (0, 3, "also new"))
    replayed = batch.append_column("replay", pa.array([True, False, None]))
    assert output.write(replayed) == AppendResult(2, 0)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_a_null_value_is_a_message_without_a_value(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([None, "", "v"], kind),
            "key": ["a", "b", "c"],
            "headers": pa.array([[("n", "1")], None, None], pa.map_(pa.string(), pa.string())),
        }
    )
    (one,) = appends([batch], AtLeastOnce())
    assert [message.value for message in one.messages] == [b"", b"", b"v"]
    assert [message.headers for message in one.messages] == [
        {"n": "1", "counterpoise-tombstone": "true"},
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("key string", "value is needed; it is missing"),
        ("value int", r"not value \(int\)"),
        ("value string, delay int", r"not delay \(int\)"),
        ("value string, position string", r"a column position alone"),
        ("value string, partition int, position bigint", r"not position \(bigint\)"),
    ],
)
def test_columns_that_a_queue_does_not_take_are_refused(columns: str, said: str) -> None:
    with pytest.raises(InvalidRows, match=said):
        check_columns(schema(columns))


def test_columns_of_the_source_pass() -> None:
    from counterpoise.spark.data_source import SCHEMA

    assert check_columns(schema(SCHEMA))
    assert not check_columns(schema("value binary, key string, headers map<string,string>"))


def schema(columns: str) -> StructType:
    """Without a session, which `DataType.fromDDL` would need."""
    fields = [one.strip().split(" ", 1) for one in columns.split(", ")]
    simple = {
        "int": "integer",
        "bigint": "long",
        "long": "long",
        "string": "string",
        "binary": "binary",
        "timestamp": "timestamp",
        "boolean": "boolean",
        "map<string,string>": {
            "type": "map",
            "keyType": "string",
            "valueType": "string",
            "valueContainsNull": True,
        },
    }
    return StructType.fromJson(
        {
            "fields": [
                {"name": name, "type": simple[kind], "nullable": True, "metadata": {}}
                for name, kind in fields
            ]
        }
    )


# ------------------------------------------------------------------ repeated rows


def test_a_repeated_task_writes_what_is_missing_whatever_was_left_out(output: Output) -> None:
    sparse = [(3, 100 * n, str(n)) for n in range(30)]
    assert output.write(rows(*sparse[:10])) == AppendResult(10, 0)
    assert output.write(rows(*sparse)) == AppendResult(20, 10)


def test_partitions_names_and_queues_are_apart(output: Output) -> None:
    one = rows((0, 5, "a"))
    assert output.write(one) == AppendResult(1, 0)
    assert output.write(rows((1, 5, "b"))) == AppendResult(1, 0)
    assert output.write(one, name="other") == AppendResult(1, 0)
    for source in (Input("again", "log"), Input("queue", "again")):
        done = append_all(output.target, ByPosition("app", source), [one])
        assert done == AppendResult(1, 0)
    assert output.write(one) == AppendResult(0, 1)


def test_rows_of_one_message_are_in_one_append_over_batches_and_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appender, "APPEND_MESSAGES", 3)
    made = [(0, 1, "a"), (0, 1, "b"), (0, 2, "c"), (0, 2, "d"), (0, 2, "e"), (0, 3, "f")]
    found = appends([rows(*made[:4]), rows(*made[4:])], ByPosition("app", FLIGHTS))
    assert [one.sequences for one in found] == [[1, 1, 2, 2, 2], [3]]


def test_too_many_bytes_of_one_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "APPEND_BYTES", 10)
    monkeypatch.setattr(appender, "MOST_BYTES", 100)
    large = [(0, n, "x" * 49) for n in range(1, 5)]
    assert len([*appends([rows(*large, key=lambda _: None)], ByPosition("app", FLIGHTS))]) == 4
    # The limit is of one message, whatever is before it in the append.
    as_many = [(0, 1, "x" * 9), (0, 2, "x" * 50), (0, 2, "x" * 50)]
    (one,) = appends([rows(*as_many, key=lambda _: None)], ByPosition("app", FLIGHTS))
    assert one.sequences == [1, 2, 2]
    with pytest.raises(InvalidRows, match="made of the message 7"):
        list(appends([rows(*[(0, 7, "x" * 49)] * 2, (0, 7, "xxx"))], ByPosition("app", FLIGHTS)))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([(0, 2, ""), (0, 1, "")], "position 1 after 2"),
        ([(0, 1, ""), (1, 1, ""), (0, 2, "")], "partition 0 are not together"),
    ],
)
def test_rows_out_of_order_are_refused(
    output: Output, made: Sequence[tuple[int, int, str]], said: str
) -> None:
    with pytest.raises(InvalidRows, match=said):
        output.write(rows(*made))
    with pytest.raises(InvalidRows, match="QueueSink"):
        output.write(*(rows(one) for one in made))


def test_rows_that_are_of_no_message_of_the_micro_batch_are_refused(output: Output) -> None:
    """Below its range they would count as written already."""
    task = QueueTask(output.target, "app", FLIGHTS, Remainder([(Slice(0, 1, "3", "5"), "3")]))
    [done] = task([rows((0, 3, "a"), (0, 4, "b"))])
    assert done.to_pylist() == [{"written": 2, "dropped": 0}]
    for foreign in (2, 5):
        with pytest.raises(InvalidRows, match=f"positions from {foreign} to {foreign}"):
            list(task([rows((0, foreign, "c"))]))
    with pytest.raises(InvalidRows, match=r"partition 1, of which this .* has read nothing"):
        list(task([rows((1, 3, "c"))]))


def test_rows_of_a_micro_batch_that_has_read_nothing_are_refused(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs such a one for an operator's timers."""

    def mapped(task: Callable[[object], Iterable[pa.RecordBatch]], _: str) -> Any:
        return SimpleNamespace(collect=lambda: list(task([rows((0, 3, "a"))])))

    together = SimpleNamespace(mapInArrow=mapped)
    running = SimpleNamespace(planned=BatchPlan({}, {"queue": "in"}, "", "", (), ()), run_id="run")
    monkeypatch.setattr(queue, "batches_by_queue", lambda one: nullcontext([(running, one)]))
    monkeypatch.setattr(queue, "BatchRows", lambda *_: SimpleNamespace(together=lambda: together))
    monkeypatch.setattr(queue, "target_of", lambda *_, **__: output.target)
    schema = (
        StructType().add("value", "binary").add("partition", "integer").add("position", "string")
    )
    with pytest.raises(InvalidRows, match="has read nothing"):
        QueueSink("out")(cast(Any, SimpleNamespace(schema=schema)), 3)


def test_rows_by_their_place_are_known_within_their_micro_batch(output: Output) -> None:
    batch = rows((0, 0, "a"), (0, 0, "b"))

    def write(batch_id: int, batches: Iterable[pa.RecordBatch]) -> AppendResult:
        return append_all(output.target, ByRow("query/0", batch_id), batches)

    assert write(0, [batch.slice(0, 1)]) == AppendResult(1, 0)
    assert write(0, [batch]) == AppendResult(1, 1)
    assert write(1, [batch]) == AppendResult(2, 0)
    assert write(0, [batch, batch]) == AppendResult(0, 4)


def test_more_rows_and_micro_batches_than_can_be_counted_are_refused() -> None:
    with pytest.raises(InvalidRows, match="new checkpointLocation"):
        ByRow("query/0", 2**53 >> ROW_BITS)
    numbering = ByRow("query/0", (2**53 >> ROW_BITS) - 1)
    numbering._left = 1
    assert [sequence for _, sequence in numbering.names(rows((0, 0, "")))] == [2**53 - 2**ROW_BITS]
    with pytest.raises(InvalidRows, match="more tasks"):
        numbering.names(rows((0, 0, "")))


def test_rows_without_a_name_are_never_dropped(output: Output) -> None:
    for _ in range(2):
        done = append_all(output.target, AtLeastOnce(), [rows((0, 0, "a"))])
        assert done == AppendResult(1, 0)


# ------------------------------------------------------------------ chains, as a model


@given(
    fan_out=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    runs=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 4), st.booleans()),
        max_size=10,
    ),
    most=st.integers(1, 4),
)
def test_owners_that_repeat_each_other_while_the_output_is_resized(
    fan_out: list[int], runs: list[tuple[int, int, int, bool]], most: int
) -> None:
    """Each run is an owner's micro-batch, which begins at or before what was written, and ends
    anywhere; it may be killed after its first append. Then the output has other partitions."""
    made = [(0, at, f"{at}.{n}") for at, count in enumerate(fan_out) for n in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "APPEND_MESSAGES", most)
        output, reached = Output(), 0
        for begin, length, count, killed in [*runs, (0, len(fan_out), 4, False)]:
            begin = min(begin, reached)
            part = [one for one in made if begin <= one[1] < begin + length]
            if killed and part:
                part = _first_append(part)
            output.write(rows(*part, key=lambda value: value.partition(".")[0]))
            reached = max(reached, part[-1][1] + 1 if killed and part else begin + length)
            output.logs.set_partition_count("out", count)
    written = output.texts()
    assert sorted(chain(*written)) == sorted(value for _, _, value in made)
    for values in written:
        positions = [int(value.partition(".")[0]) for value in values]
        assert positions == sorted(positions)


def _first_append(part: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    (first, *_) = appends([rows(*part)], ByPosition("app", FLIGHTS))
    return part[: len(first.messages)]
