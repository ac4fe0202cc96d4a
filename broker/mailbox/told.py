"""Positions that a commit has told."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from broker.store.ports import Positions


class ToldPositions:
    """Positions that came back with a commit, for those who are woken by it.

    Callers and watchers make their views in this round of the event loop, without reading the
    positions again. They are forgotten with the round: positions change without any commit.
    """

    def __init__(self) -> None:
        self._positions: Positions = {}

    def tell(self, positions: Positions) -> None:
        """After everyone was woken: they run before what forgets the positions."""
        self._positions = positions
        asyncio.get_running_loop().call_soon(self._forget)

    def of(self, numbers: Collection[int]) -> Positions | None:
        """The positions of these partitions; None if not all of them are known."""
        known = self._positions
        return known if all(number in known for number in numbers) else None

    def _forget(self) -> None:
        self._positions = {}
