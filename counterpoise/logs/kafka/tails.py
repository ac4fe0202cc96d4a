"""Searches the last records of a topic for those of one publisher (see `appender`)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from counterpoise.logs.kafka.appender import append_of
from counterpoise.logs.kafka.failures import Trouble, is_passing

TAIL_RECORDS = 100_000
LEAST_RECORDS_PER_PARTITION = 1_000
_EVENTS = 1000
_POLL_SECONDS = 0.1


def tail_starts(starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """The start of the search in each non-empty partition: about TAIL_RECORDS in all."""
    each = max(LEAST_RECORDS_PER_PARTITION, TAIL_RECORDS // max(1, len(ends)))
    return {
        partition: max(starts[partition], end - each)
        for partition, end in ends.items()
        if end > starts[partition]
    }


def find_appends(
    consumer: Consumer,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    publisher: str,
    trouble: Trouble,
    deadline: float,
) -> list[tuple[int, int]]:
    """(sequence, first sequence of its append) of the publisher's records in the tails.

    Raises LogUnavailable after the deadline (monotonic).
    """
    begins = tail_starts(starts, ends)
    waiting = set(begins)
    found = []
    if waiting:
        consumer.assign([TopicPartition(topic, number, at) for number, at in begins.items()])
    while waiting:
        if time.monotonic() >= deadline or trouble.refused():
            raise trouble.too_late(f"looking for the last append of publisher {publisher!r}")
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            continue
        for event in (first, *consumer.consume(_EVENTS, 0)):
            error = event.error()
            if error is None:
                of_publisher = append_of(event, publisher)
                if of_publisher is not None:
                    found.append(of_publisher)
                if event.offset() + 1 >= ends[event.partition()]:
                    waiting.discard(event.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                if event.offset() >= ends[event.partition()]:
                    waiting.discard(event.partition())
            elif is_passing(error):
                trouble.note(error)
            else:
                raise trouble.told(error)
    return found
