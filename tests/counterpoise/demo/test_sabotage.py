"""The changes that a sabotaged application makes to its micro-batches."""

from collections.abc import Sequence

from counterpoise.demo.work.sabotage import REORDERED_BATCHES, SKIPPED_MESSAGES, Damage
from counterpoise.demo.work.sink import Message, Slice
from tests.counterpoise.demo.sample import flights

FLIGHTS = flights(100)


def batch(number: int) -> list[Slice]:
    start = number * 10
    return [
        Slice(0, 1, [Message(start + i, FLIGHTS[start + i], 0.0) for i in range(10)]),
    ]


def positions(slices: Sequence[Slice]) -> list[int]:
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
