"""The lag of all queues, for the metrics: measured in the background, while somebody scrapes.

Measuring a queue reads the positions of its partitions and asks its log for their ends, page after
page. So it costs most for the largest queues. Each queue is measured again after `SECONDS`, but not
before `REST` times as long as its measuring took: the work is bounded, however large the queues are
and however often somebody scrapes. Callers for whom a queue is due wait a moment, and get the last
known numbers. Nothing is measured while nobody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from broker.calls.views import LagView
from broker.core.errors import BrokerError
from broker.service import Broker

SECONDS = 10.0
REST = 20.0
FIRST_SECONDS = 1.5
# A log that does not answer takes a second and a half.
AT_ONCE = 4
MOST_KNOWN = 2000


@dataclass(slots=True)
class _Known:
    view: LagView
    next_at: float


class Lags:
    """The lag of queues, by name."""

    def __init__(self, broker: Broker, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}
        self._measuring: asyncio.Task[None] | None = None

    def _forget_old(self, now: float) -> None:
        """Queues that nobody asked for lately; they may be gone."""
        if len(self._known) > MOST_KNOWN:
            self._known = {name: one for name, one in self._known.items() if one.next_at > now}

    async def of(self, names: Iterable[str]) -> Mapping[str, LagView]:
        """What is known of these queues; measures what is due."""
        wanted = list(names)
        now = self._monotonic()
        self._forget_old(now)
        due = [
            name for name in wanted if name not in self._known or self._known[name].next_at <= now
        ]
        if due:
            if self._measuring is None or self._measuring.done():
                self._measuring = asyncio.create_task(self._measure(due))
            await asyncio.wait([self._measuring], timeout=FIRST_SECONDS)
        return {name: self._known[name].view for name in wanted if name in self._known}

    async def _measure(self, names: list[str]) -> None:
        waiting = iter(names)

        async def work() -> None:
            for name in waiting:
                began = self._monotonic()
                try:
                    view = await self._broker.monitoring.lag(name)
                except (BrokerError, TimeoutError):
                    self._known.pop(name, None)
                    continue
                now = self._monotonic()
                self._known[name] = _Known(view, now + max(SECONDS, REST * (now - began)))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
