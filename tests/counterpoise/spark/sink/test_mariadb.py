"""Transactions on MariaDB: what they lock, and how the end of a session shows."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import Database, TransactionLimits
from counterpoise.spark.sink.insert import Insert
from counterpoise.spark.sink.transactions import Transactions
from counterpoise.spark.sink.writer import Scope
from tests.counterpoise.spark.sink.mariadb import MariaDbServer
from tests.counterpoise.spark.sink.places import MariaDb, rows_of
from tests.service import eventually

pytestmark = pytest.mark.long

SESSIONS = text("SELECT id FROM information_schema.processlist")
LOCK_WAITS = text(
    "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
)
LEVEL = text(
    "SELECT trx_isolation_level FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = connection_id()"
)


def test_a_server_whose_transactions_only_read_is_written_to(mariadb: MariaDbServer) -> None:
    """By its default, which sessions may change."""
    url = mariadb.new_database()
    administrator = Database(url)
    try:
        with administrator.transaction(TransactionLimits()) as connection:
            connection.execute(text("SET GLOBAL tx_read_only = ON"))
        database = Database(f"{url}&program_name=later")
        with database.transaction(TransactionLimits()) as connection:
            connection.execute(text("CREATE TABLE result (id int PRIMARY KEY) ENGINE = InnoDB"))
    finally:
        with administrator.transaction(TransactionLimits()) as connection:
            connection.execute(text("SET GLOBAL tx_read_only = OFF"))


def test_a_row_that_is_not_there_yet_locks_no_gap(mariadb: MariaDbServer) -> None:
    database = Database(mariadb.new_database())
    with database.transaction(TransactionLimits()) as connection:
        connection.execute(text("CREATE TABLE result (id int PRIMARY KEY) ENGINE = InnoDB"))
    with database.transaction(TransactionLimits()) as connection:
        connection.execute(text("SELECT id FROM result WHERE id = 1 FOR UPDATE"))
        assert connection.execute(LEVEL).scalar_one() == "READ COMMITTED"


def test_a_session_that_the_server_ends_after_the_commit_is_no_error(
    mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a writer that is frozen while its connection is given back: what it wrote counts."""
    url = mariadb.new_database()
    database, other = Database(url), Database(f"{url}&program_name=other")
    number = session_of(database)
    killed: list[int] = []
    dialect = database.engine().dialect
    roll_back = dialect.do_rollback

    def roll_back_and_end(session: Any) -> None:
        roll_back(session)
        with other.transaction(TransactionLimits()) as connection:
            connection.execute(text(f"KILL {number}"))
            eventually(lambda: number not in connection.execute(SESSIONS).scalars().all())
        killed.append(number)

    monkeypatch.setattr(dialect, "do_rollback", roll_back_and_end)
    assert session_of(database) == number
    monkeypatch.undo()
    assert killed == [number]
    assert session_of(database) != number


@pytest.mark.parametrize("end", ["a deadlock", "COMMIT", "CREATE TABLE another (id int)"])
def test_a_transaction_that_ended_within_write_moves_no_high_water(
    mariadb: MariaDbServer, end: str
) -> None:
    """After a deadlock the server has undone all of it, and the next statement begins another."""
    place = MariaDb(mariadb.new_database())
    place.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1))

    def write(connection: Connection, rows: pa.Table, scope: Scope) -> None:
        connection.exec_driver_sql("INSERT INTO result (`partition`, position) VALUES (0, '1')")
        if end != "a deadlock":
            connection.exec_driver_sql(end)
            return
        with pytest.raises(OperationalError, match="Deadlock"):
            meet_a_deadlock(connection, place.url)

    target = Transactions(place.url, write, "high_water", TransactionLimits())
    with pytest.raises(InvalidSink, match="has ended within write"):
        place.write([Slice(0, 1, "1", "2")], rows_of(0, 1, 2), target=target)
    assert place.high_water() == {0: (1, "1")}
    if end == "a deadlock":
        assert place.write([Slice(0, 1, "1", "2")], rows_of(0, 1, 2)) == {0: "written"}
        assert place.positions(0) == [0, 1]


@pytest.mark.parametrize(
    ("table", "why"),
    [("result", "Unknown column 'other'"), ("nowhere", r"Table .* doesn't exist")],
)
def test_what_the_table_does_not_take_is_said_in_a_line(
    mariadb: MariaDbServer, table: str, why: str
) -> None:
    place = MariaDb(mariadb.new_database())

    def write(connection: Connection, rows: pa.Table, scope: Scope) -> None:
        more = rows.append_column("other", pa.array(["x"] * rows.num_rows))
        Insert(table, ("other",))(connection, more, scope)

    target = Transactions(place.url, write, "high_water", TransactionLimits())
    with pytest.raises(InvalidSink, match=why):
        place.write([Slice(0, 1, "0", "1")], rows_of(0, 0, 1), target=target)


def meet_a_deadlock(connection: Connection, url: str) -> None:
    """With another transaction, which has changed more and so is not the one that is undone."""
    other = Database(f"{url}&program_name=other")
    with other.transaction(TransactionLimits()) as one:
        one.exec_driver_sql("CREATE TABLE account (id int PRIMARY KEY, n int) ENGINE = InnoDB")
        one.exec_driver_sql("INSERT INTO account SELECT seq, 0 FROM seq_1_to_500")
    connection.exec_driver_sql("UPDATE account SET n = 1 WHERE id = 1")
    with other.transaction(TransactionLimits()) as one:
        one.exec_driver_sql("UPDATE account SET n = 1 WHERE id > 1")
        waiting = Thread(
            target=one.exec_driver_sql, args=("UPDATE account SET n = 2 WHERE id = 1",)
        )
        waiting.start()
        watch = Database(f"{url}&program_name=watch")
        with watch.transaction(TransactionLimits()) as third:
            eventually(lambda: third.execute(LOCK_WAITS).scalar_one() == 1)
        try:
            connection.exec_driver_sql("UPDATE account SET n = 2 WHERE id = 2")
        finally:
            waiting.join()


def session_of(database: Database) -> int:
    """The number of the session that a transaction uses."""
    with database.transaction(TransactionLimits()) as connection:
        return int(connection.execute(text("SELECT connection_id()")).scalar_one())
