"""Administrators, who try again until there is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from broker.core.errors import BrokerError, Unavailable
from counterpoise.backoff import Backoff, Pauses
from tests.simulation.service import QUEUE, Node

if TYPE_CHECKING:
    from tests.simulation.world import World

# How long an administrator waits for an answer.
PATIENCE = Backoff(3.0, 12.0)


class Administrator:
    """Makes calls on this world's service."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._last_resize: dict[str, Any] = {}

    def _later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Calls back later, unless all faults have ended before."""

        def unless_calm() -> None:
            if not self.world.calm:
                callback(*args)

        self.world.loop.call_later(seconds, unless_calm)

    def _administer(
        self, work: Callable[[Any], Awaitable[Any]], *what: Any, queue: str = QUEUE
    ) -> None:
        """`what`: the request, see `Asked.begin`."""
        self.world.loop.create_task(self._persist(work, what, queue))

    async def _persist(
        self, work: Callable[[Any], Awaitable[Any]], what: tuple[Any, ...], queue: str
    ) -> None:
        """An administrator who tries again until there is an answer, ever more patiently: each
        attempt that is given up is still carried out, and delays the next ones.

        Two who go on to ask for different partition counts would resize the queue for ever. So when
        all faults have ended, a resize is not asked for again if there was a later one. Only who
        discards does: messages may be left that nobody will read.
        """
        asked = self.world.checkers[queue].asked
        waits = Pauses(PATIENCE)
        while True:
            node = self.world.rng.choice(self.world.nodes)
            if node.dead or not node.ready:
                await self.world.loop.sleep(0.3)
                continue

            async def attempt(node: Node = node) -> bool:
                await node.alive()
                request = asked.begin(*what) if what else 0
                node.asked.add((queue, request))
                try:
                    await work(node.calls)
                except Unavailable:
                    asked.end(request)
                    return False
                except BrokerError as error:
                    self.world.counts[f"refused {error.code}"] += 1
                except Exception as error:
                    self.world.failed(error)
                asked.end(request)
                await node.alive()
                return True

            task = self.world.loop.create_task(attempt())
            seconds = waits.failed()
            await asyncio.wait([task], timeout=seconds)
            if task.done() and task.result():
                return
            await self.world.loop.sleep(seconds / 10)
            resizes = what[:1] == ("change",) and "partition_count" in what[1] and not what[2]
            if self.world.calm and resizes and what[1] is not self._last_resize:
                return

    def _change(self, changes: dict[str, Any], discard: bool = False) -> None:
        if "partition_count" in changes:
            self._last_resize = changes
            # It follows when the log says its cuts, which may be long after the answer.
            for name, checker in self.world.checkers.items():
                if name != QUEUE:
                    checker.asked.begin("change", changes)
        self._administer(
            lambda calls: calls.queues.change(QUEUE, changes, discard), "change", changes, discard
        )
