"""The ages of records: of a whole topic in one call, bounded in time and in bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

from broker.demo.mock_kafka import MockKafka
from counterpoise.logs import AppendBatch, Log, Message, open_log
from counterpoise.logs.kafka import peeking
from counterpoise.logs.kafka.peeking import times_at
from tests.counterpoise.logs.kafka.conftest import only_the_mock
from tests.log_support import append
from tests.service import eventually


class Event:
    """A record or an error of a partition, in librdkafka's form."""

    def __init__(
        self,
        partition: int,
        offset: int,
        time: int | None = None,
        error: int | None = None,
    ) -> None:
        self._partition, self._offset, self._time, self._error = partition, offset, time, error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def timestamp(self) -> tuple[int, int]:
        if self._time is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, self._time


class Consumer:
    """A consumer that gets these events; each poll takes a tenth of a second."""

    def __init__(self, *events: Event | None) -> None:
        self._events = list(events)
        self.now = 0.0
        self.assigned: dict[int, int] = {}

    def assign(self, places: Sequence[Any]) -> None:
        self.assigned = {place.partition: place.offset for place in places}

    def incremental_unassign(self, places: Sequence[Any]) -> None:
        for place in places:
            del self.assigned[place.partition]

    def poll(self, _seconds: float) -> Event | None:
        self.now += 0.1
        return self._events.pop(0) if self._events else None

    def monotonic(self) -> float:
        return self.now


def times(consumer: Consumer, offsets: dict[int, int], deadline: float = 1.0) -> dict[int, int]:
    return times_at(consumer, "t", offsets, deadline, consumer.monotonic)


def test_the_first_record_at_or_after_the_offset_counts() -> None:
    # Of partition 1 a hole at the offset, of 0 a batch that begins before it.
    consumer = Consumer(Event(0, 3, 10), Event(1, 9, 40), Event(0, 4, 20), Event(0, 5, 30))
    assert times(consumer, {0: 4, 1: 7}) == {0: 20, 1: 40}
    assert consumer.assigned == {}


def test_a_partition_without_such_a_record_or_time_is_left_out() -> None:
    consumer = Consumer(
        Event(0, 7, error=KafkaError._PARTITION_EOF),
        Event(1, -1, error=KafkaError._AUTO_OFFSET_RESET),
        Event(2, 5),
        Event(3, 5, error=KafkaError.TOPIC_AUTHORIZATION_FAILED),
        Event(4, 5, 50),
    )
    assert times(consumer, dict.fromkeys(range(5), 5)) == {4: 50}
    # It ends with the last event, not at the deadline.
    assert consumer.now < 0.6


def test_what_has_not_come_at_the_deadline_is_left_out() -> None:
    consumer = Consumer(None, Event(0, 5, 50))
    assert times(consumer, {0: 5, 1: 5}) == {0: 50}
    assert 1.0 <= consumer.now < 1.2


def test_trouble_without_a_partition_is_no_answer() -> None:
    consumer = Consumer(Event(-1, -1, error=KafkaError._ALL_BROKERS_DOWN), Event(0, 5, 50))
    assert times(consumer, {0: 5}) == {0: 50}


def test_a_topic_of_many_partitions_is_read_in_one_call(kafka: MockKafka) -> None:
    count = 40
    kafka.create_topic("many-ages", count)
    log = open_log(kafka.log("many-ages"), timeout_seconds=150)
    try:
        for first in range(3):
            partitions = [*range(count)]
            log.append(AppendBatch("p", first * count, count, partitions, [Message(b"v")] * count))
        ages = log.ages(dict.fromkeys(range(count), "1"))
        assert ages.keys() == set(range(count))
    finally:
        log.close()


@pytest.fixture
def patient(kafka: MockKafka, topic: str) -> Iterator[Log]:
    """The log, with time enough for any machine."""
    log = open_log(kafka.log(topic), timeout_seconds=150)
    yield log
    log.close()


def test_records_that_retention_has_removed_have_no_age(
    kafka: MockKafka, topic: str, patient: Log
) -> None:
    append(patient, *map(str, range(10)))
    kafka.delete_records(topic, 0, 4)
    assert patient.ages({0: "3"}) == {}
    assert patient.ages({0: "4"}).keys() == {0}


@only_the_mock
def test_ages_of_a_cluster_that_is_away_are_left_out(kafka: MockKafka, topic: str) -> None:
    log = open_log(kafka.log(topic), timeout_seconds=1)
    kafka.stop_brokers()
    try:
        assert log.ages({0: "0"}) == {}
    finally:
        kafka.start_brokers()
        log.close()


def test_a_call_fetches_little_of_a_long_backlog(
    kafka: MockKafka, patient: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is unread, about one batch of each partition comes over the network."""
    for first in range(0, 2000, 100):
        append(patient, *["x" * 1000] * 100, first=first)
    reports: list[int] = []
    monkeypatch.setitem(peeking.PEEKER, "statistics.interval.ms", 50)
    monkeypatch.setitem(
        peeking.PEEKER, "stats_cb", lambda text: reports.append(json.loads(text)["rxmsg_bytes"])
    )
    assert patient.ages({0: "0"}).keys() == {0}
    with patient._clients.peeker() as consumer:  # type: ignore[attr-defined]
        reports.clear()
        eventually(lambda: consumer.poll(0.05) is None and reports)
    assert 0 < reports[-1] < 300_000
