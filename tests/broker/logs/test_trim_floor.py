"""Which partitions of a dynamic log a queue has finished and removed, told by those that it has."""

from hypothesis import given
from hypothesis import strategies as st

from broker.logs.positions import PASSED, trim_floor, with_passed
from counterpoise.logs.ranges import HASHES, HashRange

KEYS = {
    0: f"00000000-{HASHES - 1:08x}.0",
    1: "00000000-7fffffff.1",
    2: "80000000-ffffffff.2",
    3: f"00000000-{HASHES - 1:08x}.3",
}


def test_what_lies_before_the_partitions_of_a_queue_is_over_and_what_comes_after_is_not() -> None:
    assert with_passed({0: 5}, KEYS) == {0: 5}
    assert with_passed({1: None, 2: 7}, KEYS) == {0: PASSED, 1: None, 2: 7}
    assert with_passed({3: 1}, KEYS) == {0: PASSED, 1: PASSED, 2: PASSED, 3: 1}


def test_a_message_is_kept_for_the_queue_that_has_not_passed_it() -> None:
    ahead, behind = with_passed({3: 1}, KEYS), with_passed({1: 4, 2: 7}, KEYS)
    assert trim_floor([ahead, behind]) == {0: PASSED, 1: 4, 2: 7}
    assert trim_floor([ahead, with_passed({0: 2}, KEYS)]) == {0: 2}


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
    keys = {one.partition: one.key for one in ranges}
    found = with_passed(dict.fromkeys(known - removed, 0), keys)
    assert {n for n, at in found.items() if at == PASSED} == removed
