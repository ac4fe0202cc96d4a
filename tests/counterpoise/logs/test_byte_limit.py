"""The promises of every log for `limit` with `max_bytes`, however exactly it knows the sizes."""

from __future__ import annotations

import pytest

from counterpoise.logs import AppendBatch, Log, Message

KB = 1024


@pytest.fixture
def log(any_log: Log) -> Log:
    """A log of each kind."""
    return any_log


def fill(log: Log, *sizes_of_partitions: list[int]) -> dict[int, str]:
    """Append values of these sizes, a list for each partition; returns the starts."""
    messages, partitions = [], []
    for partition, sizes in enumerate(sizes_of_partitions):
        messages += [Message(b"x" * size) for size in sizes]
        partitions += [partition] * len(sizes)
    begins = dict(log.bounds(range(4)).ends)
    log.append(AppendBatch("byte-limit", 0, 4, partitions, messages))
    return {partition: begins[partition] for partition in range(len(sizes_of_partitions))}


def sizes(
    log: Log, starts: dict[int, str], *, max_bytes: int, max_messages: int = 1_000_000
) -> dict[int, list[int]]:
    """The sizes of the values that a limit admits, by partition."""
    ends = log.limit(starts, max_messages, max_bytes=max_bytes)
    assert ends.keys() == starts.keys()
    return {
        partition: [
            len(value)
            for batch in log.read(partition, start, ends[partition], max_messages=1_000_000)
            for value in batch["value"].to_pylist()
        ]
        if start != ends[partition]
        else []
        for partition, start in starts.items()
    }


def test_about_as_many_bytes_come_as_asked_for_shared_between_the_partitions(log: Log) -> None:
    starts = fill(log, [KB] * 60, [KB] * 60, [KB] * 60)
    found = sizes(log, starts, max_bytes=30 * KB)
    assert 15 * KB <= sum(map(sum, found.values())) <= 60 * KB
    assert all(4 <= len(one) <= 21 for one in found.values())


@pytest.mark.long
def test_both_limits_hold(log: Log) -> None:
    starts = fill(log, [10] * 20, [10] * 20)
    assert sum(map(len, sizes(log, starts, max_messages=7, max_bytes=KB).values())) == 7
    assert sum(map(len, sizes(log, starts, max_messages=0, max_bytes=KB).values())) == 0


def test_a_message_larger_than_the_limit_is_read_nevertheless(log: Log) -> None:
    starts = fill(log, [40 * KB, 40 * KB])
    found = sizes(log, starts, max_bytes=KB)
    assert found[0], "a message that is too large must not stop the partition for ever"


def test_no_partition_is_passed_over_for_ever(log: Log) -> None:
    starts = fill(log, [8 * KB] * 6, [8 * KB] * 6, [8 * KB] * 6)
    read = dict.fromkeys(starts, 0)
    for _ in range(12):
        ends = log.limit(starts, 1_000_000, max_bytes=KB)
        for partition, found in sizes(log, starts, max_bytes=KB).items():
            read[partition] += len(found)
        starts = dict(ends)
    assert all(count >= 4 for count in read.values()), read


def test_everything_comes_where_everything_fits(log: Log) -> None:
    starts = fill(log, [100] * 5, [0] * 3, [])
    assert sizes(log, starts, max_bytes=1 << 30) == {0: [100] * 5, 1: [0] * 3, 2: []}


@pytest.mark.parametrize("limit", [1, 10 * KB])
def test_bounds_that_are_given_are_kept(log: Log, limit: int) -> None:
    starts = fill(log, [10] * 4)
    bounds = log.bounds([0])
    log.append(AppendBatch("later", 0, 4, [0] * 4, [Message(b"y")] * 4))
    ends = log.limit(starts, 100, bounds, max_bytes=limit)
    assert log.compare(ends[0], bounds.ends[0]) <= 0
