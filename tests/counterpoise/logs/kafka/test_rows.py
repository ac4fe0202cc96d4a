"""Records of other programs: bytes that are not text, tombstones, headers."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.keys import partition_of
from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.kafka import raw_bytes, record_headers
from counterpoise.logs.kafka.rows import APPEND, RECORD_HEADERS, _shown
from counterpoise.logs.rows import text_of


@pytest.fixture
def foreign(kafka):
    """A producer unrelated to Counterpoise, with librdkafka's consistent partitioner."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "partitioner": "consistent",
            "enable.idempotence": True,
        }
    )
    yield producer
    producer.flush(10)


def rows(log, partition=0):
    batches = log.read(partition, "0", None, max_messages=1000)
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.binary(max_size=20))
def test_bytes_come_back_from_the_text_they_are_shown_as(raw):
    assert raw_bytes(text_of(raw)) == raw


@given(st.binary(max_size=20))
def test_the_text_form_of_bytes_can_be_published(raw):
    Message(b"", text_of(raw)).size_bytes()


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_keys_that_differ_are_shown_differently(one, other):
    assert (text_of(one) == text_of(other)) == (one == other)


def test_a_key_that_is_not_text_is_shown_in_base64_and_only_it(log, topic, foreign):
    for key in (b"plain", b"\xff\x00", None):
        foreign.produce(topic, b"v", key=key, partition=0)
    foreign.flush(10)
    assert [row["key"] for row in rows(log)] == ["plain", "base64:/wA=", None]


def test_every_key_that_is_read_can_be_published_also_numbers_of_java_serializers(
    log, topic, foreign
):
    """A NUL is a character of UTF-8, and yet no log holds it in a text."""
    for number in (7, 0x41424344):
        raw = number.to_bytes(4, "big")
        foreign.produce(topic, b"v", key=raw, partition=0, headers=[("number", raw)])
    foreign.flush(10)
    read = rows(log)
    assert [row["key"] for row in read] == ["base64:AAAABw==", "ABCD"]
    for row in read:
        assert Message(b"v", row["key"], dict(row["headers"])).size_bytes() > 0
        assert raw_bytes(row["key"]) == raw_bytes(dict(row["headers"])["number"])


def test_headers_are_shown_as_text_the_last_of_a_name_counts(log, topic, foreign):
    headers = [("a", b"1"), ("a", b"2"), ("b", b"\xfe"), ("c", None), ("d", "ü".encode())]
    foreign.produce(topic, b"v", partition=0, headers=headers)
    foreign.produce(topic, b"w", partition=0)
    foreign.flush(10)
    first, second = rows(log)
    more = '[["a", "1"], ["a", "2"], ["c", null]]'
    shown = {"a": "2", "b": "base64:/g==", "c": "", "d": "ü", RECORD_HEADERS: more}
    assert dict(first["headers"]) == shown
    assert len(first["headers"]) == 5
    assert second["headers"] is None


NAMES = st.text(st.sampled_from("ab"), min_size=1, max_size=2)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=6)


@given(HEADERS)
def test_no_header_is_lost_when_a_row_becomes_a_record_again(headers):
    shown = dict(_shown(headers, tombstone=False))
    again = record_headers(shown)
    of_name = lambda name, among: [value for one, value in among if one == name]  # noqa: E731
    for name in {name for name, _ in headers} | {name for name, _ in again}:
        assert of_name(name, again) == of_name(name, headers)
    # So the origin of a dead letter has the same headers as the letter.
    assert dict(_shown(again, tombstone=False)) == shown


@pytest.mark.parametrize(
    ("headers", "published"),
    [
        # The program has changed the header since, or taken it away.
        ({"a": "3", RECORD_HEADERS: '[["a", "1"], ["a", "2"]]'}, [("a", b"3")]),
        ({RECORD_HEADERS: '[["a", "1"], ["a", "2"]]'}, []),
        # Texts of strangers: no list, half a character, and names that are ours.
        ({RECORD_HEADERS: "7"}, [(RECORD_HEADERS, b"7")]),
        ({RECORD_HEADERS: '{"ab": "b"}', "a": "b"}, [("a", b"b")]),
        ({RECORD_HEADERS: '[["a", "\\ud800"], ["a", "b"]]', "a": "b"}, None),
        ({RECORD_HEADERS: '[["counterpoise-append", "x"]]', "counterpoise-append": "x"}, None),
    ],
)
def test_what_the_header_says_counts_only_for_headers_that_are_as_they_were(headers, published):
    kept = [(name, text.encode()) for name, text in headers.items() if name != APPEND]
    expected = kept if published is None else published
    assert sorted(record_headers(headers)) == sorted(expected)


def test_what_is_published_again_has_the_key_and_the_headers_of_the_record(
    kafka, log, topic, foreign
):
    """As a dead letter, or one that is sent back."""
    key, headers = b"\xff\x00", [("a", b"1"), ("a", b"\0"), ("b", None), ("c", b"3")]
    foreign.produce(topic, b"v", key=key, partition=0, headers=headers)
    foreign.flush(10)
    (row,) = rows(log)
    log.append(AppendBatch("p", 0, 4, [1], [Message(b"v", row["key"], dict(row["headers"]))]))
    assert rows(log, 1)[0]["headers"] == [*sorted(row["headers"], key=lambda one: one[0] != "c")]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "any"})
    consumer.assign([TopicPartition(topic, 1, 0)])
    (record,) = consumer.consume(1, 10)
    consumer.close()
    assert record.key() == key
    assert sorted(one for one in record.headers() if one[0] != APPEND) == sorted(headers)


def test_a_tombstone_is_an_empty_value_with_a_header_and_can_be_published_again(
    log, topic, foreign
):
    foreign.produce(topic, None, key=b"k", partition=0)
    foreign.produce(topic, b"", key=b"k", partition=0)
    foreign.flush(10)
    first, second = rows(log)
    assert (first["value"], first["headers"]) == (b"", [("counterpoise-tombstone", "true")])
    assert (second["value"], second["headers"]) == (b"", None)
    log.append(AppendBatch("p", 0, 4, [1], [Message(b"", "k", dict(first["headers"]))]))
    again = rows(log, 1)[0]
    assert (again["value"], again["headers"]) == (first["value"], first["headers"])


def test_times_are_kept_to_the_millisecond(log, topic, foreign):
    foreign.produce(topic, b"v", partition=0, timestamp=1_700_000_000_123)
    foreign.flush(10)
    assert rows(log)[0]["published_at"] == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)


def test_a_record_without_a_time_is_of_1970_and_has_no_age(log, topic, foreign):
    foreign.produce(topic, b"v", partition=0, timestamp=-1)
    foreign.flush(10)
    assert rows(log)[0]["published_at"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert log.ages({0: "0"}) == {}


def test_our_key_rule_is_librdkafkas_consistent_partitioner(log, topic, foreign):
    keys = [f"kunde-{number}-ü" for number in range(50)]
    landed = {}
    for key in keys:
        foreign.produce(
            topic,
            b"v",
            key=key.encode(),
            on_delivery=lambda error, message: landed.update(
                {message.key().decode(): message.partition()}
            ),
        )
    foreign.flush(10)
    assert landed == {key: partition_of(key, 4) for key in keys}
    assert len(set(landed.values())) == 4
