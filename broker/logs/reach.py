"""Refuses positions far beyond the end of their partition.

Nobody has read up to there, so such a position is a mistake of the owner (a time, a position of
another log) or meant to harm. Stored, it would stop every later consumer of the partition until the
log has grown that far, and then it would pass over all that was published meanwhile; in Redis the
upkeep would take it for a sign of lost messages and continue the partition above it.

Commits are frequent, and to ask the log at each would cost as much as the commit. So a position is
compared with the end that is known, and the log is asked only when the position is more than FAR
above it: once in FAR messages of a partition. Ends only grow, so an end of before refuses nothing
that the log has. A position that is nearer is stored, also if it is beyond the end: consumers raise
`PositionAhead`, and `counterpoise lag` and `doctor` say so.

A log that does not answer refuses nothing: consumers may reach it where the service cannot. It is
asked again after SILENT_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.logs.ports import Logs
from counterpoise.logs.numbered import position_number

FAR = 100_000
SILENT_SECONDS = 60.0
# About 100 MB if all have 10,000 partitions that reach beyond FAR.
_MOST_QUEUES = 1000
_TOO_LARGE = 10**19


@dataclass(slots=True)
class _Known:
    """Of one queue: ends that its log has told, by partition, and when it may be asked again."""

    ends: dict[int, int] = field(default_factory=dict)
    silent_until: float = 0.0


class Reach:
    """The ends of partitions, as far as one replica knows them."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._known: dict[str, _Known] = {}

    def is_near(self, queue_id: str, partition: int, position: str) -> bool:
        """Whether the position is at most FAR above the known end, or is no number."""
        number = position_number(position, _TOO_LARGE)
        if number is None or number <= FAR:
            return True
        known = self._known.get(queue_id)
        return known is not None and number <= known.ends.get(partition, 0) + FAR

    async def beyond(
        self, queue_id: str, log: str, positions: Mapping[int, str]
    ) -> Mapping[int, str]:
        """The ends of those partitions whose positions are more than FAR beyond them.

        The log is asked, unless it did not answer a moment ago.
        """
        known = self._known.pop(queue_id, None) or _Known()
        if len(self._known) >= _MOST_QUEUES:
            del self._known[next(iter(self._known))]
        self._known[queue_id] = known
        now = asyncio.get_running_loop().time()
        if now < known.silent_until:
            return {}
        spans = await self._logs.spans(log, positions)
        if not spans:
            known.silent_until = now + SILENT_SECONDS
            return {}
        known.ends.update((number, int(span.end)) for number, span in spans.items())
        return {
            number: spans[number].end
            for number, position in positions.items()
            if number in spans and not self.is_near(queue_id, number, position)
        }
