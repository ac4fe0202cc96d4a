"""One consumer for many partitions: each reader gets the events of its own, in order."""

import itertools
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.kafka import shared
from counterpoise.logs.kafka.shared import SharedConsumer, SharedCursor, SharedCursors
from tests.counterpoise.logs.kafka.test_reading import Clock, Event, Partition, offsets, reading
from tests.log_support import texts


class Placed(Event):
    """An event of a partition."""

    def __init__(self, partition, of):
        super().__init__(of.offset(), of.error())
        self._partition = partition

    def partition(self):
        return self._partition

    def __len__(self):
        return len(self.value())


class Topic:
    """A consumer that is assigned to any of these partitions, and gets from each in turn."""

    def __init__(self, partitions):
        self.partitions = partitions
        self.assigned, self.log, self.open = [], [], True
        self.looked_up = 0

    def incremental_assign(self, places):
        for one in places:
            assert one.partition not in self.assigned
            self.assigned.append(one.partition)
            self.partitions[one.partition].assign([one])
        self.log.append({one.partition: one.offset for one in places})

    def incremental_unassign(self, places):
        for one in places:
            self.assigned.remove(one.partition)
        self.log.append([one.partition for one in places])

    def list_topics(self, topic, _seconds):
        self.looked_up += 1
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=self.partitions)})

    def consume(self, most, _seconds):
        assert self.open
        events: list[Placed] = []
        for number in itertools.islice(itertools.cycle([*self.assigned]), 9 * most):
            event = self.partitions[number].poll(0) if len(events) < most else None
            if event is not None:
                events.append(Placed(number, event))
        return events

    def close(self):
        self.open = False


def topic(count=3, size=10):
    return Topic([Partition(range(size), size) for _ in range(count)])


def cursors_of(consumer, count=3):
    one = SharedConsumer(consumer, "orders", Clock())
    return [SharedCursor(one, "orders") for _ in range(count)]


def read(cursor, partition, start, end):
    return offsets(reading(cursor, start, end, number=partition).rows(99, None))


def test_partitions_that_are_new_to_the_consumer_are_looked_up_at_once():
    consumer = topic(2)
    first, second, third = cursors_of(consumer)
    assert [*read(first, 0, 0, 2), *read(second, 1, 0, 2)] == [0, 1, 0, 1]
    assert consumer.looked_up == 1
    consumer.partitions.append(Partition(range(3), 3))
    assert read(third, 2, 0, 3) == [0, 1, 2]
    assert consumer.looked_up == 2


def test_what_came_for_others_is_theirs_without_another_assignment():
    consumer = topic()
    cursors = cursors_of(consumer)
    for start in (0, 3, 6):
        for partition, cursor in enumerate(cursors):
            assert read(cursor, partition, start, start + 3) == [*range(start, start + 3)]
    assert consumer.log == [{0: 0}, {1: 0}, {2: 0}]


def test_several_are_assigned_at_once():
    consumer = topic()
    cursors = cursors_of(consumer)
    cursors[0].shared.assign([(one, number, 4) for number, one in enumerate(cursors)])
    assert [read(one, number, 4, 6) for number, one in enumerate(cursors)] == [[4, 5]] * 3
    assert consumer.log == [{0: 4, 1: 4, 2: 4}]


def test_a_read_elsewhere_forgets_what_has_come():
    consumer = topic()
    cursors = cursors_of(consumer)
    assert read(cursors[0], 0, 0, 2) == [0, 1]
    assert read(cursors[1], 1, 0, 2) == [0, 1]
    assert read(cursors[0], 0, 0, 3) == [0, 1, 2]
    assert consumer.log == [{0: 0}, {1: 0}, [0], {0: 0}]


def test_a_partition_that_nobody_reads_waits_behind_what_has_come(monkeypatch):
    """It does not fill the memory, and nothing is left out."""
    monkeypatch.setattr(shared, "MOST_WAITING_BYTES", 8 * shared.EVENT_BYTES)
    consumer = Topic([Partition(range(40), 40), Partition(range(9), 9)])
    cursors = cursors_of(consumer, 2)
    cursors[0].shared.assign([(cursors[0], 0, 0), (cursors[1], 1, 0)])
    monkeypatch.setattr(shared, "MOST_EVENTS", 3)
    assert read(cursors[1], 1, 0, 9) == [*range(9)]
    assert 0 not in consumer.assigned
    waiting = len(cursors[0].pending)
    assert 0 < waiting < 9
    assert read(cursors[0], 0, 0, 40) == [*range(40)]
    assert consumer.log.index([0]) < consumer.log.index({0: waiting})


def test_an_event_of_no_partition_is_for_the_reader_that_asks():
    consumer = topic()
    cursors = cursors_of(consumer)
    cursors[0].assign(0, 0)
    away = Placed(None, Event(-1, KafkaError(KafkaError._ALL_BROKERS_DOWN)))
    consumer.consume = lambda *_: [away]
    cursors[0].fill(1, 0.0)
    assert away in cursors[0].pending


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(0, 9)), max_size=30),
    st.integers(1, 9),
)
def test_any_reads_of_any_partitions_find_what_is_in_their_ranges(reads, events):
    consumer = Topic([Partition(set(range(31)) - {number, 7}, 31) for number in range(3)])
    cursors, at = cursors_of(consumer), [0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "MOST_WAITING_BYTES", 3 * events * shared.EVENT_BYTES)
        patch.setattr(shared, "MOST_EVENTS", events)
        for partition, step, length in reads:
            start = min(max(0, at[partition] + step), 31)
            end = min(start + length, 31)
            there = [one for one in range(start, end) if one not in (partition, 7)]
            assert read(cursors[partition], partition, start, end) == there
            at[partition] = end


# ------------------------------------------------------------------ the cursors of a log


class Pool:
    """The shared cursors of a log, and the consumers that were made for it."""

    def __init__(self):
        self.clock, self.made = Clock(), []
        self.cursors = SharedCursors("orders", self.make, self.clock)

    def make(self):
        self.made.append(topic())
        return self.made[-1]

    def read(self, partition, start, end):
        cursor = self.cursors.take(partition)
        assert cursor is not None
        found = read(cursor, partition, start, end)
        self.cursors.give_back(partition, cursor, failed=False)
        return found


@pytest.fixture
def pool():
    return Pool()


def test_all_partitions_have_one_consumer(pool):
    for start in (0, 2):
        assert [pool.read(one, start, start + 2) for one in range(3)] == [[start, start + 1]] * 3
    (consumer,) = pool.made
    assert consumer.log == [{0: 0}, {1: 0}, {2: 0}]


def test_those_that_begin_together_are_assigned_together(pool):
    assert pool.read(0, 0, 2) == [0, 1]
    pool.cursors.begin({0: 9, 1: 4, 2: 5})
    assert [pool.read(0, 2, 4), pool.read(1, 4, 6), pool.read(2, 5, 6)] == [[2, 3], [4, 5], [5]]
    (consumer,) = pool.made
    assert consumer.log == [{0: 0}, {1: 4, 2: 5}]


def test_a_partition_that_is_read_already_has_no_second_cursor(pool):
    one = pool.cursors.take(0)
    assert pool.cursors.take(0) is None
    pool.cursors.give_back(0, one, failed=False)
    assert pool.cursors.take(0) is one


def test_after_a_failure_the_next_read_assigns_anew(pool):
    assert pool.read(0, 0, 2) == [0, 1]
    cursor = pool.cursors.take(0)
    assert cursor is not None
    pool.cursors.give_back(0, cursor, failed=True)
    assert pool.read(0, 2, 3) == [2]
    assert pool.made[0].log == [{0: 0}, [0], {0: 2}]


def test_what_nobody_reads_any_more_fetches_nothing(pool):
    assert pool.read(0, 0, 2) == [0, 1]
    pool.clock.now += 1
    assert pool.read(1, 0, 2) == [0, 1]
    pool.cursors.forget(pool.clock.now - 0.5)
    assert pool.made[0].assigned == [1]


def test_closing_leaves_the_consumer_to_its_readers(pool):
    assert pool.read(1, 0, 2) == [0, 1]
    one, other = pool.cursors.take(0), pool.cursors.take(2)
    assert one is not None
    assert other is not None
    pool.cursors.close()
    assert pool.read(0, 0, 1) == [0]
    first, second = pool.made
    pool.cursors.give_back(0, one, failed=False)
    assert first.open
    pool.cursors.give_back(2, other, failed=True)
    assert not first.open
    pool.cursors.close()
    assert not second.open


def test_a_consumer_that_is_broken_is_replaced(pool):
    def broken(_):
        raise RuntimeError("Consumer closed")

    cursor = pool.cursors.take(0)
    cursor.assign(0, 0)
    pool.made[0].incremental_unassign = broken
    pool.cursors.give_back(0, cursor, failed=True)
    assert pool.read(0, 0, 2) == [0, 1]
    first, second = pool.made
    assert (first.open, second.open) == (False, True)


# ------------------------------------------------------------------ a cluster


def test_a_few_messages_of_many_partitions_need_one_consumer(log, monkeypatch):
    made = []
    make = log._clients._consumer

    def counted(properties):
        made.append(properties)
        return make(properties)

    monkeypatch.setattr(log._clients, "_consumer", counted)
    for turn in range(3):
        batch = AppendBatch("one", 4 * turn, 4, range(4), [Message(b"%d" % turn)] * 4)
        log.append(batch)
        log.first(
            {one: (str(turn), str(turn + 1)) for one in range(4)}, max_messages=9, max_bytes=9
        )
        for partition in range(4):
            assert texts(log, partition, str(turn), str(turn + 1)) == [str(turn)]
    assert len(made) == 1
