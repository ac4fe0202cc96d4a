"""Which history is replayed, case by case; see also `test_replay_properties`."""

from collections.abc import Mapping

import pytest

from counterpoise.flow.view import Owned, Warming
from counterpoise.spark.offsets import Offset, Range, Replay, replay_slices, slices
from counterpoise.spark.source.history import Restore, earliest, portions, stage, stages
from counterpoise.spark.source.planning import Answer, Question, answer_to
from counterpoise.spark.source.progress import Progress
from tests.counterpoise.spark.doubles import NumberLog

NOBODY: Mapping[int, Owned] = {}


@pytest.fixture
def log() -> NumberLog:
    log = NumberLog(4)
    for number in range(4):
        log.publish(number, 100)
    return log


def held(position: str | None, epoch: int = 3, state: str = "owned") -> dict[int, Owned]:
    return {0: Owned(0, epoch, state, position, "graceful")}


def coming(position: str | None, epoch: int = 2, partition: int = 0) -> dict[int, Warming]:
    return {partition: Warming(partition, epoch, position)}


def progress_at(start: Offset, view: Mapping[int, Owned]) -> Progress:
    progress = Progress()
    progress.finished(start, view)
    return progress


def ask(
    progress: Progress,
    log: NumberLog,
    view: Mapping[int, Owned],
    warming: Mapping[int, Warming],
    most: int | None = 10,
) -> tuple[Answer, Offset | None]:
    restores = progress.restores(view, warming)
    question = Question(progress.wanted(view), max_messages=most, restores=restores)
    answer = answer_to(question, log, log.bounds(question.partitions))
    return answer, progress.plan(answer, view, view, "me", warming, renews=True)


def test_history_comes_in_portions_until_it_is_near(log: NumberLog) -> None:
    offset, warming = Offset("q"), coming("25")
    progress = progress_at(offset, NOBODY)
    seen = []
    while True:
        _, planned = ask(progress, log, NOBODY, warming)
        if planned is None:
            break
        assert not progress.near
        assert slices(offset, planned) == []
        seen += [(one.epoch, one.start, one.end) for one in replay_slices(offset, planned)]
        offset = planned
        progress.finished(offset, NOBODY)
    assert seen == [(3, "0", "10"), (3, "10", "20"), (3, "20", "25")]
    assert progress.near == {(0, 2)}


def test_near_is_where_the_owner_was_when_the_portion_was_planned(log: NumberLog) -> None:
    progress = progress_at(Offset("q"), NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("8"))
    assert planned is not None
    progress.finished(planned, NOBODY)
    # The owner has moved on meanwhile, and replaying continues.
    _, following = ask(progress, log, NOBODY, coming("15"))
    assert progress.near == {(0, 2)}
    assert following is not None
    assert following.replays == {0: Replay(3, "8", "15")}


def test_owned_partitions_come_first_and_warm_up_gets_what_they_leave(log: NumberLog) -> None:
    view = {1: Owned(1, 1, "owned", "0", "initial")}
    start = Offset("q", {1: Range(1, "0", "20")}, "me", "log-1")
    progress = progress_at(start, view)
    _, planned = ask(progress, log, view, coming("90"), most=100)
    assert planned is not None
    # 80 messages are for work, 20 are left for history.
    assert planned.ranges[1] == Range(1, "20", "100")
    assert planned.replays == {0: Replay(3, "0", "20")}
    log.publish(1, 1000)
    progress = progress_at(start, view)
    _, planned = ask(progress, log, view, coming("90"), most=100)
    assert planned is not None
    # The work uses the limit; history gets a tenth on top.
    assert planned.ranges[1] == Range(1, "20", "120")
    assert planned.replays == {0: Replay(3, "0", "10")}


def test_once_granted_the_rest_comes_before_anything_new(log: NumberLog) -> None:
    start = Offset("q", {}, "me", "log-1", {0: Replay(3, "10", "20")})
    view = held("25")
    progress = progress_at(start, view)
    _, planned = ask(progress, log, view, {})
    assert planned is not None
    assert (planned.ranges, planned.replays) == ({}, {0: Replay(3, "20", "25")})
    assert progress.in_flight == frozenset()  # history never delays a release
    progress.finished(planned, view)
    _, first = ask(progress, log, view, {})
    assert first is not None
    assert first.ranges == {0: Range(3, "25", "35")}
    assert first.replays == {}


def test_the_tenure_stays_that_of_the_chain_under_any_epoch(log: NumberLog) -> None:
    """The owner was restarted during the warm-up, so the grant came two epochs later."""
    start = Offset("q", {}, "me", "log-1", {0: Replay(3, "10", "20")})
    view = held("20", epoch=5)
    progress = progress_at(start, view)
    _, planned = ask(progress, log, view, {})
    assert planned is not None
    assert planned.ranges == {0: Range(5, "20", "30", tenure=3)}
    # It also continues after a restart of this query.
    again = {0: Owned(0, 6, "owned", "20", "replaced")}
    progress = progress_at(planned, again)
    _, following = ask(progress, log, again, {})
    assert following is not None
    assert following.ranges == {0: Range(6, "30", "40", tenure=3)}


def test_the_tenure_stays_over_any_number_of_restarts(log: NumberLog) -> None:
    offset = Offset("q", {0: Range(5, "0", "100")}, "me", "log-1")
    for epoch in (6, 7, 8):
        view = {0: Owned(0, epoch, "owned", "100", "replaced")}
        if epoch == 8:  # messages of another partition keep it too
            view[1] = Owned(1, epoch, "owned", "0", "replaced")
        progress = progress_at(offset, view)
        assert {one.partition for one in progress.restores(view, {})} == set(view) - {0}
        _, planned = ask(progress, log, view, {})
        assert planned is not None
        assert planned.ranges[0] == Range(epoch, "100", "100", tenure=5)
        assert 0 not in {one.partition for one in slices(offset, planned)}
        assert 0 not in progress.in_flight
        offset = planned
    # An idle query has nothing more to say.
    view = {0: view[0]}
    progress.finished(offset, view)
    assert ask(progress, log, view, {})[1] is None
    log.publish(0, 5)
    _, planned = ask(progress, log, view, {})
    assert planned is not None
    assert planned.ranges == {0: Range(8, "100", "105", tenure=5)}


def test_granted_without_warm_up_all_history_comes_first(log: NumberLog) -> None:
    view = held("5")
    progress = progress_at(Offset("q"), view)
    _, planned = ask(progress, log, view, {})
    assert planned is not None
    assert (planned.ranges, planned.replays) == ({}, {0: Replay(3, "0", "5")})


def test_an_unprocessed_partition_has_no_history(log: NumberLog) -> None:
    view = held(None, epoch=1)
    progress = progress_at(Offset("q"), view)
    assert progress.restores(view, {}) == ()
    assert progress.restores({}, coming(None)) == ()
    assert progress.near == {(0, 2)}


def test_our_own_work_goes_on_without_history(log: NumberLog) -> None:
    start = Offset("q", {0: Range(3, "0", "20")}, "me", "log-1")
    assert progress_at(start, held("20")).restores(held("20"), {}) == ()


def test_the_same_partition_in_another_tenure_starts_anew(log: NumberLog) -> None:
    """A → B → A: A's state of its first tenure is not used."""
    start = Offset("q", {0: Range(1, "0", "20")}, "me", "log-1")
    progress = progress_at(start, NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("30", epoch=2))
    assert planned is not None
    assert (planned.ranges, planned.replays) == ({}, {0: Replay(3, "0", "10")})


def test_a_chain_that_was_called_off_goes_on_when_it_warms_again(log: NumberLog) -> None:
    start = Offset("q", {}, "me", "log-1", {0: Replay(3, "0", "10")})
    progress = progress_at(start, NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("30", epoch=4, partition=1))
    assert planned is not None
    assert planned.replays == {0: Replay(3, "0", "10"), 1: Replay(5, "0", "10")}
    progress.finished(planned, NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("30", epoch=9))
    assert planned is not None
    assert planned.replays[0] == Replay(3, "10", "20")


@pytest.mark.parametrize("tenure", [3, 7])
def test_positions_that_were_reset_begin_another_chain_under_a_tenure_never_used(
    log: NumberLog, tenure: int
) -> None:
    start = Offset("q", {}, "me", "log-1", {0: Replay(tenure, "0", "50")})
    view = held("20", epoch=7)
    progress = progress_at(start, view)
    _, planned = ask(progress, log, view, {}, most=100)
    assert planned is not None
    assert planned.replays == {0: Replay(max(7, tenure + 1), "0", "20")}


def test_an_older_position_of_the_same_owner_does_no_harm(log: NumberLog) -> None:
    progress = progress_at(Offset("q", replays={0: Replay(3, "0", "50")}), NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("20"))
    assert planned is None
    assert progress.near == {(0, 2)}


def test_trimmed_history_is_passed_over_and_told(log: NumberLog) -> None:
    log.starts[0] = 30
    progress = progress_at(Offset("q", replays={0: Replay(3, "0", "10")}), NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("50"))
    assert planned is not None
    assert planned.replays == {0: Replay(3, "30", "40")}
    assert progress.gaps == {(0, 3): ("10", "30")}
    one = Restore(0, 2, "50", False)
    first = stage(one, log, log.bounds([0]))
    assert (first.begin, first.gap) == ("30", ("0", "30"))
    # Not if the state needs no more: all is there, or its floor is higher, or it is complete.
    needed = stage(one, log, log.bounds([0]), lambda *_: "35")
    assert (needed.begin, needed.gap) == ("35", None)
    log.starts[0] = 0
    assert stage(one, log, log.bounds([0])).gap is None
    log.starts[0] = 70
    complete = Restore(0, 2, "50", False, Replay(3, "0", "50"))
    assert stage(complete, log, log.bounds([0])).gap is None


def test_where_nothing_is_left_to_replay_it_is_near_at_once(log: NumberLog) -> None:
    log.starts[0] = 50
    assert stage(Restore(0, 2, "50", False), log, log.bounds([0])).near
    assert not stage(Restore(0, 2, "51", False), log, log.bounds([0])).near


def test_near_is_the_lower_of_where_the_owner_was_and_is(log: NumberLog) -> None:
    """An older position of the same owner may be seen later."""
    chain = Replay(3, "0", "15")
    assert stage(Restore(0, 2, "15", False, chain, aim="20"), log, log.bounds([0])).near


def test_a_chain_that_is_ahead_of_another_owner_begins_anew(log: NumberLog) -> None:
    one = Restore(0, 5, "20", False, Replay(3, "0", "50"))
    anew = stage(one, log, log.bounds([0]))
    assert (anew.tenure, anew.begin) == (6, "0")


@pytest.mark.parametrize("granted", [True, False])
def test_a_state_is_complete_where_a_grant_has_all_its_history(
    log: NumberLog, granted: bool
) -> None:
    for begin, complete in (("50", True), ("40", False)):
        one = Restore(0, 2, "50", granted, Replay(3, "0", begin))
        found = stages([one], log, log.bounds([0]), earliest)
        # Nothing is replayed: it is not needed, or there is no room for it.
        told = portions([one], found, {}, log)
        assert told.replays == {}
        assert told.tenures == ({0: 3} if granted and complete else {})
        # Only what warms up is reported ready.
        assert told.near == ({(0, 2)} if complete and not granted else set())


def test_partitions_that_changed_during_the_question_are_left_out(log: NumberLog) -> None:
    progress = progress_at(Offset("q"), NOBODY)
    restores = progress.restores(NOBODY, coming("50"))
    question = Question({}, max_messages=10, restores=restores)
    answer = answer_to(question, log, log.bounds([0]))
    assert progress.plan(answer, NOBODY, held("50"), "me", {}) is None
    assert progress.plan(answer, NOBODY, NOBODY, "me", {}) is None
    assert progress.plan(answer, NOBODY, NOBODY, "me", coming("50", epoch=3)) is None


def test_a_partition_that_is_revoked_restores_nothing(log: NumberLog) -> None:
    view = held("5", state="revoking")
    assert progress_at(Offset("q"), view).restores(view, {}) == ()


def test_a_state_that_was_here_goes_on_under_the_next_epoch_alone(log: NumberLog) -> None:
    """After that, another consumer may have had the partition."""
    start = Offset("q", {0: Range(3, "0", "20")}, "me", "log-1")
    for epoch, there in ((4, True), (5, False)):
        view = held("20", epoch=epoch)
        restores = progress_at(start, held("0")).restores(view, {})
        assert (restores == ()) is there


def test_a_state_is_here_since_the_view_that_showed_it(log: NumberLog) -> None:
    """The flow was binding when the batch was done."""
    progress = progress_at(Offset("q", {0: Range(3, "0", "20")}, "me", "log-1"), NOBODY)
    again = {0: Owned(0, 4, "owned", "20", "replaced")}
    assert progress.restores(again, {}) == ()
    assert progress.restores(held("20", epoch=5), {}) == ()


def test_what_warms_up_no_more_is_forgotten(log: NumberLog) -> None:
    progress = progress_at(Offset("q"), NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("8"))
    assert planned is not None
    progress.finished(planned, NOBODY)
    ask(progress, log, NOBODY, coming("8"))
    assert (progress.near, progress.aims) == ({(0, 2)}, {(0, 2): "8"})
    progress.restores(NOBODY, {})
    assert (progress.near, progress.aims) == (set(), {})


def test_history_of_a_grant_that_changed_during_the_question_is_left_out(log: NumberLog) -> None:
    before = held("50")
    progress = progress_at(Offset("q"), before)
    restores = progress.restores(before, {})
    question = Question(progress.wanted(before), max_messages=10, restores=restores)
    answer = answer_to(question, log, log.bounds([0]))
    for now in (held("50", epoch=4), held("50", state="revoking")):
        assert progress.plan(answer, before, now, "me", {}) is None


def test_without_a_limit_history_still_comes_in_portions(log: NumberLog) -> None:
    log.publish(0, 100_000)
    progress = progress_at(Offset("q"), NOBODY)
    _, planned = ask(progress, log, NOBODY, coming("90000"), most=None)
    assert planned is not None
    assert planned.replays == {0: Replay(3, "0", "20000")}
