"""The limit of a micro-batch follows what micro-batches take."""

import pytest

from counterpoise.spark.run.batch_limit import AIMED_SECONDS, BatchLimit


def after(*cycles: tuple[float, bool]) -> int:
    limit = BatchLimit(100)
    for seconds, left_behind in cycles:
        limit.took(seconds, left_behind=left_behind)
    return limit.messages


def test_short_micro_batches_of_a_backlog_double_up_to_ten_times() -> None:
    found = [after(*[(0.1, True)] * count) for count in range(6)]
    assert found == [100, 200, 400, 800, 1000, 1000]


def test_a_micro_batch_that_read_everything_says_nothing_about_a_larger_one() -> None:
    assert after(*[(0.01, False)] * 10) == 100


def test_a_long_one_halves_and_the_least_stays() -> None:
    assert after(*[(0.1, True)] * 3, (2.5, True)) == 400
    assert after(*[(0.1, True)] * 3, *[(60.0, True)] * 9) == 100
    assert after((60.0, True)) == 100


def test_in_between_it_stays() -> None:
    assert after((0.1, True), (0.75 * AIMED_SECONDS, True)) == 200


@pytest.mark.parametrize("messages_a_second", [10, 1_000, 30_000, 10_000_000])
def test_it_settles_where_a_micro_batch_takes_about_the_time_aimed_at(
    messages_a_second: int,
) -> None:
    """A fixed cost of 0.1 s for each micro-batch."""
    limit = BatchLimit(20_000)
    for _ in range(50):
        seconds = 0.1 + limit.messages / messages_a_second
        limit.took(seconds, left_behind=True)
    assert 20_000 <= limit.messages <= 200_000
    assert limit.messages == 20_000 or 0.1 + limit.messages / messages_a_second <= AIMED_SECONDS
