"""The rule: how one range may change the high-water of its partition."""

import pytest

from counterpoise.logs import InvalidPosition
from counterpoise.spark.errors import SinkGap
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.fence import HighWater, Verdict, judge


def of(epoch: int, start: int, end: int) -> Slice:
    return Slice(3, epoch, str(start), str(end))


def test_the_first_range_is_written_wherever_it_starts() -> None:
    assert judge(None, of(4, 70, 90)) == Verdict("written", "70", HighWater(4, "90"))


def test_a_range_that_follows_is_written() -> None:
    assert judge(HighWater(4, "90"), of(4, 90, 95)) == Verdict("written", "90", HighWater(4, "95"))


def test_a_range_after_holes_of_the_log_is_no_gap() -> None:
    """Ranges meet at positions; the number of messages between two positions does not matter."""
    before = judge(None, of(1, 0, 1000)).after
    assert judge(before, of(1, 1000, 5000)).outcome == "written"


@pytest.mark.parametrize("epoch", [4, 5])
def test_written_rows_are_dropped_and_later_ones_written(epoch: int) -> None:
    verdict = judge(HighWater(4, "90"), of(epoch, 80, 99))
    assert verdict == Verdict("written", "90", HighWater(epoch, "99"))


def test_a_range_that_was_written_changes_nothing() -> None:
    assert judge(HighWater(4, "90"), of(4, 80, 90)) == Verdict("repeated", None, None)


def test_a_range_of_a_new_owner_fences_the_old_one_even_if_it_was_written() -> None:
    assert judge(HighWater(4, "90"), of(6, 80, 90)).after == HighWater(6, "90")


@pytest.mark.parametrize(("start", "end"), [(0, 90), (80, 99), (90, 99), (200, 300)])
def test_a_lower_epoch_writes_nothing(start: int, end: int) -> None:
    assert judge(HighWater(4, "90"), of(3, start, end)) == Verdict("superseded", None, None)


def test_a_gap_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(SinkGap, match=r"partition 3: positions 90 to 95.*on_gap='accept'"):
        judge(HighWater(4, "90"), of(5, 95, 99))


def test_a_gap_can_be_accepted_and_is_told() -> None:
    verdict = judge(HighWater(4, "90"), of(5, 95, 99), "accept")
    assert verdict == Verdict("written", "95", HighWater(5, "99"), ("90", "95"))


def test_after_forgetting_the_next_range_is_the_first_but_older_epochs_stay_out() -> None:
    forgotten = HighWater(4, None)
    assert judge(forgotten, of(3, 0, 10)).outcome == "superseded"
    assert judge(forgotten, of(5, 0, 10)) == Verdict("written", "0", HighWater(5, "10"))
    assert judge(forgotten, of(4, 50, 60)).outcome == "written"


def test_positions_are_compared_as_numbers() -> None:
    assert judge(HighWater(1, "9"), of(1, 9, 10)).outcome == "written"
    assert judge(HighWater(1, "10"), of(1, 9, 10)).outcome == "repeated"


@pytest.mark.parametrize("position", ["", "-1", "1.5", "7-0", "٣"])
def test_an_invalid_position_is_refused(position: str) -> None:
    with pytest.raises(InvalidPosition):
        judge(HighWater(1, position), of(1, 0, 1))
