"""Rows that no publisher of ours has written: each can be read, shown and published again.

If reading a row raised, every consumer of its partition would stop for good, because a consumer's
handling of poison messages begins after reading.
"""

import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from counterpoise.consumer.reading import read_range
from counterpoise.logs import MAX_MESSAGE_BYTES, AppendBatch, InvalidMessage, Log, Message
from counterpoise.logs.port import OUR_HEADERS_BYTES
from counterpoise.logs.record_batch import record_batch
from counterpoise.logs.rows import (
    RAW_HEADERS,
    SHOWN_FROM,
    SHOWN_TO,
    UNREADABLE,
    Columns,
    Rows,
    flagged,
    headers_of,
    raw_bytes,
)
from tests.budgets import budget
from tests.counterpoise.logs.kits import KafkaKit, RedisKit
from tests.log_support import write_past

fuzzed = settings(
    max_examples=budget(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FAR_EAST, FAR_WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


class Row(NamedTuple):
    """A row as another program writes it. `time`: in the form of this kind of log."""

    value: bytes | None
    key: Any
    headers: Any
    time: Any


def rows_of(log: Log, partition: int = 0, start: str = "0") -> list[dict[str, Any]]:
    return [
        row
        for batch in log.read(partition, start, None, max_messages=1000)
        for row in batch.to_pylist()
    ]


def as_message(row: dict[str, Any]) -> Message:
    return Message(row["value"], row["key"], dict(row["headers"] or ()), row["published_at"])


def hold(log: Log, start: str, written: int) -> list[dict[str, Any]]:
    """The rows written from `start` on, which every consumer can show and publish again."""
    rows = rows_of(log, start=start)
    assert [int(row["position"]) - int(start) for row in rows] == list(range(written))
    for row in rows:
        assert as_message(row).size_bytes() >= len(row["value"])
        for zone in (FAR_EAST, FAR_WEST):
            assert row["published_at"].astimezone(zone).isoformat()
    return rows


def hold_again(log: Log, rows: Sequence[dict[str, Any]]) -> None:
    """A message that was read can be published, and comes back as it was shown."""
    start = log.bounds([1]).ends[1]
    messages = [as_message(row) for row in rows]
    log.append(AppendBatch(uuid.uuid4().hex, 0, 4, [1] * len(rows), messages))
    assert [as_message(row) for row in rows_of(log, 1, start)] == messages


# The built-in log

POSTGRES_TIMES = (
    "4713-01-01 00:00:00+00 BC",
    "0001-12-31 23:59:59+00 BC",
    "0001-01-01 00:00:00+00",
    "1969-07-20 20:17:40.000001+00",
    "9999-12-31 23:59:59.999999+00",
    "10000-01-01 00:00:00+00",
    "294276-12-31 23:59:59.999999+00",
)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | plain_text
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)
DEEP = '{"deep": ' + "[" * 4000 + "]" * 4000 + "}"
LONG_NUMBER = '{"number": ' + "7" * 100_000 + "}"


@pytest.mark.long
@fuzzed
@given(
    st.lists(
        st.builds(
            Row,
            st.binary(max_size=20),
            st.none() | plain_text,
            st.none() | st.dictionaries(plain_text, json_values, max_size=3).map(json.dumps),
            st.sampled_from(POSTGRES_TIMES),
        ),
        min_size=1,
        max_size=5,
    )
)
@example([Row(b"", None, DEEP, "-infinity"), Row(b"", None, LONG_NUMBER, "infinity")])
@example([Row(b"", None, '["no", "object"]', "2026-01-01"), Row(b"", None, "null", "2026-01-01")])
def test_rows_of_the_builtin_log(log: Log, log_url: str, rows: Sequence[Row]) -> None:
    start = log.bounds([0]).ends[0]
    write_past(log_url, "flights", rows)
    read = hold(log, start, len(rows))
    assert [row["value"] for row in read] == [row.value for row in rows]
    assert [row["key"] for row in read] == [row.key for row in rows]
    hold_again(log, read)


@pytest.mark.long
def test_the_builtin_log_takes_nothing_that_a_consumer_cannot_show(log: Log, log_url: str) -> None:
    """Also if its SQL function is called directly."""
    append = """SELECT counterpoise_log.append('flights', 4, 'p', 0, ARRAY[0], ARRAY[''::bytea],
        %s::text[], %s::text[], %s::timestamptz[])"""
    refused: list[tuple[Any, Any, Any]] = [
        *((None, None, [at]) for at in POSTGRES_TIMES if at[:4] != "1969"),
        (None, None, ["infinity"]),
        (None, ['{"a": 1}'], None),
        (None, ['{"a": "b", "c": {"d": "e"}}'], None),
        (None, ['{"a": null}'], None),
        (None, [DEEP], None),
        (["k" * (MAX_MESSAGE_BYTES + 1)], None, None),
        (None, [json.dumps({"a": "v" * (2 * MAX_MESSAGE_BYTES)})], None),
    ]
    with psycopg.connect(log_url, autocommit=True) as connection:
        for parameters in refused:
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(append, parameters)
    assert log.bounds([0]).ends[0] == "0"


# Redis

not_a_time = st.sampled_from([b"", b"abc", b"nan", b"inf", b"1e300", b"0x10", b"9" * 5000, b"\xff"])
redis_times = st.integers(-(2**70), 2**70).map(lambda at: b"%d" % at) | not_a_time
redis_headers = (
    st.dictionaries(st.text(max_size=5), json_values, max_size=3).map(json.dumps).map(str.encode)
    | json_values.map(json.dumps).map(str.encode)
    | st.binary(max_size=20)
    | st.sampled_from([b'{"a": "\\ud800"}', b'{"\\u0000": "b"}', b'{"a": NaN}', DEEP.encode()])
)
redis_fields = st.dictionaries(
    st.sampled_from([b"t", b"v", b"k", b"h", b"m", b"x", b"\xff"]), st.binary(max_size=20)
).flatmap(
    lambda made: st.fixed_dictionaries(
        {
            name: redis_times if name == b"t" else redis_headers if name == b"h" else st.just(value)
            for name, value in made.items()
        }
    )
)


@pytest.mark.long
@fuzzed
@given(st.lists(redis_fields, min_size=1, max_size=5))
@example([{b"t": b"1", b"v": b"a", b"h": LONG_NUMBER.encode()}])
@pytest.mark.parametrize("kit", ["redis"], indirect=True)
def test_rows_of_redis(
    any_log: Log, kit: RedisKit, redis_server: Any, rows: Sequence[dict[bytes, bytes]]
) -> None:
    start = int(any_log.bounds([0]).ends[0])
    prefix = f"counterpoise:{{{kit.url.rpartition('/')[2]}}}"
    with closing(redis_server.client()) as client:
        for number, fields in enumerate(rows, start):
            named = [part for pair in fields.items() for part in pair] or [b"nothing", b""]
            client.execute_command("XADD", f"{prefix}:stream:0", f"{number}-{number + 1}", *named)
        end = start + len(rows)
        client.hset(f"{prefix}:partitions", "0", f"{end} 0 0 {end} 1000")
    read = hold(any_log, str(start), len(rows))
    assert [row["value"] for row in read] == [row.get(b"v", b"") for row in rows]
    assert [row["key"] and raw_bytes(row["key"]) for row in read] == [
        row.get(b"k") or ("" if b"k" in row else None) for row in rows
    ]
    hold_again(any_log, read)
    assert int(kit.position_at(0.0005)[0]) <= end


@pytest.mark.parametrize("kit", ["redis"], indirect=True)
def test_redis_takes_no_time_that_is_none(any_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other message of the batch is stored."""
    monkeypatch.setattr("counterpoise.logs.redis.log.microseconds", lambda time: str(time))
    for time in ("abc", "nan", "1e5", "9" * 20):
        messages: Any = [Message(b""), _Unchecked(b"", None, None, time)]  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="time"):
            any_log.append(AppendBatch("p", 0, 4, [0, 0], messages))
    assert any_log.bounds([0]).ends[0] == "0"


class _Unchecked(Message):
    def size_bytes(self) -> int:
        return 0


# Kafka


@settings(fuzzed, max_examples=budget(15))
@given(
    st.lists(
        st.builds(
            Row,
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=20),
            st.none()
            | st.lists(
                st.tuples(
                    plain_text | st.just("counterpoise-append"), st.none() | st.binary(max_size=20)
                ),
                max_size=3,
            ),
            st.integers(1, 2**63 - 1),
        ),
        min_size=1,
        max_size=5,
    )
)
@example([Row(b"", None, [("counterpoise-append", b"9" * 5000 + b" 0 p")], 1)])
@pytest.mark.parametrize("kit", ["kafka"], indirect=True)
def test_rows_of_kafka(any_log: Log, kit: KafkaKit, kafka: Any, rows: Sequence[Row]) -> None:
    start = any_log.bounds([0]).ends[0]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for row in rows:
        producer.produce(
            kit._topic,
            row.value,
            row.key,
            partition=0,
            timestamp=row.time,
            headers=row.headers,
        )
    producer.flush(10)
    read = hold(any_log, start, len(rows))
    assert [row["value"] for row in read] == [row.value or b"" for row in rows]
    assert any_log.next_sequence("p") == 0


# What is shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ('{"a": "b"}', {"a": "b"}),
        ('{"a": "\\u0001\\u00fc"}', {"a": "\1ü"}),
        ("{}", {}),
        ('{"a": 7.50, "b": "c"}', {"a": "7.50", "b": "c", UNREADABLE: "headers"}),
        ('{"a": {"b": [null]}}', {"a": '{"b": [null]}', UNREADABLE: "headers"}),
        ('{"a": "\\u0000"}', {"a": "base64:AA=="}),
        ("[]", {RAW_HEADERS: "[]", UNREADABLE: "headers"}),
        ("not json", {RAW_HEADERS: "not json", UNREADABLE: "headers"}),
        (b"\xff", {RAW_HEADERS: "base64:/w==", UNREADABLE: "headers"}),
        (DEEP * 30, {RAW_HEADERS: DEEP * 30, UNREADABLE: "headers"}),
        (LONG_NUMBER, {"number": "7" * 100_000, UNREADABLE: "headers"}),
    ],
    ids=lambda one: str(one)[:30],
)
def test_headers_are_shown_as_texts(raw: str | bytes, shown: dict[str, str]) -> None:
    assert dict(headers_of(raw)) == shown


def test_a_row_says_what_of_it_is_not_as_it_was() -> None:
    second, year = 1_000_000, 365 * 86_400 * 1_000_000
    times = [0, -3000 * year, 9000 * year, None, 10**40, second]
    columns = Columns(
        3,
        range(6),
        times,
        None,
        [b"a", b"b", None, b"d", b"e", b"f"],
        [None, None, [("x", "y"), (UNREADABLE, "headers")], None, [("x", "y")], [("x", "y")]],
    )
    rows = record_batch(Rows(columns)).to_pylist()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    shown = [epoch, SHOWN_FROM, SHOWN_TO, epoch, SHOWN_TO, epoch + timedelta(seconds=1)]
    assert [row["published_at"] for row in rows] == shown
    assert [dict(row["headers"] or ()).get(UNREADABLE) for row in rows] == [
        None,
        "published_at",
        "headers,published_at,value",
        "published_at",
        "published_at",
        None,
    ]
    assert [dict(row["headers"] or ()).get("x") for row in rows[2:]] == ["y", None, "y", "y"]
    assert rows[2]["value"] == b""
    assert flagged([], "key") == [(UNREADABLE, "key")]


# What is refused


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", published_at=datetime.max.replace(tzinfo=FAR_WEST)),
        Message(b"", published_at=datetime.min.replace(tzinfo=FAR_EAST)),
        Message(b"", published_at=SHOWN_TO + timedelta(microseconds=1)),
        Message(b"", published_at=SHOWN_FROM - timedelta(microseconds=1)),
        Message(b"", published_at="2026-01-01"),  # type: ignore[arg-type]
        Message(b"", headers={"a": 1}),  # type: ignore[dict-item]
        Message(b"", headers={"a": None}),  # type: ignore[dict-item]
        Message(b"", headers={1: "a"}),  # type: ignore[dict-item]
        Message(b"", headers=[("a", "b")]),  # type: ignore[arg-type]
    ],
    ids=lambda message: str(message)[:60],
)
def test_no_log_takes_what_a_consumer_cannot_show(any_log: Log, message: Message) -> None:
    with pytest.raises(InvalidMessage):
        any_log.append(AppendBatch("p", 0, 4, [0, 0], [Message(b""), message]))
    assert any_log.bounds([0]).ends[0] == "0"


def test_times_that_everybody_can_show_are_taken() -> None:
    for at in (SHOWN_FROM, SHOWN_TO, SHOWN_TO.astimezone(FAR_EAST)):
        assert Message(b"", published_at=at).size_bytes() == 0
        assert at.astimezone(FAR_WEST).isoformat()


def test_the_largest_message_still_fits_with_the_headers_of_a_dead_letter() -> None:
    ours = {"counterpoise-dead-letter-error": "e" * 1000}
    Message(b"v" * MAX_MESSAGE_BYTES, headers=ours).size_bytes()
    for headers in ({"other": "e"}, {"counterpoise-x": "e" * (OUR_HEADERS_BYTES + 1)}):
        with pytest.raises(InvalidMessage, match="most a log holds"):
            Message(b"v" * MAX_MESSAGE_BYTES, headers=headers).size_bytes()


# What is read at once


def test_keys_and_headers_take_memory_too(any_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are bounded by everything that a message holds, not by its value alone."""
    for module in ("builtin.reading", "memory", "redis.log", "kafka.reader"):
        monkeypatch.setattr(f"counterpoise.logs.{module}.CHUNK_BYTES", 20_000)
    large = Message(b"v", "k" * 2000, {"h": "x" * 2000})
    any_log.append(AppendBatch("p", 0, 4, [0] * 40, [large] * 40))
    batches = list(any_log.read(0, "0", None, max_messages=1000))
    assert sum(batch.num_rows for batch in batches) == 40
    assert all(batch.num_rows <= 6 for batch in batches)
    chunks, reached = read_range(any_log, 0, "0", "40", 1000, 20_000)
    assert 0 < int(reached) <= 6
    assert sum(len(chunk.rows) for chunk in chunks) == int(reached)
