"""The ranges of a batch read, from the options and the state of the queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.options import Edge, ending_edge, starting_edge
from counterpoise.spark.source.batch import QueuePositions, chosen, extents
from tests.counterpoise.spark.doubles import NumberLog


@pytest.fixture
def log() -> NumberLog:
    """Partition 0 holds 10..40, partition 1 holds 0..5, partition 2 nothing."""
    log = NumberLog(3)
    log.starts, log.next = {0: 10}, {0: 40, 1: 5}
    return log


KNOWN = QueuePositions("flights", {0: "25", 1: None, 2: None})


def ranges(log: NumberLog, starting: str | None, ending: str | None) -> dict[int, tuple[int, int]]:
    edges = starting_edge(starting), ending_edge(ending)
    numbers = chosen(*edges, KNOWN)
    found = extents(*edges, KNOWN, log, log.bounds(numbers))
    return {one.partition: (int(one.start), int(one.end)) for one in found}


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (None, None, {0: (10, 40), 1: (0, 5)}),
        ("earliest", "committed", {0: (10, 25)}),
        ("committed", "latest", {0: (25, 40), 1: (0, 5)}),
        ("committed", "committed", {}),
        ('{"0": 12}', None, {0: (12, 40)}),
        ('{"0": "12", "1": "earliest"}', '{"0": "13", "1": "latest"}', {0: (12, 13), 1: (0, 5)}),
        (None, '{"0": "committed"}', {0: (10, 25)}),
        ('{"2": "0"}', None, {}),
        # A trimmed start is detected when reading, where onTrimmed decides.
        ('{"0": "3"}', '{"0": "7"}', {0: (3, 7)}),
    ],
)
def test_ranges(
    log: NumberLog, starting: str, ending: str, expected: dict[int, tuple[int, int]]
) -> None:
    assert ranges(log, starting, ending) == expected


class TimedLog(NumberLog):
    """A message a second since 1970, in each partition."""

    def first_since(self, partition: int, start: str, end: str, at: datetime) -> str:
        return str(min(max(int(at.timestamp()), int(start)), int(end)))


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (20, 30, {0: (20, 30)}),
        (2, None, {0: (10, 40), 1: (2, 5)}),
        (None, 12, {0: (10, 12), 1: (0, 5)}),
        (50, 60, {}),
        ('{"0": "12"}', 20, {0: (12, 20)}),
        (30, "committed", {}),
    ],
)
def test_times_are_found_in_each_partition(
    starting: int | str | None, ending: int | str | None, expected: dict[int, tuple[int, int]]
) -> None:
    log = TimedLog(3)
    log.starts, log.next = {0: 10}, {0: 40, 1: 5}

    def edge(given: int | str | None, of: Callable[[str | None], Edge]) -> Edge:
        return datetime.fromtimestamp(given, UTC) if isinstance(given, int) else of(given)

    edges = edge(starting, starting_edge), edge(ending, ending_edge)
    found = extents(*edges, KNOWN, log, log.bounds(chosen(*edges, KNOWN)))
    assert {one.partition: (int(one.start), int(one.end)) for one in found} == expected


@pytest.mark.parametrize(
    ("starting", "ending", "said"),
    [
        ('{"0": "41"}', None, "partition 0: 41 lies behind the end of the log, 40"),
        (None, '{"1": "6"}', "'endingPositions', partition 1: 6 lies behind the end"),
        ('{"3": "0"}', None, r"queue 'flights' has no partition 3 \(it has 0..2\)"),
        ('{"0": "30"}', '{"0": "20"}', "partition 0 would be read from 30 to 20"),
        ('{"0": "30"}', "committed", "partition 0 would be read from 30 to 25"),
        ('{"0": "12"}', '{"1": "5"}', "name different partitions: 0 is in one"),
        ('{"0": "twelve"}', None, "'startingPositions', partition 0: 'twelve' is not a position"),
    ],
)
def test_ranges_that_cannot_be(log: NumberLog, starting: str, ending: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ranges(log, starting, ending)


@pytest.mark.parametrize(
    "text",
    [
        "latest",
        "12",
        "{}",
        "[1]",
        '{"0": "latest"}',
        '{"-1": "0"}',
        '{"x": "0"}',
        '{"0": true}',
        '{"0": null}',
        '{"0": 1.5}',
        '{"0": "1", "0": "2"}',
        '{"0": "1"',
    ],
)
def test_an_invalid_edge_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape('{"0": "12", "1": "earliest"}')):
        starting_edge(text)
