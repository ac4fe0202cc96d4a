"""Transactions on MariaDB: what they lock, and how the end of a session shows."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from counterpoise.spark.sink.database import Database, TransactionLimits
from tests.counterpoise.spark.sink.mariadb import MariaDbServer
from tests.service import eventually

pytestmark = pytest.mark.long

SESSIONS = text("SELECT id FROM information_schema.processlist")
LEVEL = text(
    "SELECT trx_isolation_level FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = connection_id()"
)


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


def session_of(database: Database) -> int:
    """The number of the session that a transaction uses."""
    with database.transaction(TransactionLimits()) as connection:
        return int(connection.execute(text("SELECT connection_id()")).scalar_one())
