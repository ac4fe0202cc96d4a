"""How many messages to read of each partition when not all can be."""

from __future__ import annotations

from collections.abc import Mapping


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
