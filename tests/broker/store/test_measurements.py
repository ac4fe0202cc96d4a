"""Measurements: one replica begins a round, and what is older than an hour is gone."""

from __future__ import annotations

import pytest

from broker.store.measurements import KEPT_SECONDS, LEAST_SECONDS, Measurement
from broker.store.ports import Store

NOW = 1_700_000_000


async def test_a_round_is_begun_once(store: Store) -> None:
    rounds = store.measurements
    assert await rounds.begin(NOW)
    assert not await rounds.begin(NOW)
    assert not await rounds.begin(NOW + LEAST_SECONDS - 1)
    assert await rounds.begin(NOW + LEAST_SECONDS)


async def test_a_clock_that_was_set_back_holds_up_no_round(store: Store) -> None:
    assert await store.measurements.begin(NOW)
    assert await store.measurements.begin(NOW - 86400)
    assert not await store.measurements.begin(NOW - 86400 + 1)


async def test_a_queue_has_its_measurements_in_order(store: Store) -> None:
    taken = store.measurements
    later, earlier, unknown = (
        Measurement(NOW + 60, 2**40, 2**41),
        Measurement(NOW, 0, 0),
        Measurement(NOW + 30, None, None),
    )
    await taken.add({"one": later, "two": later})
    await taken.add({"one": earlier})
    await taken.add({"one": unknown})
    # A call that is repeated after a lost answer.
    await taken.add({"one": earlier})
    await taken.add({})
    assert await taken.of_queue("one", NOW) == [earlier, unknown, later]
    assert await taken.of_queue("one", NOW + 1) == [unknown, later]
    assert await taken.of_queue("two", NOW) == [later]
    assert await taken.of_queue("three", NOW) == []


@pytest.mark.parametrize(("age", "kept"), [(KEPT_SECONDS, 1), (KEPT_SECONDS + 1, 0)])
async def test_a_round_deletes_what_is_older_than_an_hour(
    store: Store, age: int, kept: int
) -> None:
    await store.measurements.add({"one": Measurement(NOW - age, 1, 2)})
    assert await store.measurements.begin(NOW)
    assert len(await store.measurements.of_queue("one", 0)) == kept


async def test_replicas_add_their_ages_to_one_slot(store: Store) -> None:
    ages = store.measurements
    await ages.add_ages(NOW, {"one": [1, 0, 2], "two": [5, 5, 5]})
    await ages.add_ages(NOW, {"one": [2**40, 1, 0], "three": [0, 0, 1]})
    await ages.add_ages(NOW + 30, {"one": [0, 0, 7]})
    assert list(await ages.ages_of_queue("one", NOW)) == [2**40 + 1, 1, 9]
    assert list(await ages.ages_of_queue("one", NOW + 1)) == [0, 0, 7]
    assert list(await ages.ages_of_queue("two", 0)) == [5, 5, 5]
    assert list(await ages.ages_of_queue("four", 0)) == []


@pytest.mark.parametrize(("age", "kept"), [(KEPT_SECONDS, [1, 2]), (KEPT_SECONDS + 1, [])])
async def test_a_round_deletes_ages_that_are_older_than_an_hour(
    store: Store, age: int, kept: list[int]
) -> None:
    await store.measurements.add_ages(NOW - age, {"one": [1, 2]})
    assert await store.measurements.begin(NOW)
    assert list(await store.measurements.ages_of_queue("one", 0)) == kept
