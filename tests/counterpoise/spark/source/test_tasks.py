"""The reads of a task: from the real log, and from a log that fails on the way."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from counterpoise.logs import (
    MESSAGE_SCHEMA,
    AppendBatch,
    Bounds,
    Log,
    LogAccessRefused,
    LogBehind,
    LogError,
    LogNotFound,
    LogUnavailable,
    Message,
    PositionAhead,
    PositionTrimmed,
)
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.spark.data_source import SCHEMA
from counterpoise.spark.errors import Trimmed
from counterpoise.spark.offsets import Slice
from counterpoise.spark.source.log_partition import ARROW_SCHEMA, LogPartition, LogSource
from counterpoise.spark.source.tasks import as_rows, open_kept, read_slices
from tests.counterpoise.spark.doubles import NumberLog
from tests.log_support import append, log, log_url

__all__ = ["log", "log_url"]

SOURCE = LogSource("builtin:flights", "postgresql://u:hunter2@h/d", timeout_seconds=10)


class FailingLog(NumberLog):
    """Gives one message per batch; fails before the batches at the named positions."""

    def __init__(self, failures: dict[int, list[Exception]]) -> None:
        super().__init__(1)
        self.failures = failures
        self.closed = 0

    def read(
        self, partition: int, start: str, end: str | None, **_: object
    ) -> Iterator[pa.RecordBatch]:
        for position in range(int(start), int(end or "0")):
            if self.failures.get(position):
                raise self.failures[position].pop(0)
            yield pa.RecordBatch.from_pylist(
                [{"partition": partition, "position": str(position), "value": b"x"}],
                schema=MESSAGE_SCHEMA,
            )

    def close(self) -> None:
        self.closed += 1


class Clock:
    """Time passes by sleeping; something may happen before the second sleep."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._happens = happens
        self._sleeps = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._sleeps += 1
        if self._sleeps == 2:
            self._happens()


def read(
    log: Log, *slices: Slice, source: LogSource = SOURCE, clock: Clock | None = None
) -> pa.Table:
    clock = clock or Clock()
    partition = LogPartition(source, slices)
    batches = read_slices(partition, open_source=lambda _: log, sleep=clock.sleep, clock=clock)
    return pa.Table.from_batches(batches, schema=ARROW_SCHEMA)


def positions(table: pa.Table) -> list[str]:
    return list(table.column("position").to_pylist())


@pytest.mark.xdist_group("spark")
def test_the_arrow_schema_is_what_spark_expects(spark: object) -> None:
    declared = _parse_datatype_string(SCHEMA)
    assert isinstance(declared, StructType)
    assert to_arrow_schema(declared, timezone="UTC").equals(ARROW_SCHEMA)


def test_slices_are_read_in_order_with_their_epochs(log: PostgresLog) -> None:
    append(log, "a", "b", "c")
    append(log, "d", "e", partition=2, first=10)
    table = read(log, Slice(0, 4, "1", "3"), Slice(2, 7, "0", "2"))
    rows = table.select(["partition", "position", "epoch", "value"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, "1", 4, b"b"),
        (0, "2", 4, b"c"),
        (2, "0", 7, b"d"),
        (2, "1", 7, b"e"),
    ]


def test_a_message_without_a_value_is_null_and_an_empty_one_is_empty(log: PostgresLog) -> None:
    """Also where a batch is a part of others, whose headers it shares."""
    deleted = {"counterpoise-tombstone": "true"}
    messages = [
        Message(b"a", "k", {"n": "1"}),
        Message(b"", "k", {"n": "2", **deleted}),
        Message(b"", "k"),
        Message(b"not", "k", deleted),
        Message(b"", "k", {"n": "3"}),
    ]
    log.append(AppendBatch("p", 0, 4, [0] * 5, messages))
    (batch,) = log.read(0, "0", "5", max_messages=9)
    for begin in range(5):
        rows = as_rows(batch.slice(begin), Slice(0, 1, str(begin), "5"))
        assert rows["value"].to_pylist() == [b"a", None, b"", b"not", b""][begin:]
    assert rows.schema == ARROW_SCHEMA


def test_rows_tell_whose_state_they_belong_to_and_whether_they_are_history(
    log: PostgresLog,
) -> None:
    append(log, "a", "b", "c")
    history, first, later = (
        Slice(0, 4, "0", "1", 4, True),
        Slice(0, 5, "1", "2", 4),
        Slice(0, 6, "2", "3"),
    )
    table = read(log, history, first, later)
    rows = table.select(["position", "epoch", "tenure", "replay"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("0", 4, 4, True),
        ("1", 5, 4, False),
        ("2", 6, 6, False),
    ]


def test_a_log_that_is_away_for_a_moment_is_read_on_without_a_trace() -> None:
    away: list[Exception] = [LogUnavailable("away"), LogAccessRefused("expired")]
    log = FailingLog({0: list(away), 3: list(away)})
    assert positions(read(log, Slice(0, 1, "0", "6"))) == ["0", "1", "2", "3", "4", "5"]
    assert log.closed == 4


def test_a_log_that_stays_away_fails_the_task_after_its_time() -> None:
    log = FailingLog({2: [LogUnavailable("away") for _ in range(1000)]})
    with pytest.raises(LogUnavailable):
        read(log, Slice(0, 1, "0", "6"))
    assert log.closed < 20


def test_a_planned_range_is_waited_for_where_the_log_ends_before_it(log: PostgresLog) -> None:
    """Never cut short: the micro-batch would count as done, and later messages as read."""
    for there in (("a", "b", "c"), ("c", "d")):
        start = log.bounds([0]).ends[0]
        append(log, *there, first=int(start))

        def catch_up() -> None:
            append(log, "e", "f", first=int(log.bounds([0]).ends[0]))

        wanted = int(start) + len(there) + 2
        table = read(log, Slice(0, 1, start, str(wanted)), clock=Clock(catch_up))
        assert table.column("value").to_pylist() == [*(t.encode() for t in there), b"e", b"f"]
    # A range that begins where the log ends.
    end = int(log.bounds([0]).ends[0])
    clock = Clock(lambda: append(log, "g", first=end))
    assert positions(read(log, Slice(0, 1, str(end), str(end + 1)), clock=clock)) == [str(end)]


def test_a_planned_range_that_never_comes_fails_the_task(log: PostgresLog) -> None:
    append(log, "a", "b", "c")
    with pytest.raises(LogBehind, match="reset the queue's positions"):
        read(log, Slice(0, 1, "0", "5"))


def test_a_log_that_lost_its_data_is_waited_for_until_it_is_made_anew() -> None:
    gone: list[Exception] = [LogNotFound("no log"), PositionAhead(0, "0", "0"), LogNotFound("no")]
    made_anew = FailingLog({0: list(gone), 2: list(gone)})
    assert positions(read(made_anew, Slice(0, 1, "0", "4"))) == ["0", "1", "2", "3"]
    # A loss is reported like any other.
    lost = FailingLog({1: [LogNotFound("no log"), PositionTrimmed(0, "1", "4")]})
    with pytest.raises(Trimmed):
        read(lost, Slice(0, 1, "1", "6"))


@pytest.mark.parametrize("lasting", [LogNotFound("no log"), PositionAhead(0, "0", "0")])
def test_a_log_that_stays_lost_fails_the_task_in_the_time_the_probe_gives_it(
    lasting: LogError,
) -> None:
    clock = Clock()
    log = FailingLog({0: [lasting for _ in range(1000)]})
    patient = LogSource("builtin:flights", None, timeout_seconds=3600)
    with pytest.raises(type(lasting)):
        read(log, Slice(0, 1, "0", "6"), source=patient, clock=clock)
    assert AHEAD_SECONDS - 10 < clock.now <= AHEAD_SECONDS
    # What the log said before the outage does not count.
    clock = Clock()
    away: list[Exception] = [LogUnavailable("away") for _ in range(60)]
    log = FailingLog({0: [lasting, *away, lasting, lasting]})
    assert len(positions(read(log, Slice(0, 1, "0", "6"), source=patient, clock=clock))) == 6
    assert clock.now > AHEAD_SECONDS


def test_credentials_that_stay_refused_fail_the_task_with_what_to_do() -> None:
    log = FailingLog({0: [LogAccessRefused("expired") for _ in range(1000)]})
    with pytest.raises(LogAccessRefused) as refused:
        read(log, Slice(0, 1, "0", "6"))
    assert "start the query again, and it gets new ones" in " ".join(refused.value.__notes__)


def test_trimmed_messages_fail_the_task_or_are_passed_over() -> None:
    def trimmed() -> FailingLog:
        return FailingLog({1: [PositionTrimmed(0, "1", "4")]})

    with pytest.raises(Trimmed, match="onTrimmed"):
        read(trimmed(), Slice(0, 1, "1", "6"))
    earliest = LogSource("builtin:flights", None, on_trimmed="earliest")
    assert positions(read(trimmed(), Slice(0, 1, "1", "6"), source=earliest)) == ["4", "5"]
    assert positions(read(trimmed(), Slice(0, 1, "1", "3"), source=earliest)) == []
    # Lost history does not stop the partition.
    assert positions(read(trimmed(), Slice(0, 1, "1", "6", replay=True))) == ["4", "5"]


def test_credentials_travel_and_are_not_shown() -> None:
    partition = LogPartition(SOURCE, (Slice(0, 1, "0", "6"),))
    assert "hunter2" not in repr(partition) + str(partition) + repr(SOURCE)
    assert pickle.loads(pickle.dumps(partition)).source.access == SOURCE.access


def test_a_worker_keeps_its_connection_until_the_credentials_change() -> None:
    first = open_kept(SOURCE)
    assert open_kept(LogSource(**vars(SOURCE))) is first
    renewed = LogSource("builtin:flights", "postgresql://u:other@h/d")
    assert open_kept(renewed) is not first


def test_a_task_of_several_slices_tells_the_log_of_all_of_them_before_it_reads() -> None:
    class Told(FailingLog):
        def __init__(self) -> None:
            super().__init__({})
            self.calls: list[object] = []

        def begin(self, ranges: Mapping[int, tuple[str, str]]) -> None:
            self.calls.append([*ranges.items()])
            raise LogUnavailable("away")  # the reads find out

        def read(
            self, partition: int, start: str, end: str | None, **more: object
        ) -> Iterator[pa.RecordBatch]:
            self.calls.append(partition)
            return super().read(partition, start, end, **more)

    log = Told()
    history, new = Slice(1, 1, "0", "2", replay=True), Slice(1, 1, "7", "9")
    assert positions(read(log, history, Slice(0, 1, "3", "4"), new)) == ["0", "1", "3", "7", "8"]
    assert log.calls == [[(1, ("0", "2")), (0, ("3", "4"))], 1, 0, 1]
    log.calls.clear()
    assert positions(read(log, new)) == ["7", "8"]
    assert log.calls == [1], "nothing follows"


def test_a_task_without_slices_connects_and_reads_nothing() -> None:
    class Asked(FailingLog):
        asked = 0

        def bounds(self, partitions: object, *, at_once: bool = False) -> Bounds:
            self.asked += 1
            raise LogUnavailable("away")

    log = Asked({})
    rows = read_slices(LogPartition(SOURCE, ()), open_source=lambda _: log)
    assert list(rows) == []
    assert log.asked == 1
