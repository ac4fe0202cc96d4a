import json
from dataclasses import replace

import pytest

from counterpoise.spark.errors import InvalidOffset
from counterpoise.spark.offsets import (
    Offset,
    Range,
    Replay,
    Slice,
    offset_of,
    replay_slices,
    slices,
)

FULL = Offset("q", {10: Range(2, "5", "9"), 2: Range(1, "0", "4")}, "me", "log-1")


def test_the_text_is_a_function_of_the_content() -> None:
    other_order = Offset("q", dict(reversed(list(FULL.ranges.items()))), "me", "log-1")
    assert json.dumps(FULL.to_json()) == json.dumps(other_order.to_json())
    assert json.dumps(FULL.to_json()) == (
        '{"counterpoise": 1, "queue": "q", "instance": "me", "log": "log-1", "partitions": '
        '{"2": {"epoch": 1, "from": "0", "to": "4"}, "10": {"epoch": 2, "from": "5", "to": "9"}}}'
    )


WARM = Offset("q", {2: Range(3, "0", "4", 1)}, "me", "log-1", {7: Replay(5, "0", "9")}, "id-1")


@pytest.mark.parametrize("offset", [FULL, Offset("q"), WARM, replace(FULL, prepared=2)])
def test_an_offset_comes_back_as_it_was(offset: Offset) -> None:
    assert offset_of(json.loads(json.dumps(offset.to_json())), "q") == offset


def test_a_batch_reads_ranges_of_the_end_that_the_start_lacks() -> None:
    end = Offset("q", {2: Range(1, "4", "6"), 3: Range(1, "0", "2"), 10: Range(2, "5", "9")})
    assert slices(FULL, end) == [Slice(2, 1, "4", "6"), Slice(3, 1, "0", "2")]
    assert slices(FULL, FULL) == []
    assert slices(FULL, Offset("q", {2: Range(2, "4", "4", tenure=1)})) == []
    assert slices(Offset("q"), FULL) == [Slice(2, 1, "0", "4"), Slice(10, 2, "5", "9")]


def test_history_is_separate_from_work() -> None:
    start = Offset("q", {2: Range(1, "0", "4")}, replays={5: Replay(3, "0", "9")})
    end = Offset(
        "q",
        {2: Range(1, "0", "4")},
        replays={5: Replay(3, "9", "12"), 7: Replay(8, "0", "2")},
    )
    assert slices(start, end) == []
    assert replay_slices(start, end) == [
        Slice(5, 3, "9", "12", 3, replay=True),
        Slice(7, 8, "0", "2", 8, replay=True),
    ]
    assert replay_slices(end, end) == []


def test_a_slice_knows_whose_state_its_rows_belong_to() -> None:
    (one,) = slices(Offset("q"), WARM)
    assert (one.epoch, one.state_of) == (3, 1)
    (one,) = slices(Offset("q"), Offset("q", {2: Range(3, "0", "4")}))
    assert (one.epoch, one.state_of) == (3, 3)


def test_the_same_range_under_another_epoch_is_another_range() -> None:
    again = Offset("q", {2: Range(2, "0", "4")})
    assert slices(FULL, again) == [Slice(2, 2, "0", "4")]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"index": 3}, "another source"),
        (3, "another source"),  # of Spark's source `rate`, for one
        ({"counterpoise": 9, "queue": "q", "partitions": {}}, "version 9"),
        ({"counterpoise": 1, "queue": "r", "partitions": {}}, "belongs to queue 'r'"),
        ({"counterpoise": 1, "queue": "q"}, "broken"),
        ({"counterpoise": 1, "queue": "q", "partitions": {"0": {"epoch": 1}}}, "broken"),
        ({"counterpoise": 1, "queue": "q", "partitions": {}, "replays": {"0": {}}}, "broken"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(document: object, said: str) -> None:
    with pytest.raises(InvalidOffset, match=said):
        offset_of(document, "q")
