"""A new queue, and what its first entry says of it."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.creation import Creation
from broker.core.cuts import FIRST_SECONDS
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from tests.broker.core.oracle import snapshot

NOW = 1000.0


def creation(partitions: int = 0, outage_seen: int = 0, **settings: object) -> Creation:
    values = Settings(partition_count=partitions, **settings)  # type: ignore[arg-type]
    return Creation("id", "orders", values, NOW, outage_seen=outage_seen)


def replayed(entry: r.Entry, settings: Settings) -> Queue:
    """The queue as the records of the entry alone make it."""
    queue = Queue("id", "orders", settings, NOW)
    replay_all(queue, entry.records, entry.revision)
    queue.growing = False
    return queue


@pytest.mark.parametrize("piece", [1, 2, 5, 7])
def test_a_queue_is_the_same_however_many_pieces_it_is_made_in(piece: int) -> None:
    made = creation(7)
    for first in range(0, 7, piece):
        made.add(range(first, min(7, first + piece)))
    entry = made.finish("commit")
    assert entry == r.Entry(1, NOW, (r.PartitionsAdded(0, 7, NOW),), commit_id="commit")
    assert snapshot(made.queue) == snapshot(replayed(entry, Settings(partition_count=7)))
    assert (made.queue.scale_status, made.queue.next_deadline()) == ("Ready", None)
    assert not made.queue.is_resizing


def test_what_a_log_holds_beyond_its_count_is_drained() -> None:
    made = creation(2)
    made.add(range(3))
    made.add(range(3, 4))
    made.retire()
    entry = made.finish("commit")
    assert entry.records == (r.PartitionsAdded(0, 4, NOW), r.PartitionsRetired((2, 3)))
    assert snapshot(made.queue) == snapshot(replayed(entry, Settings(partition_count=2)))
    assert (made.queue.scale_status, made.queue.operational_partition_count) == ("ScalingDown", 4)
    assert not made.queue.is_resizing


def test_a_piece_cannot_be_left_out() -> None:
    made = creation(4)
    made.add(range(2))
    with pytest.raises(AssertionError):
        made.add(range(3, 4))


@pytest.mark.parametrize("piece", [1, 2])
def test_the_roots_of_a_dynamic_queue_wait_for_nothing(piece: int) -> None:
    made = creation(partitioning="dynamic")
    roots = r.Child(0, "a", ()), r.Child(5, "b", ())
    for first in range(0, 2, piece):
        made.add_roots(roots[first : first + piece])
    entry = made.finish("commit")
    assert entry.records == (r.ChildrenAdded(roots, NOW), r.WaitsEnded((0, 5), NOW))
    assert [*made.queue.unassigned] == [0, 5]
    assert made.queue.settings.partition_count == 2
    twin = replayed(entry, Settings(partition_count=0, partitioning="dynamic"))
    assert snapshot(made.queue) == snapshot(twin)


def test_the_cuts_of_a_log_that_is_there_are_awaited() -> None:
    made = creation(2, ordered_resize=True)
    made.add(range(2))
    entry = made.finish("commit", awaits_cuts=True)
    due = NOW + FIRST_SECONDS
    assert entry.records == (r.PartitionsAdded(0, 2, NOW), r.CutsAwaited(due))
    assert made.queue.next_deadline() == due


def test_earlier_outages_do_not_concern_it_and_its_creation_is_never_taken_back() -> None:
    made = creation(2, outage_seen=3)
    made.add(range(2))
    made.finish("commit")
    queue = made.queue
    assert not decide(queue, c.MoveDeadlines(3, NOW - 60, 50.0), NOW).entries
    before = snapshot(queue)
    queue.journal.undo(0)
    assert snapshot(queue) == before
    [entry] = decide(queue, c.Bind("A", "i-A", "client", 10.0), NOW).entries
    assert entry.revision == 2
