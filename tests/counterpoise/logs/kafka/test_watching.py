"""A reader that waits has one consumer, whatever partitions it waits for."""

import queue
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.logs.kafka import reader, watching
from tests.counterpoise.logs.kafka.test_reading import Event
from tests.counterpoise.logs.kafka.test_shared import Placed
from tests.counterpoise.logs.test_contract_watching import call_of, ends_of, is_woken, waits
from tests.log_support import append
from tests.service import eventually


@pytest.fixture
def made(log, monkeypatch):
    """The consumers that the log makes to wait."""
    consumers: list[Assigned] = []
    # The mock answers a fetch that waits when its time is over, whatever comes meanwhile.
    monkeypatch.setitem(reader.WATCHING, "fetch.wait.max.ms", 50)
    monkeypatch.setattr(watching, "NEW_SECONDS", 0.2)
    make = log._watching._make

    def noted():
        consumers.append(Assigned(make()))
        return consumers[-1]

    monkeypatch.setattr(log._watching, "_make", noted)
    return consumers


class Assigned:
    """A consumer, and the partitions that it fetches."""

    def __init__(self, consumer):
        self.consumer, self.partitions = consumer, set[int]()

    def __getattr__(self, name):
        return getattr(self.consumer, name)

    def incremental_assign(self, places):
        self.consumer.incremental_assign(places)
        self.partitions |= {one.partition for one in places}

    def incremental_unassign(self, places):
        self.consumer.incremental_unassign(places)
        self.partitions -= {one.partition for one in places}


def test_partitions_join_those_that_it_waits_for(log, made):
    for count in range(1, 5):
        ends = ends_of(log, *range(count))
        assert waits(log, ends)
        append(log, "a", partition=count - 1, first=count)
        assert is_woken(log, ends)
    assert [one.partitions for one in made] == [{0, 1, 2, 3}]


def test_a_partition_that_it_waits_for_no_more_is_given_up_when_a_message_comes(log, made):
    assert waits(log, ends_of(log, 0, 1, 2))
    assert waits(log, ends_of(log, 1, 2))
    assert made[0].partitions == {0, 1, 2}
    append(log, "not for it", partition=0)

    def given_up():
        ends = ends_of(log, 1, 2)
        assert waits(log, ends)
        append(log, "a", partition=1, first=log.next_sequence("p"))
        assert is_woken(log, ends)
        return made[0].partitions == {1, 2}

    eventually(given_up)
    # And it may come back.
    ends = ends_of(log, 0, 1, 2)
    assert waits(log, ends)
    append(log, "for it", partition=0, first=log.next_sequence("p"))
    assert is_woken(log, ends)
    assert [one.partitions for one in made] == [{0, 1, 2}]


def test_after_a_backlog_it_waits_at_the_end_at_once(log, made):
    assert waits(log, ends_of(log, 0, 1))
    append(log, *map(str, range(3 * watching.MOST_BEHIND)))
    ends = ends_of(log, 0, 1)
    assert waits(log, ends)
    append(log, "a", first=log.next_sequence("p"))
    assert is_woken(log, ends)
    found = log.first(
        {0: (ends[0], ends_of(log, 0)[0])}, max_messages=watching.MOST_BEHIND, max_bytes=10**6
    )
    assert [rows.columns().values for rows, _ in found.values()] in ([], [[b"a"]])
    assert [one.partitions for one in made] == [{0, 1}]


# ------------------------------------------------------------------ while nobody waits


class Fetched:
    """A consumer of a topic with so many partitions, which gets what the test puts into it."""

    def __init__(self, count):
        self.count = count
        self.calls: list[Any] = []
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def consume(self, most, seconds):
        try:
            return [self.events.get(timeout=seconds)] if most == 1 else []
        except queue.Empty:
            return []

    def list_topics(self, topic, _seconds):
        self.calls.append("list")
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=range(self.count))})

    def incremental_assign(self, places):
        self.calls.append({one.partition: one.offset for one in places})

    def incremental_unassign(self, places):
        self.calls.append([one.partition for one in places])

    def has_begun(self, places):
        return self.calls[-1:] == [places]

    def close(self):
        pass


@pytest.fixture
def fetched():
    """A consumer, who waits with it for partitions, and the time."""
    consumer, now = Fetched(4), [0.0]
    waits_for = watching.KafkaWatching("orders", lambda: consumer, dict, lambda: now[0])
    yield consumer, waits_for, now
    waits_for.close()


def test_a_partition_that_comes_while_the_reader_is_busy_is_assigned_and_asked_for(fetched):
    consumer, waits_for, now = fetched
    asked: list[list[int]] = []
    assert waits_for.watch({0: 0}).seconds
    now[0] += watching.NEW_SECONDS
    assert waits_for.watch({0: 0}).seconds
    consumer.events.put(Placed(0, Event(0)))
    eventually(lambda: waits_for.watch({0: 0}).moved == {0: "1"})
    # The thread takes nothing now.
    answers: dict[int, int] = {}

    def ends_of_these(ends):
        asked.append([*ends])
        return answers

    waits_for._asked_ends = ends_of_these
    for _ in range(2):
        assert waits_for.watch({0: 0, 1: 0}).moved == {0: "1"}, "it has not answered"
    now[0] += watching.LONGEST_LOOK_REST
    answers[1] = 5
    assert waits_for.watch({0: 0, 1: 0}).moved == {0: "1", 1: "5"}
    assert asked == [[1], [1]], "not all the time"
    eventually(lambda: consumer.calls == ["list", {0: 0}, {1: 0}])


def test_partitions_that_the_consumer_does_not_know_are_looked_up_first(fetched):
    consumer, waits_for, _ = fetched
    for end, partition in enumerate((0, 3, 7, 6, 9)):
        consumer.count = 4 if partition < 7 else 10
        waits_for.watch({partition: end})
        eventually(partial(consumer.has_begun, {partition: end}))
    assert consumer.calls == ["list", {0: 0}, {3: 1}, "list", {7: 2}, {6: 3}, {9: 4}]


def test_a_record_of_a_partition_given_up_while_it_was_waited_for_is_dropped(fetched):
    consumer, waits_for, _ = fetched
    waits_for.watch({0: 0, 1: 0})
    waits_for.watch({0: 0})
    waiter = waits_for._waiter
    waiter._take([Placed(1, Event(0))])
    waiter._ends = {0: 0, 1: 0}  # as if it had been waited for again just before
    waiter._take([Placed(1, Event(1))])
    assert waiter.records(1, 0, 2) == [], "the first of them is lacking"
    waiter._follow({0: 0})
    waiter._take([Placed(1, Event(2))])
    assert waits_for.watch({0: 0}).seconds
    consumer.events.put(Placed(0, Event(0)))
    eventually(lambda: waits_for.watch({0: 0}).moved == {0: "1"})


def test_a_reader_that_has_read_with_a_cursor_is_told_where_the_messages_are(log, made):
    append(log, "a")
    ends = ends_of(log, 0, 1)
    assert waits(log, ends)
    assert sum(one.num_rows for one in log.read(0, "0", ends[0], max_messages=9)) == 1
    assert waits(log, ends)
    append(log, "b", partition=1, first=1)
    assert call_of(log, ends).moved == {1: "1"}
