"""Long work in pieces, so that it holds up no other call.

A queue has few enough partitions that work on all of them needs no pieces. But a dynamic queue
remembers the keys of all partitions that it ever had (`broker.core.lineage.MOST_KEYS`), and so does
its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")
# Items of a piece; no work on an item takes more than some microseconds.
PIECE = 1000


async def pieces(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The items in pieces; others have their turn after each."""
    for first in range(0, len(items), PIECE):
        yield items[first : first + PIECE]
        await asyncio.sleep(0)
