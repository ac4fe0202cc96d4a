"""Work that goes on after its caller has given up.

asyncio reports an error that nobody has read as if it were a defect: `Future exception was never
retrieved`, at the level of an error. Whoever may give up on a future says so here.
"""

from __future__ import annotations

import asyncio
from typing import Any


def disregard(future: asyncio.Future[Any]) -> None:
    """Nobody may be there to read the outcome: then it is none, and no defect."""
    future.add_done_callback(_read)


def _read(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
