"""What every log promises about reading: in order, complete, bounded, nothing silently skipped."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.logs import (
    AppendBatch,
    InvalidPosition,
    LogBehind,
    LogUnavailable,
    Message,
    PositionAhead,
    PositionTrimmed,
)
from counterpoise.logs import memory as memory_log
from counterpoise.logs.builtin import reading as builtin_reading
from counterpoise.logs.kafka import reader as kafka_reader
from counterpoise.logs.record_batch import record_batch
from counterpoise.logs.redis import log as redis_log
from tests.budgets import budget
from tests.counterpoise.logs.kits import needs
from tests.log_support import append, texts


@pytest.fixture
def chunk(monkeypatch):
    """Sets how many messages are fetched at a time, for logs that fetch in chunks."""

    def set_to(messages=None, size=None):
        for module in (builtin_reading, memory_log, redis_log, kafka_reader):
            if messages is not None:
                monkeypatch.setattr(module, "CHUNK_MESSAGES", messages)
            if size is not None:
                monkeypatch.setattr(module, "CHUNK_BYTES", size)

    return set_to


@settings(
    max_examples=budget(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    start=st.integers(0, 25),
    end=st.none() | st.integers(0, 20) | st.just(30),
    most=st.integers(1, 25),
    fetched=st.integers(1, 7),
    most_bytes=st.none() | st.integers(1, 60),
)
@needs("density")
def test_any_range_in_any_chunks_is_exactly_those_messages(
    any_log, chunk, start, end, most, fetched, most_bytes
):
    values = [f"{number:02}" for number in range(20)]
    if not texts(any_log, 0):
        append(any_log, *values)
    chunk(fetched)
    if end == 30 and start <= 20:
        # Only existing messages, because the log would wait for others (see the next test).
        most = min(most, max(0, 20 - start))
    if (end is None and start > 20) or (end is not None and 20 < start < end):
        with pytest.raises(PositionAhead):
            list(any_log.read(0, str(start), end and str(end), max_messages=most))
        return
    end_text = None if end is None else str(end)
    batches = list(any_log.read(0, str(start), end_text, max_messages=most, max_bytes=most_bytes))
    found = [value.decode() for batch in batches for value in batch["value"].to_pylist()]
    expected = values[start:end][:most]
    if most_bytes is not None:
        # Messages follow as long as fewer bytes than that have come before.
        expected = expected[: (most_bytes + 1) // 2]
    assert found == expected
    assert all(batch.num_rows > 0 for batch in batches)


def until_behind(log, start, end):
    """The messages of a range before LogBehind, and the error; repeated if the log is slow."""
    for _ in range(30):
        found = []
        try:
            for batch in log.read(0, start, end, max_messages=99):
                found += batch["value"].to_pylist()
        except LogBehind as behind:
            return found, behind
        except LogUnavailable:
            continue
        pytest.fail(f"[{start}, {end}) was cut short: {found}")
    pytest.fail("the log did not answer")


@pytest.mark.parametrize("fetched", [1, 50])
def test_a_range_that_reaches_beyond_the_end_is_never_cut_short(any_log, kit, chunk, fetched):
    """A log that lags behind what it said, or has lost messages: to end there would skip them."""
    append(any_log, *map(str, range(4)))
    assert texts(any_log, 0, "0", "4") == ["0", "1", "2", "3"]
    chunk(fetched)
    # Some logs wait for missing messages.
    hasty = kit.open(timeout_seconds=0.5)
    for start in ("2", "4"):
        found, refusal = until_behind(hasty, start, "6")
        assert found == ([b"2", b"3"] if start == "2" else [])
        assert (refusal.partition, refusal.end, refusal.wanted) == (0, "4", "6")
    append(any_log, "4", "5", first=4)
    assert texts(any_log, 0, "2", "6") == ["2", "3", "4", "5"]


@settings(
    max_examples=budget(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 30), st.integers(0, 11))
def test_a_limit_of_bytes_ends_with_the_message_that_reaches_it(any_log, sizes, most, start):
    begin = any_log.bounds([0]).ends[0]
    values = [b"x" * size for size in sizes]
    publisher = f"p{begin}"
    any_log.append(
        AppendBatch(publisher, 0, 4, [0] * len(values), [Message(value) for value in values])
    )
    at = [
        row["position"]
        for batch in any_log.read(0, begin, None, max_messages=99)
        for row in batch.to_pylist()
    ]
    start = min(start, len(values) - 1)
    batches = any_log.read(0, at[start], None, max_messages=99, max_bytes=most)
    found = [len(value) for batch in batches for value in batch["value"].to_pylist()]
    expected, before = [], 0
    for size in sizes[start:]:
        if before >= most:
            break
        expected.append(size)
        before += size
    assert found == expected


def test_keys_and_headers_count_for_the_size_of_a_batch(any_log):
    """A reader stops after a batch, when it has as much as it may hold."""
    messages = [Message(b"v", f"k{number}", {"h": "x" * 1000}) for number in range(30)]
    any_log.append(AppendBatch("wide", 0, 4, [0] * 30, messages))
    batches = list(any_log.read(0, "0", None, max_messages=99, max_bytes=5000))
    assert sum(batch.num_rows for batch in batches) == 30
    assert max(batch.num_rows for batch in batches) <= 5


def test_large_messages_come_in_batches_of_bounded_size(any_log, chunk):
    chunk(size=1000)
    append(any_log, *["x" * 400] * 10)
    sizes = [batch.num_rows for batch in any_log.read(0, "0", None, max_messages=100)]
    assert sum(sizes) == 10
    assert max(sizes) <= 3


def test_the_end_is_taken_when_the_reading_begins_and_others_may_call_meanwhile(any_log, chunk):
    chunk(1)
    append(any_log, "a", "b", "c")
    reading = any_log.read(0, "0", None, max_messages=10)
    found = next(reading)["value"].to_pylist()
    append(any_log, "d", first=3)
    assert any_log.bounds([0]).partition_count == 4
    found += [value for batch in reading for value in batch["value"].to_pylist()]
    assert found == [b"a", b"b", b"c"]


def test_a_position_that_is_not_of_this_log_is_refused(any_log):
    for position in ["", "-1", "x", "1.0", " 1", "¹", "9" * 19, "1" * 30]:
        with pytest.raises(InvalidPosition):
            list(any_log.read(0, position, "5", max_messages=1))
        with pytest.raises(InvalidPosition):
            any_log.compare("0", position)


def test_positions_are_compared_as_numbers(any_log):
    assert any_log.compare("9", "10") < 0 < any_log.compare("10", "9")
    assert any_log.compare("7", "7") == 0


def test_a_log_can_be_used_again_after_close(any_log):
    append(any_log, "a")
    any_log.close()
    assert texts(any_log, 0) == ["a"]


def test_several_threads_may_use_one_log(any_log):
    append(any_log, *map(str, range(100)))
    found = []
    threads = [threading.Thread(target=lambda: found.append(texts(any_log, 0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert found == [[str(number) for number in range(100)]] * 8


# ------------------------------------------------------------------ nothing skipped silently


@needs("trimming")
def test_reading_trimmed_messages_fails_instead_of_skipping_them(any_log, kit):
    append(any_log, "a", "b", "c")
    kit.trim({0: "2"})
    assert texts(any_log, 0, "2") == ["c"]
    with pytest.raises(PositionTrimmed) as refusal:
        texts(any_log, 0, "1")
    assert refusal.value.first == "2"
    assert any_log.bounds([0]).starts == {0: "2"}


@needs("trimming")
def test_a_trim_amid_a_reading_is_noticed(any_log, kit, chunk):
    chunk(1)
    append(any_log, "a", "b", "c")
    reading = any_log.read(0, "0", None, max_messages=10)
    next(reading)
    kit.trim({0: "2"})
    with pytest.raises(PositionTrimmed):
        next(reading)


@needs("trimming")
def test_trimming_never_goes_past_the_end_nor_back(any_log, kit):
    append(any_log, "a", "b")
    kit.trim({0: "100"})
    kit.trim({0: "1", 3: "7"})
    bounds = any_log.bounds([0, 3])
    assert (bounds.starts, bounds.ends) == ({0: "2", 3: "0"}, {0: "2", 3: "0"})
    append(any_log, "c", first=2)
    assert texts(any_log, 0, "2") == ["c"]


@needs("shrinking")
def test_discarded_messages_are_passed_without_an_error_and_positions_continue(any_log, kit):
    """A micro-batch planned before a resize with discard must not fail its query."""
    append(any_log, "a", "b", partition=3)
    kit.resize(3)
    assert kit.discard([2, 3]) == {3}
    assert texts(any_log, 3, "0", "2") == []
    kit.resize(4)
    append(any_log, "c", partition=3, first=2)
    assert texts(any_log, 3, "1", "3") == ["c"]
    assert any_log.bounds([3]).ends == {3: "3"}
    # A partition that is in use again is left alone.
    assert kit.discard([3]) == frozenset()
    assert texts(any_log, 3, "2") == ["c"]


@needs("shrinking")
def test_a_partition_outside_the_count_can_be_read_to_its_end(any_log, kit):
    append(any_log, "a", "b", partition=3)
    kit.resize(2)
    assert texts(any_log, 3) == ["a", "b"]
    assert any_log.bounds([3]).is_final(3)


@needs("dropping")
def test_a_position_of_a_log_that_was_dropped_and_made_again_is_noticed(any_log, kit):
    append(any_log, "a", "b")
    before = any_log.bounds([0])
    kit.drop()
    kit.make(4)
    assert any_log.next_sequence("p") == 0
    append(any_log, "c", publisher="q")
    after = any_log.bounds([0])
    assert after.incarnation != before.incarnation
    assert texts(any_log, 0) == ["c"]
    with pytest.raises(PositionAhead):
        texts(any_log, 0, "2", "3")
    with pytest.raises(PositionAhead):
        any_log.limit({0: "2"}, 10)


# ------------------------------------------------------------------ bounds, limit, backlog, times


def test_bounds_of_partitions_the_log_never_had_are_empty(any_log):
    append(any_log, "a", partition=1)
    bounds = any_log.bounds([1, 2, 77])
    assert bounds.partition_count == 4
    assert bounds.ends[2] == bounds.ends[77] == "0"
    assert any_log.compare("0", bounds.ends[1]) < 0
    assert any_log.bounds([]).partition_count == 4


@needs("density")
def test_limit_plans_ends_that_hold_no_more_than_asked(any_log, kit):
    for partition, count in enumerate([5, 1, 0, 9]):
        append(any_log, *map(str, range(count)), partition=partition, publisher=f"p{partition}")
    starts = {0: "0", 1: "0", 2: "0", 3: "4"}
    assert any_log.limit(starts, 100) == {0: "5", 1: "1", 2: "0", 3: "9"}
    assert any_log.limit(starts, 6) == {0: "3", 1: "1", 2: "0", 3: "6"}
    assert any_log.limit(starts, 0) == starts
    assert any_log.limit({0: "0"}, 3, any_log.bounds([0])) == {0: "3"}


def test_the_backlog_is_the_number_of_messages_from_position_to_end(any_log, kit):
    append(any_log, "a", "b", "c")
    bounds = any_log.bounds([0, 1])
    second = next(any_log.read(0, "0", None, max_messages=1))["position"][0].as_py()
    backlog = any_log.backlog({0: second, 1: None}, bounds)
    assert backlog[1] == 0
    assert backlog[0] >= 3
    if "density" not in kit.lacks:
        assert any_log.backlog({0: "1", 1: None}, bounds) == {0: 2, 1: 0}
        assert any_log.backlog({0: None, 1: "0"}, bounds) == {0: 3, 1: 0}
    with pytest.raises(PositionAhead):
        any_log.backlog({0: "999"}, bounds)


@pytest.mark.long
@settings(
    max_examples=budget(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 9), max_size=15), st.integers(0, 10), st.integers(0, 5))
@needs("times")
def test_from_a_time_on_nothing_published_since_is_missed(any_log, kit, seconds, asked, trimmed):
    """Also if publishers' times are not in order: the first message that is late enough."""
    base = datetime(2026, 1, 1, tzinfo=UTC)
    begin = any_log.bounds([0]).ends[0]
    if "trimming" not in kit.lacks:
        kit.trim({0: begin})
    any_log.append(
        AppendBatch(
            f"p{begin}",
            0,
            4,
            [0] * len(seconds),
            [Message(f"{s}".encode(), published_at=base + timedelta(seconds=s)) for s in seconds],
        )
    )
    rows = [
        (row["position"], int(row["value"]))
        for batch in any_log.read(0, any_log.bounds([0]).starts[0], None, max_messages=999)
        for row in batch.to_pylist()
    ]
    if "trimming" not in kit.lacks and rows:
        gone = min(trimmed, len(rows) - 1)
        kit.trim({0: rows[gone][0]})
        rows = rows[gone:]
    found = kit.position_at((base + timedelta(seconds=asked)).timestamp())[0]
    late = [position for position, value in rows if value >= asked]
    expected = late[0] if late else any_log.bounds([0]).ends[0]
    assert any_log.compare(found, expected) == 0


@needs("times")
def test_a_reader_finds_a_time_within_a_range(any_log):
    """One message a minute; the times rise with the positions."""
    base = datetime(2026, 1, 1, tzinfo=UTC)
    at = [base + timedelta(minutes=minute) for minute in range(40)]
    any_log.append(AppendBatch("p", 0, 4, [1] * 40, [Message(b"x", published_at=t) for t in at]))
    start, end = any_log.bounds([1]).starts[1], any_log.bounds([1]).ends[1]
    positions = [
        position
        for batch in any_log.read(1, start, end, max_messages=99)
        for position in batch["position"].to_pylist()
    ]
    for minute in (0, 1, 17, 39):
        assert any_log.first_since(1, start, end, at[minute]) == positions[minute]
        later = at[minute] + timedelta(milliseconds=1)
        assert any_log.first_since(1, start, end, later) == (*positions, end)[minute + 1]
    assert any_log.first_since(1, positions[9], positions[20], base) == positions[9]
    assert any_log.first_since(1, positions[9], positions[20], at[30]) == positions[20]
    assert any_log.first_since(2, "0", "0", base) == "0"


def test_from_now_on_is_the_end_of_every_partition(any_log, kit):
    append(any_log, "a")
    found = kit.position_at(time.time() + 3600)
    assert found == {p: any_log.bounds([p]).ends[p] for p in range(4)}


def test_the_first_messages_of_several_partitions_are_the_beginnings_of_their_ranges(any_log):
    """As far as a log has a call for it; what it leaves out, `read` gives."""
    for partition in range(3):
        values = [f"{partition}-{number}" for number in range(5)]
        append(any_log, *values, partition=partition, publisher=f"p{partition}")
    ends = any_log.bounds([0, 1, 2]).ends
    second = next(any_log.read(1, "0", None, max_messages=2))["position"].to_pylist()[1]
    ranges = {0: ("0", ends[0]), 1: (second, ends[1]), 2: (ends[2], ends[2])}
    found = any_log.first(ranges, max_messages=3, max_bytes=1000)
    assert found.keys() <= {0, 1}
    for partition, (rows, following) in found.items():
        start, end = ranges[partition]
        assert len(rows) == 3
        batch = record_batch(rows)
        all_of_it = pa.Table.from_batches(any_log.read(partition, start, end, max_messages=10))
        rest = pa.Table.from_batches(any_log.read(partition, following, end, max_messages=10))
        assert pa.concat_tables([pa.Table.from_batches([batch]), rest]) == all_of_it
