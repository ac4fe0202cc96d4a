"""What a flow was told, as lines of the program's log: bound, granted, revoked, retiring, lost.

They are at the level INFO of the logger `counterpoise.flow`, whether the program has callbacks or
not. Partitions that come or go together share a line, with the first twenty of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from counterpoise.flow.core import FlowCore
from counterpoise.flow.view import Granted, Lost, Notice, Owned, Retiring, Revoking

MOST_PARTITIONS = 20

logger = logging.getLogger("counterpoise.flow")


class LogLines:
    """The lines of one flow."""

    def __init__(self) -> None:
        self._flow_id: str | None = None

    def write(self, core: FlowCore, notices: Sequence[Notice]) -> None:
        """What has changed since the last call."""
        if not logger.isEnabledFor(logging.INFO):
            return
        queue = core.settings.queue
        flow_id = core.bound.flow_id if core.bound is not None else None
        _write(queue, "lost", [one.owned for one in notices if isinstance(one, Lost)])
        if flow_id != self._flow_id:
            self._flow_id = flow_id
            if flow_id is not None:
                client = core.settings.client_name
                logger.info("queue %s: bound as %s (flow %s)", queue, client, flow_id)
            else:
                logger.info("queue %s: not bound (%s)", queue, core.gone_reason or core.last_error)
        granted = [one.owned for one in notices if isinstance(one, Granted)]
        for how in dict.fromkeys(owned.handed_over for owned in granted):
            together = [owned for owned in granted if owned.handed_over == how]
            _write(queue, f"granted ({how})", together)
        _write(queue, "revoked", [one.owned for one in notices if isinstance(one, Revoking)])
        _write(queue, "retiring", [one.owned for one in notices if isinstance(one, Retiring)])


def _write(queue: str, said: str, partitions: Sequence[Owned]) -> None:
    if not partitions:
        return
    first = [f"{one.partition} epoch {one.epoch}" for one in partitions[:MOST_PARTITIONS]]
    more = len(partitions) - len(first)
    rest = f" and {more} more" if more else ""
    logger.info("queue %s: %s: partition %s%s", queue, said, ", ".join(first), rest)
