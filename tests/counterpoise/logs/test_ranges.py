"""Ranges of hashes: every hash belongs to one partition, and keys name them."""

from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counterpoise.logs import Bounds, Successor
from counterpoise.logs.ranges import HASHES, HashRange, Ranges, equal_ranges, parse_range

hashes = st.integers(0, HASHES - 1)


def test_ranges_are_equal_whoever_was_told_of_them():
    """Two senders are told of a split apart, and share what waits by it."""
    one, same = (Ranges(equal_ranges(4)) for _ in range(2))
    assert (one, hash(one)) == (same, hash(same))
    assert one != Ranges(equal_ranges(5))


@given(st.integers(1, 3000))
@example(100_000)
def test_equal_ranges_cover_every_hash_and_differ_by_at_most_one(count):
    ranges = equal_ranges(count)
    assert [one.partition for one in ranges] == list(range(count))
    sizes = {one.last - one.first + 1 for one in ranges}
    assert max(sizes) - min(sizes) <= 1
    assert (ranges[0].first, ranges[-1].last) == (0, HASHES - 1)
    assert all(before.last + 1 == after.first for before, after in pairwise(ranges))


@pytest.mark.parametrize("count", [0, -1, HASHES + 1])
def test_an_impossible_number_of_ranges_is_refused(count):
    with pytest.raises(ValueError, match="equal ranges"):
        equal_ranges(count)


@given(hashes, hashes, st.integers(0, 2**31 - 1))
def test_a_key_names_its_range_and_its_partition(a, b, partition):
    one = HashRange(min(a, b), max(a, b), partition)
    assert parse_range(one.key) == one


@pytest.mark.parametrize(
    "key",
    [
        "",
        "root",
        "0-f.1",
        "00000000-ffffffff",
        "00000000-ffffffff.01",
        "00000001-00000000.1",
        "00000000-FFFFFFFF.1",
        "00000000-ffffffff.1\n",
        "00000000-ffffffff.-1",
    ],
)
def test_other_texts_are_keys_of_no_range(key):
    assert parse_range(key) is None


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 64))
def test_a_key_goes_where_its_crc_32_is(key, count):
    ranges = Ranges(equal_ranges(count))
    found = ranges.of_hash(crc32(key.encode()))
    assert crc32(key.encode()) in found
    assert ranges.partition_of(key) == found.partition


def test_messages_without_a_key_take_turns():
    ranges = Ranges(equal_ranges(3))
    assert [ranges.nth(n) for n in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 5)],
        [(0, 5), (7, HASHES - 1)],
        [(0, 5), (5, HASHES - 1)],
        [(1, HASHES - 1)],
        [(0, HASHES)],
        [(0, 5), (6, HASHES - 1), (6, HASHES - 1)],
    ],
)
def test_ranges_that_miss_or_share_a_hash_are_refused(ranges):
    with pytest.raises(ValueError, match="exactly once"):
        Ranges([HashRange(first, last, n) for n, (first, last) in enumerate(ranges)])


def test_the_end_of_a_sealed_partition_is_final():
    after = (Successor(1, "00000000-7fffffff.1", ("00000000-ffffffff.0",)),)
    keys = {0: "00000000-ffffffff.0", 1: "00000000-7fffffff.1"}
    bounds = Bounds(2, "i", {0: "0", 1: "0"}, {0: "9", 1: "0"}, keys, {0: after})
    assert bounds.is_final(0)
    assert not bounds.is_final(1)
