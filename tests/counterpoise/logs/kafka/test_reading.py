"""Reading ranges of a topic: to the end even with holes, or a reason why not, in time.

Holes are tested on a simulated partition, which sends the events of a consumer with
`enable.partition.eof`; those of Apache Kafka itself in `test_apache`.
"""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.logs.kafka_upkeep import KafkaUpkeep
from counterpoise.logs import (
    AppendBatch,
    LogBehind,
    LogNotFound,
    LogUnavailable,
    Message,
    PositionAhead,
    PositionTrimmed,
    open_log,
)
from counterpoise.logs.kafka import reader
from counterpoise.logs.kafka.access import Failures, parse_access
from counterpoise.logs.kafka.reader import Cursor, RangeReader
from tests.counterpoise.logs.kafka.conftest import only_the_mock
from tests.kafka_server import LIST_OFFSETS
from tests.log_support import append, texts
from tests.service import eventually

# ------------------------------------------------------------------ holes


class Event:
    """A record or an error, in librdkafka's form."""

    def __init__(self, offset, error=None, value=b""):
        self._offset, self._error, self._value = offset, error, value

    def offset(self):
        return self._offset

    def error(self):
        return self._error

    def value(self):
        return self._value or str(self._offset).encode()

    def key(self):
        return None

    def headers(self):
        return None

    def timestamp(self):
        return (1, 1000)


class Partition:
    """A consumer of one partition that has these offsets, and ends at `end` (the last stable one).

    Offsets below `first` are gone. `script` acts before the n-th poll.
    """

    def __init__(self, offsets, end, *, first=0, at_hand=3, script=()):
        self.offsets, self.end, self.first = sorted(offsets), end, first
        self.at_hand = at_hand
        self.script = list(script)
        self.at = None
        self._told_end = None

    def assign(self, places):
        self.at, self._told_end = places[0].offset, None

    def poll(self, _seconds):
        if self.script:
            happens = self.script.pop(0)
            if happens is not None:
                happens(self)
        if self.at is None:
            return None
        if not self.first <= self.at <= self.end:
            self.at = None
            return Event(-1, KafkaError(KafkaError._AUTO_OFFSET_RESET))
        following = [one for one in self.offsets if self.at <= one < self.end]
        if following:
            self.at = following[0] + 1
            return Event(following[0])
        self.at = self.end
        if self._told_end != self.end:
            self._told_end = self.end
            return Event(self.end, KafkaError(KafkaError._PARTITION_EOF))
        return None

    def consume(self, most, _seconds):
        events: list[Event] = []
        while len(events) < min(most, 1 + self.at_hand):
            event = self.poll(0)
            if event is None:
                break
            events.append(event)
        return events


class Clock:
    """Time that passes when it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.1
        return self.now


def reading(partition, start, end, explain=lambda at, deadline: None, *, number=0):
    return RangeReader(
        partition if isinstance(partition, Cursor) else Cursor(partition, "orders"),
        number,
        start,
        end,
        trouble=Failures(parse_access("kafka://h/orders", None), "orders"),
        explain=explain,
        timeout_seconds=30.0,
        monotonic=Clock(),
    )


def offsets(batches):
    return [int(row["position"]) for batch in batches for row in batch.to_pylist()]


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 30)),
    st.integers(0, 31),
    st.integers(0, 31),
    st.integers(31, 40),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_a_range_with_holes_is_all_that_is_in_it_and_ends(existing, start, end, last, hand, most):
    partition = Partition(existing, last, at_hand=hand)
    found = offsets(reading(partition, start, end).rows(most, None))
    assert found == [one for one in sorted(existing) if start <= one < end][:most]


def test_an_end_behind_the_last_record_is_reached_when_the_partition_ends_there():
    # 3 and 4 are markers of transactions.
    assert offsets(reading(Partition({0, 1, 2}, 5), 0, 5).rows(99, None)) == [0, 1, 2]
    # Only holes.
    assert offsets(reading(Partition({0, 1, 2}, 5), 3, 5).rows(99, None)) == []


def test_a_leader_that_has_not_caught_up_is_waited_for():
    def catch_up(partition):
        partition.offsets, partition.end = [0, 1, 2, 3], 4

    partition = Partition({0, 1}, 2, script=[None] * 12 + [catch_up])
    assert offsets(reading(partition, 0, 4).rows(99, None)) == [0, 1, 2, 3]


def test_a_partition_that_stays_shorter_than_promised_is_an_error_and_not_a_shorter_range():
    batches = reading(Partition({0, 1}, 2), 0, 4).rows(99, None)
    assert offsets([next(batches)]) == [0, 1]
    with pytest.raises(LogBehind) as refusal:
        next(batches)
    assert (refusal.value.end, refusal.value.wanted) == ("2", "4")


def test_records_read_before_a_failure_come_first():
    def trim(partition):
        partition.first, partition.at = 9, 3

    partition = Partition(range(10), 10, at_hand=9, script=[None, None, None, trim])
    batches = reading(partition, 0, 10, lambda at, deadline: PositionTrimmed(0, str(at), "9")).rows(
        99, None
    )
    assert offsets([next(batches)]) == [0, 1, 2]
    with pytest.raises(PositionTrimmed) as refusal:
        next(batches)
    assert (refusal.value.position, refusal.value.first) == ("3", "9")


def test_an_offset_out_of_range_for_a_moment_is_tried_again():
    def settle(partition):
        partition.end, partition.offsets = 8, list(range(8))

    partition = Partition(range(5), 5, script=[None, settle])
    assert offsets(reading(partition, 6, 8).rows(99, None)) == [6, 7]


class Troubled(Partition):
    """Reports a broken connection `times` times, then the records."""

    def __init__(self, offsets, end, times):
        super().__init__(offsets, end)
        self.times = times

    def poll(self, seconds):
        if self.times > 0:
            self.times -= 1
            return Event(-1, KafkaError(KafkaError._TRANSPORT))
        return super().poll(seconds) if self.end else None


def test_passing_trouble_does_not_end_a_reading_and_is_the_reason_when_time_is_up():
    assert offsets(reading(Troubled({0, 1}, 2, 5), 0, 2).rows(9, None)) == [0, 1]
    with pytest.raises(LogUnavailable, match="_TRANSPORT"):
        list(reading(Troubled((), 0, 1), 0, 5).rows(9, None))


def test_errors_of_librdkafka_become_errors_of_the_log():
    trouble = Failures(parse_access("kafka://h/orders", None), "orders")
    named = {
        KafkaError.MSG_SIZE_TOO_LARGE: "invalid_message",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "log_access_refused",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "log_not_found",
        KafkaError.NOT_ENOUGH_REPLICAS: "log_unavailable",
    }
    for code, said in named.items():
        assert trouble.told(KafkaException(KafkaError(code)).args[0]).code == said


# ------------------------------------------------------------------ clusters


def test_records_removed_by_retention_raise_and_are_not_skipped(kafka, topic, log):
    append(log, *map(str, range(10)))
    kafka.delete_records(topic, 0, 4)
    assert texts(log, 0, "4", "6") == ["4", "5"]
    with pytest.raises(PositionTrimmed) as refusal:
        texts(log, 0, "3", "6")
    assert refusal.value.first == "4"
    assert log.bounds([0]).starts == {0: "4"}
    assert log.limit({0: "0"}, 3) == {0: "7"}


@pytest.mark.parametrize("light", [0, 500])
def test_retention_amid_a_reading_is_noticed(kafka, topic, log, light, monkeypatch):
    monkeypatch.setattr("counterpoise.logs.kafka.log.LIGHT", light)
    for properties in (reader.STAYING, reader.SHARED):
        monkeypatch.setitem(properties, "fetch.message.max.bytes", 2000)
        monkeypatch.setitem(properties, "queued.max.messages.kbytes", 1)
    monkeypatch.setattr(reader, "CHUNK_MESSAGES", 1)
    for first in range(0, 40, 4):
        append(log, *["x" * 900] * 4, first=first)
    found = log.read(0, "0", "40", max_messages=99)
    next(found)
    kafka.delete_records(topic, 0, 39)
    with pytest.raises(PositionTrimmed):
        list(found)


def test_a_position_of_a_topic_that_was_made_again_is_noticed(kafka, topic, log):
    append(log, "a", "b")
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 6)
    assert log.bounds([0]).partition_count == 6
    with pytest.raises(PositionAhead):
        texts(log, 0, "1", "2")


def test_a_topic_that_was_made_again_with_fewer_messages_is_another_at_once(
    kafka, topic, log, monkeypatch
):
    monkeypatch.setattr("counterpoise.logs.kafka.cluster.SHAPE_SECONDS", float("inf"))
    append(log, "a", "b")
    before = log.bounds([0]).incarnation
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 4)
    assert log.bounds([0]).incarnation != before


def test_a_topic_that_is_missing_is_said_to_be_and_not_created(kafka):
    log = open_log(kafka.log("nowhere"), timeout_seconds=60)
    for _ in range(2):
        with pytest.raises(LogNotFound, match="nowhere"):
            log.bounds([0])
        with pytest.raises(LogNotFound, match="nowhere"):
            texts(log, 0, "0", "5")
        with pytest.raises(LogNotFound, match="nowhere"):
            append(log, "a")
        with pytest.raises(LogNotFound, match="nowhere"):
            log.next_sequence("p")
    log.close()


def test_a_partition_that_the_topic_does_not_have_ends_a_reading_with_a_reason(log):
    with pytest.raises(LogNotFound, match="partition"):
        texts(log, 9, "0", "5")


@only_the_mock
@pytest.mark.parametrize(
    "ask",
    [
        lambda log: log.bounds([0, 1]),
        lambda log: KafkaUpkeep.position_at(log, 0),
        lambda log: log.limit({0: "0", 1: "0"}, 9),
    ],
    ids=["bounds", "a position by its time", "a limit"],
)
def test_a_missing_answer_of_a_broker_is_not_an_offset(kafka, topic, log, ask):
    append(log, "a", "b")
    answer = ask(log)
    # One connection is cut: the answer for the partitions of the other broker's leader comes.
    kafka.cut_instead_of_answering(LIST_OFFSETS)
    assert ask(log) == answer


@only_the_mock
@pytest.mark.long
def test_a_cluster_that_goes_away_ends_every_call_and_comes_back(kafka, topic):
    log = open_log(kafka.log(topic), timeout_seconds=10)
    append(log, "a", "b")
    assert texts(log, 0) == ["a", "b"]
    log._timeout_seconds = 1  # type: ignore[attr-defined]
    kafka.stop_brokers()
    try:
        for act in (
            lambda: log.bounds([0]),
            lambda: texts(log, 0, "0", "2"),
            lambda: append(log, "c", first=2),
            lambda: log.next_sequence("p"),
        ):
            with pytest.raises(LogUnavailable, match="cannot be reached"):
                act()
    finally:
        kafka.start_brokers()
    patient = open_log(kafka.log(topic), timeout_seconds=150)
    assert texts(patient, 0) == ["a", "b"]
    patient.close()
    log.close()


def test_readings_that_are_left_unfinished_do_not_disturb_others(log):
    append(log, *map(str, range(30)))
    append(log, *map(str, range(30, 60)), partition=1, first=30)
    left = log.read(0, "0", "30", max_messages=5)
    next(left)
    assert texts(log, 1, "0", "30") == [str(number) for number in range(30, 60)]
    left.close()
    assert texts(log, 0, "10", "12") == ["10", "11"]


FORKING = """
import os, sys
from counterpoise.logs import AppendBatch, Message, open_log

log = open_log(sys.argv[1], timeout_seconds=10)
log.append(AppendBatch("p", 0, 4, [0, 0], [Message(b"a"), Message(b"b")]))
left = log.read(0, "0", "2", max_messages=1)
next(left)


def values():
    batches = log.read(0, "0", "2", max_messages=9)
    return [value for batch in batches for value in batch["value"].to_pylist()]


assert values() == [b"a", b"b"]
child = os.fork()
if child == 0:
    if "read" in sys.argv:
        assert values() == [b"a", b"b"]
        assert log.append(AppendBatch("q", 0, 4, [1], [Message(b"c")])).appended == 1
        log.close()
    # It ends like a program of its own, which takes everything down.
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert values() == [b"a", b"b"]
"""


@pytest.mark.long
@pytest.mark.matrix("kafka", "what")
@pytest.mark.parametrize("what", ["read", "leave"])
def test_a_forked_child_connects_for_itself_and_ends(kafka, topic, what):
    program = [sys.executable, "-c", FORKING, kafka.log(topic), what]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_large_reading_is_bounded_in_memory_and_complete(log, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK_BYTES", 100_000)
    values = [Message(bytes([number % 256]) * 20_000) for number in range(200)]
    log.append(AppendBatch("p", 0, 4, [0] * 200, values))
    sizes, found = [], []
    for batch in log.read(0, "0", None, max_messages=1000):
        sizes.append(batch.num_rows)
        found += batch["value"].to_pylist()
    assert max(sizes) <= 5
    assert found == [value.value for value in values]


@only_the_mock
def test_partitions_without_a_leader_are_not_waited_for(kafka, topic, log):
    """So it is while a topic grows; a question about all of them would wait for the last one."""
    append(log, "a", "b", "c")
    assert log.bounds([0], at_once=True).ends == {0: "3"}
    kafka.set_leader(topic, 1, None)
    for _ in range(3):
        bounds = log.bounds([0, 1, 2], at_once=True)
        assert bounds.unanswered >= {1}
        assert bounds.ends[0] == "3"
        assert bounds.unanswered.isdisjoint(bounds.ends)
    # Also if it is asked for alone, as while the lanes of the others are full.
    assert log.bounds([1], at_once=True).unanswered == {1}
    kafka.set_leader(topic, 1, 1)

    def answered():
        return log.bounds([0, 1, 2], at_once=True).ends == {0: "3", 1: "0", 2: "0"}

    eventually(answered)
