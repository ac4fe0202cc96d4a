"""The limit of a micro-batch follows what micro-batches take."""

import pytest

from counterpoise.spark.cycles import AIMED_SECONDS, BatchLimit, ReadBudget


def new(least: int = 100, least_bytes: int | None = 1000, bytes_grow: bool = True) -> BatchLimit:
    return BatchLimit(least, least_bytes, bytes_grow=bytes_grow)


def after(*cycles: tuple[float, bool]) -> int:
    limit = new()
    for seconds, left_behind in cycles:
        limit.took(seconds, limit.messages, left_behind=left_behind)
    return limit.messages


def test_short_micro_batches_of_a_backlog_make_it_grow_up_to_ten_times() -> None:
    found = [after(*[(0.1, True)] * count) for count in range(4)]
    assert found == [100, 400, 1000, 1000]


def test_it_grows_to_what_fits_into_half_of_the_time_aimed_at() -> None:
    assert after((AIMED_SECONDS / 2 / 1.5, True)) == 150
    assert after((AIMED_SECONDS / 2 / 3, True)) == 300


def test_a_micro_batch_that_read_everything_says_nothing_about_a_larger_one() -> None:
    assert after(*[(0.01, False)] * 10) == 100
    assert after((0.1, True), (1.5, False)) == 400


def test_a_long_one_halves_and_the_least_stays() -> None:
    assert after((0.1, True), (2.5, True)) == 200
    assert after((0.1, True), (2.5, False)) == 200
    assert after(*[(0.1, True)] * 3, *[(60.0, True)] * 9) == 100
    assert after((60.0, True)) == 100


def test_in_between_it_stays() -> None:
    assert after((0.1, True), (0.75 * AIMED_SECONDS, True)) == 400


def test_a_micro_batch_that_was_planned_before_it_grew_makes_it_grow_once() -> None:
    """The end of a micro-batch is looked up while the one before runs."""
    limit = new()
    limit.took(0.4, 100, left_behind=True)
    assert limit.messages == 250
    limit.took(0.4, 100, left_behind=True)
    assert limit.messages == 250
    # That one was too slow for more.
    limit.took(1.5, 100, left_behind=True)
    assert limit.messages == 100


def test_a_micro_batch_that_was_planned_before_it_grew_does_not_lower_it_if_it_was_short() -> None:
    """What was looked up ahead with the present limit would be in vain."""
    limit = new()
    limit.took(0.25, 100, left_behind=True)
    limit.took(0.9, 100, left_behind=True)
    assert limit.messages == 400


def test_it_is_not_raised_by_one_that_was_long() -> None:
    limit = new()
    limit.took(0.25, 100, left_behind=True)
    limit.took(2.5, 400, left_behind=True)
    limit.took(1.5, 400, left_behind=True)
    assert limit.messages == 200


def test_the_limit_of_bytes_grows_with_it_up_to_four_times() -> None:
    found = []
    for messages in (100, 250, 400, 1000):
        limit = new()
        limit.took(0.0, messages // 4, left_behind=True)
        found.append(limit.most)
    assert found == [
        ReadBudget(100, 1000),
        ReadBudget(248, 2480),
        ReadBudget(400, 4000),
        ReadBudget(1000, 4000),
    ]


@pytest.mark.parametrize("size", [None, 1000])
def test_a_limit_of_bytes_that_the_user_named_stays(size: int | None) -> None:
    limit = new(least_bytes=size, bytes_grow=False)
    limit.took(0.0, 100, left_behind=True)
    assert limit.most == ReadBudget(400, size)


@pytest.mark.parametrize("messages_a_second", [10, 1_000, 30_000, 10_000_000])
def test_it_settles_where_a_micro_batch_takes_about_the_time_aimed_at(
    messages_a_second: int,
) -> None:
    """A fixed cost of 0.1 s for each micro-batch."""
    limit = new(20_000)
    for _ in range(50):
        seconds = 0.1 + limit.messages / messages_a_second
        limit.took(seconds, limit.messages, left_behind=True)
    assert 20_000 <= limit.messages <= 200_000
    assert limit.messages == 20_000 or 0.1 + limit.messages / messages_a_second <= AIMED_SECONDS
