"""Reading that only the built-in log has: connections and schema; and opening logs."""

import socket
import threading
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from counterpoise.logs import (
    AppendBatch,
    LogAccessRefused,
    LogError,
    LogUnavailable,
    Message,
    open_log,
)
from counterpoise.logs.builtin import reading as chunks
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.wire import LogAccess
from tests.databases import end_other_sessions
from tests.log_support import append, asked_of, texts


def test_between_batches_no_transaction_stays_open_and_others_may_call(log, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    reading = log.read(0, "0", None, max_messages=10)
    assert next(reading)["value"].to_pylist() == [b"a"]
    append(log, "d", first=3)
    assert log.bounds([0]).ends == {0: "4"}
    # The end was taken when the reading began.
    assert [batch["value"].to_pylist() for batch in reading] == [[b"b"], [b"c"]]


def test_a_line_end_after_an_access_is_not_part_of_it(log, log_url):
    append(log, "a")
    with closing(open_log("builtin:flights", f"{log_url}\n")) as opened:
        assert opened.bounds([0]).ends == {0: "1"}


def test_a_message_that_is_missing_without_a_reason_is_an_error(log, log_url):
    append(log, "a", "b", "c")
    with psycopg.connect(log_url) as connection:
        connection.execute("DELETE FROM counterpoise_log.messages WHERE position = 1")
    reading = log.read(0, "0", None, max_messages=10)
    assert next(reading)["value"].to_pylist() == [b"a"]
    with pytest.raises(LogError, match=r"lacks position 1 .*reset the queue's positions to 2 or"):
        next(reading)


@pytest.mark.parametrize("group", [1, 2, 3, 7, 128])
@pytest.mark.parametrize("value_bytes", [None, 1, 60, 1000])
def test_packed_groups_are_the_messages_whatever_their_size(log, monkeypatch, group, value_bytes):
    """Keys and headers in some groups only, an empty value, a text of several bytes a character."""
    packed = chunks._READ.replace(str(chunks.GROUP_MESSAGES), str(group))
    assert (packed == chunks._READ) == (group == chunks.GROUP_MESSAGES)
    monkeypatch.setattr(chunks, "_READ", packed)
    messages = [
        Message(
            b"v" * (number % 5 * 10),
            "käse" if number % 7 == 3 else None,
            {"h": "ü", "n": str(number)} if number in (4, 11) else {},
        )
        for number in range(20)
    ]
    log.append(AppendBatch("p", 0, 4, [0] * 20, messages))
    read, position = [], 0
    while position < 20:
        for batch in log.read(0, str(position), "20", max_messages=99, max_bytes=value_bytes):
            read += batch.to_pylist()
            before_last = sum(len(row["value"]) for row in read[position:-1])
            assert value_bytes is None or before_last < value_bytes
        position = len(read)
    assert [row["position"] for row in read] == [str(number) for number in range(20)]
    assert [row["value"] for row in read] == [message.value for message in messages]
    assert [row["key"] for row in read] == [message.key for message in messages]
    assert [dict(row["headers"] or []) for row in read] == [
        dict(message.headers or {}) for message in messages
    ]


@pytest.mark.parametrize("missing", [[1], [5], [5, 6, 7, 8], [127], [128], [129], [0, 299]])
def test_a_batch_ends_before_a_missing_message_wherever_it_lies(log, log_url, missing):
    append(log, *map(str, range(300)))
    with psycopg.connect(log_url) as connection:
        connection.execute(
            "DELETE FROM counterpoise_log.messages WHERE position = ANY (%s)", [missing]
        )
    found: list[bytes] = []
    reading = log.read(0, "0", None, max_messages=1000)
    with pytest.raises(LogError, match=f"lacks position {missing[0]} "):
        found.extend(value for batch in reading for value in batch["value"].to_pylist())
    assert found == [str(number).encode() for number in range(missing[0])]


def test_positions_are_asked_for_only_where_some_are_missing(log, log_url, monkeypatch):
    append(log, *map(str, range(300)))
    asked = asked_of(log, monkeypatch)
    assert sum(len(batch) for batch in log.read(0, "0", "300", max_messages=300)) == 300
    assert asked == [chunks._READ]
    assert "array_agg(position)" not in chunks._READ
    with psycopg.connect(log_url) as connection:
        connection.execute("DELETE FROM counterpoise_log.messages WHERE position = 200")
    asked.clear()
    reading = log.read(0, "0", "300", max_messages=300)
    assert [len(next(reading)), len(next(reading))] == [128, 72]
    assert asked == [chunks._READ, chunks._READ, chunks._READ_SPARSE]


def test_chunks_become_as_long_as_their_messages_are_short(log):
    append(log, *["x"] * 3000)
    assert [len(batch) for batch in log.read(0, "0", None, max_messages=9999)] == [1024, 1976]
    append(log, *["x" * 100_000] * 120, first=3000)
    lengths = [len(batch) for batch in log.read(0, "3000", None, max_messages=9999)]
    assert sum(lengths) == 120
    assert max(lengths) * 100_000 <= chunks.CHUNK_BYTES + 100_000
    assert lengths[1] * 100_000 <= chunks.CHUNK_BYTES // 2 + 100_000


# ------------------------------------------------------------------ connections


def test_a_reading_survives_the_loss_of_its_connection(log, log_url, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_MESSAGES", 1)
    append(log, "a", "b", "c")
    found = []
    for batch in log.read(0, "0", None, max_messages=10):
        found += batch["value"].to_pylist()
        end_other_sessions(log_url)
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


def test_a_server_that_accepts_and_says_nothing_does_not_hold_a_call_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:secret@127.0.0.1:{silent.getsockname()[1]}/d"
        log = PostgresLog("flights", url, timeout_seconds=2)
        with pytest.raises(LogUnavailable) as refusal:
            log.bounds([0])
        assert "secret" not in str(refusal.value)


def test_a_statement_that_is_kept_waiting_ends_in_time(log_url, log):
    log.bounds([0])
    patience, log._connection._timeout_seconds = log._connection._timeout_seconds, 1
    with psycopg.connect(log_url) as holding:
        holding.execute("LOCK TABLE counterpoise_log.logs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LogUnavailable):
            log.bounds([0])
    log._connection._timeout_seconds = patience
    assert log.bounds([0]).partition_count == 4


def ends_in_the_login(listener: socket.socket, server: tuple[str, int]) -> None:
    """Passes on one login until the client has sent the first step of its proof."""
    client, _ = listener.accept()
    with client, socket.create_connection(server) as passed_on:
        passed_on.sendall(client.recv(4096))
        client.sendall(passed_on.recv(4096))
        client.recv(4096)


def test_a_login_that_the_server_ends_is_told_from_wrong_credentials(log_url):
    """It does when too many others begin one, or when it stops."""
    place = urlsplit(log_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        login = threading.Thread(
            target=ends_in_the_login, args=(listener, (place.hostname, place.port))
        )
        login.start()
        url = log_url.replace(f":{place.port}/", f":{listener.getsockname()[1]}/")
        with pytest.raises(LogUnavailable) as ended:
            PostgresLog("flights", f"{url}?sslmode=disable&gssencmode=disable").bounds([0])
        login.join()
    assert not isinstance(ended.value, LogAccessRefused)


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


def first(log, starts, max_messages=16, max_bytes=1000):
    """The values and the position after them, of those partitions that the log gives."""
    ends = log.bounds(list(starts)).ends
    ranges = {number: (start, ends[number]) for number, start in starts.items()}
    found = log.first(ranges, max_messages=max_messages, max_bytes=max_bytes)
    return {number: (rows.columns().values, at) for number, (rows, at) in found.items()}


def test_the_first_messages_of_all_partitions_take_one_statement(log, monkeypatch):
    for partition in range(4):
        append(log, "a", "b", "c", partition=partition, publisher=f"p{partition}")
    asked = asked_of(log, monkeypatch)
    all_of_them = dict.fromkeys(range(4), "0")
    assert first(log, all_of_them, 2) == dict.fromkeys(range(4), ([b"a", b"b"], "2"))
    assert len(asked) == 2  # with that for the ends


def test_the_first_messages_are_bounded_in_bytes_for_each_partition(log):
    append(log, "x" * 60, "x" * 60, "y", publisher="p0")
    append(log, "z" * 60, partition=1, publisher="p1")
    append(log, "large" * 1000, partition=2, publisher="p2")
    found = first(log, dict.fromkeys(range(3), "0"), max_bytes=300)
    assert found == {0: ([b"x" * 60], "1"), 1: ([b"z" * 60], "1")}


def test_the_first_messages_end_before_a_gap_and_none_follow_it(log, log_url):
    append(log, "a", "b", "c", publisher="p0")
    append(log, "d", "e", partition=1, publisher="p1")
    with psycopg.connect(log_url) as connection:
        connection.execute(
            "DELETE FROM counterpoise_log.messages WHERE partition = 0 AND position = 1"
        )
        connection.execute(
            "DELETE FROM counterpoise_log.messages WHERE partition = 1 AND position = 0"
        )
    assert first(log, {0: "0", 1: "0"}) == {0: ([b"a"], "1")}
