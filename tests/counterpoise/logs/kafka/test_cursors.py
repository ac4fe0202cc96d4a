"""Cursors: reads that follow each other go on without a new assignment, and miss nothing."""

from contextlib import contextmanager
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.logs import AppendBatch, Message, PositionTrimmed
from counterpoise.logs.kafka import cursors, reader
from counterpoise.logs.kafka.cursors import Cursors
from counterpoise.logs.kafka.reader import Cursor
from counterpoise.logs.kafka.shared import SharedConsumer, SharedCursor
from tests.counterpoise.logs.kafka.test_reading import Clock, Partition, offsets, reading
from tests.log_support import append, texts


class Counted(Partition):
    """Counts its assignments."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.assigned, self.open = [], True

    def assign(self, places):
        self.assigned.append((places[0].partition, places[0].offset))
        super().assign(places)

    def unassign(self):
        self.assigned.append(None)

    def close(self):
        self.open = False


# ------------------------------------------------------------------ where a read begins


def test_a_read_that_begins_where_the_last_one_ended_assigns_nothing():
    partition = Counted(range(10), 10, at_hand=99)
    cursor = Cursor(partition, "orders")
    for start, end in ((0, 4), (4, 7), (7, 10)):
        assert offsets(reading(cursor, start, end).rows(99, None)) == [*range(start, end)]
    assert partition.assigned == [(0, 0)]


def test_a_read_that_begins_with_the_last_message_again_assigns_nothing():
    partition = Counted(range(10), 10, at_hand=99)
    cursor = Cursor(partition, "orders")
    assert offsets(reading(cursor, 0, 10).rows(4, None)) == [0, 1, 2, 3]
    assert offsets(reading(cursor, 3, 10).rows(4, None)) == [3, 4, 5, 6]
    assert partition.assigned == [(0, 0)]
    assert offsets(reading(cursor, 5, 10).rows(4, None)) == [5, 6, 7, 8]
    assert partition.assigned == [(0, 0), (0, 5)]


def test_a_read_that_begins_a_little_later_drops_what_is_between(monkeypatch):
    monkeypatch.setattr(reader, "CHUNK_MESSAGES", 3)
    partition = Counted(range(20), 20, at_hand=99)
    cursor = Cursor(partition, "orders")
    assert offsets(reading(cursor, 0, 2).rows(99, None)) == [0, 1]
    assert offsets(reading(cursor, 5, 7).rows(99, None)) == [5, 6]
    assert partition.assigned == [(0, 0)]
    assert offsets(reading(cursor, 11, 13).rows(99, None)) == [11, 12]
    assert partition.assigned == [(0, 0), (0, 11)]


def test_a_partition_that_ends_in_a_hole_tells_its_end_again_to_a_read_that_goes_back():
    partition = Counted({0, 1, 2}, 5, at_hand=99)
    cursor = Cursor(partition, "orders")
    assert offsets(reading(cursor, 0, 5).rows(99, None)) == [0, 1, 2]
    assert offsets(reading(cursor, 2, 5).rows(99, None)) == [2]
    assert partition.assigned == [(0, 0), (0, 2)]


def test_a_range_that_ends_in_a_hole_is_followed_by_the_next_record():
    # 3 to 5 are holes, and so is 9, the marker of the last transaction.
    partition = Counted({0, 1, 2, 6, 7, 8}, 10, at_hand=99)
    cursor = Cursor(partition, "orders")
    for start, end, there in ((0, 4, [0, 1, 2]), (4, 5, []), (5, 9, [6, 7, 8]), (9, 10, [])):
        assert offsets(reading(cursor, start, end).rows(99, None)) == there
    partition.end, partition.offsets = 12, [10, 11]
    assert offsets(reading(cursor, 10, 12).rows(99, None)) == [10, 11]
    assert partition.assigned == [(0, 0)]


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 30)),
    st.integers(1, 9),
    st.lists(
        st.tuples(
            st.integers(-3, 3), st.integers(0, 12), st.integers(1, 6), st.none() | st.integers(1, 9)
        )
    ),
)
def test_any_reads_one_after_another_find_what_is_in_their_ranges(existing, hand, reads):
    """Also those that are limited, by messages or bytes, or closed after a batch."""
    cursor, at = Cursor(Partition(existing, 31, at_hand=hand), "orders"), 0
    for step, length, most, bytes_ in reads:
        start = min(max(0, at + step), 31)
        end = min(start + length, 31)
        batches = reading(cursor, start, end).rows(most, bytes_)
        found = offsets(batches if step else islice(batches, 1))
        batches.close()
        there = [one for one in sorted(existing) if start <= one < end]
        assert found == there[: len(found)]
        if step and bytes_ is None:
            assert found == there[:most]
        at = found[-1] + 1 if found and len(found) < len(there) else end


# ------------------------------------------------------------------ the cursors of a log


class Consumers:
    """Makes consumers and lends spare ones."""

    def __init__(self):
        self.clock = Clock()
        self.made, self.spare = [], 0
        self.cursors = Cursors("orders", self.make, self.make, self.lend, self.clock)

    def make(self):
        self.made.append(Counted(range(10), 10))
        return self.made[-1]

    @contextmanager
    def lend(self):
        self.spare += 1
        yield Counted(range(10), 10)

    def read(self, partition, start=0, end=2, **how):
        with self.cursors.of(partition, **how) as cursor:
            cursor.move(partition, start)
            cursor.fill(end - start, 0.0)
            cursor.give(end - start, end)


@pytest.fixture
def consumers():
    return Consumers()


def test_each_partition_has_a_cursor_that_stays(consumers):
    for start in (0, 2, 4):
        for partition in (0, 1):
            consumers.read(partition, start, start + 2)
    assert [one.assigned for one in consumers.made] == [[(0, 0)], [(1, 0)]]


def test_more_partitions_than_may_stay_are_read_with_spare_consumers(consumers, monkeypatch):
    monkeypatch.setattr(cursors, "MOST_CURSORS", 2)
    for partition in (0, 1, 2, 0, 1, 2):
        consumers.read(partition)
    assert (len(consumers.made), consumers.spare) == (2, 2)


def test_a_read_whose_successor_is_elsewhere_uses_a_spare_consumer(consumers):
    consumers.read(0, stays=False)
    assert (len(consumers.made), consumers.spare) == (0, 1)


def test_a_cursor_that_has_rested_too_long_stops_and_serves_any_partition(consumers, monkeypatch):
    monkeypatch.setattr(cursors, "MOST_CURSORS", 2)
    consumers.read(0)
    consumers.read(1)
    consumers.clock.now += cursors.KEEP_SECONDS
    # What it has fetched may be of a topic that was deleted and made again.
    consumers.read(1, 2, 4)
    consumers.read(2)
    first, second = (one.assigned for one in consumers.made)
    assert first == [(0, 0), None, (2, 0)]
    assert second == [(1, 0), None, (1, 2)]
    assert not consumers.spare


def test_after_a_failure_the_next_read_assigns_anew(consumers):
    def trimmed():
        with consumers.cursors.of(0) as cursor:
            cursor.move(0, 3)
            raise PositionTrimmed(0, "3", "9")

    with pytest.raises(PositionTrimmed):
        trimmed()
    consumers.read(0, 3, 5)
    (only,) = consumers.made
    assert only.assigned == [(0, 3), None, (0, 3)]


def test_two_readers_of_a_partition_have_a_cursor_each_and_one_of_them_stays(
    consumers, monkeypatch
):
    monkeypatch.setattr(cursors, "MOST_CURSORS", 2)
    with consumers.cursors.of(0) as one, consumers.cursors.of(0) as other:
        assert one is not other
    assert sorted(each.open for each in consumers.made) == [False, True]
    consumers.read(1)
    assert (len(consumers.made), consumers.spare) == (3, 0)


def test_closing_ends_those_that_no_reader_has(consumers):
    consumers.read(0)
    consumers.read(1)
    consumers.cursors.close()
    assert not any(one.open for one in consumers.made)
    consumers.read(0)
    assert consumers.made[-1].open


def test_those_that_begin_together_are_assigned_before_the_first_read(consumers, monkeypatch):
    monkeypatch.setattr(cursors, "MOST_CURSORS", 3)
    consumers.read(0)
    consumers.cursors.begin_own({0: 2, 1: 4, 2: 6, 3: 8})
    begun = [[(0, 0)], [(1, 4)], [(2, 6)]]
    assert [one.assigned for one in consumers.made] == begun, "the first goes on, the last waits"
    for partition, start in ((0, 2), (1, 4), (2, 6)):
        consumers.read(partition, start, start + 2)
    assert [one.assigned for one in consumers.made] == begun
    assert not consumers.spare


# ------------------------------------------------------------------ a cluster


def test_the_reads_of_a_task_begin_together(log, monkeypatch):
    """One after another each of them would wait for a fetch, or for a connection."""
    assigned = []
    monkeypatch.setattr("counterpoise.logs.kafka.log.LIGHT", 3)
    for kind in (Cursor, SharedConsumer):
        assign = kind.assign

        def watched(self, *at, assign=assign):
            assigned.append(at if len(at) > 1 else tuple(place[1:] for place in at[0]))
            assign(self, *at)

        monkeypatch.setattr(kind, "assign", watched)
    for partition in range(4):
        append(log, *"abcd", partition=partition, first=log.next_sequence("p"))
    log.begin({0: ("1", "3"), 1: ("0", "4"), 2: ("2", "4"), 3: ("4", "4")})
    begun = [((0, 1), (2, 2)), (1, 0)]
    assert assigned == begun
    assert [texts(log, 0, "1", "3"), texts(log, 1, "0", "4")] == [["b", "c"], [*"abcd"]]
    assert texts(log, 2, "2", "4") == ["c", "d"]
    assert assigned == begun


@pytest.mark.parametrize(("light", "kind"), [(0, Cursor), (500, SharedCursor)])
def test_a_topic_is_read_range_by_range_with_one_assignment(log, light, kind, monkeypatch):
    assigned = []
    assign = kind.assign

    def watched(cursor, *at):
        assigned.append(at)
        assign(cursor, *at)

    monkeypatch.setattr(kind, "assign", watched)
    monkeypatch.setattr("counterpoise.logs.kafka.log.LIGHT", light)
    append(log, *map(str, range(60)))
    for start in range(0, 60, 7):
        end = min(60, start + 7)
        assert texts(log, 0, str(start), str(end)) == [*map(str, range(start, end))]
    append(log, "later", first=60)
    assert texts(log, 0, "60", "61") == ["later"]
    assert assigned == [(0, 0)]


def test_a_topic_that_was_made_again_is_read_from_itself(kafka, topic, log, monkeypatch):
    monkeypatch.setattr(cursors, "KEEP_SECONDS", 0)
    append(log, *"abcdef")
    assert texts(log, 0, "0", "2") == ["a", "b"]
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 4)
    log.append(AppendBatch("other", 0, 4, [0] * 6, [*map(Message, map(str.encode, "uvwxyz"))]))
    assert texts(log, 0, "2", "4") == ["w", "x"]
