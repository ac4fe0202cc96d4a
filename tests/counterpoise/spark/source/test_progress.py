"""What is committed and released when, case by case; see also `test_progress_properties`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

import pytest

from counterpoise.flow import Flow
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs.port import Successor
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.offsets import Offset, Place, Range, Slice
from counterpoise.spark.source.planning import Question, answer_to
from counterpoise.spark.source.progress import Progress, SharedProgress
from counterpoise.wire import ChildrenItem, CommitItem, ReleaseItem
from tests.counterpoise.spark.doubles import NumberLog


def owned(
    partition: int = 0,
    epoch: int = 1,
    state: str = "owned",
    position: str | None = None,
    how: str = "initial",
) -> dict[int, Owned]:
    return {partition: Owned(partition, epoch, state, position, how)}


def offset(start: str, end: str, epoch: int = 1, partition: int = 0) -> Offset:
    return Offset("q", {partition: Range(epoch, start, end)}, "me", "log-1")


def after(done: Offset, view: dict[int, Owned]) -> Progress:
    progress = Progress()
    progress.finished(done, view)
    return progress


def test_done_positions_are_committed_once() -> None:
    view = owned()
    progress = after(offset("0", "9"), view)
    todo = progress.todo(view)
    assert todo.commits == (CommitItem(0, 1, "9"),)
    progress.answered(todo.commits[0], "ok")
    assert not progress.todo(view)


def test_an_idle_owner_releases_at_once_with_its_position() -> None:
    view = owned(state="revoking", position="3")
    assert after(offset("0", "9"), view).todo(view).releases == (ReleaseItem(0, 1, "9"),)
    # Nothing was ever read: the position stays.
    assert after(Offset("q"), view).todo(view).releases == (ReleaseItem(0, 1, "3"),)


def test_nothing_is_released_before_sparks_first_offset() -> None:
    assert not Progress().todo(owned(state="revoking"))


def test_a_batch_from_the_checkpoint_is_in_flight() -> None:
    progress = Progress()
    progress.replaying(Offset("q"), offset("0", "9"))
    view = owned(state="revoking", epoch=2, how="replaced")
    assert not progress.todo(view)
    progress.finished(offset("0", "9"), view)
    assert progress.todo(view).releases == (ReleaseItem(0, 2, "9"),)


def test_what_a_batch_from_the_checkpoint_follows_is_done() -> None:
    """Even if the view was known before the batch was."""
    progress, view = Progress(), owned()
    assert progress.positions(view) == {0: None}
    progress.replaying(offset("0", "9"), offset("9", "12"))
    assert progress.positions(view) == {0: "9"}


def test_a_batch_that_runs_again_takes_nothing_back() -> None:
    view = owned()
    progress = after(offset("0", "9"), view)
    progress.replaying(Offset("q"), offset("0", "9"))
    assert progress.start == offset("0", "9")


def test_a_restarted_instance_commits_under_its_new_epoch() -> None:
    view = owned(epoch=2, position="4", how="replaced")
    assert after(offset("4", "9"), view).todo(view).commits == (CommitItem(0, 2, "9"),)


def test_a_skipped_slice_does_not_count_as_done() -> None:
    view = owned(epoch=2, position="4", how="replaced")
    progress = Progress(skipped={(0, 1)})
    progress.finished(offset("4", "9"), view)
    assert not progress.todo(view)
    assert progress.wanted(view) == {0: "4"}
    log = NumberLog(1)
    log.publish(0, 4)
    answer = answer_to(Question({0: "4"}), log, log.bounds([0]))
    assert progress.plan(answer, view, view, "me", renews=True) is None


def test_slices_read_in_vain_are_reported_once() -> None:
    view = owned()
    progress = after(offset("0", "9"), view)
    lost = progress.finished(offset("9", "12"), owned(epoch=3, how="graceful"))
    assert lost == [Slice(0, 1, "9", "12")]
    assert progress.finished(offset("9", "12"), view) == []
    assert progress.finished(offset("12", "13"), owned(epoch=2, how="replaced")) == []


def test_a_slice_that_was_skipped_was_not_read_in_vain() -> None:
    progress = after(Offset("q"), owned())
    taken_over = owned(epoch=3, how="graceful")
    progress.skip([Slice(0, 1, "0", "9")])
    assert progress.finished(offset("0", "9"), taken_over) == []
    # As long as the offset has it, it is known as skipped.
    assert progress.finished(offset("0", "9"), taken_over) == []
    assert progress.skipped == {(0, 1)}
    progress.finished(Offset("q"), taken_over)
    assert progress.skipped == set()


def test_a_refused_epoch_is_left_alone() -> None:
    view = owned()
    progress = after(offset("0", "9"), view)
    progress.answered(CommitItem(0, 1, "9"), "stale_epoch")
    assert not progress.todo(view)
    assert progress.wanted(view) == {}
    # ... until the partition is granted again.
    anew = owned(epoch=3, position="20", how="graceful")
    assert progress.wanted(anew) == {0: "20"}


def retire(position: str | None, end: int, partition_count: int) -> Progress:
    view = owned(partition=2, state="retiring", position=position)
    log = NumberLog(partition_count)
    log.publish(2, end)
    progress = after(Offset("q"), view)
    answer = answer_to(Question(progress.wanted(view)), log, log.bounds([2]))
    progress.plan(answer, view, view, "me")
    return progress


def test_a_retiring_partition_is_finished_when_done_to_its_final_end() -> None:
    view = owned(partition=2, state="retiring", position="5")
    assert retire("5", 5, partition_count=2).todo(view).releases == (
        ReleaseItem(2, 1, "5", finished=True),
    )
    # Not at its end, and in flight; then: at an end that is not final yet.
    assert not retire("3", 5, partition_count=2).todo(view).releases
    assert not retire("5", 5, partition_count=3).todo(view).releases


def test_an_end_counts_only_for_the_epoch_of_the_question() -> None:
    """The partition was taken back, grew, and retires again since the log was asked."""
    before = owned(partition=2, state="retiring", position="5")
    log = NumberLog(2)
    log.publish(2, 5)
    progress = after(Offset("q"), before)
    answer = answer_to(Question(progress.wanted(before)), log, log.bounds([2]))
    again = owned(partition=2, epoch=2, state="retiring", position="5", how="replaced")
    progress.plan(answer, before, again, "me")
    assert not progress.todo(again).releases


def test_an_end_counts_only_if_the_partition_was_held_at_the_question() -> None:
    """It warmed up then, and retires since it was granted."""
    log = NumberLog(2)
    log.publish(2, 5)
    progress = after(Offset("q"), {})
    restores = progress.restores({}, {2: Warming(2, 1, "5")})
    answer = answer_to(Question({}, restores=restores), log, log.bounds([2]))
    granted = owned(partition=2, epoch=2, state="retiring", position="5", how="graceful")
    progress.plan(answer, {}, granted, "me")
    assert not progress.todo(granted).releases


@pytest.mark.parametrize("now", [owned(epoch=2, how="forced"), owned(state="revoking")])
def test_what_changed_during_the_question_is_not_read(now: dict[int, Owned]) -> None:
    log = NumberLog(1)
    log.publish(0, 7)
    before = owned()
    progress = after(Offset("q"), before)
    answer = answer_to(Question(progress.wanted(before)), log, log.bounds([0]))
    assert progress.plan(answer, before, now, "me") is None


def test_of_two_offsets_from_the_same_start_the_last_is_in_flight() -> None:
    view = owned() | owned(partition=1)
    log = NumberLog(2)
    log.publish(0, 7)
    log.publish(1, 7)
    progress = after(Offset("q"), view)
    for number in (0, 1):
        answer = answer_to(Question({number: "0"}), log, log.bounds([number]))
        assert progress.plan(answer, view, view, "me") is not None
        assert progress.in_flight == {number}


def test_a_view_is_awaited_until_an_answer_shows_in_it() -> None:
    view = owned()
    progress = after(offset("0", "9"), view)
    assert not progress.awaits_view(view)
    progress.answered(CommitItem(0, 1, "9"), "stale_epoch")
    assert progress.awaits_view(view)
    assert not progress.awaits_view(owned(epoch=3, how="graceful"))


def test_a_view_is_awaited_until_the_end_of_a_sealed_partition_shows_in_it() -> None:
    view = owned(position="5")
    log = NumberLog(1)
    log.publish(0, 5)
    log.keys[0], log.sealed[0] = "a", (Successor(1, "b", ("a",)),)
    progress = after(Offset("q"), view)
    answer = answer_to(Question(progress.wanted(view)), log, log.bounds([0]))
    progress.plan(answer, view, view, "me")
    assert [type(item) for item in progress.todo(view).ends] == [ChildrenItem]
    assert progress.awaits_view(view)
    assert not progress.awaits_view({})


def test_positions_are_those_of_the_newest_view() -> None:
    progress = after(offset("0", "9"), owned())
    assert progress.positions(owned(epoch=3, position="20", how="graceful")) == {0: "20"}


def test_an_empty_retiring_partition_is_finished_at_once() -> None:
    view = owned(partition=2, state="retiring")
    assert retire(None, 0, partition_count=2).todo(view).releases == (
        ReleaseItem(2, 1, None, finished=True),
    )


def test_a_retiring_partition_taken_back_is_read_on() -> None:
    progress = retire("5", 5, partition_count=2)
    view = owned(partition=2, state="retiring", position="5")
    (release,) = progress.todo(view).releases
    assert progress.wanted(view) == {}
    progress.answered(release, "not_revoking")
    assert progress.wanted(owned(partition=2, position="5")) == {2: "5"}


def test_a_release_whose_answer_was_lost_is_due_until_it_is_answered() -> None:
    """Even if the log is not asked about the partition any more, and the others continue."""
    view = owned(partition=2, state="retiring", position="5")
    progress = retire("5", 5, partition_count=2)
    (release,) = progress.todo(view).releases
    log = NumberLog(2)
    log.publish(0, 3)
    both = owned(position="0") | view
    answer = answer_to(Question({0: "0"}), log, log.bounds([0]))
    assert progress.plan(answer, both, both, "me") is not None
    assert progress.todo(both).releases == (release,)
    # It may never have arrived, and a resize has taken the partition back since.
    back = owned(position="0") | owned(partition=2, position="5")
    assert progress.wanted(back) == {0: "0"}
    (again,) = progress.todo(back).releases
    progress.answered(again, "not_revoking")
    assert progress.wanted(back) == {0: "0", 2: "5"}
    assert not progress.todo(back).releases


def test_a_draining_flow_parts_from_all_that_is_not_in_flight() -> None:
    view = owned() | owned(partition=1)
    log = NumberLog(2)
    log.publish(1, 3)
    progress = after(offset("0", "9"), view)
    answer = answer_to(Question({1: "0"}), log, log.bounds([1]))
    assert progress.plan(answer, view, view, "me") is not None
    parting = progress.todo(view, parting=True)
    assert parting.releases == (ReleaseItem(0, 1, "9"),)
    assert parting.commits == ()


@dataclass
class Bound:
    """A flow as the progress sees it."""

    partitions: dict[int, Owned]
    status: str = "bound"


class Lost(Handoffs):
    """Notes what counts as taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def taken_over(self, partition: int, epoch: int, position: str | None) -> None:
        self.noted.append(partition)


@dataclass
class Shared:
    """A shared progress after an offset that was planned; partition 0 is in flight."""

    flow: Bound = field(default_factory=lambda: Bound(owned()))
    wake: threading.Event = field(default_factory=threading.Event)
    lost: Lost = field(default_factory=Lost)

    def __post_init__(self) -> None:
        self.progress = Progress()
        place = Place("q", "log-1", "queue-7")
        flow = cast(Flow, self.flow)
        self.shared = SharedProgress(flow, place, self.wake, self.lost, self.progress)
        self.start, self.planned = Offset("q", {}, "me", "log-1"), offset("0", "9")
        self.progress.finished(self.start, self.flow.partitions)
        self.progress.replaying(self.start, self.planned)
        with self.shared.locked():
            self.json = self.shared.plan(self.planned)


def test_an_offset_for_spark_names_the_queue() -> None:
    assert Shared().json["queueId"] == "queue-7"


def test_where_spark_asks_from_is_done() -> None:
    one = Shared()
    one.shared.asked_from(one.planned.to_json())
    assert one.shared.in_flight == frozenset()
    assert one.progress.todo(one.flow.partitions).commits == (CommitItem(0, 1, "9"),)
    assert one.wake.is_set()
    # The same again says nothing new.
    one.wake.clear()
    one.shared.asked_from(one.planned.to_json())
    assert not one.wake.is_set()


def test_if_spark_asks_again_from_the_same_start_nothing_is_in_flight() -> None:
    one = Shared()
    one.shared.asked_from(one.start.to_json())
    assert one.shared.in_flight == frozenset()


def test_a_batch_that_is_done_counts_if_it_is_the_one_that_was_planned_last() -> None:
    one = Shared()
    earlier = {**one.json, "partitions": {}}
    assert not one.shared.batch_done(earlier)
    assert one.shared.in_flight == {0}
    assert one.shared.batch_done(one.json)
    assert one.progress.todo(one.flow.partitions).commits == (CommitItem(0, 1, "9"),)
    assert one.wake.is_set()
    # Spark says so again.
    assert not one.shared.batch_done(one.json)


@pytest.mark.parametrize("by_event", [True, False])
@pytest.mark.parametrize(("status", "lost"), [("bound", [0]), ("binding", [])])
def test_what_was_taken_over_in_flight_is_reported_where_the_view_is_known(
    by_event: bool, status: str, lost: list[int]
) -> None:
    one = Shared()
    one.flow.partitions, one.flow.status = {}, status
    if by_event:
        assert one.shared.batch_done(one.json)
    else:
        one.shared.asked_from(one.planned.to_json())
    assert one.lost.noted == lost
