"""What a log promises about appends: order of commits, once, all or nothing, refused when stale."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.logs import (
    MAX_MESSAGE_BYTES,
    MESSAGE_SCHEMA,
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogError,
    LogNotFound,
    LogUnavailable,
    Message,
    StalePartitionCount,
)
from counterpoise.logs.postgres import PostgresLog
from tests.log_support import append, texts, until, waiters, with_logs

OPEN_APPEND = """SELECT counterpoise_log.append(
    'flights', %s, %s, %s, %s::integer[], %s::bytea[], NULL, NULL, NULL)"""


def resize(url, partition_count):
    return with_logs(url, lambda logs: logs.set_partition_count("flights", partition_count))


def rows_of(log, partition):
    return [
        row
        for batch in log.read(partition, "0", None, max_messages=1_000_000)
        for row in batch.to_pylist()
    ]


# ------------------------------------------------------------------ what goes in comes out

text_without_nul = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
times = st.none() | st.datetimes(
    datetime(1900, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
)
messages = st.builds(
    Message,
    st.binary(max_size=50),
    st.none() | text_without_nul,
    st.none() | st.dictionaries(text_without_nul, text_without_nul, min_size=1, max_size=3),
    times,
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 3), messages), min_size=1, max_size=20))
def test_every_column_comes_back_as_it_went_in(log, routed):
    ends = log.bounds(range(4)).ends
    batch = AppendBatch(uuid.uuid4().hex, 0, 4, [p for p, _ in routed], [m for _, m in routed])
    assert log.append(batch) == AppendResult(len(routed), 0)
    for partition in range(4):
        sent = [message for where, message in routed if where == partition]
        batches = list(log.read(partition, ends[partition], None, max_messages=1000))
        assert all(batch.schema.equals(MESSAGE_SCHEMA) for batch in batches)
        read = [row for batch in batches for row in batch.to_pylist()]
        assert [row["value"] for row in read] == [message.value for message in sent]
        assert [row["key"] for row in read] == [message.key for message in sent]
        headers = [None if row["headers"] is None else dict(row["headers"]) for row in read]
        assert headers == [message.headers for message in sent]
        assert [int(row["position"]) for row in read] == [
            int(ends[partition]) + place for place in range(len(sent))
        ]
        for row, message in zip(read, sent, strict=True):
            if message.published_at is None:
                assert abs(row["published_at"] - datetime.now(UTC)) < timedelta(minutes=1)
            else:
                assert row["published_at"] == message.published_at


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message(b"", "a\0b"), "key contains a NUL"),
        (Message(b"", None, {"a": "\0"}), "header 'a' contains a NUL"),
        (Message(b"", "\ud800"), "not valid Unicode"),
        (Message("text"), "must be bytes"),  # type: ignore[arg-type]
        (Message(b"", 7), "must be a str"),  # type: ignore[arg-type]
        (Message(b"", None, None, datetime(2013, 1, 1)), "time zone"),  # noqa: DTZ001
        (Message(bytes(MAX_MESSAGE_BYTES), "k"), "is the most a log holds"),
    ],
)
def test_what_no_log_can_hold_is_refused_with_a_reason(log, message, complaint):
    with pytest.raises(InvalidMessage, match=complaint):
        log.append(AppendBatch("p", 0, 4, [0], [message]))
    assert texts(log, 0) == []


def test_the_largest_message_fits(log):
    value = bytes(MAX_MESSAGE_BYTES)
    log.append(AppendBatch("p", 0, 4, [0, 0], [Message(value), Message(b"after")]))
    batches = list(log.read(0, "0", None, max_messages=10))
    assert [batch.num_rows for batch in batches] == [1, 1]
    assert batches[0]["value"][0].as_py() == value


def test_a_partition_that_does_not_exist_spoils_the_whole_batch(log):
    with pytest.raises(LogError, match="out of range"):
        log.append(AppendBatch("p", 0, 4, [0, 4], [Message(b"a"), Message(b"b")]))
    assert texts(log, 0) == []


def test_a_log_that_does_not_exist_is_said_to_be_missing(log_url):
    log = PostgresLog("nowhere", log_url)
    with pytest.raises(LogNotFound, match="nowhere"):
        append(log, "a")
    with pytest.raises(LogNotFound, match="nowhere"):
        log.bounds([0])
    log.close()


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
        # Another partition is not held up.
        append(log, "elsewhere", partition=1, publisher="third")
        assert log.bounds([0, 1]).ends == {0: "1", 1: "1"}
        assert not fast.done()
        holding.commit()
        fast.result(10)
    assert texts(log, 0) == ["first", "slow", "fast"]
    other.close()


def test_positions_of_an_append_that_is_rolled_back_are_used_by_the_next(log, log_url):
    with psycopg.connect(log_url) as holding:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [0], [b"slow"]])
        holding.rollback()
    append(log, "fast")
    assert [row["position"] for row in rows_of(log, 0)] == ["0"]


def test_a_reader_that_follows_the_end_misses_nothing_while_many_append(log, log_url):
    """Every end that is seen can be read completely at once, while six publishers append."""
    done = threading.Event()

    def publish(name):
        own = PostgresLog("flights", log_url)
        for number in range(30):
            values = [f"{name}-{number * 3 + place}" for place in range(3)]
            # Every second batch takes the partitions in the other order.
            partitions = [0, 1, 0] if number % 2 else [1, 0, 1]
            batch = [Message(value.encode()) for value in values]
            own.append(AppendBatch(name, number * 3, 4, partitions, batch))
        own.close()

    def follow():
        own = PostgresLog("flights", log_url)
        seen, at = [], {0: "0", 1: "0"}
        while True:
            last = done.is_set()
            ends = own.bounds([0, 1]).ends
            for partition in (0, 1):
                found = texts(own, partition, at[partition], ends[partition])
                assert len(found) == int(ends[partition]) - int(at[partition])
                seen += found
            at = dict(ends)
            if last:
                own.close()
                return seen

    names = [f"p{number}" for number in range(6)]
    with ThreadPoolExecutor(8) as pool:
        reader = pool.submit(follow)
        list(pool.map(publish, names))
        done.set()
        seen = reader.result(30)
    assert sorted(seen) == sorted(f"{name}-{number}" for name in names for number in range(90))
    by_partition = [texts(log, 0), texts(log, 1)]
    for name in names:
        for values in by_partition:
            own = [int(value.split("-")[1]) for value in values if value.startswith(f"{name}-")]
            assert own == sorted(own)


def test_an_append_locks_partitions_in_ascending_order(log, log_url):
    """So that two that share partitions cannot wait for each other."""
    other = PostgresLog("flights", log_url)
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(OPEN_APPEND, [4, "slow", 0, [1], [b"slow"]])
        batch = AppendBatch("both", 0, 4, [2, 1], [Message(b"2"), Message(b"1")])
        waiting = pool.submit(other.append, batch)
        until(lambda: waiters(log_url) == 1)
        # It waits for partition 1 and has not taken 2.
        append(log, "free", partition=2)
        holding.commit()
        waiting.result(10)
    assert (texts(log, 1), texts(log, 2)) == (["slow", "1"], ["free", "2"])
    other.close()


def test_a_transaction_with_a_fixed_snapshot_is_refused(log, log_url):
    """It would see the partition count of its beginning instead of the current one."""
    with psycopg.connect(log_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.InvalidTransactionState):
            connection.execute(OPEN_APPEND, [4, "p", 0, [0], [b"a"]])


# ------------------------------------------------------------------ once


def test_a_repeated_append_changes_nothing(log):
    assert append(log, "a", "b") == AppendResult(2, 0)
    assert append(log, "a", "b") == AppendResult(0, 2)
    assert texts(log, 0) == ["a", "b"]
    assert log.next_sequence("p") == 2


def test_of_an_overlapping_append_only_the_new_messages_are_taken(log):
    append(log, "a", "b")
    assert append(log, "b", "c", first=1) == AppendResult(1, 1)
    assert texts(log, 0) == ["a", "b", "c"]


def test_a_repetition_is_recognised_after_a_resize_that_routes_it_elsewhere(log, log_url):
    append(log, "a", partition=3)
    resize(log_url, 2)
    assert append(log, "a", partition=1, partition_count=2) == AppendResult(0, 1)
    assert texts(log, 1) == []


def test_publishers_do_not_share_sequences(log):
    append(log, "a", publisher="p")
    assert append(log, "a", publisher="q") == AppendResult(1, 0)
    assert log.next_sequence("nobody") == 0


def test_a_repetition_waits_for_its_first_attempt_and_then_is_a_duplicate(log, log_url):
    """The connection broke, the server is still at it: the retry must not overtake."""
    for sequence in (0, 1):
        # The first one of a publisher has no row to wait for, so that is another case.
        with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
            holding.execute(OPEN_APPEND, [4, "p", sequence, [0], [b"a"]])
            repeated = pool.submit(append, log, "a", first=sequence)
            until(lambda: waiters(log_url) == 1)
            holding.commit()
            assert repeated.result(10) == AppendResult(0, 1)
    assert texts(log, 0) == ["a", "a"]


def test_next_sequence_waits_for_an_append_that_is_under_way(log, log_url):
    for sequence in (0, 1):
        with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
            holding.execute(OPEN_APPEND, [4, "p", sequence, [0], [b"a"]])
            following = pool.submit(log.next_sequence, "p")
            until(lambda: waiters(log_url) == 1)
            holding.commit()
            assert following.result(10) == sequence + 1


def test_an_append_whose_connection_is_killed_is_unknown_and_repeating_it_is_safe(log, log_url):
    """Killed before it is done: nothing of it remains, and the same log object goes on."""
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
            killed.result(10)
    assert texts(log, 0) == ["first"]
    assert append(log, "a", "b") == AppendResult(2, 0)
    assert append(log, "a", "b") == AppendResult(0, 2)
    assert texts(log, 0) == ["first", "a", "b"]


# ------------------------------------------------------------------ resize


def test_an_append_with_another_partition_count_is_refused_with_the_current_one(log):
    for routed_with in (3, 5):
        with pytest.raises(StalePartitionCount) as refusal:
            append(log, "a", partition_count=routed_with)
        assert refusal.value.current == 4
    assert texts(log, 0) == []
    assert log.next_sequence("p") == 0


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
        assert resized.result(10)
        with pytest.raises(StalePartitionCount):
            refused.result(10)
    bounds = log.bounds([1, 3])
    assert (bounds.partition_count, bounds.ends[3]) == (2, "1")
    assert bounds.is_final(3)
    assert not bounds.is_final(1)
    late.close()


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
            assert [one.result(10) for one in publishers] == ["CP001"] * 6
        finally:
            stop.set()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_nothing_is_appended_behind_an_end_that_was_final(log, log_url, counts):
    """Two publishers race resizes; what bounds() called final must never grow."""
    stop = threading.Event()
    publisher = uuid.uuid4().hex

    def publish(name):
        own = PostgresLog("flights", log_url)
        sequence, count = 0, own.bounds([]).partition_count
        while not stop.is_set():
            try:
                append(
                    own,
                    f"{name}-{sequence}",
                    partition=sequence % count,
                    first=sequence,
                    publisher=name,
                    partition_count=count,
                )
                sequence += 1
            except StalePartitionCount as stale:
                count = stale.current
        own.close()

    with ThreadPoolExecutor(2) as pool:
        publishers = [pool.submit(publish, f"{publisher}-{number}") for number in range(2)]
        try:
            for count in counts:
                resize(log_url, count)
                final = log.bounds(range(4))
                assert final.partition_count == count
                for _ in range(3):
                    now = log.bounds(range(4))
                    for partition in range(count, 4):
                        assert now.ends[partition] == final.ends[partition]
        finally:
            stop.set()
        for one in publishers:
            one.result(10)
