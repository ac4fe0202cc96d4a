from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from counterpoise.flow.view import Owned
from counterpoise.logs import Bounds, InvalidPosition
from counterpoise.spark.offsets import Offset, Range, Replay, Slice, joined
from counterpoise.spark.options import MOST_TASKS
from counterpoise.spark.source.history import Restore
from counterpoise.spark.source.planning import (
    Answer,
    Question,
    answer_to,
    pack,
    plan,
    sort_out,
)
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


def sizes(groups: Sequence[Sequence[Slice]]) -> list[int]:
    return [sum(int(one.end) - int(one.start) for one in group) for group in groups]


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 5000)), max_size=6),
    st.integers(1, 4),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(500, 3000),
)
def test_divided_slices_lack_nothing_and_are_in_order(
    ranges: list[tuple[int, int]], most: int, least: int | None, largest: int | None
) -> None:
    planned = [Slice(n, 1, str(a), str(a + size)) for n, (a, size) in enumerate(ranges)]
    groups = pack(planned, most, least=least, max_messages=largest)
    assert joined(one for group in groups for one in group) == planned
    assert sum(sizes(groups)) == sum(size for _, size in ranges)
    assert all(sizes(groups))
    if largest is not None:
        assert max(sizes(groups), default=0) <= largest
    if least is not None:
        assert len(groups) >= min(least, sum(size for _, size in ranges))
    for group in groups:
        places = [(one.partition, int(one.start)) for one in group]
        assert places == sorted(places)


def test_a_slice_is_divided_evenly_into_as_many_tasks_as_are_asked_for() -> None:
    planned = [Slice(0, 1, "95", "1095", tenure=3), Slice(1, 1, "0", "1000")]
    assert sizes(pack(planned, 2, least=8)) == [250] * 8
    assert sizes(pack(planned, 2, max_messages=400)) == [334, 334, 333, 333, 333, 333]
    assert sizes(pack(planned, 2)) == [1000, 1000]
    assert sizes(pack(planned, 4, least=2)) == [1000, 1000], "there are enough"
    assert {one.tenure for group in pack(planned[:1], 1, least=3) for one in group} == {3}


def test_as_many_tasks_as_the_options_allow_are_planned() -> None:
    """Looking at all tasks for each of them took half an hour."""
    assert set(sizes(pack([Slice(0, 1, "0", f"{2 * MOST_TASKS}")], 2, least=MOST_TASKS))) == {2}


def test_many_small_slices_share_tasks_also_below_a_limit() -> None:
    planned = [Slice(number, 1, "0", "10") for number in range(100)]
    assert sorted(sizes(pack(planned, 2, max_messages=400))) == [200, 400, 400]


def answer(begins: dict[int, str], bounds: Bounds, *restores: Restore) -> Answer:
    question = Question(dict(begins), restores=restores)
    return Answer(question, bounds, begins, dict(bounds.ends))


def test_messages_that_others_wait_for_are_known() -> None:
    """minOffsetsPerTrigger must not delay a resize or a split."""
    starts, ends = {0: "0", 1: "0"}, {0: "20", 1: "20"}
    begins = {0: "5", 1: "5"}
    plain = Bounds(2, "log-1", starts, ends)
    assert not answer(begins, plain).somebody_waits
    assert answer(begins, replace(plain, partition_count=1)).somebody_waits, "it retires"
    resized = replace(plain, resize=1, resized_from=1, cuts={0: "5"})
    assert not answer(begins, resized).somebody_waits
    assert answer(begins, replace(resized, cuts={0: "6"})).somebody_waits
    restore = Restore(0, 2, "9", granted=True)
    assert answer(begins, plain, restore).somebody_waits
