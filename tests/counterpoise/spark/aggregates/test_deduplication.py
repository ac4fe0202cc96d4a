"""Each id once: the rule, and its table in a real Postgres."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine

from counterpoise.spark import Deduplicate
from counterpoise.spark.aggregates.deduplication import unseen
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink import Scope

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[tuple[str | None, int]]
"""(id, second)"""


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 30)), max_size=20),
    st.lists(st.integers(0, 20), max_size=3),
    st.integers(0, 10),
)
def test_a_row_passes_if_none_of_its_id_has_within_the_horizon(
    rows: Rows, cuts: list[int], horizon: int
) -> None:
    """However the rows are cut into transactions."""
    expected: list[int] = []
    for index, (one, time) in enumerate(rows):
        earlier = [rows[at][1] for at in expected if rows[at][0] == one]
        if one is None or all(last < time - horizon for last in earlier):
            expected.append(index)
    found: list[int] = []
    known: dict[str, int | None] = {}
    edges = [0, *sorted(cuts), len(rows)]
    for begin in range(len(edges) - 1):
        part = rows[edges[begin] : edges[begin + 1]]
        passed, after = unseen(known, [one for one, _ in part], [at for _, at in part], horizon)
        found += [edges[begin] + index for index in passed]
        known |= after
    assert found == expected


class Writing:
    """Transactions of owners; what passes goes into a table."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://"),
            connect_args={"options": "-c lock_timeout=200ms"},
        )
        self.database = psycopg.connect(url, autocommit=True)
        self.database.execute("CREATE TABLE passed (number serial, id text)")
        self.write = Deduplicate(self.insert, ["id"], "at", horizon_seconds=10)

    def insert(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        for one in rows["id"].to_pylist():
            connection.exec_driver_sql("INSERT INTO passed (id) VALUES (%s)", (one,))

    def add(self, connection: Connection, partition: int, rows: Rows) -> None:
        found = pa.table(
            {
                "id": pa.array([one for one, _ in rows], pa.string()),
                "at": pa.array([at * 1_000_000 for _, at in rows], pa.timestamp("us", tz="UTC")),
            }
        )
        scope = Scope("events", "flights", "q-1", partition, 1, "0", "9", 0)
        self.write(connection, found, scope)

    def rows(self, partition: int, *rows: tuple[str | None, int]) -> None:
        with self.engine.begin() as connection:
            self.add(connection, partition, list(rows))

    def passed(self) -> list[str | None]:
        return [one for (one,) in self.database.execute("SELECT id FROM passed ORDER BY number")]

    def ids(self) -> list[str]:
        return [one for (one,) in self.database.execute("SELECT id FROM counterpoise_ids")]


@pytest.fixture
def writing(database_url: str) -> Iterator[Writing]:
    writing = Writing(database_url)
    yield writing
    writing.database.close()
    writing.engine.dispose()


def test_ids_are_remembered_by_all_partitions_for_the_horizon(writing: Writing) -> None:
    writing.rows(0, ("a", 1), ("b", 2), ("a", 3), (None, 3), (None, 3))
    writing.rows(1, ("a", 9), ("c", 9))
    assert writing.passed() == ["a", "b", None, None, "c"]
    writing.rows(0, ("a", 11), ("a", 12), ("b", 12))
    assert writing.passed()[5:] == ["a"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind_of", "value"),
    [
        (lambda time: time, MOMENT),
        (lambda time: pa.struct([("a", pa.int32()), ("at", time)]), {"a": 1, "at": MOMENT}),
        (lambda time: pa.list_(pa.struct([("at", pa.list_(time))])), [{"at": [MOMENT]}, None]),
        (lambda time: pa.map_(time, time), [(MOMENT, MOMENT)]),
    ],
)
def test_a_time_in_an_id_is_one_in_all_time_zones(
    writing: Writing, kind_of: Callable[[pa.DataType], pa.DataType], value: Any
) -> None:
    """Spark gives times in the zone of its session, and applications may have several."""
    for zone in ("UTC", "Asia/Tokyo"):
        time = pa.timestamp("us", tz=zone)
        of = pa.array([value, None], kind_of(time))
        found = pa.table({"id": ["a", "a"], "of": of, "at": pa.array([1, 1], time)})
        scope = Scope("events", "flights", "q-1", 0, 1, "0", "9", 0)
        with writing.engine.begin() as connection:
            Deduplicate(writing.insert, ["id", "of"], "at")(connection, found, scope)
    assert writing.passed() == ["a", "a"]


def test_ids_are_forgotten_behind_the_horizon_of_their_own_partition(writing: Writing) -> None:
    writing.rows(0, ("a", 1))
    writing.rows(1, ("b", 1))
    writing.rows(0, ("c", 50), ("d", 12))
    assert len(writing.ids()) == 3, "c and d, and b of a partition that is behind"
    writing.rows(1, ("b", 2))
    assert writing.passed() == ["a", "b", "c", "d"]


def test_a_row_dated_far_ahead_forgets_no_ids(writing: Writing) -> None:
    an_hour_ahead = int((datetime.now(UTC) + timedelta(hours=1)).timestamp())
    year_9000 = 221_845_392_000
    writing.rows(0, ("a", an_hour_ahead))
    writing.rows(0, ("b", year_9000))
    writing.rows(0, ("a", an_hour_ahead), ("b", year_9000))
    assert writing.passed() == ["a", "b"]


def test_ids_may_be_longer_than_an_index_takes(writing: Writing) -> None:
    chance = random.Random(1)
    one, other = ("".join(chance.choices(string.printable, k=9000)) for _ in range(2))
    for _ in range(2):
        writing.rows(0, (one, 1), (other, 1), (one, 2))
    assert writing.passed() == [one, other]


def test_what_is_rolled_back_was_not_seen(writing: Writing) -> None:
    with writing.engine.connect() as connection, connection.begin() as transaction:
        writing.add(connection, 0, [("a", 1)])
        transaction.rollback()
    writing.rows(0, ("a", 1))
    assert writing.passed() == ["a"]


def test_two_partitions_with_one_id_wait_for_each_other(writing: Writing) -> None:
    writing.rows(0, ("z", 1))
    with writing.engine.begin() as connection:
        writing.add(connection, 0, [("a", 1)])
        with pytest.raises(Exception, match="lock timeout"):
            writing.rows(1, ("a", 1))
        writing.rows(1, ("b", 1))
    writing.rows(1, ("a", 1))
    assert writing.passed() == ["z", "a", "b"]


@pytest.mark.parametrize(("by", "time"), [("other", "at"), ("id", "when"), ("at", "id")])
def test_columns_that_do_not_fit_are_named(writing: Writing, by: str, time: str) -> None:
    writing.write = Deduplicate(writing.insert, [by], time)
    with pytest.raises(InvalidSink, match=r"no column other|no column when|id has no times"):
        writing.rows(0, ("a", 1))
