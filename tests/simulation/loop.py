"""An event loop in which time passes only when nobody can run.

It has what tasks, futures, events and timeouts need and nothing else: no selector, no threads, no
contexts. Callbacks of one moment run in the order in which they were asked for, so a run depends
on nothing but what it is given.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

# No run takes more callbacks than this: nothing comes to an end.
MOST_STEPS = 200_000


class Handle:
    """A callback that can be cancelled; stands for asyncio's `TimerHandle` too."""

    __slots__ = ("_args", "_callback", "_when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args = args

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when


# For the type checker it would have to have selectors and threads too.
_Base: Any = asyncio.AbstractEventLoop


class SimLoop(_Base):
    """`run_until(time)` plays everything up to a time, in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[BaseException | str] = []
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0

    # What asyncio asks for

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = Handle(self.now, callback, args)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        handle = Handle(when, callback, args)
        self._number += 1
        heappush(self._timers, (when, self._number, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: Any = asyncio.Task(coro, loop=self, name="task")
        # A process that dies leaves tasks behind that never end.
        task._log_destroy_pending = False
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or str(context.get("message")))

    # What the simulation asks for

    async def sleep(self, seconds: float) -> None:
        """As `asyncio.sleep`, at half the cost."""
        future = self.create_future()
        self.call_at(self.now + seconds, _wake, future)
        await future

    def run_until(self, end: float) -> None:
        """Plays until `end`; raises the first failure that nobody was told of."""
        ready, timers = self._ready, self._timers
        events._set_running_loop(self)
        try:
            while True:
                while ready:
                    handle = ready.popleft()
                    callback = handle._callback
                    if callback is not None:
                        self.steps += 1
                        callback(*handle._args)
                if self.steps > MOST_STEPS:
                    raise RuntimeError("this would go on for ever")
                if self.failures:
                    failure = self.failures[0]
                    raise failure if isinstance(failure, BaseException) else RuntimeError(failure)
                while timers and timers[0][2]._callback is None:
                    heappop(timers)
                if not timers or timers[0][0] > end:
                    break
                when, _, handle = heappop(timers)
                if when > self.now:
                    self.now = when
                ready.append(handle)
            self.now = max(self.now, end)
        finally:
            events._set_running_loop(None)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
