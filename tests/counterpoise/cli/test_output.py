"""Numbers, positions, booleans and times are written alike by all commands."""

import pytest

from counterpoise.cli.output import (
    count_text,
    counted,
    duration,
    of_partitions,
    position_text,
    setting_text,
)


def test_values_are_written_alike() -> None:
    assert [*map(count_text, (None, 0, 12_345))] == ["?", "0", "12,345"]
    assert [counted(number, "message") for number in (0, 1, 2000)] == [
        "0 messages",
        "1 message",
        "2,000 messages",
    ]
    assert [*map(position_text, (None, "0", "12345"))] == ["start", "0", "12345"]
    assert [*map(setting_text, (None, True, False, 0, 2.5, 3.0, 86_400, "exclusive"))] == (
        ["-", "yes", "no", "0", "2.5", "3", "86,400", "exclusive"]
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.95, "10 s"), (119, "119 s"), (120, "2 min"),
     (7200, "2 h"), (172_800, "2 d")],
)  # fmt: skip
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "partition 3"), ([3, 2, 1, 0, 7], "partitions 0-3 7"), ([1, 2], "partitions 1-2")],
)
def test_partitions_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert of_partitions(numbers) == text
