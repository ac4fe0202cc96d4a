"""How many messages there are, and how many to read of each partition when not all can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from counterpoise.logs.errors import PositionAhead

if TYPE_CHECKING:
    from counterpoise.logs import Bounds


def fair_shares(backlogs: Mapping[int, int], max_messages: int) -> dict[int, int]:
    """Split `max_messages` over partitions with these numbers of messages, fairly.

    The smallest backlogs are served in full as long as an equal share is enough for them; the
    others get equal shares of what is left. What cannot be split equally goes to the longest
    backlogs (ties: the lowest partition), so that over time none is passed over.
    """
    shares = dict.fromkeys(backlogs, 0)
    waiting = sorted(
        (partition for partition in backlogs if backlogs[partition] > 0),
        key=lambda partition: (backlogs[partition], -partition),
    )
    left = max(0, max_messages)
    for served, partition in enumerate(waiting):
        # Those with a remainder come last, and the last has the longest backlog.
        shares[partition] = min(backlogs[partition], left // (len(waiting) - served))
        left -= shares[partition]
    return shares


def contiguous_backlog(
    positions: Mapping[int, str | None], bounds: Bounds, number: Callable[[str], int]
) -> dict[int, int]:
    """`Log.backlog` where positions are numbers, which `number` reads; exact if without holes."""
    counts = {}
    for partition, position in positions.items():
        start, end = number(bounds.starts[partition]), number(bounds.ends[partition])
        at = start if position is None else max(start, number(position))
        if at > end:
            raise PositionAhead(partition, str(at), str(end))
        counts[partition] = end - at
    return counts
