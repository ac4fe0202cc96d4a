"""A reader that waits has one consumer, whatever partitions it waits for."""

import pytest

from counterpoise.logs.kafka import reader, watching
from tests.counterpoise.logs.test_contract_watching import ends_of, is_woken, waits
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
        self.consumer, self.partitions = consumer, set()
        self.consume, self.close = consumer.consume, consumer.close

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
