"""Distributes a number of messages to read over partitions."""

from __future__ import annotations

from collections.abc import Mapping


def fair_shares(backlogs: Mapping[int, int], max_messages: int) -> dict[int, int]:
    """Split `max_messages` over partitions with these numbers of messages, fairly.

    Backlogs smaller than an equal share are served in full; the others get equal shares of the
    rest. The remainder goes to the longest backlogs (ties: the lowest partition), so that over time
    no partition is passed over.
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
