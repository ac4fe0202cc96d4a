"""The times of the records at given offsets, of many partitions in one fetch.

Kafka has no request for the time of an offset, so the records are fetched. A broker sends whole
batches: `PEEKER` asks for the fewest bytes that usually hold one, and for no second fetch of a
partition that has answered. So a call costs at most about 16 KiB and one batch for each partition.

It is bounded in time as well, and gives what has come until then: a partition whose leader is away,
or whose records the access may not read, delays the others no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

from counterpoise.logs.kafka.reader import CONSUMER

PEEK_SHARE = 1 / 5
"""Of a log's time limit; in the service that makes 1 s."""
PEEKER = {
    **CONSUMER,
    "queued.min.messages": 1,
    # A larger batch comes alone.
    "fetch.message.max.bytes": 16 * 1024,
}
"""librdkafka's properties, in addition to the access."""

_POLL_SECONDS = 0.1


def times_at(
    consumer: Consumer,
    topic: str,
    offsets: Mapping[int, int],
    deadline: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[int, int]:
    """The times (milliseconds since 1970) of the first records at these offsets or after them.

    A partition without such a record, or whose record has no time, is left out, and so is what has
    not come at the deadline.
    """
    waiting, times = dict(offsets), dict[int, int]()
    consumer.assign([TopicPartition(topic, number, at) for number, at in offsets.items()])
    while waiting and monotonic() < deadline:
        event = consumer.poll(_POLL_SECONDS)
        number = None if event is None else event.partition()
        if event is None or number not in waiting:
            continue
        if event.error() is None:
            # A fetch may begin a little before the requested offset.
            if event.offset() < waiting[number]:
                continue
            kind, at = event.timestamp()
            # Some programs write -1 for a record without a time.
            if kind != TIMESTAMP_NOT_AVAILABLE and at >= 0:
                times[number] = at
        # Otherwise it ends there, or cannot be read.
        del waiting[number]
        consumer.incremental_unassign([TopicPartition(topic, number)])
    return times
