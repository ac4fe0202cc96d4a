"""The limit of a micro-batch follows what micro-batches take."""

import pytest

from counterpoise.spark.options import DEFAULT_MESSAGES_PER_TRIGGER
from counterpoise.spark.source.cycles import AIMED_SECONDS, BatchLimit, LeastMessages, ReadBudget


def new(first: int = 100, max_bytes: int | None = 10_000, bytes_follow: bool = True) -> BatchLimit:
    return BatchLimit(first, max_bytes, bytes_follow=bytes_follow)


def after(*cycles: tuple[float, bool]) -> int:
    limit = new()
    for seconds, left_behind in cycles:
        limit.took(seconds, limit.messages, left_behind=left_behind)
    return limit.messages


def test_short_micro_batches_of_a_backlog_make_it_grow_up_to_a_hundred_times() -> None:
    found = [after(*[(0.25, True)] * count) for count in range(6)]
    assert found == [100, 400, 1600, 6400, 10_000, 10_000]


def test_it_grows_ten_times_at_once_at_most() -> None:
    assert after((0.1, True)) == 1000
    assert after((0.0, True)) == 1000


def test_it_grows_to_what_fits_into_half_of_the_time_aimed_at() -> None:
    assert after((AIMED_SECONDS / 2 / 1.5, True)) == 150
    assert after((AIMED_SECONDS / 2 / 3, True)) == 300


def test_a_micro_batch_that_read_everything_says_nothing_about_a_larger_one() -> None:
    assert after(*[(0.01, False)] * 10) == 100
    assert after((0.25, True), (1.5, False)) == 400


def test_a_long_one_halves_also_below_the_first_limit() -> None:
    assert after((0.25, True), (2.5, True)) == 200
    assert after((0.25, True), (2.5, False)) == 200
    assert after((60.0, True)) == 50
    assert after((60.0, False), (30.0, True)) == 25
    assert after((60.0, True), (0.5, True)) == 100


def test_a_twentieth_of_the_first_limit_and_one_message_stay() -> None:
    assert after(*[(0.25, True)] * 3, *[(600 * 0.7**n, True) for n in range(12)]) == 5
    limit = new(2)
    limit.took(60.0, 2, left_behind=True)
    limit.took(30.0, 1, left_behind=True)
    assert limit.messages == 1


def test_a_trigger_interval_does_not_lower_it() -> None:
    """Without Spark's events a cycle lasts as long, however few messages there are."""
    assert [after(*[(10.0, True)] * count) for count in range(5)] == [100, 50, 100, 100, 100]
    slower = [(10.0, True)] * 3 + [(20.0, True), (10.0, True)]
    assert after(*slower) == 25, "the sink has become slower than the interval"


def test_below_a_trigger_interval_it_settles_at_what_a_slow_sink_does_within_it() -> None:
    limit = new()
    for _ in range(20):
        limit.took(max(10.0, limit.messages / 5), limit.messages, left_behind=True)
    assert limit.messages == 50


def test_in_between_it_stays() -> None:
    assert after((0.25, True), (0.75 * AIMED_SECONDS, True)) == 400


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


def test_the_limit_of_bytes_follows_it_up_to_four_times_what_the_option_names() -> None:
    found = []
    for messages in (100, 200, 1000, 4000, 8000):
        limit = new()
        limit.took(AIMED_SECONDS / 2, messages, left_behind=True)
        found.append(limit.most)
    assert found == [
        ReadBudget(100, 1000),
        ReadBudget(200, 2000),
        ReadBudget(1000, 10_000),
        ReadBudget(4000, 40_000),
        ReadBudget(8000, 40_000),
    ]


def test_the_limit_of_bytes_follows_it_down() -> None:
    """Else few large messages would take as long as before."""
    limit = new()
    limit.took(60.0, 20, left_behind=True)
    assert limit.most == ReadBudget(10, 100)
    tiny = new(max_bytes=1)
    assert tiny.most == ReadBudget(100, 1)


@pytest.mark.parametrize("size", [None, 1000])
def test_a_limit_of_bytes_that_the_user_named_stays(size: int | None) -> None:
    limit = new(max_bytes=size, bytes_follow=False)
    limit.took(0.25, 100, left_behind=True)
    assert limit.most == ReadBudget(400, size)


@pytest.mark.parametrize("messages_a_second", [10, 400, 1_000, 30_000, 10_000_000])
def test_it_settles_where_a_micro_batch_takes_about_the_time_aimed_at(
    messages_a_second: int,
) -> None:
    """A fixed cost of 0.1 s for each micro-batch."""
    limit = new(DEFAULT_MESSAGES_PER_TRIGGER)
    for _ in range(50):
        seconds = 0.1 + limit.messages / messages_a_second
        limit.took(seconds, limit.messages, left_behind=True)
    assert 100 <= limit.messages <= 200_000
    assert limit.messages == 100 or 0.1 + limit.messages / messages_a_second <= AIMED_SECONDS


def test_a_sink_of_four_hundred_messages_a_second_fits_into_a_handoff_from_the_first_one_on() -> (
    None
):
    """The queue's max_handoff_time, as set up for Spark, is 30 s, and has to hold two cycles."""
    limit = new(DEFAULT_MESSAGES_PER_TRIGGER)
    took = []
    for _ in range(5):
        took.append(limit.messages / 400)
        limit.took(took[-1], limit.messages, left_behind=True)
    assert took == [5, 2.5, 1.25, 1.25, 1.25]


def test_a_backlog_is_read_in_few_micro_batches() -> None:
    """With a limit of 200,000 from the start a million messages are five."""
    limit, sizes = new(DEFAULT_MESSAGES_PER_TRIGGER), [DEFAULT_MESSAGES_PER_TRIGGER]
    while sum(sizes) < 1_000_000:
        sizes.append(limit.messages)
        limit.took(0.15 + limit.messages / 300_000, limit.messages, left_behind=True)
    assert len(sizes) <= 9


def test_the_first_micro_batch_waits_for_nothing_and_later_ones_for_enough_messages() -> None:
    least = LeastMessages(10, 60)
    assert not least.waits({0: "0", 1: "0"}, {0: "1", 1: "0"}, 0.0)
    least.planned(0.0)
    assert least.waits({0: "1", 1: "0"}, {0: "6", 1: "4"}, 1.0), "nine messages"
    assert not least.waits({0: "1", 1: "0"}, {0: "6", 1: "5"}, 2.0), "ten"


def test_they_wait_no_longer_than_the_delay_and_not_where_nothing_is() -> None:
    least = LeastMessages(10, 60)
    least.planned(0.0)
    assert not least.waits({0: "7"}, {0: "7"}, 1.0), "an idle query is woken by its log"
    assert least.waits({0: "7"}, {0: "8"}, 59.9)
    assert not least.waits({0: "7"}, {0: "8"}, 60.0)


def test_what_was_there_when_the_wait_ended_is_read_whole() -> None:
    """The limits may read it in several micro-batches, and the last has fewer messages."""
    least = LeastMessages(10, 60)
    least.planned(0.0)
    assert not least.waits({0: "0"}, {0: "12"}, 1.0)
    for at in ("4", "8", "11"):
        least.planned(2.0)
        assert not least.waits({0: at}, {0: "13"}, 2.0)
    least.planned(3.0)
    assert least.waits({0: "12"}, {0: "13"}, 3.0)
