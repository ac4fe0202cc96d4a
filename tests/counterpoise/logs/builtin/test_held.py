"""Beside a transaction that stays open, nothing of the log takes longer with each append.

No version of a row is removed meanwhile. What counts is how many entries of an index are read and
how many rows a scan returns: those of a single look, however many versions there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin.log import PostgresLog

APPENDS = 150
READ = """SELECT sum(pg_stat_get_tuples_returned(c.oid)) FROM pg_class AS c
WHERE relnamespace = 'counterpoise_log'::regnamespace AND relkind IN ('r', 'i')"""


@pytest.fixture
def held(log_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(log_url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


def test_an_append_and_a_read_look_at_no_more_beside_a_held_transaction(
    log: PostgresLog, log_url: str, held: psycopg.Connection
) -> None:
    sequence = 0

    def read() -> int:
        """What all have read so far. A session tells it when it is idle for a moment, or asked."""
        log._connection.query("SELECT pg_stat_force_next_flush()", [], retry=True)
        with psycopg.connect(log_url) as connection:
            (found,) = connection.execute(READ).fetchone() or (0,)
        return int(found)

    def work() -> None:
        nonlocal sequence
        messages = [Message(b"x", "k")] * 4
        log.append(AppendBatch("p", sequence, 4, [0, 1, 2, 3], messages))
        sequence += 4
        ends = log.bounds(range(4)).ends
        log.watch(ends)
        for partition, end in ends.items():
            position = str(int(end) - 1)
            rows = list(log.rows(partition, position, end, max_messages=9, max_bytes=99))
            assert sum(map(len, rows)) == 1

    def cost() -> int:
        before = read()
        for _ in range(5):
            work()
        return read() - before

    for _ in range(10):  # the plans are made
        work()
    few = cost()
    for _ in range(APPENDS):
        work()
    assert cost() < 1.5 * few
    with psycopg.connect(log_url) as connection:
        dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'ends'"
        assert (connection.execute(dead).fetchone() or (0,)) > (4 * APPENDS,)
