"""Partials and windows in a real Postgres: two connections, in every order that matters."""

from __future__ import annotations

import contextlib
import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection, create_engine

from counterpoise.spark.aggregates import (
    Count,
    FencedAggregate,
    First,
    Last,
    Max,
    Sum,
    Windows,
    aggregate,
    tables,
)
from counterpoise.spark.aggregates.merging import Counted, Merge, Results, _Rows, close_windows
from counterpoise.spark.aggregates.tables import AggregateKey
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink import Scope

COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("key", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("x", pa.int64()),
    ]
)
KEY = AggregateKey("per_ten", "q-1", "flights")
PLAN = Counted({"n": Count(), "total": Sum("x")}, ("key",), Windows("at", 10))
Row = tuple[int, str, int | None, int]
"""(position, key, second of the event, x)"""


class Counting:
    """Writers and closings, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        # A statement that waits for a lock fails instead.
        self.engine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://"),
            connect_args={"options": "-c lock_timeout=200ms"},
        )
        tables.create(self.engine)
        self.database = psycopg.connect(url, autocommit=True)
        self.database.execute(
            "CREATE TABLE per_ten (window_start timestamptz, window_end timestamptz, key text,"
            " n bigint, total bigint)"
        )
        self.plan = PLAN
        self.live = {0, 1}
        self.idle_seconds: float | None = None

    @property
    def results(self) -> Results:
        return Results(self.plan, "per_ten")

    def add(self, connection: Connection, partition: int, rows: Sequence[Row]) -> None:
        found = pa.Table.from_pylist(
            [
                {
                    "partition": partition,
                    "position": str(position),
                    "key": key,
                    "at": None if at is None else at * 1_000_000,
                    "x": x,
                }
                for position, key, at, x in rows
            ],
            COLUMNS,
        )
        scope = Scope(KEY.sink, "flights", KEY.queue_id, partition, 1, "0", "9", 0)
        Merge(self.plan, self.results)(connection, found, scope)

    def write(self, partition: int, *rows: Row) -> None:
        """A whole transaction of the owner of the partition."""
        with self.writing(partition, *rows):
            pass

    @contextlib.contextmanager
    def writing(self, partition: int, *rows: Row) -> Iterator[Connection]:
        """The same, open until the end of the block. As in the sink's, a savepoint is open."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql("SAVEPOINT counterpoise")
            self.add(connection, partition, rows)
            yield connection

    def close(self, connection: Connection, known: set[int] | None = None) -> int:
        return close_windows(
            connection,
            KEY,
            self.results,
            live=self.live,
            known=set() if known is None else known,
            idle_seconds=self.idle_seconds,
        )

    def closed(self, known: set[int] | None = None) -> int:
        """A whole transaction that closes windows."""
        with self.engine.begin() as connection:
            return self.close(connection, known)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.execute(statement).fetchall()

    def written(self) -> list[tuple[Any, ...]]:
        """(second at which the window begins, key, n, total), in the order of writing."""
        return self.query(
            "SELECT extract(epoch FROM window_start)::int, key, n, total FROM per_ten"
        )

    def make_still(self, *partitions: int) -> None:
        """These have got no rows for an hour."""
        self.database.execute(
            "UPDATE counterpoise_clocks SET moved_at = now() - interval '1 hour'"
            " WHERE partition = ANY(%s)",
            [list(partitions)],
        )

    def dropped(self) -> int:
        with self.engine.begin() as connection:
            return tables.dropped(connection, KEY)


@pytest.fixture
def counting(database_url: str) -> Iterator[Counting]:
    counting = Counting(database_url)
    yield counting
    counting.database.close()
    counting.engine.dispose()


def test_a_time_in_a_key_is_one_group_in_all_time_zones() -> None:
    """Spark gives times in the zone of its session, and applications may have several."""
    plan = Counted({"n": Count()}, ("at",), None)
    found = []
    for zone in ("UTC", "Asia/Tokyo"):
        at = pa.array([1_000_000, None], pa.timestamp("us", tz=zone))
        rows = pa.table({"position": ["0", "1"], "at": at})
        found.append(_Rows(plan, rows, 0).groups([(0, 0, 0), (1, 0, 0)]).keys())
    assert found[0] == found[1]


def test_a_window_is_written_once_with_the_rows_of_all_partitions(counting: Counting) -> None:
    counting.write(0, (0, "a", 1, 5), (1, "b", 2, 1))
    counting.write(0, (2, "a", 9, 5))
    counting.write(1, (0, "a", 3, 7))
    assert counting.closed() == 0
    counting.write(0, (3, "a", 10, 1))
    assert counting.closed() == 0, "partition 1 holds it open"
    counting.write(1, (1, "a", 12, 1))
    assert counting.closed() == 2
    assert counting.closed() == 0
    assert sorted(counting.written()) == [(0, "a", 3, 17), (0, "b", 1, 1)]


def test_a_partition_that_nobody_has_read_holds_all_windows_open(counting: Counting) -> None:
    counting.live = {0, 1, 2}
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1), (1, "a", 50, 1))
    assert counting.closed() == 0
    counting.write(2, (0, "a", 2, 1), (1, "a", 31, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 3, 3)]


def test_a_slow_partition_is_passed_after_the_users_limit_alone(counting: Counting) -> None:
    counting.write(0, (0, "a", 1, 1), (1, "a", 50, 1))
    assert counting.closed() == 0
    counting.make_still(1)
    assert counting.closed() == 0, "without a limit it holds for ever"
    counting.idle_seconds = 60
    assert counting.closed() == 1
    # What it has got of that window since then is late, and of others it is not.
    counting.write(1, (0, "a", 2, 1), (1, "a", 51, 1))
    assert counting.dropped() == 1
    for partition in (0, 1):
        counting.write(partition, (9, "a", 60, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 1, 1), (50, "a", 2, 2)]


def test_if_all_are_still_the_one_that_is_ahead_decides(counting: Counting) -> None:
    counting.idle_seconds = 60
    counting.write(0, (0, "a", 1, 1), (1, "a", 50, 1))
    counting.write(1, (0, "a", 2, 1))
    counting.make_still(0, 1)
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 2, 2)]


def test_a_row_dated_far_ahead_ends_nothing(counting: Counting) -> None:
    """Neither its own partition, nor those that are passed when all are still."""
    counting.idle_seconds = 60
    far = 253_402_127_000  # in the last days of the year 9999
    counting.write(0, (0, "a", 1, 1), (1, "b", far, 1), (2, "a", 2, 1), (3, "a", 30, 1))
    counting.write(1, (0, "a", 3, 1))
    counting.make_still(0, 1)
    assert counting.closed() == 1
    counting.write(1, *((n, "a", 30 + n, 1) for n in range(1, 9)))
    assert counting.dropped() == 0
    assert counting.written() == [(0, "a", 3, 3)]
    (kept,) = counting.query(f"SELECT groups FROM counterpoise_partials WHERE window_end > {far}")
    assert kept == ('["b"]',)


def test_a_time_that_no_calendar_has_is_none(counting: Counting) -> None:
    """As where milliseconds are taken for seconds: the year 58,850."""
    wrong = (1_795_000_000_000, -62_135_596_799, -(10**12))
    counting.write(0, *((n, "a", at, 1) for n, at in enumerate(wrong)), (3, "a", 1, 1))
    counting.write(0, (4, "a", 30, 1))
    counting.write(1, (0, "a", 30, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 1, 1)]
    assert counting.dropped() == 3


def test_late_rows_are_dropped_and_counted(counting: Counting) -> None:
    counting.write(0, (0, "a", 1, 1), (1, "a", 12, 1), (2, "a", 2, 1), (3, "a", None, 1))
    assert counting.dropped() == 2
    counting.write(1, (0, "a", 3, 1), (1, "a", 12, 1))
    counting.closed()
    assert counting.written() == [(0, "a", 2, 2)]


def test_late_rows_go_to_a_table_of_their_own(counting: Counting) -> None:
    counting.plan = replace(PLAN, late="side")
    counting.write(0, (0, "a", 1, 1), (1, "a", 12, 1), (2, "a", 2, 8))
    assert counting.dropped() == 0
    ((partition, position, start, row),) = counting.query(
        "SELECT partition, position, extract(epoch FROM window_start)::int, row_columns"
        " FROM counterpoise_late"
    )
    assert (partition, position, start) == (0, "2", 0)
    assert '"x":8' in row


def test_all_late_rows_of_one_message_stay(counting: Counting) -> None:
    """As explode makes them, and also where two calls of one transaction bring them."""
    counting.plan = replace(PLAN, late="side")
    # The tables as they were before the rows of this one had numbers.
    counting.database.execute(
        "ALTER TABLE counterpoise_partials DROP COLUMN long_groups;"
        " ALTER TABLE counterpoise_late DROP COLUMN number, DROP COLUMN written_in,"
        " ADD PRIMARY KEY (sink, queue_id, partition, position, window_start)"
    )
    tables.create(counting.engine)
    counting.write(0, (0, "a", 100, 1))
    rows = [(1, "b", 5, 1), (1, "c", 5, 2), (1, "c", 5, 2), (1, "d", 15, 3)]
    for _ in range(2):
        with counting.writing(0, *rows[:2]) as connection:
            counting.add(connection, 0, rows[2:])
        assert counting.query(
            "SELECT row_columns::jsonb->>'key', number FROM counterpoise_late ORDER BY 1, 2"
        ) == [("b", 0), ("c", 1), ("c", 2), ("d", 0)]


def test_late_rows_are_merged_into_open_and_closed_windows(counting: Counting) -> None:
    counting.plan = replace(PLAN, late="merge", keep=30_000_000)
    counting.write(0, (0, "a", 1, 1), (1, "a", 12, 1), (2, "a", 2, 1))
    counting.write(1, (0, "a", 3, 1), (1, "a", 12, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 3, 3)]
    counting.write(1, (2, "a", 4, 5), (3, "b", 5, 5))
    counting.write(0, (3, "a", 4, 5))
    assert sorted(counting.written()) == [(0, "a", 5, 13), (0, "b", 1, 5)]
    # For a time.
    for partition in (0, 1):
        counting.write(partition, (4, "a", 50, 1))
    counting.closed()
    counting.write(0, (5, "a", 4, 1))
    assert counting.dropped() == 1
    assert sorted(counting.written())[:2] == [(0, "a", 5, 13), (0, "b", 1, 5)]


@pytest.fixture
def undivided(counting: Counting) -> Counting:
    """Results without windows."""
    counting.database.execute(
        "ALTER TABLE per_ten DROP COLUMN window_start, DROP COLUMN window_end"
    )
    counting.plan = replace(PLAN, windows=None)
    return counting


def test_a_closing_waits_for_no_writer_of_undivided_rows(undivided: Counting) -> None:
    """They lock groups in any order, so waiting for each other would be a deadlock."""
    undivided.write(0, (0, "a", None, 1), (1, "b", None, 1))
    with undivided.writing(0, (2, "b", None, 1)) as writer:
        assert undivided.closed() == 1
        undivided.add(writer, 0, [(3, "a", None, 1)])
    assert undivided.closed() == 2
    assert sorted(undivided.query("SELECT * FROM per_ten")) == [("a", 2, 2), ("b", 2, 2)]


def test_all_is_forgotten_that_nobody_has_closed(undivided: Counting) -> None:
    undivided.write(0, (0, "a", None, 1))
    with undivided.engine.begin() as connection:
        tables.forget(connection, KEY.sink, KEY.queue)
    undivided.write(0, (0, "a", None, 1))
    undivided.closed()
    assert undivided.query("SELECT * FROM per_ten") == [("a", 1, 1)]


def test_rows_whose_group_is_no_number_are_one_group(counting: Counting) -> None:
    schema = COLUMNS.set(2, pa.field("key", pa.float64()))
    rows = [{"partition": 0, "position": str(n), "key": math.nan, "at": 1, "x": n} for n in (1, 2)]
    scope = Scope(KEY.sink, "flights", KEY.queue_id, 0, 1, "0", "9", 0)
    with counting.engine.begin() as connection:
        Merge(PLAN, counting.results)(connection, pa.Table.from_pylist(rows, schema), scope)
    counting.live = {0}
    counting.write(0, (3, "a", 30, 1))
    counting.closed()
    assert counting.written() == [(0, "NaN", 2, 3)]


def long_text(seed: int) -> str:
    """One that no compression makes short."""
    return "".join(random.Random(seed).choices(string.printable, k=9000))


def test_groups_may_be_longer_than_an_index_takes(counting: Counting) -> None:
    counting.plan = replace(PLAN, late="merge", keep=10**9)
    one, other = long_text(1), long_text(2)
    counting.write(0, (0, one, 1, 1), (1, other, 2, 10))
    counting.write(0, (2, one, 3, 2))
    counting.write(1, (0, one, 4, 4), (1, "a", 30, 1))
    counting.write(0, (3, "a", 30, 1))
    assert counting.closed() == 2
    assert sorted(counting.written()) == sorted([(0, one, 3, 7), (0, other, 1, 10)])
    counting.write(0, (4, one, 5, 8))
    assert sorted(counting.written()) == sorted([(0, one, 4, 15), (0, other, 1, 10)])


def test_long_groups_that_are_not_divided_by_time(undivided: Counting) -> None:
    long = long_text(1)
    for partition in (0, 1):
        undivided.write(partition, (0, long, None, 1), (1, "a", None, 1))
    assert undivided.closed() == 2
    undivided.write(0, (2, long, None, 1))
    assert undivided.closed() == 1
    found = undivided.query("SELECT key, n FROM per_ten ORDER BY n")
    assert found == [("a", 2), (long, 3)]


def test_a_text_that_a_result_cannot_have_is_refused_before_it_counts(counting: Counting) -> None:
    """Else no window could be closed any more, by any application."""
    with pytest.raises(InvalidSink, match=r"the column key of the result .* NUL"):
        counting.write(0, (0, "a\0b", 1, 1))
    counting.plan = replace(PLAN, values={"n": Count(), "total": Last("key")}, by=())
    with pytest.raises(InvalidSink, match=r"the column total of the result .* NUL"):
        counting.write(0, (0, "a\0b", 1, 1))
    counting.plan = PLAN
    for partition in (0, 1):
        counting.write(partition, (0, "a\\u0000", 1, 1), (1, "a", 30, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a\\u0000", 2, 2)]


def test_a_group_by_a_column_of_many_values_is_refused_with_a_reason(counting: Counting) -> None:
    rows = pa.table({"position": ["0"], "tags": [["a"]]})
    plan = Counted({"n": Count()}, ("tags",), None)
    with pytest.raises(InvalidSink, match=r"the column tags in by is a list<.*>: group by"):
        _Rows(plan, rows, 0)


def test_open_windows_of_other_groups_are_refused_with_a_reason(counting: Counting) -> None:
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1), (1, "a", 30, 1))
    refused = pytest.raises(InvalidSink, match="by 1 columns, and not by those of now: key, x")
    counting.plan = replace(PLAN, by=("key", "x"))
    with refused:
        counting.closed()
    # Before a row is counted, too. What closed windows have kept for late rows does not matter.
    counting.database.execute("ALTER TABLE per_ten ADD COLUMN x bigint")
    with counting.engine.begin() as connection, refused:
        counting.results.check(connection, KEY)
    counting.database.execute(
        "UPDATE counterpoise_partials SET partition = -1 WHERE partition = 0;"
        " DELETE FROM counterpoise_partials WHERE partition > 0"
    )
    with counting.engine.begin() as connection:
        counting.results.check(connection, KEY)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"by": ("queue", "key"), "values": {"n": Count(), "mean": Sum("x")}}, "queue, mean"),
        ({"by": ()}, None),
    ],
)
def test_a_table_that_lacks_a_column_is_refused_before_a_row_is_counted(
    counting: Counting, changes: dict[str, Any], lacks: str | None
) -> None:
    """One of a single queue has no column for several. One that is not there yet may still come."""
    plan = replace(PLAN, **changes)
    with counting.engine.begin() as connection:
        Results(plan, "not there").check(connection, KEY)
        Results(plan, "per_ten", lambda *_: None).check(connection, KEY)
        if lacks is None:
            Results(plan, "public.per_ten").check(connection, KEY)
        else:
            with pytest.raises(InvalidSink, match=f"public.per_ten has no column {lacks}, and"):
                Results(plan, "public.per_ten").check(connection, KEY)


def test_a_late_row_is_first_or_last_by_its_position(counting: Counting) -> None:
    """Its time is earlier than that of rows before it in its partition."""
    late = Counted({"n": First("x"), "total": Last("x")}, ("key",), PLAN.windows, "merge", 10**9)
    counting.plan = late
    counting.write(0, (0, "a", 8, 1), (1, "a", 7, 2), (2, "b", 30, 0))
    counting.write(1, (0, "a", 6, 3), (1, "b", 30, 0))
    counting.closed()
    assert counting.written() == [(0, "a", 3, 2)]
    counting.write(0, (3, "a", 5, 4))
    assert counting.written() == [(0, "a", 3, 3)]


def test_rows_that_are_not_divided_by_time(undivided: Counting) -> None:
    counting = undivided
    counting.write(0, (0, "a", None, 1), (1, "b", None, 2))
    counting.write(1, (0, "a", None, 3))
    assert counting.closed() == 2
    counting.write(1, (1, "a", None, 5))
    assert counting.closed() == 1
    assert counting.closed() == 0
    assert sorted(counting.query("SELECT * FROM per_ten")) == [("a", 3, 9), ("b", 1, 2)]


def test_without_columns_all_rows_are_one_group(counting: Counting) -> None:
    counting.database.execute("DROP TABLE per_ten; CREATE TABLE per_ten (most bigint, last bigint)")
    counting.plan = Counted({"most": Max("x"), "last": Last("x")}, (), None)
    counting.write(0, (0, "a", None, 9), (1, "b", None, 2))
    counting.closed()
    counting.write(0, (2, "b", None, 4))
    counting.closed()
    assert counting.query("SELECT * FROM per_ten") == [(9, 4)]


def test_a_column_that_the_rows_lack_is_named(counting: Counting) -> None:
    counting.plan = Counted({"n": Sum("y")}, ("key",), Windows("when", 10))
    with pytest.raises(InvalidSink, match="no column when, y"):
        counting.write(0, (0, "a", 1, 1))


# ------------------------------------------------------------------ two at a time


def test_writers_of_one_window_do_not_wait_for_each_other(counting: Counting) -> None:
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1))
    with (
        counting.writing(0, (1, "a", 2, 1), (2, "b", 2, 1)) as one,
        counting.writing(1, (1, "b", 2, 1), (2, "a", 2, 1)) as two,
    ):
        counting.add(one, 0, [(3, "b", 3, 1), (4, "a", 11, 1)])
        counting.add(two, 1, [(3, "a", 3, 1), (4, "b", 11, 1)])
    assert counting.closed() == 2
    assert sorted(counting.written()) == [(0, "a", 5, 5), (0, "b", 3, 3)]


def test_a_window_is_not_closed_under_a_writer(counting: Counting) -> None:
    """The writer's clock is committed, and with it what the low watermark may reach."""
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1))
    counting.write(0, (1, "a", 30, 1))
    with counting.writing(1, (1, "a", 2, 1), (2, "a", 31, 1)):
        assert counting.closed() == 0
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 3, 3)]


def test_a_partition_that_is_written_just_now_is_not_passed(counting: Counting) -> None:
    """It was still for long; its owner came back, and has not committed yet."""
    counting.idle_seconds = 60
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1))
    counting.make_still(1)
    with counting.writing(1, (1, "a", 2, 1)):
        counting.write(0, (1, "a", 30, 1))
        assert counting.closed() == 0
    assert counting.closed() == 0, "it has moved"
    counting.make_still(1)
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 3, 3)]


def test_the_first_rows_of_a_partition_and_a_closing_wait_for_each_other(
    counting: Counting,
) -> None:
    """Else the closing would not see its clock, and close the window that it counts in."""
    counting.live = {0}
    counting.write(0, (0, "a", 1, 1), (1, "a", 30, 1))
    with counting.writing(1, (0, "a", 2, 1)):
        with pytest.raises(Exception, match="lock timeout"):
            counting.closed()
    # The list of partitions is older than the partition. It has a clock, so it counts.
    assert counting.closed(known={0}) == 0
    counting.write(1, (1, "a", 12, 1))
    assert counting.closed(known={0}) == 1
    assert counting.written() == [(0, "a", 2, 2)]


def test_a_new_partition_begins_where_windows_were_closed(counting: Counting) -> None:
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1), (1, "a", 29, 1))
    assert counting.closed() == 1
    counting.write(2, (0, "a", 2, 1), (1, "a", 25, 1), (2, "a", 45, 1))
    assert counting.dropped() == 1
    counting.live = {0, 1, 2}
    for partition in (0, 1):
        counting.write(partition, (2, "a", 40, 1))
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 2, 2), (20, "a", 3, 3)]


def test_a_partition_that_has_ended_holds_nothing_and_may_come_again(counting: Counting) -> None:
    """As when a queue is made smaller, and larger again."""
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1))
    counting.live = {0}
    counting.write(0, (1, "a", 30, 1))
    assert counting.closed(known={0, 1}) == 1
    counting.live = {0, 1}
    counting.write(1, (1, "a", 2, 1), (2, "a", 33, 1))
    assert counting.dropped() == 1
    assert counting.written() == [(0, "a", 2, 2)]


def test_a_partition_that_was_split_holds_nothing(
    counting: Counting, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dynamic queue lists it, as finished."""
    listed = [SimpleNamespace(partition=0, state="owned"), SimpleNamespace(partition=1, state="")]
    service = SimpleNamespace(partitions=lambda queue: listed)
    monkeypatch.setattr(aggregate, "Client", lambda url: contextlib.nullcontext(service))
    sink = FencedAggregate(
        database_url, "per_ten", values=PLAN.values, windows=PLAN.windows, name=KEY.sink
    )
    sink._counted = {"flights": (KEY, None)}
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1))
    counting.write(0, (1, "a", 30, 1))
    for state, closed in (("owned", 0), ("waiting", 0), ("finished", 1)):
        listed[1].state = state
        assert sink.close_windows() == closed
    sink._database.engine().dispose()


def test_a_late_row_and_the_closing_of_its_window_wait_for_each_other(
    counting: Counting,
) -> None:
    """The row is late for its own partition, and another one holds its window open."""
    counting.plan = replace(PLAN, late="merge", keep=60_000_000)
    counting.write(0, (0, "a", 1, 1), (1, "a", 12, 1))
    counting.write(1, (0, "a", 2, 1), (1, "a", 12, 1))
    with counting.writing(0, (2, "a", 3, 1)):
        with pytest.raises(Exception, match="lock timeout"):
            counting.closed()
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 3, 3)]
    with counting.engine.begin() as closing:
        counting.close(closing)
        with pytest.raises(Exception, match="lock timeout"):
            counting.write(1, (2, "a", 3, 1))
    counting.write(1, (2, "a", 3, 1))
    assert counting.written() == [(0, "a", 4, 4)]


def test_a_closing_that_fails_closes_nothing(counting: Counting) -> None:
    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 1), (1, "a", 30, 1))
    counting.database.execute("ALTER TABLE per_ten RENAME TO other")
    with pytest.raises(Exception, match="does not exist"):
        counting.closed()
    counting.database.execute("ALTER TABLE other RENAME TO per_ten")
    assert counting.closed() == 1
    assert counting.written() == [(0, "a", 2, 2)]


def test_a_sum_that_is_no_number_stops_no_closing(counting: Counting) -> None:
    for partition, infinite in enumerate(("Infinity", "-Infinity")):
        counting.write(partition, (0, "a", 1, 1), (1, "a", 30, 1))
        counting.database.execute(
            "UPDATE counterpoise_partials SET partials = %s"
            " WHERE partition = %s AND window_start = 0",
            (f'{{"n":1,"total":{infinite}}}', partition),
        )
    counting.database.execute("ALTER TABLE per_ten ALTER total TYPE double precision")
    assert counting.closed() == 1
    ((*_, total),) = counting.written()
    assert math.isnan(total)


def test_results_go_to_a_function_in_the_transaction(counting: Counting) -> None:
    seen: list[dict[str, Any]] = []

    def emit(connection: Connection, rows: list[dict[str, Any]]) -> None:
        seen.extend(rows)
        connection.exec_driver_sql("INSERT INTO per_ten (n) VALUES (1)")

    for partition in (0, 1):
        counting.write(partition, (0, "a", 1, 4), (1, "a", 30, 1))
    with counting.engine.begin() as connection:
        close_windows(
            connection,
            KEY,
            replace(counting.results, emit=emit),
            live={0, 1},
            known=(),
            idle_seconds=None,
        )
    ((row, count),) = [(row, len(seen)) for row in seen]
    assert (row["key"], row["n"], row["total"], count) == ("a", 2, 8, 1)
    assert (row["window_end"] - row["window_start"]).total_seconds() == 10
    assert len(counting.written()) == 1


def test_with_a_function_the_table_is_only_a_name(counting: Counting) -> None:
    results = Results(PLAN, "a.b.c.d", emit=lambda *_: None)
    with counting.engine.begin() as connection:
        results.check(connection, KEY)


def test_an_engine_with_another_isolation_is_refused(database_url: str) -> None:
    """A closing that waited for the first rows of a partition would not see its clock."""
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with pytest.raises(InvalidSink, match="needs READ COMMITTED"):
        tables.create(engine)
    engine.dispose()
