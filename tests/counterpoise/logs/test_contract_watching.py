"""What every log promises to a reader that waits at the ends of partitions: it is woken."""

import select

import pyarrow as pa
import pytest

from counterpoise.logs.record_batch import record_batch
from tests.log_support import append

# A reader that waits for so long is not one that looks all the time.
WAITS_SECONDS = 1.0
# Only a broken log lets a test wait for so long.
HANGS_SECONDS = 120
NAME_PARTITIONS = ("the built-in log", "a Kafka log", "a log in Redis")


def rest_of(log, ends):
    """Of a reader that waits at these ends: long, or 0 if there is something to read."""
    while 0 < (rest := log.watch(ends)).seconds < WAITS_SECONDS:
        select.select(rest.descriptors, [], [], rest.seconds)
    return rest


def waits(log, ends):
    """Whether a reader waits at these ends: there is nothing to read."""
    return rest_of(log, ends).seconds > 0


def call_of(log, ends):
    """The rest of 0 seconds for which it is woken: not because it looks. None: it is not."""
    while (rest := rest_of(log, ends)).seconds:
        if not select.select(rest.descriptors, [], [], HANGS_SECONDS)[0]:
            return None
    return rest


def is_woken(log, ends):
    """Whether it is woken because there is something to read."""
    return call_of(log, ends) is not None


def ends_of(log, *partitions):
    return log.bounds(partitions).ends


def test_a_reader_is_woken_by_an_append(any_log, kit):
    ends = ends_of(any_log, 0, 1, 2, 3)
    publisher = kit.open()
    for number in range(5):
        assert waits(any_log, ends)
        append(publisher, f"{number}", partition=number % 4, first=number)
        assert is_woken(any_log, ends)
        ends = ends_of(any_log, 0, 1, 2, 3)


def test_what_was_appended_before_is_to_be_read(any_log, kit):
    ends = ends_of(any_log, 0, 1)
    append(kit.open(), "a", partition=1)
    assert is_woken(any_log, ends)
    ends = ends_of(any_log, 0, 1)
    assert waits(any_log, ends)


def test_a_reader_waits_on_while_others_get_messages(any_log, kit):
    ends = ends_of(any_log, 0, 3)
    assert waits(any_log, ends)
    publisher = kit.open()
    append(publisher, "a", partition=1)
    append(publisher, "c", partition=2, first=1)
    assert waits(any_log, ends)
    append(publisher, "d", partition=3, first=2)
    assert is_woken(any_log, ends)


def test_it_may_wait_for_other_partitions_next(any_log, kit):
    assert waits(any_log, ends_of(any_log, 0))
    ends = ends_of(any_log, 1, 2)
    assert waits(any_log, ends)
    append(kit.open(), "a", partition=2)
    assert is_woken(any_log, ends)


def test_a_log_that_says_where_the_messages_are_names_just_these(any_log, kit):
    publisher = kit.open()
    ends = ends_of(any_log, 0, 1, 2, 3)
    for number, partition in enumerate((2, 2, 0, 3)):
        assert waits(any_log, ends)
        append(publisher, f"{number}", partition=partition, first=number)
        moved = call_of(any_log, ends).moved
        ends = ends_of(any_log, 0, 1, 2, 3)
        if any_log.kind in NAME_PARTITIONS:
            assert moved in ({partition: None}, {partition: ends[partition]})
        else:
            assert moved is None


def test_a_glance_at_other_ends_leaves_no_message_unheard(any_log, kit):
    ends = ends_of(any_log, 0, 1)
    publisher = kit.open()
    for number in range(2):
        assert waits(any_log, ends)
        any_log.glance({1: ends[1]})
        append(publisher, "a", partition=number, first=number)
        assert is_woken(any_log, ends)
        ends = ends_of(any_log, 0, 1)


@pytest.mark.long
def test_several_readers_of_a_partition_are_all_woken(any_log, kit):
    """Those of several queues on one log."""
    readers = [any_log, *(kit.open() for _ in range(9))]
    ends = ends_of(any_log, 0)
    for reader in readers:
        assert waits(reader, ends)
    append(kit.open(), "a")
    assert all(is_woken(reader, ends) for reader in readers)


def test_reading_between_two_waits_changes_nothing(any_log, kit):
    publisher = kit.open()
    append(publisher, "a")
    ends = ends_of(any_log, 0)
    assert waits(any_log, ends)
    assert sum(one.num_rows for one in any_log.read(0, "0", ends[0], max_messages=9)) == 1
    assert waits(any_log, ends)
    append(publisher, "b", first=1)
    assert is_woken(any_log, ends)


def test_a_closed_log_waits_anew(any_log, kit):
    ends = ends_of(any_log, 0)
    assert waits(any_log, ends)
    any_log.close()
    assert waits(any_log, ends)
    append(kit.open(), "a")
    assert is_woken(any_log, ends)


def test_what_a_reader_gets_first_is_what_it_reads(any_log, kit):
    """A log may have the messages that have woken a reader."""
    publisher = kit.open()
    ends = ends_of(any_log, 0, 1, 2, 3)
    for number in range(6):
        assert waits(any_log, ends)
        append(publisher, f"{number}", f"{number}", partition=number % 3, first=2 * number)
        assert is_woken(any_log, ends)
        following = ends_of(any_log, 0, 1, 2, 3)
        ranges = {one: (ends[one], following[one]) for one in ends if ends[one] != following[one]}
        found = any_log.first(ranges, max_messages=16, max_bytes=10_000)
        for partition, (rows, reached) in found.items():
            start = ends[partition]
            read = any_log.read(partition, start, reached, max_messages=16)
            assert pa.Table.from_batches(read).equals(pa.Table.from_batches([record_batch(rows)]))
        # Not what was before.
        before = {one: ("0", start) for one, start in ends.items() if start != "0"}
        for partition, (rows, _) in any_log.first(before, max_messages=1, max_bytes=99).items():
            assert rows.columns().positions == ["0"], partition
        ends = following
