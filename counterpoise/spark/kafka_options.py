"""The options of Spark's Kafka source that this one lacks, and what takes the place of each here.

People come with them. Some have no counterpart: then the answer says where the same is decided.
Those that this source has under the same name are in `counterpoise.spark.options`.
"""

from __future__ import annotations

from collections.abc import Mapping

from counterpoise.spark.errors import InvalidOption

_QUEUE = (
    "did you mean 'queue'? A queue knows its topic. Several queues, or a pattern: "
    "counterpoise.spark.read_queues(spark, ['orders', 'trips-*'])"
)
_START = (
    "a stream goes on from the queue's committed positions. Where a new queue begins is decided "
    "when it is made (counterpoise queues create QUEUE --start earliest|latest), and 'counterpoise "
    "positions set QUEUE' changes it later. A batch read (spark.read) has 'startingPositions' and "
    "'startingTimestamp'"
)
_END = "a batch read (spark.read) has 'endingPositions' and 'endingTimestamp'; a stream has no end"
_TIME = "; positions by time are set with 'counterpoise positions set QUEUE 2h' (or a time)"
_GROUP = (
    "there is no consumer group: all queries of one queue share its partitions. 'instanceId' is "
    "what a restarted query is known by"
)
_RETRIES = "'readTimeoutSeconds' is how long a task tries to read from a log that is away"

ANSWERS: Mapping[str, str] = {
    "kafka.bootstrap.servers": "the queue knows its servers (counterpoise queues create QUEUE "
    "--log kafka://HOST:PORT/TOPIC), and 'logUrl' names others for this query",
    "kafka.group.id": _GROUP,
    "groupIdPrefix": _GROUP,
    "subscribe": _QUEUE,
    "subscribePattern": _QUEUE,
    "assign": "did you mean 'queue'? The service assigns its partitions",
    "topic": "did you mean 'queue'? A queue knows its topic",
    "startingOffsets": _START,
    "startingOffsetsByTimestamp": _START + _TIME,
    "startingOffsetsByTimestampStrategy": _START + _TIME,
    "endingOffsets": _END,
    "endingOffsetsByTimestamp": _END,
    "maxOffsetsPerTrigger": "did you mean 'maxMessagesPerTrigger'?",
    "failOnDataLoss": "did you mean 'onTrimmed'? failOnDataLoss=false is onTrimmed=earliest",
    "includeHeaders": "the column 'headers' is always there",
    "kafkaConsumer.pollTimeoutMs": _RETRIES,
    "fetchOffset.numRetries": _RETRIES,
    "fetchOffset.retryIntervalMs": _RETRIES,
}


_BY_LOWER = {name.lower(): name for name in ANSWERS}


def refuse_kafkas(name: str) -> None:
    """Raises InvalidOption if `name`, in any case, is an option of Spark's Kafka source."""
    name = _BY_LOWER.get(name.lower(), name)
    answer = ANSWERS.get(name)
    if answer is None and name.lower().startswith("kafka."):
        answer = (
            "settings of the Kafka client belong into the query string of 'logUrl' (or "
            "COUNTERPOISE_LOG_URL): kafka://USER:PASSWORD@HOST:PORT?sasl.mechanisms=PLAIN"
        )
    if answer is not None:
        raise InvalidOption(f"{name!r} is an option of Spark's Kafka source: {answer}")
