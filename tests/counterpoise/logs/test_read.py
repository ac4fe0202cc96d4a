"""What a log promises about reading: in order, complete, bounded, and nothing skipped silently."""

import socket
import threading
import time

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.logs import (
    AppendBatch,
    InvalidPosition,
    LogAccessRefused,
    LogError,
    LogUnavailable,
    Message,
    PositionAhead,
    PositionTrimmed,
    open_log,
    postgres,
)
from counterpoise.logs.postgres import PostgresLog
from counterpoise.wire import LogAccess
from tests.log_support import append, texts, with_logs


def kill_all_other_sessions(url):
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


# ------------------------------------------------------------------ ranges


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=st.integers(0, 25),
    end=st.none() | st.integers(0, 30),
    most=st.integers(1, 25),
    chunk=st.integers(1, 7),
    most_bytes=st.none() | st.integers(1, 60),
)
def test_any_range_in_any_chunks_is_exactly_those_messages(
    log, monkeypatch, start, end, most, chunk, most_bytes
):
    values = [f"{number:02}" for number in range(20)]
    if not texts(log, 0):
        append(log, *values)
    monkeypatch.setattr(postgres, "CHUNK_MESSAGES", chunk)
    if end is None and start > 20:
        with pytest.raises(PositionAhead):
            list(log.read(0, str(start), None, max_messages=most))
        return
    if end is not None and 20 < start < end:
        with pytest.raises(PositionAhead):
            list(log.read(0, str(start), str(end), max_messages=most))
        return
    end_text = None if end is None else str(end)
    batches = list(log.read(0, str(start), end_text, max_messages=most, max_bytes=most_bytes))
    found = [value.decode() for batch in batches for value in batch["value"].to_pylist()]
    expected = values[start:end][:most]
    if most_bytes is not None:
        # Messages follow as long as fewer than that many bytes have come before.
        expected = expected[: (most_bytes + 1) // 2]
    assert found == expected
    assert all(0 < batch.num_rows <= chunk for batch in batches)


def test_large_messages_come_in_batches_of_bounded_size(log, monkeypatch):
    monkeypatch.setattr(postgres, "CHUNK_BYTES", 1000)
    append(log, *["x" * 400] * 10)
    sizes = [batch.num_rows for batch in log.read(0, "0", None, max_messages=100)]
    assert sizes == [3, 3, 3, 1]


def test_between_batches_no_transaction_stays_open_and_others_may_call(log, monkeypatch):
    monkeypatch.setattr(postgres, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    reading = log.read(0, "0", None, max_messages=10)
    assert next(reading)["value"].to_pylist() == [b"a"]
    append(log, "d", first=3)
    assert log.bounds([0]).ends == {0: "4"}
    # The end was taken when the reading began.
    assert [batch["value"].to_pylist() for batch in reading] == [[b"b"], [b"c"]]


@pytest.mark.parametrize("position", ["", "-1", "x", "1.0", " 1", "¹", "9" * 19, "1" * 30])
def test_a_position_that_is_not_of_this_log_is_refused(log, position):
    with pytest.raises(InvalidPosition):
        list(log.read(0, position, "5", max_messages=1))
    with pytest.raises(InvalidPosition):
        log.compare("0", position)


def test_positions_are_compared_as_numbers(log):
    assert log.compare("9", "10") < 0 < log.compare("10", "9")
    assert log.compare("7", "7") == 0


# ------------------------------------------------------------------ nothing skipped silently


def test_reading_what_was_trimmed_fails_instead_of_skipping_it(log):
    append(log, "a", "b", "c")
    log.trim({0: "2"})
    assert texts(log, 0, "2") == ["c"]
    with pytest.raises(PositionTrimmed) as refusal:
        texts(log, 0, "1")
    assert refusal.value.first == "2"
    assert log.bounds([0]).starts == {0: "2"}


def test_a_trim_amid_a_reading_is_noticed(log, log_url, monkeypatch):
    monkeypatch.setattr(postgres, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    reading = log.read(0, "0", None, max_messages=10)
    next(reading)
    log.trim({0: "2"})
    with pytest.raises(PositionTrimmed):
        next(reading)


def test_a_message_that_is_missing_without_a_reason_is_an_error(log, log_url):
    append(log, "a", "b", "c")
    with psycopg.connect(log_url) as connection:
        connection.execute("DELETE FROM counterpoise_log.messages WHERE position = 1")
    reading = log.read(0, "0", None, max_messages=10)
    assert next(reading)["value"].to_pylist() == [b"a"]
    with pytest.raises(LogError, match="lacks position 1"):
        next(reading)


def test_trimming_never_goes_past_the_end_nor_back(log):
    append(log, "a", "b")
    log.trim({0: "100"})
    log.trim({0: "1", 3: "7"})
    bounds = log.bounds([0, 3])
    assert (bounds.starts, bounds.ends) == ({0: "2", 3: "0"}, {0: "2", 3: "0"})
    append(log, "c", first=2)
    assert texts(log, 0, "2") == ["c"]


def test_what_was_discarded_is_passed_over_without_an_error(log, log_url):
    """A micro-batch planned before a resize with discard must not fail its query."""
    append(log, "a", "b", partition=3)
    with_logs(log_url, lambda logs: logs.set_partition_count("flights", 3))
    with_logs(log_url, lambda logs: logs.discard("flights", [3]))
    assert texts(log, 3, "0", "2") == []
    with_logs(log_url, lambda logs: logs.set_partition_count("flights", 4))
    append(log, "c", partition=3, first=2)
    assert texts(log, 3, "1", "3") == ["c"]
    assert log.bounds([3]).ends == {3: "3"}


def test_a_position_of_a_log_that_was_dropped_and_made_again_is_noticed(log, log_url):
    append(log, "a", "b")
    before = log.bounds([0])
    with_logs(log_url, lambda logs: logs.drop("flights"))
    with_logs(log_url, lambda logs: logs.ensure("flights", 4))
    append(log, "c", publisher="q")
    after = log.bounds([0])
    assert after.incarnation != before.incarnation
    assert texts(log, 0) == ["c"]
    with pytest.raises(PositionAhead):
        texts(log, 0, "2", "3")
    with pytest.raises(PositionAhead):
        log.limit({0: "2"}, 10)


# ------------------------------------------------------------------ bounds and limit


def test_bounds_of_partitions_the_log_never_had_are_empty(log):
    append(log, "a", partition=1)
    bounds = log.bounds([1, 2, 77])
    assert bounds.partition_count == 4
    assert bounds.ends == {1: "1", 2: "0", 77: "0"}
    assert log.bounds([]).partition_count == 4


def test_limit_plans_ends_that_hold_no_more_than_asked(log):
    for partition, count in enumerate([5, 1, 0, 9]):
        append(
            log,
            *map(str, range(count)),
            partition=partition,
            publisher=f"p{partition}",
        )
    starts = {0: "0", 1: "0", 2: "0", 3: "4"}
    assert log.limit(starts, 100) == {0: "5", 1: "1", 2: "0", 3: "9"}
    assert log.limit(starts, 6) == {0: "3", 1: "1", 2: "0", 3: "6"}
    assert log.limit(starts, 0) == starts
    assert log.limit({0: "0"}, 3, log.bounds([0])) == {0: "3"}


# ------------------------------------------------------------------ connections


def test_a_reading_survives_the_loss_of_its_connection(log, log_url, monkeypatch):
    monkeypatch.setattr(postgres, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    found = []
    for batch in log.read(0, "0", None, max_messages=10):
        found += batch["value"].to_pylist()
        kill_all_other_sessions(log_url)
    assert found == [b"a", b"b", b"c"]


def test_one_connection_serves_all_calls(log, log_url):
    append(log, "a")
    texts(log, 0)
    log.bounds([0])
    with psycopg.connect(log_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counterpoise-log'"
            " AND datname = current_database()"
        ).fetchone()
    assert row == (1,)


def test_threads_take_turns(log):
    append(log, *map(str, range(100)))
    found = []
    threads = [threading.Thread(target=lambda: found.append(texts(log, 0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [[str(number) for number in range(100)]] * 8


def test_a_log_can_be_used_again_after_close(log):
    append(log, "a")
    log.close()
    assert texts(log, 0) == ["a"]


def test_a_server_that_accepts_and_says_nothing_does_not_hold_a_call_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:secret@127.0.0.1:{silent.getsockname()[1]}/d"
        log = PostgresLog("flights", url, timeout_seconds=2)
        before = time.monotonic()
        with pytest.raises(LogUnavailable) as refusal:
            log.bounds([0])
        assert time.monotonic() - before < 20
        assert "secret" not in str(refusal.value)


def test_a_statement_that_is_kept_waiting_ends_in_time(log_url, log):
    impatient = PostgresLog("flights", log_url, timeout_seconds=1)
    impatient.bounds([0])
    with psycopg.connect(log_url) as holding:
        holding.execute("LOCK TABLE counterpoise_log.logs IN ACCESS EXCLUSIVE MODE")
        before = time.monotonic()
        with pytest.raises(LogUnavailable):
            impatient.bounds([0])
        assert time.monotonic() - before < 20
    assert impatient.bounds([0]).partition_count == 4
    impatient.close()


def test_wrong_credentials_are_told_from_an_absent_server(log_url):
    wrong = PostgresLog("flights", log_url.replace(":", ":x", 2).replace(":x", ":", 1))
    with pytest.raises(LogAccessRefused):
        wrong.bounds([0])
    absent = PostgresLog("flights", "postgresql://u:p@127.0.0.1:1/d")
    with pytest.raises(LogUnavailable) as refusal:
        absent.bounds([0])
    assert not isinstance(refusal.value, LogAccessRefused)


def test_a_database_without_the_schema_says_what_to_do(database_url):
    log = PostgresLog("flights", database_url)
    with pytest.raises(LogError, match="counterpoise migrate"):
        log.bounds([0])
    log.close()


def test_sending_an_empty_batch_needs_no_connection():
    log = PostgresLog("flights", "postgresql://u:p@127.0.0.1:1/d")
    assert log.append(AppendBatch("p", 0, 4, [], [])).appended == 0


# ------------------------------------------------------------------ opening


def test_open_log_takes_a_url_an_access_or_the_environment(log, log_url, monkeypatch):
    append(log, "a")
    monkeypatch.delenv("COUNTERPOISE_LOG_URL", raising=False)
    for access in (log_url, LogAccess(log_url)):
        opened = open_log("builtin:flights", access)
        assert texts(opened, 0) == ["a"]
        opened.close()
    with pytest.raises(LogError, match="COUNTERPOISE_LOG_URL"):
        open_log("builtin:flights")
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", log_url)
    opened = open_log("builtin:flights")
    assert texts(opened, 0) == ["a"]
    opened.close()


@pytest.mark.parametrize("log", ["mail://broker/topic", "builtin:", "flights", ""])
def test_a_log_of_an_unknown_kind_is_refused(log):
    with pytest.raises(LogError, match="cannot open"):
        open_log(log, "postgresql://u:p@h/d")


def test_no_message_and_no_repr_shows_the_password():
    for url in ("postgresql://u:secret@[h/d", "secret", "postgresql://u:secret@h:port/d"):
        with pytest.raises(LogError) as refusal:
            open_log("builtin:q", url).bounds([0])
        assert "secret" not in str(refusal.value)
        assert "secret" not in repr(refusal.value.__cause__)
    assert "secret" not in repr(open_log("builtin:q", "postgresql://u:secret@h/d"))


def test_a_message_is_small(log):
    assert Message(b"abc", "ké", {"a": "b"}).size_bytes() == 8
