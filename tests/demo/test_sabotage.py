"""The changes that a sabotaged application makes to its micro-batches."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.demo.work.sink import FlightMessage, FlightSlice
from broker.demo.work.staging import (
    REORDERED_BATCHES,
    SKIPPED_MESSAGES,
    Damage,
    Impatient,
    Repeater,
)
from counterpoise.wire import Partition
from tests.demo.sample import flights

FLIGHTS = flights(100)


def batch(number: int) -> list[FlightSlice]:
    start = number * 10
    return [
        FlightSlice(0, 1, [FlightMessage(start + i, FLIGHTS[start + i], 0.0) for i in range(10)]),
    ]


def positions(slices: Sequence[FlightSlice]) -> list[int]:
    return [message.position for part in slices for message in part.messages]


def test_without_sabotage_nothing_is_changed() -> None:
    damage = Damage(None)
    assert [damage(n, batch(n)) for n in range(9)] == [batch(n) for n in range(9)]


def test_skip_leaves_messages_out() -> None:
    damage = Damage("skip")
    done = [at for n in range(9) for at in positions(damage(n, batch(n)))]
    assert len(done) == 90 - 2 * SKIPPED_MESSAGES
    assert done == sorted(done)


def test_reorder_changes_the_order_and_loses_nothing() -> None:
    damage = Damage("reorder")
    done = [at for n in range(9) for at in positions(damage(n, batch(n)))]
    assert sorted(done) == list(range(90))
    assert done[0] == (REORDERED_BATCHES - 1) * 10


def test_a_zombie_is_undamaged_otherwise() -> None:
    assert Damage("unfenced")(2, batch(2)) == batch(2)


class Elsewhere:
    """The service and the log, as the sabotages ask them."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)

    def partitions(self, queue: str) -> list[Partition]:
        return [
            Partition(number, 0, None, None, state, *[None] * 10)
            for number, state in enumerate(self.states)
        ]


def test_who_is_impatient_reads_what_waits_and_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = Elsewhere("owned", "waiting")
    impatient = Impatient("http://127.0.0.1:1", "flights")
    read: list[tuple[int, int | None]] = []

    def further(partition: int, epoch: int, start: int | None) -> FlightSlice:
        read.append((partition, start))
        return replace(batch(len(read) - 1)[0], partition=partition, epoch=epoch)

    monkeypatch.setattr(impatient, "_client", elsewhere)
    monkeypatch.setattr(impatient, "_read", further)
    assert positions(impatient(batch(0))) == list(range(10))
    assert positions(impatient(batch(1))) == list(range(10, 20))
    elsewhere.states[1] = "owned"
    assert impatient(batch(2)) == []
    assert read == [(1, None), (1, 10)]


def test_a_repeater_brings_the_last_batch_of_an_ended_partition_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = Elsewhere("owned", "owned")
    repeater = Repeater("http://127.0.0.1:1", "flights")
    monkeypatch.setattr(repeater, "_client", elsewhere)
    assert repeater(batch(0)) == []
    assert repeater(batch(1)) == []
    elsewhere.states[0] = "finished"
    assert repeater([]) == batch(1)
    assert repeater([]) == []
