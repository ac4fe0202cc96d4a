"""The log knows the largest message of each partition (migrations/log/sql/tables.sql), and readers
that keep below a limit of bytes look at no other size where that is enough.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin import admission
from counterpoise.logs.builtin.log import PostgresLog
from tests.log_support import (
    append,
    asked_of,
    log,
    log_url,
    texts,
    write_past,
)

__all__ = ["log", "log_url"]

# So many messages keep a large one in mind (migrations/log/sql/append.sql).
FORGOTTEN_AFTER = 100_000
# What the columns promise, and which partitions break it.
BROKEN = """
SELECT m.partition, m.position FROM counterpoise_log.messages AS m
    JOIN counterpoise_log.ends AS p USING (log_id, partition)
    WHERE m.position >= p.sized_from AND m.position < p.sized_to
        AND octet_length(value) + coalesce(octet_length(key), 0)
            + coalesce(octet_length(headers::text), 0) > p.largest_bytes
UNION ALL
SELECT partition, next_position FROM counterpoise_log.ends WHERE sized_to > next_position
"""


def sized(url: str, partition: int = 0) -> tuple[int, int, int]:
    """From where, up to where, and how large."""
    with psycopg.connect(url) as connection:
        assert not connection.execute(BROKEN).fetchall()
        row = connection.execute(
            "SELECT sized_from, sized_to, largest_bytes FROM counterpoise_log.ends"
            " WHERE partition = %s",
            [partition],
        ).fetchone()
    assert row is not None
    return row


def told(url: str, change: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"UPDATE counterpoise_log.ends SET {change}")


def test_an_append_notes_the_largest_message_of_each_partition(
    log: PostgresLog, log_url: str
) -> None:
    assert sized(log_url) == (0, 0, 0)
    messages = [Message(b"12345", "k"), Message(b""), Message(b"1", None, {"h": "1"})]
    log.append(AppendBatch("p", 0, 4, [0, 1, 2], messages))
    append(log, "123", "1234567", "1", first=3)
    assert sized(log_url, 0) == (0, 4, 7)
    assert sized(log_url, 1) == (0, 1, 0)
    assert sized(log_url, 2) == (0, 1, 1 + len('{"h": "1"}'))
    assert sized(log_url, 3) == (0, 0, 0)


def test_messages_of_all_sizes_are_never_larger_than_noted(log: PostgresLog, log_url: str) -> None:
    rng = random.Random(1)
    for number in range(0, 200, 10):
        messages = [
            Message(
                rng.randbytes(rng.choice((0, 3, 500, 5000))),
                rng.choice((None, "k", "käse")),
                rng.choice(({}, {"a": "\x01\\", "ü": '"'})),
            )
            for _ in range(10)
        ]
        log.append(AppendBatch("p", number, 4, [rng.randrange(4) for _ in messages], messages))
        assert sized(log_url)[0] == 0


def test_headers_count_as_they_are_read(log: PostgresLog, log_url: str) -> None:
    """In fewer characters they take more: a client of its own may send such."""
    given = '{"a":"1","b":"2"}'
    with psycopg.connect(log_url) as connection:
        connection.execute(
            "SELECT counterpoise_log.append('flights', 4, 'p', 0, '{0}', '{a}', NULL, %s, NULL)",
            [[given]],
        )
    assert sized(log_url)[2] == 1 + len('{"a": "1", "b": "2"}')


def test_what_is_written_past_the_functions_is_not_part_of_the_range(
    log: PostgresLog, log_url: str
) -> None:
    append(log, "a")
    write_past(log_url, "flights", [(b"far larger", None, None, "2026-01-01")])
    assert sized(log_url) == (0, 1, 1)
    append(log, "ab", "abc", first=1)
    assert sized(log_url) == (2, 4, 3)
    # The limit holds for what lies before the range.
    reading = log.read(0, "0", "4", max_messages=9, max_bytes=2)
    assert [batch["value"].to_pylist() for batch in reading] == [[b"a", b"far larger"]]


def test_a_large_message_is_forgotten_after_many(log: PostgresLog, log_url: str) -> None:
    append(log, "x" * 1000)
    append(log, "x" * 100, first=1)
    assert sized(log_url) == (0, 2, 1000)
    told(log_url, f"sized_from = 2 - {FORGOTTEN_AFTER} WHERE partition = 0")
    append(log, "x" * 300, first=2)
    assert sized(log_url)[1:] == (3, 1000), "not much smaller"
    append(log, "x" * 100, first=3)
    assert sized(log_url) == (3, 4, 100)


def test_reading_looks_at_sizes_only_where_the_largest_would_not_fit(
    log: PostgresLog, log_url: str
) -> None:
    append(log, *["x" * 10] * 20)

    def read() -> int:
        return sum(one.num_rows for one in log.read(0, "0", "20", max_messages=20, max_bytes=150))

    assert read() == 15
    told(log_url, "largest_bytes = 7")  # A lie shows that nothing else was looked at.
    assert read() == 20
    told(log_url, "largest_bytes = 8")
    assert read() == 15
    told(log_url, "largest_bytes = 7, sized_to = 19")
    assert read() == 15
    told(log_url, "sized_from = 1, sized_to = 20")
    assert read() == 15


def test_a_range_that_ends_before_the_end_asked_for_is_read_up_to_there(log: PostgresLog) -> None:
    append(log, "a", "b", "c")
    assert texts(log, 0, "1") == ["b", "c"]
    assert texts(log, 0, "0", "2") == ["a", "b"]


def test_a_limit_that_the_largest_do_not_reach_looks_at_no_message(
    log: PostgresLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *["x" * 10] * 20)
    append(log, *["x" * 30] * 10, partition=1, publisher="q")
    bounds, asked = log.bounds([0, 1]), asked_of(log, monkeypatch)
    starts = {0: "0", 1: "0"}
    assert log.limit(starts, 99, bounds, max_bytes=501) == {0: "20", 1: "10"}
    assert asked == [admission._MOST]
    asked.clear()
    assert log.limit(starts, 99, bounds, max_bytes=500) == {0: "20", 1: "10"}
    assert asked[0] == admission._MOST
    assert len(asked) > 1
    # Where it is not known of all messages of one partition, all are looked at.
    for change in ("sized_from = 1", "sized_from = 0, sized_to = 9"):
        told(log_url, f"{change} WHERE partition = 1")
        asked.clear()
        assert log.limit(starts, 99, bounds, max_bytes=5000) == {0: "20", 1: "10"}
        assert len(asked) > 1
