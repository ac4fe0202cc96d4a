"""The records of the retry queue: what they say, in whatever order and however often they come."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from counterpoise.consumer.letters import HEADER, RETRY_HEADER, Origin, headers
from counterpoise.consumer.message import Failure, Ownership, messages_of
from counterpoise.consumer.poison import WrongQueue
from counterpoise.consumer.redelivery import MessagePlace, Redelivery, SetAside
from counterpoise.consumer.retry_queue import Records, record
from counterpoise.flow.view import Owned
from counterpoise.logs import Message, open_log
from counterpoise.logs.memory import MemoryLogs
from counterpoise.logs.port import MAX_MESSAGE_BYTES, OUR_HEADERS_BYTES

PUBLISHED_AT = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)


ORIGIN = Origin("flights", "builtin:flights", "i", "q")


def place(position="7", partition=2, incarnation="i", queue="flights", queue_id="q"):
    return MessagePlace(queue, queue_id, incarnation, partition, position)


def one_of(position="7", key="k", epoch=1, **more):
    headers = {"a": "1"}
    where = place(position)
    return SetAside(where, epoch, key, b"value", headers, PUBLISHED_AT, **more)


def row(message, position=0, partition=0):
    """A message as it is read from the retry queue."""
    return {
        "partition": partition,
        "position": str(position),
        "key": message.key,
        "value": message.value,
        "headers": list((message.headers or {}).items()),
    }


def told(kind, one, epoch, now=100.0, wall=5000.0):
    return record(kind, one, epoch, now, wall)


def read(messages, wanted=lambda _: True):
    records = Records("retries", wanted)
    for number, message in enumerate(messages):
        records.add(row(message, number))
    return records


def found(records, now=0.0, wall=5000.0):
    return list(records.set_aside(now, wall))


def test_a_record_brings_the_message_back():
    one = one_of(attempts=2, delays=1, due=160.0, error="ValueError: no")
    # Another process has another monotonic clock.
    (back,) = found(read([told("message", one, 1)]), now=10.0, wall=5020.0)
    assert (back.place, back.epoch, back.key, back.value) == (one.place, 1, "k", b"value")
    assert (back.headers, back.published_at) == ({"a": "1"}, PUBLISHED_AT)
    assert (back.attempts, back.delays, back.error) == (2, 1, "ValueError: no")
    assert back.due == pytest.approx(50.0)
    owned = Ownership(Owned(2, 9, "owned", "8", "graceful"), dict)
    assert messages_of(back.rows(), owned) == [back.message(owned)]


def test_a_message_that_waits_behind_others_is_due_at_once():
    (back,) = found(read([told("message", one_of(), 1)]), now=10.0, wall=9000.0)
    assert back.due == 0.0


STORY = [
    ("message", one_of(attempts=1, delays=1, due=160.0), 1),
    ("failed", one_of(attempts=2, delays=2, due=700.0), 1),
    # The next owner has read the place again, after a kill.
    ("done", one_of(), 2),
    ("message", one_of(attempts=1, delays=1, due=400.0, error="again"), 3),
    ("failed", one_of(attempts=2, delays=2, due=900.0, error="again"), 3),
]


@pytest.mark.parametrize("count", range(1, len(STORY) + 1))
def test_records_say_the_same_in_any_order_and_repeated(count):
    messages = [told(*step) for step in STORY[:count]]
    expected = [(one.epoch, one.attempts, one.due) for one in found(read(messages))]
    assert bool(expected) == (count != 3)
    for order in itertools.permutations(messages):
        for repeated in (order, (*order, *order)):
            again = found(read(repeated))
            assert [(one.epoch, one.attempts, one.due) for one in again] == expected


def test_a_record_that_comes_late_from_an_owner_before_changes_nothing():
    messages = [told("message", one_of(), 1), told("done", one_of(), 2)]
    late = [told("message", one_of(), 1), told("failed", one_of(attempts=3), 1)]
    assert found(read([*messages, *late])) == []


def test_only_wanted_messages_are_kept_and_others_are_known():
    records = read([told("message", one_of(), 1)], wanted=lambda _: False)
    assert found(records) == []
    assert records.oldest(0) == "0"


def test_the_oldest_record_of_what_is_set_aside():
    first, second = one_of("7"), one_of("8", key="l")
    messages = [told("message", first, 1), told("message", second, 1), told("done", first, 1)]
    assert read(messages[:2]).oldest(0) == "0"
    assert read(messages).oldest(0) == "1"
    assert read([*messages, told("done", second, 1)]).oldest(0) is None
    assert read(messages).oldest(5) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, None),
        ("queue-id", None),
        ("epoch", "many"),
        ("record", "letter"),
        ("due", None),
        ("due", "soon"),
        ("published-at", None),
        ("published-at", "yesterday"),
        ("error", None),
        ("delays", None),
        ("era", None),
        # What would end the consumer later, or hold a key for good.
        ("queue", "a/b"),
        ("partition", "-1"),
        ("position", ""),
        ("position", "7\n"),
        ("position", "no number"),
        ("epoch", "9" * 30),
        ("attempts", "-1"),
        ("delays", "-5"),
        ("due", "nan"),
        ("due", "inf"),
        ("due", "1e300"),
        ("published-at", "2026-07-01T12:00:00"),
        ("published-at", "0001-01-01T00:00:00+00:00"),
    ],
)
def test_what_is_no_record_is_an_error(name, text):
    """Not passed: the queue may be another one's. And not found later, when a lane needs it."""
    headers = dict(told("message", one_of(), 1).headers or {}) if name else {"a": "1"}
    if text is not None:
        headers[f"counterpoise-retry-{name}"] = text
    elif name:
        del headers[f"counterpoise-retry-{name}"]
    log = MemoryLogs()
    log.ensure("flights", 1, "id", 1.0)
    compare = open_log("builtin:flights", log.access).compare
    wanted = lambda place: compare(place.position, place.position) == 0  # noqa: E731
    records = read([told("message", one_of(), 1)], wanted)
    with pytest.raises(WrongQueue, match=r"'retries' .* partition 3 at position 9 .*Retry"):
        records.add(row(Message(b"x", "k", headers), 9, partition=3))


def test_a_queue_that_was_made_again_is_another_one():
    """Its epochs begin anew: what the owners of the earlier one have done hides nothing."""
    new = one_of()
    new.place = place(queue_id="new")
    (back,) = found(read([told("done", one_of(), 9), told("message", new, 1)]))
    assert back.place == new.place


def test_what_is_done_or_not_wanted_takes_no_memory():
    def kept(records):
        return [(known.message, known.said) for known in records._known.values()]

    messages = [told(kind, one_of(), 1) for kind in ("message", "failed", "done")]
    for order in itertools.permutations(messages):
        assert kept(read(order)) == [(None, None)]
    assert kept(read(messages[:2], wanted=lambda _: False)) == [(None, None)]


def test_the_size_in_memory_has_all_of_a_message():
    one = one_of(key="1234")
    one.headers = {"12": "345"}
    table = table_of(one)
    assert table.size_bytes == len("value") + 4 + 5
    table.remove(one)
    assert table.size_bytes == 0


def test_a_message_of_any_size_can_be_set_aside_whatever_headers_it_has():
    """Its publisher may have written ours, as many as a log takes."""
    most = {name: "x" * (OUR_HEADERS_BYTES - len(name)) for name in ("counterpoise-x", *ASIDE)}
    one = one_of(error="e" * 1000)
    one.value, one.headers = b"x" * (MAX_MESSAGE_BYTES - len("k")), {"counterpoise-x": ""}
    for name in ASIDE:
        one.headers = {"counterpoise-x": most["counterpoise-x"], name: most[name]}
        Message(one.value, one.key, one.headers).size_bytes()
        told("message", one, 1).size_bytes()
        message = one.message(Ownership(Owned(2, 9, "owned", "8", "graceful"), dict))
        letter = headers(message, Failure("7", 1, ValueError("e" * 5000)), ORIGIN)
        Message(one.value, one.key, letter).size_bytes()
        assert name not in letter


ASIDE = (f"{HEADER}x", f"{RETRY_HEADER}x")


def test_no_header_of_a_stranger_is_read_as_one_of_ours():
    one = one_of()
    one.headers = {"a": "1", f"{RETRY_HEADER}due": "9e9", f"{HEADER}queue": "orders"}
    (back,) = found(read([told("message", one, 1)]))
    assert (back.headers, back.due) == ({"a": "1"}, 0.0)


# ------------------------------------------------------------------ the table of a lane


def compare(a, b):
    return int(a) - int(b)


def table_of(*found, done="100"):
    table = Redelivery("q", "i", compare, found)
    table.plan(done)
    return table


def test_only_the_first_of_a_key_is_due():
    first, second = one_of("7", due=50.0), one_of("8")
    table = table_of(second, first)
    assert table.next_due == 50.0
    assert table.due(49.0) is None
    assert table.due(50.0) is first
    table.remove(first)
    assert table.due(0.0) is second
    table.remove(second)
    assert (table.next_due, table.count, table.size_bytes) == (None, 0, 0)
    assert not table.holds("k")


def test_a_message_that_is_read_again_goes_before_the_later_ones_of_its_key():
    table = table_of(one_of("10"), one_of("11"))
    again = one_of("9")
    table.add(again)
    assert table.due(0.0) is again


def test_messages_of_a_log_that_was_made_again_come_first():
    """In the order of records: this log cannot compare positions of another kind of log."""
    left, later, other = (
        SetAside(where, 8, "k", b"", {}, PUBLISHED_AT)
        for where in (
            place("0-90", incarnation="before"),
            place("0-9", incarnation="before"),
            place("8", queue_id="before"),
        )
    )
    table = table_of(one_of("7"), left, later, other)
    for one in (left, later, other):
        assert table.due(0.0) is one
        table.remove(one)
    assert table.due(0.0) is not None


def test_messages_without_a_key_hold_nothing():
    table = table_of(one_of("7", key=None, due=9.0), one_of("8", key=None, due=5.0))
    assert not table.holds(None)
    assert table.has(place("8"))
    first = table.due(6.0)
    assert first is not None
    assert first.place.position == "8"


def test_of_the_keys_that_are_due_the_longest_goes_first():
    table = table_of(one_of("7", due=9.0), one_of("8", key="l", due=5.0))
    first = table.due(10.0)
    assert first is not None
    assert first.key == "l"


def test_what_is_read_again_is_not_tried_before():
    """Else a message that is read again would follow it, and not go before it."""
    table = table_of(one_of("7", key="l"), one_of("9"), done="8")
    first = table.due(0.0)
    assert first is not None
    assert first.key == "l"
    table.remove(first)
    assert table.next_due is None
    assert table.holds("k")
    table.plan("9")
    assert table.due(0.0) is None
    table.plan("10")
    assert table.due(0.0) is not None


OWNED = Owned(2, 9, "owned", "8", "graceful", resize=3)


def must_wait(table, key, position, owned=OWNED):
    return table.must_wait(key, place(position), owned)


def test_an_era_is_the_last_resize_before_a_message():
    table = table_of()
    assert table.era(place("7"), OWNED) == 3
    amid = replace(OWNED, cut="8")
    assert [table.era(place(at), amid) for at in ("7", "8", "9")] == [2, 3, 3]
    assert table.era(place("7"), replace(OWNED, resize=None)) == 0


def test_a_key_waits_for_other_partitions_with_a_lower_era_only():
    records = read([told("message", one_of(era=2), 1), told("message", one_of("8", "l", era=3), 1)])
    assert records.held_elsewhere(ORIGIN, 2) == {}
    # Nobody comes to what is left of another queue, or of an earlier one of this name or its log.
    for other in ({"queue": "others"}, {"queue_id": "new"}, {"incarnation": "new"}):
        assert records.held_elsewhere(replace(ORIGIN, **other), 3) == {}
    elsewhere = records.held_elsewhere(ORIGIN, 3)
    assert elsewhere == {"k": 2, "l": 3}
    table = table_of(one_of("9", era=2), one_of("10", "l", era=4))
    table.held_elsewhere = elsewhere
    table.plan()
    # Its own message of the key is as old as the other one, and waits for nothing.
    first = table.due(0.0)
    assert first is not None
    table.remove(first)
    assert table.next_due is None
    assert must_wait(table, "k", "50")
    assert not must_wait(table, "k", "50", replace(OWNED, resize=2))
    assert must_wait(table, "l", "50")
    assert not must_wait(table, "m", "50")
    table.held_elsewhere = {}
    table.plan()
    assert not must_wait(table, "k", "50")
    first = table.due(0.0)
    assert first is not None
    assert first.key == "l"
