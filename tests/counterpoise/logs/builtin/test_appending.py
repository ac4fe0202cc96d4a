"""Appends that only the built-in log has: transactions, locks, broken connections."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from counterpoise.logs import (
    MAX_MESSAGE_BYTES,
    AppendBatch,
    AppendResult,
    LogUnavailable,
    Message,
    StaleRouting,
)
from counterpoise.logs.builtin.log import PostgresLog
from tests.architecture.test_repository import ROOT
from tests.log_support import append, texts, until, waiters, with_logs

OPEN_APPEND = """SELECT counterpoise_log.append(
    'flights', %s, %s, %s, %s::integer[], %s::bytea[], NULL, NULL, NULL)"""


def resize(url, partition_count):
    return with_logs(url, lambda logs: logs.set_partition_count("builtin:flights", partition_count))


def rows_of(log, partition):
    return [
        row
        for batch in log.read(partition, "0", None, max_messages=1_000_000)
        for row in batch.to_pylist()
    ]


def test_the_largest_message_fits(log):
    value = bytes(MAX_MESSAGE_BYTES)
    log.append(AppendBatch("p", 0, 4, [0, 0], [Message(value), Message(b"after")]))
    batches = list(log.read(0, "0", None, max_messages=10))
    assert [batch.num_rows for batch in batches] == [1, 1]
    assert batches[0]["value"][0].as_py() == value


def test_texts_are_the_same_in_whatever_encoding_connections_of_this_machine_are(log, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    log.append(AppendBatch("p", 0, 4, [0], [Message(b"", "käse", {"größe": "½"})]))
    (row,) = rows_of(log, 0)
    assert (row["key"], dict(row["headers"])) == ("käse", {"größe": "½"})
    monkeypatch.delenv("PGCLIENTENCODING")
    log.close()
    assert rows_of(log, 0) == [row]


# ------------------------------------------------------------------ columns taken by their place


def test_what_a_log_has_of_a_batch_is_left_out_in_all_columns(log):
    at = datetime(2013, 1, 1, tzinfo=UTC)
    sent = [
        Message(b"%d" % n, f"k{n}", {"h": f"{n}"} if n % 2 else None, at + timedelta(hours=n))
        for n in range(12)
    ]
    partitions = [n % 3 for n in range(12)]
    log.append(AppendBatch("p", 0, 4, partitions[:5], sent[:5]))
    assert log.append(AppendBatch("p", 0, 4, partitions, sent)) == AppendResult(7, 5)
    for partition in range(3):
        read = [
            Message(
                row["value"], row["key"], dict(row["headers"] or ()) or None, row["published_at"]
            )
            for row in rows_of(log, partition)
        ]
        assert read == sent[partition::3]


@pytest.mark.long
def test_a_large_batch_does_not_go_to_the_disk_on_its_way(log, log_url):
    values = [bytes(1024) for _ in range(8192)]
    with psycopg.connect(log_url) as connection:
        connection.execute("SET temp_file_limit = 0")
        connection.execute(OPEN_APPEND, [4, "p", 0, [n % 4 for n in range(8192)], values])
    assert log.bounds([0]).ends == {0: "2048"}


def test_plans_of_an_append_are_general_ones(log_url):
    """Else the first appends of a session take time with the square of the batch."""
    with psycopg.connect(log_url) as connection:
        rows = connection.execute(
            "SELECT proconfig FROM pg_proc WHERE pronamespace = 'counterpoise_log'::regnamespace"
            " AND proname IN ('append', 'append_by_range')"
        ).fetchall()
    assert len(rows) == 2
    assert all("plan_cache_mode=force_generic_plan" in config for (config,) in rows)


@pytest.mark.long
@pytest.mark.parametrize("column", ["values", "keys", "headers", "times"])
@pytest.mark.parametrize("array", ["[0:1]={{{0},{0}}}", "[2:3]={{{0},{0}}}", "{{{{{0}}},{{{0}}}}}"])
def test_an_array_with_a_numbering_of_its_own_is_refused(log, log_url, column, array):
    """Else one key would be checked, and another one stored."""
    cell = {"values": "a", "keys": "k", "headers": '"{\\"h\\": \\"1\\"}"', "times": "2013-01-01Z"}
    columns = {"values": "{a,b}", "keys": None, "headers": None, "times": None}
    columns[column] = array.format(cell[column])
    given = list(columns.values())
    for function, routed in (("append", "4, 'p', 0"), ("append_by_range", "'p', 0")):
        with psycopg.connect(log_url) as connection:
            with pytest.raises(psycopg.Error, match="one dimension and begin at 1") as refused:
                connection.execute(
                    f"SELECT counterpoise_log.{function}('flights', {routed}, '{{0,0}}',"
                    " %s::bytea[], %s::text[], %s::text[], %s::timestamptz[])",
                    given,
                )
            assert refused.value.sqlstate == "CP003"
    assert texts(log, 0) == []


# ------------------------------------------------------------------ order of commits


def test_a_message_is_never_seen_before_one_with_a_lower_position(log, log_url):
    """One publisher keeps its transaction open; the other one's message must wait for it."""
    append(log, "first")
    other = PostgresLog("flights", log_url)
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [0], [b"slow"]])
        fast = pool.submit(append, other, "fast", publisher="fast")
        until(lambda: waiters(log_url) == 1)
        assert texts(log, 0) == ["first"]
        assert log.bounds([0]).ends == {0: "1"}
        # Another partition is not delayed.
        append(log, "elsewhere", partition=1, publisher="third")
        assert log.bounds([0, 1]).ends == {0: "1", 1: "1"}
        assert not fast.done()
        holding.commit()
        fast.result(240)
    assert texts(log, 0) == ["first", "slow", "fast"]
    other.close()


def test_positions_of_an_append_that_is_rolled_back_are_used_by_the_next(log, log_url):
    with psycopg.connect(log_url) as holding:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [0], [b"slow"]])
        holding.rollback()
    append(log, "fast")
    assert [row["position"] for row in rows_of(log, 0)] == ["0"]


def test_an_append_locks_partitions_in_ascending_order(log, log_url):
    """So that two appends with common partitions cannot wait for each other."""
    other = PostgresLog("flights", log_url)
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [1], [b"slow"]])
        batch = AppendBatch("both", 0, 4, [2, 1], [Message(b"2"), Message(b"1")])
        waiting = pool.submit(other.append, batch)
        until(lambda: waiters(log_url) == 1)
        # It waits for partition 1 and has not locked 2.
        append(log, "free", partition=2)
        holding.commit()
        waiting.result(240)
    assert (texts(log, 1), texts(log, 2)) == (["slow", "1"], ["free", "2"])
    other.close()


def test_a_transaction_with_a_fixed_snapshot_is_refused(log, log_url):
    """It would see the partition count of its beginning instead of the current one."""
    with psycopg.connect(log_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.InvalidTransactionState):
            connection.execute(OPEN_APPEND, [4, "p", 0, [0], [b"a"]])


# ------------------------------------------------------------------ once


def test_a_repetition_waits_for_its_first_attempt_and_then_is_a_duplicate(log, log_url):
    """The connection broke, but the server still works on it: the retry must not overtake."""
    for sequence in (0, 1):
        # The first append of a publisher has no row to wait for, so that is another case.
        with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
            holding.execute(OPEN_APPEND, [4, "p", sequence, [0], [b"a"]])
            repeated = pool.submit(append, log, "a", first=sequence)
            until(lambda: waiters(log_url) == 1)
            holding.commit()
            assert repeated.result(240) == AppendResult(0, 1)
    assert texts(log, 0) == ["a", "a"]


def test_next_sequence_waits_for_an_append_that_is_under_way(log, log_url):
    for sequence in (0, 1):
        with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
            holding.execute(OPEN_APPEND, [4, "p", sequence, [0], [b"a"]])
            following = pool.submit(log.next_sequence, "p")
            until(lambda: waiters(log_url) == 1)
            holding.commit()
            assert following.result(240) == sequence + 1


def test_an_append_whose_connection_is_killed_is_unknown_and_repeating_it_is_safe(log, log_url):
    """Killed before it is done: nothing of it remains, and the same log object continues."""
    append(log, "first", publisher="q")
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute("SELECT FROM counterpoise_log.partitions WHERE partition = 0 FOR UPDATE")
        killed = pool.submit(append, log, "a", "b")
        until(lambda: waiters(log_url) == 1)
        with psycopg.connect(log_url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        with pytest.raises(LogUnavailable):
            killed.result(240)
    assert texts(log, 0) == ["first"]
    assert append(log, "a", "b") == AppendResult(2, 0)
    assert append(log, "a", "b") == AppendResult(0, 2)
    assert texts(log, 0) == ["first", "a", "b"]


def test_a_connection_to_a_standby_is_given_up(log):
    """After a failover, the URL leads to the new primary."""
    read_only = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
    log._connection.query(read_only, (), retry=False)
    with pytest.raises(LogUnavailable, match="read-only"):
        append(log, "a")
    assert append(log, "a") == AppendResult(1, 0)


# ------------------------------------------------------------------ resize


def test_a_resize_waits_for_appends_under_way_and_later_ones_see_it(log, log_url):
    """A partition's end is final from the moment the log's count excludes it."""
    late = PostgresLog("flights", log_url)
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [3], [b"slow"]])
        resized = pool.submit(resize, log_url, 2)
        until(lambda: waiters(log_url) == 1)
        refused = pool.submit(append, late, "late", partition=3, publisher="late")
        until(lambda: waiters(log_url) == 2)
        bounds = log.bounds([3])
        assert (bounds.partition_count, bounds.ends[3]) == (4, "0")
        assert not bounds.is_final(3)
        holding.commit()
        assert resized.result(240)
        with pytest.raises(StaleRouting):
            refused.result(240)
    bounds = log.bounds([1, 3])
    assert (bounds.partition_count, bounds.ends[3]) == (2, "1")
    assert bounds.is_final(3)
    assert not bounds.is_final(1)
    late.close()


@pytest.mark.long
def test_a_steady_stream_of_appends_does_not_keep_a_resize_waiting(log, log_url):
    stop = threading.Event()

    def publish(name):
        with psycopg.connect(log_url) as connection:
            number = 0
            while not stop.is_set():
                try:
                    connection.execute(OPEN_APPEND, [4, name, number, [0], [b"x"]])
                    # Transactions of different publishers overlap all the time.
                    stop.wait(0.01)
                    connection.commit()
                except psycopg.DatabaseError as error:
                    return error.sqlstate
                number += 1
        return "stopped"

    with ThreadPoolExecutor(9) as pool:
        publishers = [pool.submit(publish, f"p{number}") for number in range(6)]
        until(lambda: int(log.bounds([0]).ends[0]) > 20)
        try:
            assert resize(log_url, 5)
            assert [one.result(240) for one in publishers] == ["CP001"] * 6
        finally:
            stop.set()


def test_all_functions_that_append_end_in_the_same_words() -> None:
    """They are copies, because a function for all takes longer (append.sql)."""
    text = "".join(
        (ROOT / f"migrations/log/sql/{name}.sql").read_text("utf-8")
        for name in ("append", "ranges")
    )
    ends = [
        one[one.index("    WITH routed") : one.index("END $$")]
        for one in text.split("CREATE FUNCTION counterpoise_log.append")[1:]
    ]
    assert (len(ends), len(set(ends))) == (4, 1)
