"""A new queue, and what its first entry says of it."""

from __future__ import annotations

from broker.core import commands as c
from broker.core import records as r
from broker.core.creation import create
from broker.core.cuts import FIRST_SECONDS
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from tests.broker.core.oracle import snapshot

NOW = 1000.0


def new(partitions: int = 0, outage_seen: int = 0, **settings: object) -> Queue:
    values = Settings(partition_count=partitions, **settings)  # type: ignore[arg-type]
    queue = Queue("id", "orders", values, NOW)
    queue.outage_seen = outage_seen
    return queue


def replayed(entry: r.Entry, settings: Settings) -> Queue:
    """The queue as the records of the entry alone make it."""
    queue = Queue("id", "orders", settings, NOW)
    replay_all(queue, entry.records, entry.revision)
    queue.growing = False
    return queue


def test_a_queue_begins_with_the_partitions_of_its_first_entry() -> None:
    queue = new(7)
    entry = create(queue, "commit", partition_count=7)
    assert entry == r.Entry(1, NOW, (r.PartitionsAdded(0, 7, NOW),), commit_id="commit")
    assert snapshot(queue) == snapshot(replayed(entry, Settings(partition_count=7)))
    assert (queue.scale_status, queue.next_deadline()) == ("Ready", None)


def test_what_a_log_holds_beyond_its_count_is_drained() -> None:
    queue = new(2)
    entry = create(queue, "commit", partition_count=4)
    assert entry.records == (r.PartitionsAdded(0, 4, NOW), r.PartitionsRetired((2, 3)))
    assert snapshot(queue) == snapshot(replayed(entry, Settings(partition_count=2)))
    assert (queue.scale_status, queue.operational_partition_count) == ("ScalingDown", 4)


def test_the_roots_of_a_dynamic_queue_wait_for_nothing() -> None:
    queue = new(partitioning="dynamic")
    roots = r.Child(0, "a", ()), r.Child(5, "b", ())
    entry = create(queue, "commit", roots=roots)
    assert entry.records == (r.ChildrenAdded(roots, NOW), r.WaitsEnded((0, 5), NOW))
    assert [*queue.unassigned] == [0, 5]
    assert queue.settings.partition_count == 2
    twin = replayed(entry, Settings(partition_count=0, partitioning="dynamic"))
    assert snapshot(queue) == snapshot(twin)


def test_the_cuts_of_a_log_that_is_there_are_awaited() -> None:
    queue = new(2, ordered_resize=True)
    entry = create(queue, "commit", partition_count=2, awaits_cuts=True)
    due = NOW + FIRST_SECONDS
    assert entry.records == (r.PartitionsAdded(0, 2, NOW), r.CutsAwaited(due))
    assert queue.next_deadline() == due


def test_earlier_outages_do_not_concern_it_and_its_creation_is_never_taken_back() -> None:
    queue = new(2, outage_seen=3)
    create(queue, "commit", partition_count=2)
    assert not decide(queue, c.MoveDeadlines(3, NOW - 60, 50.0), NOW).entries
    before = snapshot(queue)
    queue.journal.undo(0)
    assert snapshot(queue) == before
    [entry] = decide(queue, c.Bind("A", "i-A", "client", 10.0), NOW).entries
    assert entry.revision == 2
