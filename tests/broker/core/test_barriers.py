"""Barriers of ordered resizes against an oracle that knows keys and positions, and not the rule.

The oracle has messages of keys with hashes. It knows for each message which older messages of its
key lie in other partitions. A partition has to wait at its cut exactly while an older message of a
key that can be in it is not processed: nothing may pass, and nothing waits in vain.
"""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core import records as r
from broker.core.barriers import Barriers
from broker.core.cuts import FIRST_SECONDS
from broker.core.draft import Decision
from broker.core.errors import LogChanged, ResizeUnsettled
from broker.core.structures import Journal
from tests.broker.core.world import World

COUNTS = st.integers(1, 12)


def shares_a_key(old: int, before: int, new: int, after: int) -> bool:
    """Whether some hash belongs to partition `old` of `before` and to `new` of `after`."""
    return any(h % before == old and h % after == new for h in range(lcm(before, after)))


def take(world: World, resize: int, before: int, after: int, reached: set[int]) -> None:
    """Tells the queue the cuts."""
    cuts = tuple(c.LogCut(n, "7", n in reached) for n in range(max(before, after)))
    world.do(c.TakeCuts(resize, before, after, cuts))


def waiting(world: World) -> dict[int, set[int]]:
    barriers = world.queue.resize.barriers
    if barriers is None:
        return {}
    everybody = range(len(world.queue.partitions))
    found = {n: set(barriers.waits_for(n, 1000)) for n in everybody}
    assert all(bool(found[n]) is barriers.waits(n) for n in everybody)
    return {n: others for n, others in found.items() if others}


@given(COUNTS, COUNTS, st.data())
def test_partitions_wait_for_what_they_must_and_for_nothing_else(before, after, data):
    if before == after:
        return
    world = World(before, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.do(c.Change({"partition_count": after}))
    assert world.queue.resize.cuts_due is not None
    reached = data.draw(st.sets(st.integers(0, before - 1)))
    take(world, 1, before, after, reached)
    order = data.draw(st.permutations([n for n in range(before) if n not in reached]))
    left = set(order)
    for number in [None, *order]:
        if number is not None:
            epoch = world.queue.partitions[number].epoch
            world.do(c.ReachCuts(1, ((number, epoch),)))
            left.discard(number)
        expected = {
            new: others
            for new in range(after)
            if (
                others := {
                    old for old in left if old != new and shares_a_key(old, before, new, after)
                }
            )
        }
        assert waiting(world) == expected
    assert world.queue.resize.barriers is None
    assert world.queue.resize.cuts_due is None


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 6), (6, 9), (3, 4), (6, 4)])
def test_flows_are_told_of_the_barriers_that_are_lifted_and_of_no_others(before, after):
    world = World(before, rebalance_delay=5.0, ordered_resize=True)
    for name in "ABC":
        world.bind(name)
    world.advance(5)
    world.resize(after)
    take(world, 1, before, after, set())
    for number in range(before):
        waited = waiting(world)
        done = world.do(c.ReachCuts(1, ((number, world.epoch(number)),)))
        lifted = waited.keys() - waiting(world).keys()
        assert done.notices == {world.owner(n) for n in {number, *lifted}}


def test_positions_bring_some_barriers_back_and_lift_others():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.do(c.Change({"partition_count": 4}))
    take(world, 1, 2, 4, {1})
    assert waiting(world) == {2: {0}}
    cuts = c.TakeCuts(1, 2, 4, tuple(c.LogCut(n, "7", n != 1) for n in range(4)))
    # A partition that there is not has no cut.
    done = world.do(c.RaiseEpochs((0, 1, 99), cuts))
    assert kinds(done) == {r.EpochsRaised, r.CutsTaken}
    assert waiting(world) == {3: {1}}


def test_a_position_that_was_set_since_it_was_read_reaches_nothing():
    world = World(1, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.resize(2)
    world.raise_epochs(0)
    world.do(c.TakeCuts(1, 1, 2, (c.LogCut(0, "7", True, 1), c.LogCut(1, "0", True))))
    assert waiting(world) == {1: {0}}


def test_work_under_an_old_epoch_reaches_nothing():
    world = World(1, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.do(c.Change({"partition_count": 2}))
    take(world, 1, 1, 2, set())
    world.raise_epochs(0)
    world.do(c.ReachCuts(1, ((0, 1),)))
    assert waiting(world) == {1: {0}}
    world.do(c.ReachCuts(1, ((0, 2),)))
    assert waiting(world) == {}


def kinds(decision: Decision) -> set[type[r.Record]]:
    """The kinds of its records."""
    return {type(record) for entry in decision.entries for record in entry.records}


def told(resize: int, before: int, after: int, reached: bool = False) -> c.TakeCuts:
    """All cuts of a resize; its old partitions have `reached` theirs, or none has."""
    old = [c.LogCut(n, "7", reached) for n in range(before)]
    new = [c.LogCut(n, "0", True) for n in range(before, after)]
    return c.TakeCuts(resize, before, after, (*old, *new))


def resized(before: int, after: int) -> World:
    """A queue after its first resize, of which the cuts are known."""
    world = World(before, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.resize(after)
    world.do(told(1, before, after))
    return world


def test_a_queue_that_does_not_follow_its_log_yet_takes_no_cuts():
    """The partitions that it has not would not wait when they come."""
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    assert world.do(told(1, 2, 4)).answer is None
    assert world.queue.resize.barriers is None
    world.resize(4)
    world.do(told(1, 2, 4))
    assert waiting(world) == {2: {0}, 3: {1}}


def test_a_queue_that_follows_its_log_is_resized_and_awaits_cuts():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    follow = c.FollowLog(1, 4)
    assert {r.SettingsChanged, r.CutsAwaited, r.PartitionsAdded} <= kinds(world.do(follow))
    assert not world.do(follow).entries
    world.do(told(1, 2, 4))
    assert waiting(world) == {2: {0}, 3: {1}}


def test_a_queue_follows_no_resize_of_which_it_knows_the_cuts_or_later_ones():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    for resize, (before, after) in enumerate([(2, 4), (4, 8)], 1):
        world.do(c.FollowLog(resize, after))
        world.do(told(resize, before, after, reached=True))
    for late in (c.FollowLog(1, 4), c.FollowLog(2, 4)):
        assert not world.do(late).entries
    assert world.queue.settings.partition_count == 8


def test_a_queue_follows_its_log_while_it_awaits_cuts_that_the_log_no_longer_has():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.do(c.FollowLog(1, 4))
    world.do(c.FollowLog(2, 8))
    world.do(told(2, 4, 8))
    assert waiting(world) == {n: {n - 4} for n in range(4, 8)}


def test_a_queue_follows_a_further_resize_when_the_cuts_before_are_reached():
    world = resized(2, 4)
    for _ in range(2):
        world.do(c.FollowLog(2, 8))
        assert world.queue.settings.partition_count == 4
        assert world.queue.resize.cuts_due is not None
    world.do(c.ReachCuts(1, tuple((n, world.epoch(n)) for n in (0, 1))))
    assert world.queue.resize.cuts_due == world.now
    world.do(c.FollowLog(2, 8))
    world.do(told(2, 4, 8))
    assert waiting(world) == {n: {n - 4} for n in range(4, 8)}


def test_a_queue_whose_log_was_never_resized_has_no_cuts():
    world = World(2, rebalance_delay=0.0)
    world.bind("A")
    world.change(ordered_resize=True)
    assert world.queue.resize.cuts_due == world.now + FIRST_SECONDS
    world.do(told(0, 2, 2))
    assert world.queue.resize.barriers is None
    assert world.queue.resize.cuts_due is None
    assert not world.do(told(0, 2, 2)).entries


def test_cuts_that_the_log_does_not_say_are_asked_for_at_growing_intervals():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.resize(4)
    waits = []
    for _ in range(7):
        due = world.queue.resize.cuts_due
        assert due is not None
        waits.append(due - world.now)
        # What else is due in between asks no sooner.
        world.wait(waits[-1] - 0.5)
        world.do(c.Advance())
        assert world.queue.resize.cuts_due == due
        world.advance(0.5)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_only_an_ordered_resize_is_refused_until_the_cuts_are_reached():
    world = resized(2, 4)
    world.change(rebalance_delay=1.0)
    with pytest.raises(ResizeUnsettled):
        world.resize(8)
    world.change(partition_count=8, ordered_resize=False)
    assert world.queue.settings.partition_count == 8
    # What comes late of its cuts changes nothing.
    reached = c.ReachCuts(1, ((0, world.epoch(0)),))
    for late in (told(1, 4, 8), c.FollowLog(2, 16), reached):
        assert not world.do(late).entries


def test_a_queue_whose_log_was_resized_there_and_back_awaits_the_cuts_of_that():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    assert kinds(world.do(c.FollowLog(2, 2))) == {r.CutsAwaited}
    world.do(told(2, 4, 2))
    assert world.queue.resize.cuts_due is None
    assert world.queue.resize.seen == 2


def test_a_resize_is_refused_if_there_was_one_since_the_other_readers_were_settled():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    checked = (2, 0)
    world.do(c.Change({"partition_count": 4}, checked=checked))
    world.do(told(1, 2, 4, reached=True))
    for before in (checked, (4, 0)):
        with pytest.raises(LogChanged, match="resized"):
            world.do(c.Change({"partition_count": 8}, checked=before))
    world.do(c.Change({"partition_count": 8}, checked=(4, 1)))
    assert world.queue.settings.partition_count == 8


def test_the_cuts_of_partitions_that_a_later_resize_does_not_concern_are_not_restored():
    journal = Journal()
    barriers = Barriers(2, 4, 2)
    for number in range(6):
        barriers.restore(journal, number, "5", False)
    assert sorted(barriers.cuts) == [0, 1, 2, 3]


def test_a_finished_partition_has_reached_its_cut_before_that_is_known():
    world = World(4, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.resize(2)
    assert world.release("A", 3, finished=True) == ["ok"]
    world.do(told(1, 4, 2))
    assert waiting(world) == {0: {2}}


def test_positions_say_nothing_of_a_resize_that_the_queue_does_not_follow_yet():
    world = World(2, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    world.do(c.RaiseEpochs((0,), told(1, 2, 4)))
    assert world.queue.resize.barriers is None
    world.resize(4)
    world.do(told(1, 2, 4))
    assert waiting(world) == {2: {0}, 3: {1}}


def test_positions_that_change_no_barrier_are_no_news_of_cuts():
    world = resized(2, 4)
    done = world.do(c.RaiseEpochs((0,), told(1, 2, 4)))
    assert kinds(done) == {r.EpochsRaised}


def test_cuts_of_a_resize_before_the_last_one_are_too_late():
    world = World(4, rebalance_delay=0.0, ordered_resize=True)
    world.bind("A")
    for resize, (before, after) in enumerate([(4, 8), (8, 4), (4, 8)], 1):
        world.resize(after)
        world.do(told(resize, before, after, reached=True))
        world.release("A", *world.queue.retiring, finished=True)
    assert world.queue.resize.barriers is None
    assert not world.do(told(1, 4, 8)).entries
    assert world.queue.resize.barriers is None


def test_cuts_of_a_further_resize_wait_until_those_before_are_reached():
    """As when a replica that knows no cuts has resized the queue there and back."""
    world = resized(2, 4)
    assert world.queue.resize.cuts_due is None
    assert world.do(told(3, 8, 4)).answer is None
    assert world.queue.resize.cuts_due is not None
    assert waiting(world) == {2: {0}, 3: {1}}
    # What another replica says late of the first one changes nothing.
    world.do(told(1, 2, 4))
    assert waiting(world) == {2: {0}, 3: {1}}
    assert world.queue.resize.cuts_due is not None
    # Nor do positions that are set.
    due = world.queue.resize.cuts_due
    world.raise_epochs(0)
    assert world.queue.resize.cuts_due == due
    # Nor does the word of an owner that means the other.
    world.do(c.ReachCuts(3, tuple((n, world.epoch(n)) for n in (0, 1))))
    assert waiting(world) == {2: {0}, 3: {1}}
    for number in (0, 0):
        done = world.do(c.ReachCuts(1, ((number, world.epoch(number)),)))
        assert world.queue.resize.cuts_due == due
    assert not done.entries, "it is said already"
    world.do(c.ReachCuts(1, ((1, world.epoch(1)),)))
    # Now they are asked for at once.
    assert world.queue.resize.cuts_due == world.now
    world.do(told(3, 8, 4))
    assert world.queue.resize.barriers is not None
    assert world.queue.resize.barriers.resize == 3
