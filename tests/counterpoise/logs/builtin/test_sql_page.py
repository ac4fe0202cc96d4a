"""The statements of docs/log-sql.md do what the page says, with the rights of a client."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from counterpoise.keys import partition_of
from tests.log_support import with_logs

CLIENT = "counterpoise_log_client"
PAGE = Path(__file__).parents[4] / "docs" / "log-sql.md"
STATEMENTS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


WORDS = {
    "bounds": r"p\.next_position",
    "read": r"FROM counterpoise_log\.messages",
    "watch": r"\.watch\(",
    "still waits": r"\.still_waits\(",
    "next sequence": r"\.next_sequence\(",
    "append": r"\.append\(",
    "append by range": r"\.append_by_range\(",
    "ranges": r"\.ranges\(",
    "wake": r"\.wake\(",
}


class Page:
    """Asks what the page's statement `name` says, as a client for `purpose`."""

    def __init__(self, connection: psycopg.Connection[Any], log: str) -> None:
        self.connection = connection
        connection.execute(
            "INSERT INTO counterpoise_log.clients (role, log, purpose, holder, created_at,"
            " expires_at) VALUES (session_user, %s, 'read', '', now(), 'infinity')",
            [log],
        )
        self.connection.commit()

    def ask(self, purpose: str, name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        (statement,) = (one for one in STATEMENTS if re.search(WORDS[name], one))
        self.connection.execute("UPDATE counterpoise_log.clients SET purpose = %s", [purpose])
        self.connection.execute(f"SET LOCAL ROLE {CLIENT}")
        try:
            # A cursor that leaves $1, $2, ... as they are.
            with psycopg.RawCursor(self.connection) as cursor:
                rows = cursor.execute(statement.encode(), parameters).fetchall()
            self.connection.commit()
        finally:
            self.connection.rollback()
        return rows


@pytest.fixture
def page(log, log_url):
    with psycopg.connect(log_url) as connection:
        yield Page(connection, "flights")


def bounds(page: Page, *partitions: int) -> list[tuple[Any, ...]]:
    return page.ask("read", "bounds", "flights", list(partitions))


def append(page: Page, count: int, first: int, partition: int, *keys: str) -> tuple[Any, ...]:
    values = [key.upper().encode() for key in keys]
    given = ["flights", count, "go", first, [partition] * len(keys), values, [*keys], None, None]
    ((appended, watched),) = page.ask("publish", "append", *given)
    return appended, watched


def test_a_client_publishes_and_reads_with_the_statements_of_the_page(page):
    number = partition_of("ada", 4)
    assert page.ask("publish", "next sequence", "flights", "go") == [(0,)]
    assert append(page, 4, 0, number, "ada", "ada") == (2, None)
    assert append(page, 4, 0, number, "ada", "ada") == (0, None)
    assert page.ask("publish", "next sequence", "flights", "go") == [(2,)]
    assert bounds(page, number) == [(4, 0, number, 0, 2, 0, None, None, None, None)]
    rows = page.ask("read", "read", "flights", number, 0, 2, 100)
    assert [(row[0], row[2], row[3], row[4]) for row in rows] == [
        (0, "ada", b"ADA", None),
        (1, "ada", b"ADA", None),
    ]


def test_another_partition_count_is_refused_with_the_present_one(page, log_url):
    append(page, 4, 0, 1, "ada")
    with_logs(log_url, lambda logs: logs.set_partition_count("builtin:flights", 8))
    with pytest.raises(psycopg.Error) as refused:
        append(page, 4, 1, 1, "ada")
    assert (refused.value.sqlstate, refused.value.diag.message_detail) == ("CP001", "8")
    assert append(page, 8, 1, 1, "ada") == (1, None)
    ((count, resize, _, _, end, _, cut, *_),) = bounds(page, 1)
    assert (count, resize, end, cut) == (8, 1, 2, 1)


def test_a_reader_that_waits_is_woken(page, log_url):
    ((channel,),) = page.ask("read", "watch", "flights", [1], [0])
    waits = ["flights", channel, [1], [0]]
    assert page.ask("read", "still waits", *waits) == [("yes",)]
    with psycopg.connect(log_url, autocommit=True) as listener:
        listener.execute(f"LISTEN {channel}")
        assert append(page, 4, 0, 1, "ada") == (1, [1])
        page.ask("publish", "wake", "flights", [1])
        assert [one.payload for one in listener.notifies(timeout=60, stop_after=1)] == ["1"]
    assert page.ask("read", "still waits", *waits) == [("moved",)]


def test_a_publisher_of_a_dynamic_log_routes_by_its_ranges(page):
    page.connection.execute(
        "UPDATE counterpoise_log.partitions SET first_hash = partition::bigint * 1073741824,"
        " last_hash = (partition::bigint + 1) * 1073741824 - 1"
    )
    page.connection.commit()
    ranges = page.ask("publish", "ranges", "flights")
    hashed = page.connection.execute("SELECT counterpoise_log.key_hash('ada')").fetchone()[0]
    (number,) = (partition for low, high, partition in ranges if low <= hashed <= high)
    given = ["flights", "go", 0, [number], [b"x"], ["ada"], None, None]
    assert page.ask("publish", "append by range", *given) == [(1, None)]
    given[2:4] = [1, [(number + 1) % 4]]
    with pytest.raises(psycopg.Error) as refused:
        page.ask("publish", "append by range", *given)
    assert refused.value.sqlstate == "CP004"


def test_each_statement_of_the_page_is_played_here():
    assert len(STATEMENTS) == len(WORDS)
    for word in WORDS.values():
        assert sum(bool(re.search(word, one)) for one in STATEMENTS) == 1
    for name in WORDS:
        assert re.search(rf'page\.ask\("\w+", "{name}"', Path(__file__).read_text())
