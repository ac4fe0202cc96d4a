import re
from datetime import UTC, datetime, timedelta

import pytest

from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.kafka_options import ANSWERS
from counterpoise.spark.options import (
    DEFAULT_MESSAGES_PER_TRIGGER,
    NAMES,
    Floor,
    SourceOptions,
    read_options,
)

# The options of Spark's Kafka source, by its documentation, but for those that this one has.
KAFKAS = """
    assign subscribe subscribePattern kafka.bootstrap.servers
    startingOffsetsByTimestamp startingOffsets endingOffsetsByTimestamp
    endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    fetchOffset.retryIntervalMs maxOffsetsPerTrigger groupIdPrefix kafka.group.id includeHeaders
    startingOffsetsByTimestampStrategy topic
"""


LEAST = {"queue": "q", "minOffsetsPerTrigger": "100"}


def test_names_come_in_any_case() -> None:
    options = read_options(
        {
            "QUEUE": "q",
            "url": "http://h:1",
            "maxmessagespertrigger": "7",
            "leaseseconds": "2.5",
            "instanceid": "a",
            "onTrimmed": "Earliest",
        }
    )
    assert options == SourceOptions(
        queue="q",
        url="http://h:1",
        instance_id="a",
        lease_seconds=2.5,
        max_messages_per_trigger=7,
        on_trimmed="earliest",
    )


def test_warm_up_is_asked_for_with_what_history_it_needs() -> None:
    assert not read_options({"queue": "q"}).warmup
    options = read_options({"queue": "q", "warmup": "true", "warmupFrom": "30m"})
    assert options.warmup
    assert options.warmup_from == Floor(seconds=1800)


def test_defaults() -> None:
    options = read_options({"queue": "q"})
    assert options == SourceOptions(queue="q")
    assert options.max_messages_per_trigger == DEFAULT_MESSAGES_PER_TRIGGER
    unlimited = read_options({"queue": "q", "maxMessagesPerTrigger": "unlimited"})
    assert unlimited.max_messages_per_trigger is None


@pytest.mark.parametrize(
    ("text", "most"),
    [("1", 1), ("64m", 64 << 20), ("64MB", 64 << 20), ("3K", 3072), ("1g", 1 << 30), ("7b", 7)],
)
def test_bytes_may_have_a_suffix(text: str, most: int) -> None:
    options = read_options({"queue": "q", "maxBytesPerTrigger": text})
    assert options.max_bytes_per_trigger == most


def test_bytes_may_be_unlimited() -> None:
    options = read_options({"queue": "q", "maxBytesPerTrigger": "Unlimited"})
    assert options.max_bytes_per_trigger is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("15M", 900), ("2h", 7200), ("1d", 86400)]
)
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    assert read_options({**LEAST, "maxTriggerDelay": text}).max_trigger_delay_seconds == seconds
    assert read_options(LEAST).max_trigger_delay_seconds == 900


@pytest.mark.parametrize(
    "name",
    [
        "instanceId",
        "clientName",
        "leaseSeconds",
        "maxBytesPerTrigger",
        "warmup",
        "weight",
        "maxPartitions",
        "minOffsetsPerTrigger",
    ],
)
def test_a_batch_read_refuses_options_of_streams(name: str) -> None:
    options = read_options({"queue": "q", name: {"warmup": "true"}.get(name, "5")})
    options.for_stream()
    with pytest.raises(InvalidOption, match=f"'{name}' belongs to a stream"):
        options.for_batch()


@pytest.mark.parametrize(
    "text", ["1795960800000", "2026-11-29T14:00:00Z", "2026-11-29T15:00+01:00"]
)
def test_a_batch_read_begins_and_ends_at_a_time(text: str) -> None:
    at = datetime(2026, 11, 29, 14, tzinfo=UTC)
    assert read_options({"queue": "q", "startingTimestamp": text}).starting == at
    assert read_options({"queue": "q", "endingTimestamp": text}).ending == at


def test_or_at_a_time_before_now() -> None:
    before = datetime.now(UTC) - timedelta(hours=2)
    found = read_options({"queue": "q", "startingTimestamp": "2h"}).starting
    assert isinstance(found, datetime)
    assert before <= found <= datetime.now(UTC) - timedelta(hours=2)


@pytest.mark.parametrize(
    "name", ["startingPositions", "endingPositions", "startingTimestamp", "endingTimestamp"]
)
def test_a_stream_refuses_options_of_batch_reads(name: str) -> None:
    options = read_options({"queue": "q", name: "1" if "Time" in name else "committed"})
    options.for_batch()
    with pytest.raises(InvalidOption, match=f"'{name}' belongs to a batch read"):
        options.for_stream()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "'queue' is missing"),
        ({"queue": "q", "warmup": "yes"}, "one of false, true"),
        ({"queue": "q", "warmup": "true", "warmupFrom": "latest"}, "is earliest, a number"),
        ({"queue": "q", "warmupFrom": "2h"}, "nothing without 'warmup'"),
        ({"queue": " "}, "'queue' is missing"),
        ({"queue": "q", "que": "x"}, "did you mean 'queue'"),
        ({"queue": "a,b"}, "the name of one queue, not 'a,b'. Several .*read_queues"),
        ({"queue": "orders-*"}, "or a pattern: counterpoise.spark.read_queues"),
        ({"queue": "q", "maxoffsetspertrigger": "5"}, "did you mean 'maxMessagesPerTrigger'"),
        ({"queue": "q", "instance_id": "5"}, "did you mean 'instanceId'"),
        ({"queue": "q", "path": "/x"}, "takes no path"),
        ({"queue": "q", "zzz": "5"}, "the options are queue, url,"),
        ({"queue": "q", "leaseSeconds": "0"}, r"\(1..3600\), not '0'"),
        ({"queue": "q", "leaseSeconds": "nan"}, "not 'nan'"),
        ({"queue": "q", "maxMessagesPerTrigger": "0"}, "at least 1"),
        ({"queue": "q", "maxMessagesPerTrigger": "-5"}, "at least 1"),
        ({"queue": "q", "maxBytesPerTrigger": "0"}, "'maxBytesPerTrigger' is bytes"),
        ({"queue": "q", "maxBytesPerTrigger": "64 m"}, "not '64 m'"),
        ({"queue": "q", "maxBytesPerTriger": "64m"}, "did you mean 'maxBytesPerTrigger'"),
        ({"queue": "q", "flows": "2"}, "unknown option 'flows': did you mean 'weight'"),
        ({"queue": "q", "weight": "1001"}, r"'weight' is a number in 1..1000, not '1001'"),
        ({"queue": "q", "maxPartitions": "0"}, "in 1..4096"),
        ({"queue": "q", "failOnDataLoss": "false"}, "did you mean 'onTrimmed'"),
        ({"queue": "q", "startingOffsets": "earliest"}, "queues create QUEUE --start earliest"),
        ({"queue": "q", "startingOffsets": "earliest"}, "positions set QUEUE"),
        ({"queue": "q", "startingOffsetsByTimestamp": "1"}, "positions set QUEUE 2h"),
        ({"queue": "q", "startingTimestamp": "yesterday"}, "not 'yesterday'"),
        ({"queue": "q", "endingTimestamp": "2026-11-29T14:00:00"}, "a time with its zone"),
        ({"queue": "q", "endingTimestamp": "9" * 15}, "milliseconds since 1970"),
        (
            {"queue": "q", "startingTimestamp": "2h", "startingPositions": "earliest"},
            "both say the same edge",
        ),
        ({"queue": "q", "startingTimestamp": "1h", "endingTimestamp": "2h"}, "is later than"),
        ({"queue": "q", "kafka.bootstrap.servers": "h:9092"}, "--log kafka://HOST:PORT/TOPIC"),
        ({"queue": "q", "kafka.security.protocol": "SSL"}, "query string of 'logUrl'"),
        ({"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}, "Spark's Kafka source"),
        ({"subscribe": "t"}, "did you mean 'queue'"),
        ({"subscribePattern": "t.*"}, "or a pattern: counterpoise.spark.read_queues"),
        ({"queue": "q", "minPartitions": "0"}, "in 1..100000, not '0'"),
        ({"queue": "q", "minPartitions": "8", "maxInputPartitions": "9"}, "leave one of them out"),
        ({"queue": "q", "maxRecordsPerPartition": "-1"}, "of at least 1"),
        (
            {"queue": "q", "maxRecordsPerPartition": "9", "maxInputPartitions": "9"},
            "'maxRecordsPerPartition' makes more tasks",
        ),
        ({"queue": "q", "maxTriggerDelay": "5m"}, "nothing without 'minOffsetsPerTrigger'"),
        ({**LEAST, "maxTriggerDelay": "5"}, "a time with its unit .*, not '5'"),
        ({**LEAST, "maxTriggerDelay": "0s"}, "not '0s'"),
        (
            {**LEAST, "maxMessagesPerTrigger": "99"},
            r"\(100\) is above 'maxMessagesPerTrigger' \(99",
        ),
        ({"queue": "q", "groupIdPrefix": "g"}, "no consumer group"),
        ({"queue": "q", "startingPositions": "latest"}, "is earliest, committed, or JSON"),
        ({"queue": "q", "endingPositions": "earliest"}, "is latest, committed, or JSON"),
        ({"queue": "q", "onTrimmed": "latest"}, "one of fail, earliest"),
        ({"queue": "q", "url": "ftp://x"}, "http:// or https://"),
        ({"queue": "q", "url": "https://u:hunter2@x"}, "COUNTERPOISE_TOKEN"),
    ],
)
def test_an_error_names_the_option_and_the_reason(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        read_options(given)


def test_every_option_of_sparks_kafka_source_has_an_answer_that_this_source_accepts() -> None:
    kafkas = KAFKAS.split()
    assert set(kafkas) == ANSWERS.keys()
    for name in kafkas:
        with pytest.raises(InvalidOption, match=f"'{name}' is an option of Spark's Kafka source"):
            read_options({"queue": "q", name.lower(): "1"})  # as Spark passes it on
        named = set(re.findall(r"'(\w+)'", ANSWERS[name].partition("read_queues(")[0]))
        assert named <= NAMES.keys() | {"headers"}


def test_the_secret_is_neither_shown_nor_sent_to_tasks() -> None:
    options = read_options({"queue": "q", "logUrl": "postgresql://u:hunter2@h/d"})
    assert options.log_url is not None
    assert "hunter2" not in repr(options)
    assert options.for_tasks().log_url is None
