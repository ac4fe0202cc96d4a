from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from counterpoise.flow.view import Owned
from counterpoise.logs import InvalidPosition
from counterpoise.spark.offsets import Offset, Range, Replay, Slice
from counterpoise.spark.source.history import Restore
from counterpoise.spark.source.planning import Question, answer_to, pack, plan, sort_out
from tests.counterpoise.spark.doubles import NumberLog


def held(partition: int, epoch: int, how: str = "graceful", state: str = "owned") -> Owned:
    return Owned(partition, epoch, state, "0", how)


def test_slices_are_read_under_the_epoch_of_now_and_superseded_ones_skipped() -> None:
    planned = [Slice(n, 3, "0", "9") for n in range(4)]
    view = {0: held(0, 3, state="revoking"), 1: held(1, 4, "replaced"), 2: held(2, 4, "orphaned")}
    sorted_out = sort_out(planned, view)
    assert sorted_out.read == [Slice(0, 3, "0", "9"), Slice(1, 4, "0", "9", tenure=3)]
    assert sorted_out.skipped == planned[2:]


def test_without_knowing_all_slices_are_read() -> None:
    planned = [Slice(0, 3, "0", "9")]
    assert sort_out(planned, None).read == planned


def test_an_offset_keeps_held_partitions_and_drops_others() -> None:
    start = Offset("q", {n: Range(1, "0", "5") for n in range(3)})
    view = {0: held(0, 1), 1: held(1, 1)}
    planned = plan(start, view, {0: "5", 1: "5"}, {0: "8", 1: "5"}, "me", "log-1")
    assert planned is not None
    assert planned.ranges == {0: Range(1, "5", "8"), 1: Range(1, "0", "5")}
    assert plan(start, view, {0: "5"}, {0: "5"}, "me", "log-1") is None


def test_a_partition_that_ends_before_its_position_is_left_out_and_the_others_are_read() -> None:
    log = NumberLog(2)
    log.publish(0, 5)
    log.publish(1, 5)
    answer = answer_to(Question({0: "6", 1: "2"}, max_messages=10), log, log.bounds([0, 1]))
    assert (answer.begins, answer.ends) == ({1: "2"}, {1: "5"})
    assert answer.ahead == {0: ("6", "5")}


def test_a_partition_that_begins_past_its_cut_reads_nothing_and_not_backwards() -> None:
    """It has no position yet, and the log starts past the cut at which it has to wait."""
    log = NumberLog(1)
    log.publish(0, 9)
    bounds = replace(log.bounds([0]), starts={0: "7"})
    owned = replace(held(0, 1), position=None, resize=1, cut="5", waits_for=(1,))
    answer = answer_to(Question({0: None}, view={0: owned}), log, bounds)
    assert answer.begins == answer.ends == {0: "7"}


def test_a_partition_at_its_target_does_not_wait_for_a_log_that_ends_early() -> None:
    log = NumberLog(3)
    for number in range(3):
        log.publish(number, 5)
    targets = {0: "6", 1: "9", 2: "3"}
    question = Question({0: "6", 1: "8", 2: "6"}, targets=targets)
    answer = answer_to(question, log, log.bounds([0, 1, 2]))
    assert answer.ahead == {1: ("8", "5"), 2: ("6", "5")}
    # A target before the position is not believed: the log named it while it ended early.
    assert answer.beyond == {2}


@pytest.mark.parametrize("granted", [True, False])
def test_no_state_is_taken_for_restored_while_the_log_ends_before_the_position(
    granted: bool,
) -> None:
    log = NumberLog(1)
    log.publish(0, 8)
    restore = Restore(0, 2, "10", granted, Replay(2, "0", "8"))
    question = Question({0: "10"} if granted else {}, restores=(restore,))
    answer = answer_to(question, log, log.bounds([0]))
    assert not answer.begins
    assert not answer.history.tenures
    assert not answer.history.near
    log.publish(0, 2)
    answer = answer_to(question, log, log.bounds([0]))
    assert answer.history.replays == {0: Replay(2, "8", "10")}


def test_a_position_that_is_none_holds_up_its_own_partition_only() -> None:
    """An older service stored whatever it was sent."""
    log = NumberLog(3)
    for number in range(3):
        log.publish(number, 10)
    restores = tuple(Restore(n, 2, at, True, None) for n, at in ((0, "abc"), (1, "5")))
    question = Question({0: "abc", 1: "5", 2: "5"}, restores=restores)
    answer = answer_to(question, log, log.bounds([0, 1, 2]))
    assert answer.invalid == {0: "abc"}
    assert answer.question == question
    assert answer.begins == {2: "5"}
    assert list(answer.history.replays) == [1]
    with pytest.raises(InvalidPosition):
        answer_to(replace(question, targets={0: "5"}), log, log.bounds([0, 1, 2]))


def test_a_null_position_means_the_start_of_the_log() -> None:
    log = NumberLog(1)
    log.publish(0, 5)
    log.starts[0] = 2
    bounds = log.bounds([0])
    assert answer_to(Question({0: None}), log, bounds).begins == {0: "2"}


def test_targets_bound_the_ranges_and_the_limit_is_shared_below_them() -> None:
    log = NumberLog(3)
    for number in range(3):
        log.publish(number, 100)
    question = Question(
        {0: "0", 1: "0", 2: "50"}, max_messages=20, targets={0: "4", 1: "100", 2: "50"}
    )
    answer = answer_to(question, log, log.bounds([0, 1, 2]))
    assert answer.ends == {0: "4", 1: "16"}
    assert answer_to(Question({0: "0"}, targets={0: "4"}), log, log.bounds([0])).ends == {0: "4"}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10_000)), unique_by=lambda p: p[0]),
    st.integers(1, 8),
)
def test_packing_keeps_every_slice_whole_and_balances(
    sizes: list[tuple[int, int]], most: int
) -> None:
    planned = [Slice(number, 1, "0", str(size)) for number, size in sizes]
    groups = pack(planned, most)
    assert sorted(
        (one for group in groups for one in group), key=lambda one: one.partition
    ) == sorted(planned, key=lambda one: one.partition)
    assert len(groups) == min(most, len(planned))
    assert all(groups)
    loads = [sum(int(one.end) for one in group) for group in groups]
    if loads:
        largest = max(size for _, size in sizes)
        assert max(loads) - min(loads) <= largest
