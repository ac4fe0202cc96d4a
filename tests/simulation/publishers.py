"""Publishers: processes that append messages with keys, and route them as they last learned to.

A publisher learns how to route from the log, and asks again only when an append was refused. So
after a resize, a split or a merge every publisher is stale until its next append, and one that
froze with an append on its way is stale when it wakes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from broker.testing.loop import VirtualLoop
from broker.testing.process import Process
from tests.world.log import Log, Routing

# So many messages at a time, all or none.
AT_ONCE = 4
KEYS = 36
# The hash of key number n in a log with ranges: all over the range of hashes.
APART = 2**32 // KEYS


class Publisher(Process):
    """One publisher; a restart makes a new one."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        loop: VirtualLoop,
        log: Log,
        appended: Callable[[], None],
        trace: Callable[[str], None] | None,
    ) -> None:
        super().__init__(loop)
        self.name, self.log, self.trace = name, log, trace
        self._rng, self._appended = rng, appended
        self._left: list[int] = []
        self._routing: Routing | None = None
        self._busy = False

    def publish(self, keys: Sequence[int]) -> None:
        """Accepts messages with these keys; they are appended in this order."""
        far = self.log.ranges is not None
        self._left += [key * APART if far else key for key in keys]
        self._go_on()

    def _go_on(self) -> None:
        if self._left and not self._busy:
            self._busy = True
            self.later(self._rng.uniform(0.002, 0.06), self._append)

    def _append(self) -> None:
        if self._routing is None:
            self._routing = self.log.routing
        batch = self._left[:AT_ONCE]
        # It is on its way: the process may freeze or die, and what was sent arrives.
        self.loop.call_later(
            self._rng.uniform(0.0, 0.05), self._arrive, tuple(batch), self._routing
        )

    def _arrive(self, batch: Sequence[int], routing: Routing) -> None:
        taken = self.log.publish(batch, routing)
        if self.trace is not None:
            how = "appends" if taken else "is refused"
            self.trace(f"{self.name} {how}: {[*batch]} by {routing}")
        if taken:
            self._appended()
        self.later(0.0, self._answered, taken, len(batch))

    def _answered(self, taken: bool, count: int) -> None:
        self._busy = False
        if taken:
            del self._left[:count]
        else:
            self._routing = None
        self._go_on()
