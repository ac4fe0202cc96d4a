"""What only a real broker does: transactions, compaction, retention, users, quotas, its limits."""

import uuid
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogAccessRefused,
    LogUnavailable,
    Message,
    PositionTrimmed,
    open_log,
)
from counterpoise.logs.kafka.appender import _batch_bytes, _encoded, append_header
from counterpoise.logs.kafka.cluster import Topic
from counterpoise.publisher import Publisher
from tests.counterpoise.log_access import client_of
from tests.counterpoise.logs.test_contract_watching import is_woken, rest_of
from tests.kafka_server import CERTIFICATE, PASSWORD, USER
from tests.log_support import append, texts
from tests.service import eventually

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

NOW = datetime.now(UTC).replace(microsecond=0)
# More than a log takes from us.
TWENTY_MB = 20 * 1000 * 1000


@pytest.fixture
def topic(apache_kafka):
    """A topic of one partition."""
    name = uuid.uuid4().hex
    apache_kafka.create_topic(name, 1)
    return name


@pytest.fixture
def opened(apache_kafka):
    """`opened(topic, access)`: its log."""
    logs = []

    def open_one(topic, access=None, listener="PLAINTEXT", timeout_seconds=20):
        url = apache_kafka.log(topic, listener)
        logs.append(open_log(url, access, timeout_seconds=timeout_seconds))
        return logs[-1]

    yield open_one
    for log in logs:
        log.close()


def configured(apache_kafka, **config):
    """A topic of one partition with these settings."""
    name = uuid.uuid4().hex
    apache_kafka.create_topic(name, 1, **config)
    return name


def send(apache_kafka, topic, *values, **record):
    """Publish as another program would."""
    producer = Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "message.max.bytes": TWENTY_MB + 2**20}
    )
    for value in values:
        producer.produce(topic, value, **record)
    assert producer.flush(30) == 0


def publish(log, values, **columns):
    """Append to the only partition, as a publisher of its own."""
    messages = [Message(value, **columns) for value in values]
    return log.append(AppendBatch(uuid.uuid4().hex, 0, 1, [0] * len(values), messages))


def test_a_batch_may_be_larger_than_the_topic_takes_at_once(apache_kafka, opened):
    """A broker refuses a batch of records as a whole."""
    log = opened(configured(apache_kafka, max_message_bytes=50_000))
    assert publish(log, [bytes(1000)] * 500).appended == 500
    assert publish(log, [bytes(40_000)] * 10).appended == 10
    with pytest.raises(InvalidMessage):
        publish(log, [bytes(60_000)])


def rows(log):
    batches = log.read(0, log.bounds([0]).starts[0], None, max_messages=1000)
    return [row for batch in batches for row in batch.to_pylist()]


# ------------------------------------------------------------------ holes


def test_records_of_aborted_and_open_transactions_are_not_read(apache_kafka, topic, opened):
    log = opened(topic)
    producer = Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(30)
    for values, end in (
        (["a", "b"], producer.commit_transaction),
        (["x"], producer.abort_transaction),
    ):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        # An abort drops what was not sent.
        assert producer.flush(30) == 0
        end(30)
    producer.begin_transaction()
    producer.produce(topic, "c")
    assert producer.flush(30) == 0
    send(apache_kafka, topic, "d")
    # a b, the end of their transaction, x, the end of its one; c is open, and d waits for it.
    eventually(lambda: log.bounds([0]).ends == {0: "5"})
    assert texts(log, 0) == ["a", "b"]
    assert texts(log, 0, "2", "5") == []
    producer.commit_transaction(30)
    eventually(lambda: log.bounds([0]).ends == {0: "8"})
    assert texts(log, 0) == ["a", "b", "c", "d"]
    assert [row["position"] for row in rows(log)] == ["0", "1", "5", "6"]
    assert log.backlog({0: "2"}, log.bounds([0])) == {0: 6}


def test_a_publisher_is_found_behind_an_open_transaction_of_another_program(
    apache_kafka, topic, opened
):
    """Readers do not see its messages yet."""
    producer = Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "c")
    assert producer.flush(30) == 0
    batch = AppendBatch("p", 0, 1, [0] * 3, [Message(b"d")] * 3)
    assert opened(topic).append(batch) == AppendResult(3, 0)
    after_a_crash = opened(topic)
    assert after_a_crash.bounds([0]).ends == {0: "0"}
    assert after_a_crash.next_sequence("p") == 3
    producer.abort_transaction(30)


def test_what_compaction_removes_is_passed_over_and_the_newest_of_each_key_stays(
    apache_kafka, opened
):
    topic = configured(
        apache_kafka, cleanup_policy="compact", min_cleanable_dirty_ratio=0.001, segment_ms=1000
    )
    log = opened(topic)
    # A segment ends by the times of its records, and the last one is not compacted.
    for number in range(6):
        send(
            apache_kafka,
            topic,
            str(number),
            key=f"k{number % 2}",
            timestamp=int((NOW - timedelta(hours=6 - number)).timestamp() * 1000),
        )
    eventually(lambda: [row["position"] for row in rows(log)] == ["3", "4", "5"])
    assert texts(log, 0, "0", "3") == []
    assert texts(log, 0, "0", "5") == ["3", "4"]
    assert texts(log, 0, "1", "6") == ["3", "4", "5"]
    assert log.bounds([0]).starts == {0: "0"}


def test_a_position_that_retention_has_passed_is_an_error(apache_kafka, opened):
    topic = configured(apache_kafka, retention_ms=3_600_000, segment_ms=1000)
    log = opened(topic)
    send(apache_kafka, topic, "old", timestamp=int((NOW - timedelta(days=1)).timestamp() * 1000))
    send(apache_kafka, topic, "new")
    eventually(lambda: log.bounds([0]).starts == {0: "1"})
    assert texts(log, 0, "1") == ["new"]
    with pytest.raises(PositionTrimmed) as refusal:
        texts(log, 0, "0", "2")
    assert (refusal.value.position, refusal.value.first) == ("0", "1")


# ------------------------------------------------------------------ access


def access(apache_kafka, listener, password=PASSWORD, **properties):
    """The access of the user to a listener; `properties` with `_` for each dot."""
    settings = {"sasl_mechanisms": "SCRAM-SHA-512", **properties}
    query = "&".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
    servers = apache_kafka.servers(listener)
    return f"kafka://{USER}:{quote(password, safe='')}@{servers}?{query}"


LISTENERS: dict[str, dict[str, object]] = {
    "SCRAM": {"security_protocol": "SASL_PLAINTEXT"},
    "TLS": {"ssl_ca_location": CERTIFICATE},
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_user_with_a_password_reads_and_appends(apache_kafka, topic, opened, listener):
    log = opened(topic, access(apache_kafka, listener, **LISTENERS[listener]), listener)
    assert append(log, "a", "b", partition_count=1) == AppendResult(2, 0)
    assert texts(log, 0) == ["a", "b"]


@pytest.mark.matrix("listener")
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_wrong_password_is_refused_at_once_and_not_shown(apache_kafka, topic, opened, listener):
    wrong = access(apache_kafka, listener, "geheim", **LISTENERS[listener])
    # Long before the call's own time limit, which is longer than the test's.
    log = opened(topic, wrong, listener, 3600)
    for act in (
        lambda: log.bounds([0]),
        lambda: texts(log, 0, "0", "2"),
        lambda: append(log, "a", partition_count=1),
    ):
        with pytest.raises(LogAccessRefused, match="uthentication") as refusal:
            act()
        assert "geheim" not in str(refusal.value)


def test_an_advertised_address_that_is_not_reached_is_named(topic, opened):
    log = opened(topic, None, "LOST", 2)
    with pytest.raises(LogUnavailable, match=r"advertises broker 1 at 127\.0\.0\.1:1,"):
        log.bounds([0])


# ------------------------------------------------------------------ limits of the cluster


def test_the_largest_message_goes_through_if_the_topic_takes_it(apache_kafka, opened):
    topic = configured(apache_kafka, max_message_bytes=17 * 1024 * 1024)
    log = opened(topic)
    large = bytes(range(256)) * (16 * 1024 * 4 - 4)
    publish(log, [b"small", large, b"small"])
    assert [row["value"] for row in rows(log)] == [b"small", large, b"small"]


def test_messages_of_others_may_be_larger_than_ours(apache_kafka, opened):
    """Nothing limits what is read: neither a range, nor a reader that waits, nor an age."""
    log = opened(configured(apache_kafka, max_message_bytes=TWENTY_MB + 2**20))
    large = [bytes([number]) * (TWENTY_MB + number) for number in range(3)]
    send(apache_kafka, log.name, large[0])
    assert [row["value"] for row in rows(log)] == large[:1]
    assert rest_of(log, {0: "1"}).seconds > 0
    send(apache_kafka, log.name, *large[1:], b"small")
    assert is_woken(log, {0: "1"})
    eventually(lambda: log.bounds([0]).ends == {0: "4"})
    assert [row["value"] for row in rows(log)] == [*large, b"small"]
    found = log.rows(0, "1", "4", max_messages=10, max_bytes=1000)
    assert [row["value"] for some in found for row in some.to_pylist()] == large[1:2]
    assert log.ages({0: "2"})[0] >= 0


def test_a_message_that_is_too_large_for_the_topic_is_the_publishers_error(topic, opened):
    log = opened(topic)
    with pytest.raises(InvalidMessage, match=topic):
        publish(log, [b"a", b"x" * 2_000_000])


@pytest.mark.parametrize("told", [True, False])
def test_a_publisher_leaves_out_what_the_topic_does_not_take(
    apache_kafka, opened, monkeypatch, told
):
    """Also if the topic does not tell its limit; then its batch may be in another order."""
    if not told:
        monkeypatch.setattr(Topic, "most_bytes", lambda *_: None)
    topic = configured(apache_kafka, max_message_bytes=20_000)
    with Publisher("q", client=client_of(apache_kafka.log(topic), 1)) as publisher:
        for number in range(200):
            publisher.publish(b"%d " % number * (10_000 if number == 77 else 100), "k")
        with pytest.raises(InvalidMessage, match=topic) as refusal:
            publisher.flush()
        publisher.flush()
        assert (publisher.refused, publisher.unconfirmed) == (1, 0)
    assert refusal.value.__notes__[0].startswith("it is message 78 of this publisher")
    found = [int(row["value"].split()[0]) for row in rows(opened(topic))]
    expected = [number for number in range(200) if number != 77]
    assert (found if told else sorted(found)) == expected


def test_the_limit_of_a_topic_is_known_to_a_byte(apache_kafka, opened):
    """What is a byte larger is refused by the broker too, if it is asked."""
    log = opened(configured(apache_kafka, max_message_bytes=20_000))
    columns = ((None, None), ("k" * 100, None), (None, {"n": "ä" * 100, "o": ""}))
    for number, (key, headers) in enumerate(columns):
        publisher = f"p{number}"
        append = append_header(publisher, 0, 0)

        def size(value, key=key, headers=headers, append=append):
            return _batch_bytes(_encoded(Message(bytes(value), key, headers)), append)

        most = next(value for value in range(20_000, 0, -1) if size(value) <= 20_000)
        for value in (most + 1, most):
            batch = AppendBatch(publisher, 0, 1, [0], [Message(bytes(value), key, headers)])
            if value == most:
                assert log.append(batch).appended == 1
                continue
            with pytest.raises(InvalidMessage, match="takes 20000 bytes at most"):
                log.append(batch)
            log._appender._compresses = True
            with pytest.raises(InvalidMessage, match="MSG_SIZE_TOO_LARGE"):
                log.append(batch)
            log._appender._compresses = False


def test_a_time_that_the_topic_does_not_take_is_the_publishers_error(topic, opened):
    """By default a broker refuses times that are more than an hour ahead of its clock."""
    log = opened(topic)
    with pytest.raises(InvalidMessage, match=topic):
        publish(log, [b"a"], published_at=NOW + timedelta(hours=2))
    publish(log, [b"a"], published_at=NOW - timedelta(days=3650))


def test_quotas_delay_and_lose_nothing(apache_kafka, topic, opened):
    client = f"slow-{uuid.uuid4().hex}"
    apache_kafka.tool(
        "kafka.admin.ConfigCommand",
        *("--alter", "--entity-type", "clients", "--entity-name", client),
        *("--add-config", "producer_byte_rate=200000,consumer_byte_rate=200000"),
    )
    log = opened(topic, f"kafka://{apache_kafka.bootstrap}?client.id={client}")
    # A batch that exceeds the quota of the broker's whole window would never be read.
    values = [bytes([number]) * 20_000 for number in range(20)]
    for first in range(0, 20, 5):
        publish(log, values[first : first + 5])
    assert [row["value"] for row in rows(log)] == values


# ------------------------------------------------------------------ columns


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_times_are_those_that_the_topic_is_configured_for(apache_kafka, opened, kind):
    topic = configured(apache_kafka, message_timestamp_type=kind)
    log = opened(topic)
    earlier = NOW - timedelta(days=2)
    publish(log, [b"a"], published_at=earlier)
    send(apache_kafka, topic, b"b", timestamp=int(earlier.timestamp() * 1000))
    for row in rows(log):
        if kind == "CreateTime":
            assert row["published_at"] == earlier
        else:
            assert row["published_at"] >= NOW


def test_tombstones_and_headers_of_other_programs_are_shown(apache_kafka, topic, opened):
    headers = [("n", b"1"), ("n", b"2"), ("raw", b"\xff\0"), ("none", None)]
    send(apache_kafka, topic, None, key=b"\0\1", headers=headers)
    (row,) = rows(opened(topic))
    assert (row["key"], row["value"]) == ("base64:AAE=", b"")
    assert dict(row["headers"]) == {
        "n": "2",
        "raw": "base64:/wA=",
        "none": "",
        "counterpoise-record-headers": '[["n", "1"], ["n", "2"], ["none", null]]',
        "counterpoise-tombstone": "true",
    }


@pytest.mark.matrix("codec")
@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_compressed_batches_are_read_from_any_of_their_positions(
    apache_kafka, topic, opened, codec
):
    log = opened(topic, f"kafka://{apache_kafka.bootstrap}?compression.type={codec}")
    values = [f"{number:04}" * 50 for number in range(300)]
    append(log, *values, partition_count=1)
    assert texts(log, 0) == values
    assert texts(log, 0, "17", "19") == values[17:19]
