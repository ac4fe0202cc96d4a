"""Beside a transaction that stays open, nothing of the log takes longer with each append.

No version of a row is removed meanwhile. What counts is how many entries of an index are read and
how many rows a scan returns: those of a single look, however many versions there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

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


def test_a_sweep_looks_at_no_message_that_an_earlier_one_has_deleted(
    log: PostgresLog, log_url: str, held: psycopg.Connection
) -> None:
    count, most = 1200, 100
    log.append(AppendBatch("p", 0, 4, [0] * count, [Message(b"x")] * count))
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'messages_pkey'"
    reads = []
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute("SELECT counterpoise_log.trim('flights', '{0}', '{1200}')")
        for _ in range(count // most):  # its plans change after some calls
            (swept,) = connection.execute(
                "SELECT counterpoise_log.sweep('flights', %s)", [most]
            ).fetchone() or (0,)
            assert swept == most
            connection.execute("SELECT pg_stat_force_next_flush()")
            (total,) = connection.execute(read).fetchone() or (0,)
            reads.append(total)
    each = [after - before for before, after in pairwise(reads)]
    assert max(each) < 1.5 * each[0]


def test_a_log_is_dropped_while_it_is_swept(log: PostgresLog, log_url: str) -> None:
    log.append(AppendBatch("p", 0, 4, [0, 1] * 50, [Message(b"x")] * 100))
    sweep = "SELECT counterpoise_log.sweep('flights', %s)"
    with psycopg.connect(log_url) as sweeping, psycopg.connect(log_url, autocommit=True) as admin:
        admin.execute("SELECT counterpoise_log.trim('flights', '{0,1}', '{50,50}')")
        admin.execute(sweep, [10])
        sweeping.execute(sweep, [10])
        admin.execute("SET lock_timeout = '60s'")
        admin.execute("DELETE FROM counterpoise_log.logs WHERE name = 'flights'")
        sweeping.execute(sweep, [80])
        sweeping.commit()
        while admin.execute("SELECT counterpoise_log.sweep_dropped(50)").fetchone() != (0,):
            pass
        left = "SELECT (SELECT count(*) FROM counterpoise_log.{}) = 0"
        for table in ("messages", "sweeps", "ends", "sequences", "watches"):
            assert admin.execute(left.format(table)).fetchone() == (True,)
