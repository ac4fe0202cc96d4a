"""What is special to Postgres: one transaction for each range, in the tasks. `test_targets` has
what every target does.
"""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import Database, TransactionLimits
from counterpoise.spark.sink.highwater import HighWaters
from tests.counterpoise.spark.sink.conftest import Writing, insert
from tests.counterpoise.spark.sink.places import batch, rows_of
from tests.service import eventually


def test_rows_come_in_order_in_chunks_and_one_transaction(writing: Writing) -> None:
    calls: list[tuple[int, list[str]]] = []

    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        calls.append((scope.partition, rows.column("position").to_pylist()))
        insert(connection, rows, scope)

    batches = [
        batch(rows_of(0, 0, 2)),
        batch(rows_of(0, 2, 3) + rows_of(1, 0, 1)),
        batch(rows_of(1, 1, 2)),
    ]
    writing.write([Slice(0, 1, "0", "3"), Slice(1, 1, "0", "2")], iter(batches), write=write)
    assert calls == [(0, ["0", "1"]), (0, ["2"]), (1, ["0"]), (1, ["1"])]
    one_each = writing.query("SELECT count(DISTINCT xmin::text) FROM result GROUP BY partition")
    assert one_each == [(1,), (1,)]


def test_a_failure_undoes_its_range_and_keeps_those_before(writing: Writing) -> None:
    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        insert(connection, rows, scope)
        if scope.partition == 1:
            raise RuntimeError("it fails")

    ranges = [Slice(0, 1, "0", "2"), Slice(1, 1, "0", "2")]
    rows = rows_of(0, 0, 2) + rows_of(1, 0, 2)
    with pytest.raises(RuntimeError, match="it fails"):
        writing.write(ranges, rows, write=write)
    assert writing.high_water() == {0: (1, "2")}
    assert writing.positions(1) == []
    assert writing.write(ranges, rows) == {0: "repeated", 1: "written"}
    assert writing.positions(0) == writing.positions(1) == [0, 1]


@pytest.mark.long
def test_a_write_that_commits_by_itself_fails(writing: Writing) -> None:
    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        connection.commit()

    with pytest.raises(Exception, match="transaction"):
        writing.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), write=write)
    assert writing.high_water().get(0, (-1, None)) == (-1, None)


@pytest.mark.long
def test_one_transaction_of_a_process_waits_for_no_other(writing: Writing) -> None:
    """As those of two queries of one driver, or of a closing of idle windows that takes long."""
    limits, number = TransactionLimits(), "SELECT pg_backend_pid()"
    with Database(writing.url).transaction(limits) as one:
        with Database(writing.url).transaction(limits) as other:
            both = {one.exec_driver_sql(number).scalar(), other.exec_driver_sql(number).scalar()}
    assert len(both) == 2
    with Database(writing.url).transaction(limits) as one:
        assert one.exec_driver_sql(number).scalar() in both  # it is kept


@pytest.mark.long
def test_an_error_says_why_the_server_may_have_ended_the_session(writing: Writing) -> None:
    """The driver has only heard that the connection is lost."""

    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        number = connection.connection.driver_connection.info.backend_pid
        writing.query(f"SELECT pg_terminate_backend({number}, 10000)")
        insert(connection, rows, scope)

    with pytest.raises(OperationalError) as caught:
        writing.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), write=write)
    assert "no rows come for idle_seconds (60)" in caught.value.__notes__[0]
    assert writing.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2)) == {0: "written"}


@pytest.mark.long
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_ended_on_the_server_moves_no_high_water(
    writing: Writing, statement: str
) -> None:
    """The next statement begins another one, without the lock."""

    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        connection.exec_driver_sql(statement)

    with pytest.raises(InvalidSink, match="has ended within write"):
        writing.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), write=write)
    assert writing.high_water().get(0, (-1, None)) == (-1, None)


class Held:
    """A `write` that waits in its transaction until the test releases it."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, connection: Any, rows: pa.Table, scope: Any) -> None:
        insert(connection, rows, scope)
        self.inside.set()
        assert self.go_on.wait(120)


def two_at_once(
    writing: Writing, first: Slice, second: Slice, *, fail: bool = False
) -> tuple[list[object], list[object]]:
    """The second begins while the first is in its transaction. Returns the outcome of each."""
    held = Held()
    results: tuple[list[object], list[object]] = ([], [])

    def run(at: int, one: Slice, **changes: Any) -> None:
        rows = rows_of(one.partition, int(one.start), int(one.end))
        database = Database(writing.url)
        database.key += str(at)  # a connection of its own, as in another process
        try:
            outcome = writing.write([one], rows, database=database, **changes)[one.partition]
            results[at].append(outcome)
        except Exception as error:
            results[at].append(error)

    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        held(connection, rows, scope)
        if fail:
            raise RuntimeError("the first fails")

    one = threading.Thread(target=run, args=(0, first), kwargs={"write": write})
    two = threading.Thread(target=run, args=(1, second))
    one.start()
    assert held.inside.wait(120)
    two.start()
    eventually(
        lambda: writing.query(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
    )
    held.go_on.set()
    one.join()
    two.join()
    return results


@pytest.mark.parametrize("rows_before", [0, 5])
def test_two_attempts_at_once_write_once(writing: Writing, rows_before: int) -> None:
    """As with speculative execution; also when there is no row yet to lock."""
    if rows_before:
        writing.write([Slice(0, 1, "0", "5")], rows_of(0, 0, 5))
    one = Slice(0, 1, str(rows_before), "9")
    assert two_at_once(writing, one, one) == (["written"], ["repeated"])
    assert writing.positions(0) == list(range(9))


@pytest.mark.long
def test_the_second_attempt_writes_when_the_first_fails(writing: Writing) -> None:
    one = Slice(0, 1, "0", "5")
    (first,), (second,) = two_at_once(writing, one, one, fail=True)
    assert isinstance(first, RuntimeError)
    assert second == "written"
    assert writing.positions(0) == [0, 1, 2, 3, 4]


def test_a_new_owner_goes_on_behind_the_old_one(writing: Writing) -> None:
    results = two_at_once(writing, Slice(0, 1, "0", "5"), Slice(0, 2, "0", "8"))
    assert results == (["written"], ["written"])
    assert writing.positions(0) == list(range(8))
    assert writing.high_water() == {0: (2, "8")}


def test_an_old_owner_is_refused_by_a_new_one_that_came_while_it_waited(writing: Writing) -> None:
    results = two_at_once(writing, Slice(0, 2, "0", "5"), Slice(0, 1, "0", "8"))
    assert results == (["written"], ["superseded"])
    assert writing.positions(0) == [0, 1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "bounds"),
    [
        ("execute", TransactionLimits(idle_seconds=2)),
        # The server does not see a transaction as idle after a pipeline.
        ("executemany", TransactionLimits(transaction_seconds=3)),
        # No limit of the server ends COPY while it waits for data.
        ("copy", TransactionLimits(idle_seconds=2)),
    ],
)
def test_a_frozen_writer_loses_its_transaction(
    writing: Writing, statement: str, bounds: TransactionLimits
) -> None:
    """Otherwise it would block its successor for as long as it is frozen."""
    frozen, thaw = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def write(connection: Any, rows: pa.Table, scope: Any) -> None:
        with connection.connection.driver_connection.cursor() as cursor:
            if statement == "copy":
                with cursor.copy("COPY result (value) FROM STDIN") as copy:
                    copy.write_row(("x",))
                    frozen.set()
                    assert thaw.wait(120)
                return
            parameters: Any = ("x",) if statement == "execute" else [("x",)]
            getattr(cursor, statement)("INSERT INTO result (value) VALUES (%s)", parameters)
        frozen.set()
        assert thaw.wait(120)

    def freeze() -> None:
        try:
            rows = rows_of(0, 0, 5)
            writing.write([Slice(0, 1, "0", "5")], rows, write=write, bounds=bounds)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=freeze)
    thread.start()
    assert frozen.wait(120)
    other = Database(writing.url)
    other.key += "other"
    rows = rows_of(0, 0, 8)
    limits = TransactionLimits(idle_seconds=bounds.idle_seconds)
    new = [Slice(0, 2, "0", "8")]
    assert writing.write(new, rows, database=other, bounds=limits) == {0: "written"}
    thaw.set()
    thread.join()
    assert [type(error).__name__ for error in errors] != ["AssertionError"]
    assert errors
    assert writing.positions(0) == list(range(8))


@pytest.mark.long
def test_a_session_of_another_role_is_named_and_not_ended(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"sink_{uuid4().hex}"
    first = rows_of(0, 0, 5)
    assert writing.write([Slice(0, 1, "0", "5")], first) == {0: "written"}
    with psycopg.connect(writing.url, autocommit=True) as owner:
        holder = owner.info.backend_pid
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        owner.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
        try:
            with owner.transaction():
                owner.execute("SELECT 1 FROM high_water FOR UPDATE")
                url = make_url(writing.url).set(username=role, password=role)
                other = Database(url.render_as_string(hide_password=False))
                limits = TransactionLimits(idle_seconds=0.1, transaction_seconds=0.5)
                rows = rows_of(0, 0, 8)
                with pytest.raises(OperationalError):
                    writing.write([Slice(0, 2, "0", "8")], rows, database=other, bounds=limits)
                assert owner.execute("SELECT 1").fetchall() == [(1,)]
        finally:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")
    assert f"process {holder} of the database, of the role" in caplog.text


@pytest.mark.long
def test_many_processes_make_the_table_at_once(writing: Writing) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def create() -> None:
        database = Database(writing.url)
        database.key += str(threading.get_ident())
        try:
            engine = database.engine()
            barrier.wait()
            HighWaters("many").create(engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.long
def test_a_table_in_a_schema_with_a_strange_name(writing: Writing) -> None:
    with psycopg.connect(writing.url) as connection:
        connection.execute('CREATE SCHEMA "Strange ""Name"')
    table = 'Strange "Name.high water'
    one = Slice(0, 1, "0", "2")
    assert writing.write([one], rows_of(0, 0, 2), table=table) == {0: "written"}
    assert writing.write([one], rows_of(0, 0, 2), table=table) == {0: "repeated"}


def test_a_secret_is_not_shown(writing: Writing) -> None:
    url = "postgresql://writer:sEcReT@127.0.0.1:1/none"
    database = Database(url)
    with pytest.raises(Exception) as raised:
        writing.write(
            [Slice(0, 1, "0", "2")],
            rows_of(0, 0, 2),
            database=database,
            bounds=TransactionLimits(retry_seconds=0),
        )
    for shown in (str(raised.value), repr(raised.value), repr(database), database.key):
        assert "sEcReT" not in shown
    assert "sEcReT" not in repr(writing.task)


@pytest.mark.parametrize(
    "where", ["postgresql://u:sEcReT@h:x/d", "oracle://u:sEcReT@h/d", "sEcReT", ""]
)
def test_a_wrong_url_is_refused_without_being_shown(where: str) -> None:
    with pytest.raises(InvalidSink) as raised:
        Database(where).engine()
    assert "sEcReT" not in str(raised.value)


def test_an_engine_that_commits_by_itself_is_refused(writing: Writing) -> None:
    def make() -> Any:
        from sqlalchemy import create_engine

        url = writing.url.replace("postgresql:", "postgresql+psycopg:")
        return create_engine(url, isolation_level="AUTOCOMMIT")

    with pytest.raises(InvalidSink, match="AUTOCOMMIT"):
        writing.write([Slice(0, 1, "0", "2")], rows_of(0, 0, 2), database=Database(make))
