"""Work on very many items lets others have their turn."""

from __future__ import annotations

from broker.pieces import PIECE, pieces
from broker.testing.loop import counting_turns, virtual


async def all_of(count: int) -> list[int]:
    found = [piece async for piece in pieces(range(count))]
    assert all(len(piece) <= PIECE for piece in found)
    return [one for piece in found for one in piece]


@virtual
async def test_the_pieces_are_the_whole_and_others_have_a_turn_after_each() -> None:
    for count in (0, 1, PIECE, PIECE + 1, 3 * PIECE):
        found, turns = await counting_turns(all_of(count))
        assert found == list(range(count))
        assert turns >= -(-count // PIECE)
