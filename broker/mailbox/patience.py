"""What a call does while the store cannot be reached, or another transaction holds its rows.

Renewals and commits of positions wait for no lock (`broker.store.ports`): they go out together for
many queues, and one queue whose rows a frozen replica holds must not hold up the others. So each
item that was left out is asked for again by itself, soon at first and then more rarely, without
keeping a connection meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.core.commands import Outcome
from broker.core.errors import Unavailable
from broker.store.ports import PositionCommit, Store, StoreUnavailable
from counterpoise.backoff import Backoff, Pauses

# What callers are told.
UNAVAILABLE = "The service cannot reach its database right now; try again."
ASK_AGAIN = Backoff(first_seconds=0.01, longest_seconds=0.2)
HELD_SECONDS = 10.0


@contextmanager
def store_available() -> Iterator[None]:
    """For calls of the store: raises Unavailable if the store cannot be reached."""
    try:
        yield
    except StoreUnavailable:
        raise Unavailable(UNAVAILABLE) from None


def pauses() -> Iterator[float]:
    """Seconds to sleep after each attempt that found the rows held.

    Raises StoreUnavailable after `HELD_SECONDS`.
    """
    clock = asyncio.get_running_loop().time
    until, pausing = clock() + HELD_SECONDS, Pauses(ASK_AGAIN)
    while clock() < until:
        yield pausing.failed()
    raise StoreUnavailable("another transaction holds what was to be written")


async def renew(store: Store, flow_ids: Sequence[str]) -> None:
    """Renews leases, again for those whose rows are held. Raises StoreUnavailable."""
    if not flow_ids:
        return
    for pause in pauses():
        leases = await store.renew(flow_ids)
        flow_ids = [flow_id for flow_id, lease in leases.items() if lease is None]
        if not flow_ids:
            return
        await asyncio.sleep(pause)


async def write(store: Store, items: Sequence[PositionCommit]) -> bool:
    """Commits positions, again those whose rows are held. Raises StoreUnavailable.

    False if one is refused: somebody has decided meanwhile.
    """
    if not items:
        return True
    for pause in pauses():
        results, _ = await store.commit_positions(items)
        if any(one is not None and one.outcome is not Outcome.OK for one in results):
            return False
        items = [item for item, one in zip(items, results, strict=True) if one is None]
        if not items:
            return True
        await asyncio.sleep(pause)
    return False
