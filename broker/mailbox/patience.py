"""Asking again for what somebody else holds.

Renewals and commits of positions wait for no lock (`broker.store.ports`): they go out together for
many queues, and one queue whose rows a frozen replica holds must not hold up the others. So each
that was left out is asked for again by itself, soon at first and then more rarely, without keeping
a connection meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from broker.store.ports import StoreUnavailable

FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.2
HELD_SECONDS = 10.0


def pauses() -> Iterator[float]:
    """Ask, and if it was held sleep for so many seconds, and so on.

    Raises StoreUnavailable after `HELD_SECONDS`.
    """
    clock = asyncio.get_running_loop().time
    until, pause = clock() + HELD_SECONDS, FIRST_PAUSE_SECONDS
    while clock() < until:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    raise StoreUnavailable("another transaction holds what was to be written")
