"""The start of the history, with a log's arithmetic and on a real log."""

from datetime import UTC, datetime, timedelta

import pytest

from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.options import EARLIEST, Floor, find_floor, floor_of
from tests.counterpoise.spark.doubles import NumberLog
from tests.log_support import log, log_url

__all__ = ["log", "log_url"]

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "floor"),
    [
        ("earliest", EARLIEST),
        ("Snapshot", Floor(snapshot=True)),
        ("50000", Floor(messages=50_000)),
        ("90s", Floor(seconds=90)),
        ("2h", Floor(seconds=7200)),
        ("0", Floor(messages=0)),
    ],
)
def test_every_form_of_the_option_is_read(text: str, floor: Floor) -> None:
    assert floor_of(text) == floor


@pytest.mark.parametrize("text", ["999999d", "999999999999999999d", "36501d"])
def test_a_time_longer_than_any_log_means_all_there_is(text: str) -> None:
    assert floor_of(text) == EARLIEST


@pytest.mark.parametrize("text", ["", "latest", "-5", "5 h", "1w", "1.5h", "9" * 5000 + "d"])
def test_invalid_forms_of_the_option_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="earliest, a number"):
        floor_of(text)


@pytest.mark.parametrize(
    ("floor", "found"),
    [
        (EARLIEST, "10"),
        (Floor(messages=30), "70"),
        (Floor(messages=0), "100"),
        (Floor(messages=1000), "10"),
    ],
)
def test_so_many_messages_before_the_target_and_never_below_the_log(
    floor: Floor, found: str
) -> None:
    assert find_floor(floor, NumberLog(1), 0, "10", "100") == found


def test_a_log_that_starts_behind_the_target_has_no_history() -> None:
    assert find_floor(Floor(messages=5), NumberLog(1), 0, "100", "100") == "100"


@pytest.mark.parametrize(("hours", "found"), [(0.5, "10"), (2, "8"), (9.5, "1"), (100, "0")])
def test_a_time_is_found_in_the_log(log: PostgresLog, hours: float, found: str) -> None:
    """One message an hour, the last at eleven."""
    messages = [Message(b"x", published_at=NOON - timedelta(hours=10 - n)) for n in range(10)]
    log.append(AppendBatch("p", 0, 4, [0] * 10, messages))
    floor = Floor(seconds=hours * 3600)
    assert find_floor(floor, log, 0, "0", "10", lambda: NOON) == found


@pytest.mark.parametrize("minutes", [100, 50, 10])
def test_messages_that_were_backdated_are_no_end_of_the_search(
    log: PostgresLog, minutes: int
) -> None:
    """One message a minute for a hundred minutes, and now and then one of last week."""
    times = [NOON - timedelta(minutes=100 - n) for n in range(100)]
    for n in (6, 12, 25, 50, 51, 75, 93, 98):
        times[n] -= timedelta(days=7)
    messages = [Message(b"x", published_at=at) for at in times]
    log.append(AppendBatch("p", 0, 4, [0] * 100, messages))
    found = find_floor(Floor(seconds=minutes * 60), log, 0, "0", "100", lambda: NOON)
    assert found == {100: "0", 50: "52", 10: "90"}[minutes]


def test_the_longest_time_that_is_taken_as_one_is_found(log: PostgresLog) -> None:
    log.append(AppendBatch("p", 0, 4, [0], [Message(b"x")]))
    assert find_floor(floor_of("36500d"), log, 0, "0", "1") == "0"
