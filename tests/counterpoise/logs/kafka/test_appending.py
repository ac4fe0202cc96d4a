"""Appending to a topic: each message once, even if answers are lost or the publisher dies."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogUnavailable,
    Message,
    StaleRouting,
    open_log,
)
from counterpoise.logs.kafka import appender
from counterpoise.logs.kafka.access import Failures, parse_access
from counterpoise.logs.kafka.appender import Appender, LandedSequences, append_header
from counterpoise.logs.kafka.rows import APPEND
from tests.counterpoise.logs.kafka.conftest import only_the_mock
from tests.kafka_server import PRODUCE
from tests.log_support import append, texts


@pytest.fixture
def opened(kafka, topic):
    """Opens the topic's log, any number of times."""
    logs = []

    def open_one(timeout_seconds=10.0):
        logs.append(open_log(kafka.log(topic), timeout_seconds=timeout_seconds))
        return logs[-1]

    yield open_one
    for log in logs:
        log.close()


def all_texts(log):
    return sorted(text for partition in range(4) for text in texts(log, partition))


def spread(first, count, publisher="p"):
    """Messages `first`..., over all partitions."""
    numbers = range(first, first + count)
    return AppendBatch(
        publisher,
        first,
        4,
        [number % 4 for number in numbers],
        [Message(f"{number:04}".encode()) for number in numbers],
    )


def expected(count):
    return [f"{number:04}" for number in range(count)]


# ------------------------------------------------------------------ while the publisher lives


@only_the_mock
@pytest.mark.long
def test_an_append_that_runs_out_of_time_is_repeated_without_a_second_message(kafka, opened):
    log = opened(timeout_seconds=10)
    log.append(spread(0, 40))
    log._timeout_seconds = 1
    # Past the check of the partition count, so that the messages are on their way.
    shape = log._topic.shape(float("inf"))
    log._topic.shape = lambda deadline: shape
    kafka.stop_brokers()
    try:
        for _ in range(2):
            with pytest.raises(LogUnavailable):
                log.append(spread(40, 40))
    finally:
        kafka.start_brokers()
    log._timeout_seconds = 60
    assert log.append(spread(40, 40)) == AppendResult(40, 0)
    assert log.append(spread(40, 40)) == AppendResult(0, 40)
    assert all_texts(opened()) == expected(80)
    assert texts(opened(), 1) == expected(80)[1::4]


@only_the_mock
@pytest.mark.long
def test_a_log_that_is_closed_amid_an_append_looks_what_has_arrived(kafka, opened):
    log = opened(timeout_seconds=10)
    log.append(spread(0, 8))
    log._timeout_seconds = 1
    shape = log._topic.shape(float("inf"))
    log._topic.shape = lambda deadline: shape
    kafka.stop_brokers()
    try:
        with pytest.raises(LogUnavailable):
            log.append(spread(8, 8))
        log.close()
    finally:
        kafka.start_brokers()
    log._timeout_seconds = 60
    log.append(spread(8, 8))
    assert all_texts(opened()) == expected(16)


@pytest.mark.long
def test_a_living_publisher_reaches_the_new_partitions_of_a_topic(kafka, topic, opened):
    log = opened(timeout_seconds=60)
    log.append(spread(0, 4))
    kafka.grow_topic(topic, 6)
    batch = AppendBatch("p", 4, 6, [5], [Message(b"0004")])
    with pytest.raises(StaleRouting):
        log.append(spread(4, 1))
    assert log.append(batch) == AppendResult(1, 0)
    assert texts(opened(), 5) == ["0004"]


# ------------------------------------------------------------------ after a crash


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sets(st.integers(0, 4)),
    st.integers(0, 10),
)
def test_the_records_tell_what_of_the_last_append_is_missing(appends, lost, forgotten):
    """All appends but the last have arrived, and a part of the last; the tail holds those two."""
    records, first = [], 0
    for count in appends:
        records.append([(sequence, first) for sequence in range(first, first + count)])
        first += count
    last = records.pop()
    arrived = [one for place, one in enumerate(last) if place not in lost]
    before = [one for append in records for one in append]
    gone = min(forgotten, len(before) - (len(records[-1]) if records else 0))
    progress = LandedSequences.of(before[gone:] + arrived)
    there = {sequence for sequence, _ in before + arrived}
    missing = min(set(range(first + 1)) - there)
    assert progress.below == missing
    assert progress.landed == {sequence for sequence in there if sequence > missing}


def test_after_a_crash_amid_an_append_the_rest_follows_and_nothing_twice(kafka, topic, opened):
    opened().append(spread(0, 100))
    # The process died when only these of 100..119 had arrived.
    died = Producer({"bootstrap.servers": kafka.bootstrap})
    arrived = [100, 103, 104, 107, 111, 119]
    for number in arrived:
        died.produce(
            topic,
            f"{number:04}".encode(),
            partition=number % 4,
            headers=[append_header("p", number, 100)],
        )
    died.flush(10)
    log = opened()
    assert log.next_sequence("p") == 101
    assert log.append(spread(101, 10)).duplicates == 0
    assert log.append(spread(111, 19)).duplicates == 0
    assert all_texts(log) == expected(130)
    assert log.next_sequence("p") == 130


def test_a_publisher_that_goes_on_without_asking_is_looked_for(opened):
    opened().append(spread(0, 10))
    assert opened().append(spread(5, 10)) == AppendResult(5, 5)
    assert all_texts(opened()) == expected(15)


def test_others_records_do_not_count(opened):
    log = opened()
    log.append(spread(0, 10, "p"))
    log.append(spread(0, 3, "p 2"))
    assert opened().next_sequence("p") == 10
    assert opened().next_sequence("p 2") == 3
    assert opened().next_sequence("2") == 0
    # As a message of another log may have it, which is put aside here.
    headers = {APPEND: "6 6 victim"}
    log.append(AppendBatch("q", 0, 4, [0], [Message(b"v", "k", headers)]))
    assert opened().next_sequence("victim") == 0
    assert opened().next_sequence("q") == 1


def test_only_the_tails_are_looked_at(opened, monkeypatch):
    """Documented: a publisher that was silent for so long is not found."""
    monkeypatch.setattr(appender, "TAIL_RECORDS", 40)
    monkeypatch.setattr(appender, "LEAST_RECORDS_PER_PARTITION", 5)
    log = opened()
    log.append(spread(0, 8))
    log.append(spread(0, 32, "other"))
    assert opened().next_sequence("p") == 8
    log.append(spread(32, 8, "other"))
    assert opened().next_sequence("p") == 0


CRASHING = """
import os, sys, threading
from counterpoise.logs import AppendBatch, Message, open_log

log = open_log(sys.argv[1], timeout_seconds=60)
first = log.next_sequence("p")
print("from", first, flush=True)
for start in range(first, 4000, 50):
    numbers = range(start, start + 50)
    log.append(
        AppendBatch(
            "p", start, 4, [n % 4 for n in numbers], [Message(f"{n:04}".encode()) for n in numbers]
        )
    )
    print(start, flush=True)
"""


@pytest.mark.long
@pytest.mark.matrix("kafka")
def test_a_publisher_that_is_killed_again_and_again_publishes_each_message_once(
    kafka, topic, opened
):
    began = []
    for kill_after in (3, 11, 29, None):
        child = subprocess.Popen(
            [sys.executable, "-c", CRASHING, kafka.log(topic)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        with child:
            began.append(int(child.stdout.readline().split()[1]))
            for place, _ in enumerate(child.stdout):
                if place == kill_after:
                    child.kill()
                    break
            child.wait(240)
    assert began == sorted(began)
    assert began[-1] >= 50 * (3 + 11 + 29)
    written = all_texts(opened())
    assert written[:4000] == expected(4000)
    assert len(written) == len(set(written))
    for partition in range(4):
        assert texts(opened(), partition) == sorted(texts(opened(), partition))


# ------------------------------------------------------------------ refused messages


def test_a_partition_out_of_range_is_refused_before_anything_is_appended(opened):
    log = opened()
    with pytest.raises(InvalidMessage, match="out of range"):
        log.append(AppendBatch("p", 0, 4, [0, 4], [Message(b"a"), Message(b"b")]))
    assert all_texts(log) == []
    assert append(log, "a") == AppendResult(1, 0)


def test_times_before_1970_are_refused(opened):

    with pytest.raises(InvalidMessage, match="1970"):
        opened().append(
            AppendBatch(
                "p", 0, 4, [0], [Message(b"", published_at=datetime(1969, 1, 1, tzinfo=UTC))]
            )
        )


class Refusing:
    """A producer whose cluster answers messages with these errors in turn (None: accepted)."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.waiting = []
        self.taken = []

    def produce(self, topic, *, value, on_delivery, **_):
        self.waiting.append((value, on_delivery))

    def poll(self, _seconds):
        for value, on_delivery in self.waiting:
            error = self.answers.pop(0)
            if error is None:
                self.taken.append(value)
            on_delivery(error, None)
        self.waiting.clear()

    def purge(self):
        pass


def batch_of(count, first=0):
    messages = [Message(f"{first + number}".encode()) for number in range(count)]
    return AppendBatch("p", first, 4, [0] * count, messages)


def trouble_of():
    return Failures(parse_access("kafka://h/orders", None), "orders")


def appender_with(producers, found=()):
    trouble = trouble_of()
    return Appender(
        "orders", lambda _: producers.pop(), lambda publisher, deadline: list(found), trouble
    )


def test_a_message_too_large_for_the_cluster_is_the_publishers_error():
    producer = Refusing([None, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None, None])
    one = appender_with([producer])
    with pytest.raises(InvalidMessage):
        one.append(batch_of(3), float("inf"))
    # Accepted messages are not sent again together with the missing one.
    assert one.append(batch_of(3), float("inf")) == AppendResult(3, 0)
    assert producer.taken == [b"0", b"2", b"1"]


class Late(Refusing):
    """Its cluster does not answer until it is `up`."""

    up = False

    def poll(self, seconds):
        if self.up:
            super().poll(seconds)


def test_a_refusal_is_told_to_whoever_has_sent_the_message():
    """The service appends for many publishers with one producer."""
    producer = Late([KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None, None])
    one = appender_with([producer])
    with pytest.raises(LogUnavailable):
        one.append(batch_of(1), 0.0)
    producer.up = True
    other = AppendBatch("other", 0, 4, [0], [Message(b"b")])
    assert one.append(other, float("inf")) == AppendResult(1, 0)
    # It may be taken now.
    assert one.append(batch_of(1), float("inf")) == AppendResult(1, 0)
    assert producer.taken == [b"b", b"0"]


def test_what_another_process_may_have_appended_is_looked_for():
    producer = Refusing([None])
    one = appender_with([producer], found=[(0, 0)])
    batch = AppendBatch("p", 0, 4, [0], [Message(b"a")], elsewhere=True)
    assert one.append(batch, float("inf")) == AppendResult(0, 1)
    assert one.append(replace(batch, publisher="q", elsewhere=False), float("inf")).appended == 1
    assert producer.taken == [b"a"]


def test_what_the_topic_does_not_take_is_refused_before_anything_is_sent():
    """Else what comes behind it would be in the topic before what is sent again."""
    limits = [100_000, 100_000, 200_000]
    producer = Refusing([None] * 3)
    one = Appender("orders", lambda _: producer, lambda *_: [], trouble_of(), lambda: limits.pop(0))
    values = [b"a", b"x" * 100_000, b"b"]
    batch = AppendBatch("p", 0, 4, [0] * 3, [Message(value) for value in values])
    with pytest.raises(InvalidMessage, match=r"takes 100000 bytes at most .* has 1000\d\d$"):
        one.append(batch, float("inf"))
    assert producer.taken == []
    # The topic takes larger ones now.
    assert one.append(batch, float("inf")) == AppendResult(3, 0)
    assert producer.taken == values


OUT_OF_ORDER = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


@only_the_mock
def test_after_a_fatal_error_another_producer_sends_what_has_not_arrived(kafka, opened):
    """An unclean election, or a broker that crashed before its disk had the last messages."""
    log = opened(timeout_seconds=60)
    log.append(spread(0, 1))
    kafka.refuse(PRODUCE, OUT_OF_ORDER)
    with pytest.raises(LogUnavailable, match="OUT_OF_ORDER"):
        log.append(spread(1, 1))
    assert log.append(spread(1, 1)) == AppendResult(1, 0)
    assert log.append(spread(2, 4)) == AppendResult(4, 0)
    assert all_texts(opened()) == expected(6)


class Ended(Refusing):
    """A producer that had a fatal error; then librdkafka's binding raises."""

    def __init__(self, *, at_once):
        super().__init__([None, None])
        self.at_once = at_once

    def produce(self, topic, **message):
        if self.at_once:
            raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message"))
        super().produce(topic, **message)

    def poll(self, seconds):
        super().poll(seconds)
        raise KafkaException(KafkaError(OUT_OF_ORDER, "lost", True))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_producer_that_has_ended_is_replaced(at_once):
    second, first = Refusing([None]), Ended(at_once=at_once)
    one = appender_with([second, first], found=[(0, 0)])
    with pytest.raises(LogUnavailable):
        one.append(batch_of(2), float("inf"))
    one.append(batch_of(2), float("inf"))
    assert second.taken == [b"1"]


class Silent(Refusing):
    """A producer without answers, which reports all as failed when it is told to give up."""

    def poll(self, _seconds):
        pass

    def purge(self):
        for _, on_delivery in self.waiting:
            on_delivery(KafkaError(KafkaError._PURGE_INFLIGHT), None)


def test_records_on_their_way_at_the_close_are_searched_for():
    second = Refusing([None])
    one = appender_with([second, Silent([])], found=[(0, 0)])
    with pytest.raises(LogUnavailable):
        one.append(batch_of(2), 0.0)
    one.close()
    assert one.append(batch_of(2), float("inf")) == AppendResult(1, 1)
    assert second.taken == [b"1"]
