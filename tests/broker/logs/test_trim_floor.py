"""Which partitions of a dynamic log a queue has finished and removed, told by those that it has."""

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from broker.logs.positions import PASSED, trim_floor, with_passed
from broker.pieces import PIECE
from broker.testing.loop import counting_turns, virtual
from counterpoise.logs.ranges import HASHES, HashRange, equal_ranges

RANGES = [
    HashRange(0, HASHES - 1, 0),
    HashRange(0, HASHES // 2 - 1, 1),
    HashRange(HASHES // 2, HASHES - 1, 2),
    HashRange(0, HASHES - 1, 3),
]


def passed(
    positions: Mapping[int, int | None], ranges: list[HashRange] = RANGES
) -> dict[int, int | None]:
    """The positions with those of removed partitions."""
    return asyncio.run(with_passed(positions, {one.partition: one for one in ranges}))


def test_what_lies_before_the_partitions_of_a_queue_is_over_and_what_comes_after_is_not() -> None:
    assert passed({0: 5}) == {0: 5}
    assert passed({1: None, 2: 7}) == {0: PASSED, 1: None, 2: 7}
    assert passed({3: 1}) == {0: PASSED, 1: PASSED, 2: PASSED, 3: 1}


def test_a_message_is_kept_for_the_queue_that_has_not_passed_it() -> None:
    ahead, behind = passed({3: 1}), passed({1: 4, 2: 7})
    assert trim_floor([ahead, behind]) == {0: PASSED, 1: 4, 2: 7}
    assert trim_floor([ahead, passed({0: 2})]) == {0: 2}


@virtual
async def test_a_log_of_many_ranges_lets_others_have_their_turn() -> None:
    before = equal_ranges(10 * PIECE)
    after = [HashRange(one.first, one.last, one.partition + len(before)) for one in before]
    positions = {one.partition: 1 for one in after}
    ranges = {one.partition: one for one in before + after}
    found, turns = await counting_turns(with_passed(positions, ranges))
    assert [found[one.partition] for one in before] == [PASSED] * len(before)
    assert turns >= 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=30), st.data())
def test_it_agrees_with_the_queue_s_own_memory(
    played: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """A log of random splits and merges, and a queue that finishes partitions in any order."""
    ranges = [HashRange(0, HASHES - 1, 0)]
    current, parents = [ranges[0]], {0: list[int]()}
    for splits, place in played:
        current.sort()
        place %= len(current)
        one, number = current[place], len(ranges)
        if splits and one.first < one.last:
            middle = (one.first + one.last + 1) // 2
            begun = [
                HashRange(one.first, middle - 1, number),
                HashRange(middle, one.last, number + 1),
            ]
            sealed = [one]
        elif not splits and place + 1 < len(current):
            sealed = [one, current[place + 1]]
            begun = [HashRange(one.first, sealed[1].last, number)]
        else:
            continue
        ranges += begun
        parents |= {child.partition: [each.partition for each in sealed] for child in begun}
        current = [each for each in current if each not in sealed] + begun
    children = {n: [c for c in parents if n in parents[c]] for n in parents}
    known, finished = {0}, set[int]()
    for _ in range(data.draw(st.integers(0, len(ranges)))):
        ready = sorted(
            n for n in known - finished if children[n] and finished.issuperset(parents[n])
        )
        # A child is known with the first of its parents, but the others must be known, too.
        ready = [n for n in ready if all(known.issuperset(parents[c]) for c in children[n])]
        if not ready:
            break
        done = data.draw(st.sampled_from(ready))
        finished.add(done)
        known.update(children[done])
    removed = {n for n in finished if finished.issuperset(children[n])}
    found = passed(dict.fromkeys(known - removed, 0), ranges)
    assert {n for n, at in found.items() if at == PASSED} == removed
