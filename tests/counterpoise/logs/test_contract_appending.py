"""The promises of every log about appends: once, all or nothing, refused when stale."""

import itertools
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from zlib import crc32

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from counterpoise.logs import (
    MAX_MESSAGE_BYTES,
    MESSAGE_SCHEMA,
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogNotFound,
    Message,
    StaleRouting,
)
from tests.budgets import budget
from tests.counterpoise.logs.kits import needs
from tests.log_support import append, texts

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


@pytest.mark.long
@settings(
    max_examples=budget(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0, 3), messages), min_size=1, max_size=20))
@example([(0, Message(b"", published_at=datetime(1971, 1, 25, 0, 0, 0, 2000, UTC)))])
def test_every_column_comes_back_as_it_went_in(any_log, kit, routed):
    if "microseconds" in kit.lacks:
        routed = [(partition, _in_milliseconds(message)) for partition, message in routed]
    ends = any_log.bounds(range(4)).ends
    batch = AppendBatch(uuid.uuid4().hex, 0, 4, [p for p, _ in routed], [m for _, m in routed])
    assert any_log.append(batch) == AppendResult(len(routed), 0)
    for partition in range(4):
        sent = [message for where, message in routed if where == partition]
        batches = list(any_log.read(partition, ends[partition], None, max_messages=1000))
        assert all(batch.schema.equals(MESSAGE_SCHEMA) for batch in batches)
        read = [row for batch in batches for row in batch.to_pylist()]
        assert [row["value"] for row in read] == [message.value for message in sent]
        assert [row["key"] for row in read] == [message.key for message in sent]
        headers = [None if row["headers"] is None else dict(row["headers"]) for row in read]
        assert headers == [message.headers for message in sent]
        places = [row["position"] for row in read]
        assert all(any_log.compare(a, b) < 0 for a, b in itertools.pairwise(places))
        assert all(row["partition"] == partition for row in read)
        for row, message in zip(read, sent, strict=True):
            if message.published_at is None:
                assert abs(row["published_at"] - datetime.now(UTC)) < timedelta(minutes=1)
            else:
                assert row["published_at"] == message.published_at


def _in_milliseconds(message):
    """The message with a time that any log can store."""
    at = message.published_at
    if at is None:
        return message
    at = max(at, datetime(1971, 1, 1, tzinfo=UTC))
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return message._replace(published_at=at)


UNFIT = [
    (Message(b"", "a\0b"), "key contains a NUL"),
    (Message(b"", None, {"a": "\0"}), "header 'a' contains a NUL"),
    (Message(b"", "\ud800"), "not valid Unicode"),
    (Message("text"), "must be bytes"),  # type: ignore[arg-type]
    (Message(b"", 7), "must be a str"),  # type: ignore[arg-type]
    (Message(b"", None, None, datetime(2013, 1, 1)), "time zone"),  # noqa: DTZ001
    (Message(bytes(MAX_MESSAGE_BYTES), "k"), "is the most a log holds"),
]


def test_a_message_that_no_log_can_hold_is_refused_with_a_reason(any_log):
    for message, complaint in UNFIT:
        with pytest.raises(InvalidMessage, match=complaint):
            any_log.append(AppendBatch("p", 0, 4, [0, 0], [Message(b"before"), message]))
    assert texts(any_log, 0) == []


def test_an_unknown_partition_refuses_the_whole_batch(any_log, kit):
    with pytest.raises(InvalidMessage, match="out of range"):
        any_log.append(AppendBatch("p", 0, 4, [0, 4], [Message(b"a"), Message(b"b")]))
    assert texts(any_log, 0) == []


def test_a_log_that_does_not_exist_is_said_to_be_missing(kit):
    log = kit.open()
    with pytest.raises(LogNotFound):
        append(log, "a")
    with pytest.raises(LogNotFound):
        log.bounds([0])
    with pytest.raises(LogNotFound):
        texts(log, 0, "0", "5")


def test_a_batch_over_many_partitions_is_appended_in_order_within_each(any_log):
    values = [Message(f"{number}".encode()) for number in range(40)]
    any_log.append(AppendBatch("p", 0, 4, [number % 4 for number in range(40)], values))
    for partition in range(4):
        assert texts(any_log, partition) == [str(n) for n in range(partition, 40, 4)]


@pytest.mark.long
def test_a_reader_that_follows_the_end_misses_nothing_while_many_append(any_log, kit):
    """Every visible end can be read completely at once, while four publishers append."""
    done = threading.Event()

    def publish(name):
        own = kit.open()
        for number in range(20):
            values = [f"{name}-{number * 3 + place}" for place in range(3)]
            # Every second batch has the partitions in the other order.
            partitions = [0, 1, 0] if number % 2 else [1, 0, 1]
            batch = [Message(value.encode()) for value in values]
            own.append(AppendBatch(name, number * 3, 4, partitions, batch))

    def follow():
        own = kit.open()
        seen, at = [], {0: "0", 1: "0"}
        while True:
            last = done.is_set()
            bounds = own.bounds([0, 1])
            for partition in (0, 1):
                found = texts(own, partition, at[partition], bounds.ends[partition])
                if "density" not in kit.lacks:
                    assert len(found) == int(bounds.ends[partition]) - int(at[partition])
                seen += found
            at = dict(bounds.ends)
            if last:
                return seen

    names = [f"p{number}" for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        reader = pool.submit(follow)
        list(pool.map(publish, names))
        done.set()
        seen = reader.result(240)
    assert sorted(seen) == sorted(f"{name}-{number}" for name in names for number in range(60))
    by_partition = [texts(any_log, 0), texts(any_log, 1)]
    for name in names:
        for values in by_partition:
            own = [int(value.split("-")[1]) for value in values if value.startswith(f"{name}-")]
            assert own == sorted(own)


# ------------------------------------------------------------------ once


@needs("idempotence")
def test_a_repeated_append_changes_nothing(any_log, kit):
    assert append(any_log, "a", "b") == AppendResult(2, 0)
    assert append(any_log, "a", "b") == AppendResult(0, 2)
    assert texts(any_log, 0) == ["a", "b"]
    assert any_log.next_sequence("p") == 2


@needs("idempotence")
def test_of_an_overlapping_append_only_the_new_messages_are_taken(any_log, kit):
    append(any_log, "a", "b")
    assert append(any_log, "b", "c", first=1) == AppendResult(1, 1)
    assert texts(any_log, 0) == ["a", "b", "c"]


@needs("idempotence", "shrinking")
def test_a_repetition_is_recognised_after_a_resize_that_routes_it_elsewhere(any_log, kit):
    append(any_log, "a", partition=3)
    kit.resize(2)
    assert append(any_log, "a", partition=1, partition_count=2) == AppendResult(0, 1)
    assert texts(any_log, 1) == []


@needs("idempotence")
def test_publishers_do_not_share_sequences(any_log, kit):
    append(any_log, "a", publisher="p")
    assert append(any_log, "a", publisher="q") == AppendResult(1, 0)
    assert any_log.next_sequence("nobody") == 0


@needs("idempotence", "memory")
def test_many_repetitions_at_once_are_appended_once(any_log, kit):
    with ThreadPoolExecutor(4) as pool:
        logs = [kit.open() for _ in range(4)]
        results = list(pool.map(lambda one: append(one, "a", "b", "c"), logs))
    assert sorted(result.appended for result in results) == [0, 0, 0, 3]
    assert texts(any_log, 0) == ["a", "b", "c"]


# ------------------------------------------------------------------ sequences with holes


def numbered(log, *sequences, partition=0, partition_count=4, publisher="p"):
    """Appends a message for each sequence, with that number and its place among equals."""
    values = [f"{one}.{sequences[:n].count(one)}" for n, one in enumerate(sequences)]
    batch = AppendBatch(
        publisher,
        sequences[0],
        partition_count,
        [partition] * len(values),
        [Message(value.encode()) for value in values],
        sequences=sequences,
    )
    return log.append(batch)


@needs("idempotence")
def test_sequences_may_have_holes_and_be_shared(any_log, kit):
    assert numbered(any_log, 3, 3, 7) == AppendResult(3, 0)
    assert numbered(any_log, 3, 3, 7) == AppendResult(0, 3)
    assert numbered(any_log, 3, 3, 7, 9, 9, 2**40) == AppendResult(3, 3)
    assert numbered(any_log, 8, 9) == AppendResult(0, 2)
    assert texts(any_log, 0) == ["3.0", "3.1", "7.0", "9.0", "9.1", f"{2**40}.0"]


@needs("idempotence", "memory")
def test_both_kinds_of_sequences_are_one_count(any_log, kit):
    append(any_log, "a", "b")
    assert numbered(any_log, 0, 1, 5) == AppendResult(1, 2)
    assert any_log.next_sequence("p") == 6
    assert append(any_log, "e", "f", first=5) == AppendResult(1, 1)
    assert texts(any_log, 0) == ["a", "b", "5.0", "f"]


def test_sequences_that_fall_or_are_missing_refuse_the_batch(any_log):
    two = [Message(b"a"), Message(b"b")]
    for first, sequences in ((2, [2, 1]), (1, [1]), (0, [1, 2]), (-1, [-1, 0])):
        with pytest.raises(InvalidMessage, match="sequence"):
            any_log.append(AppendBatch("p", first, 4, [0, 0], two, sequences=sequences))
    assert texts(any_log, 0) == []


@needs("idempotence", "shrinking")
def test_a_hole_in_a_partition_is_no_reason_to_append_again(any_log, kit):
    """What went to partitions 1 and 3 is known when all of it comes to partition 0."""
    batch = AppendBatch(
        "p", 4, 4, [1, 3, 1], [Message(b"4"), Message(b"5"), Message(b"6")], sequences=[4, 5, 6]
    )
    any_log.append(batch)
    kit.resize(1)
    assert numbered(any_log, 4, 5, 6, 7, partition_count=1) == AppendResult(1, 3)
    assert texts(any_log, 0) == ["7.0"]


@pytest.mark.long
@settings(
    max_examples=budget(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    fan_out=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(0, 4), st.integers(1, 5)),
        max_size=12,
    ),
)
@needs("idempotence", "memory", "shrinking")
def test_writers_that_repeat_each_other_over_resizes_append_each_message_once(
    any_log, kit, fan_out, steps
):
    """Two writers of one stream: each goes back, and cuts it as it likes.

    The message at position n leads to `fan_out[n]` rows, which go to partitions by their number.
    """
    publisher = uuid.uuid4().hex
    rows = [(at, f"{at}.{n}") for at, count in enumerate(fan_out) for n in range(count)]
    at, ends, count = [0, 0], any_log.bounds(range(5)).ends, any_log.bounds([]).partition_count

    def write(begin, end):
        part = [row for row in rows if begin <= row[0] < end]
        if part:
            batch = AppendBatch(
                publisher,
                part[0][0],
                count,
                [crc32(value.encode()) % count for _, value in part],
                [Message(value.encode()) for _, value in part],
                sequences=[position for position, _ in part],
            )
            any_log.append(batch)

    for writer, length, back, new_count in steps:
        # A successor begins where the writer before committed, and never past what was written.
        begin = max(0, min(at[writer], max(at)) - back)
        write(begin, begin + length)
        at[writer] = begin + length
        kit.resize(new_count)
        count = new_count
    write(0, len(fan_out))
    written = [texts(any_log, partition, ends.get(partition, "0")) for partition in range(5)]
    assert sorted(itertools.chain(*written)) == sorted(value for _, value in rows)
    for values in written:
        positions = [int(value.partition(".")[0]) for value in values]
        assert positions == sorted(positions)


# ------------------------------------------------------------------ resize


@needs("staleness")
def test_an_append_with_another_partition_count_is_refused_with_the_current_one(any_log, kit):
    for routed_with in (3, 5):
        with pytest.raises(StaleRouting) as refusal:
            append(any_log, "a", partition_count=routed_with)
        assert refusal.value.partition_count == 4
    assert texts(any_log, 0) == []
    assert any_log.next_sequence("p") == 0


@needs("shrinking")
def test_a_resize_that_comes_late_changes_nothing(any_log, kit):
    assert kit.resize(6, revision=9)
    assert not kit.resize(3, revision=8)
    assert any_log.bounds([]).partition_count == 6
    # Repeating it changes nothing.
    assert kit.resize(6, revision=9)


@pytest.mark.long
@settings(
    max_examples=budget(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
@needs("shrinking", "staleness")
def test_nothing_is_appended_behind_an_end_that_was_final(any_log, kit, counts):
    """Two publishers race resizes; an end that bounds() called final must never grow."""
    stop = threading.Event()
    publisher = uuid.uuid4().hex

    def publish(name):
        own = kit.open()
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
            except StaleRouting as stale:
                count = stale.partition_count
        own.close()

    with ThreadPoolExecutor(2) as pool:
        publishers = [pool.submit(publish, f"{publisher}-{number}") for number in range(2)]
        try:
            for count in counts:
                kit.resize(count)
                final = any_log.bounds(range(4))
                assert final.partition_count == count
                for _ in range(3):
                    now = any_log.bounds(range(4))
                    for partition in range(count, 4):
                        assert final.is_final(partition)
                        assert now.ends[partition] == final.ends[partition]
        finally:
            stop.set()
        for one in publishers:
            one.result(240)
