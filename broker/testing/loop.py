"""An event loop in which time passes only when no task can run.

It has what tasks, futures, events and timeouts need and nothing else: no selector and no threads.
Callbacks of the same moment run in the order of their calls, so a run depends on its input alone.
`run_until` plays up to a time. `@virtual` runs an async test to its end: a test that waits an hour
takes a millisecond, and a wait for something that never happens fails at once.
"""

from __future__ import annotations

import asyncio
import functools
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")

# A run with more callbacks than this is endless. The longest test takes a tenth.
MOST_STEPS = 5_000_000
# A test that plays longer than this waits for something that never happens.
LONGEST_SECONDS = 50_000.0


class Handle:
    """A callback that can be cancelled; replaces asyncio's `TimerHandle` too."""

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


# The type checker would demand selectors and threads too.
_Base: Any = asyncio.AbstractEventLoop


class VirtualLoop(_Base):  # type: ignore[misc]
    """`now`: the time in seconds from 0. `steps`: how many callbacks it has run, at most
    `most_steps`. `failures`: exceptions of tasks that no other task awaits; the first is raised.

    Every task has the context variables of the loop's caller.
    """

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self.now = 0.0
        self.steps = 0
        self.failures: list[BaseException | str] = []
        self._most_steps = most_steps
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0

    # Methods that asyncio calls

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = Handle(self.now, callback, args)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Any:
        """There are no threads; `asyncio.Runner` calls it on an interrupt."""
        return self.call_soon(callback, *args)

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
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task")
        # A process that dies leaves tasks that never end.
        setattr(task, "_log_destroy_pending", False)  # noqa: B010 - no type stub knows it
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or str(context.get("message")))

    def run_until_complete(self, future: Awaitable[Any]) -> Any:
        """The result of the future. Raises RuntimeError if it will never have one."""
        task = asyncio.ensure_future(future, loop=self)
        longest = self.now + LONGEST_SECONDS
        events._set_running_loop(self)
        try:
            while not task.done():
                if not self._moment(longest) and not task.done():
                    raise RuntimeError("all tasks wait, and nothing will ever happen")
        finally:
            events._set_running_loop(None)
        return task.result()

    async def shutdown_asyncgens(self) -> None:
        """The generators of cancelled tasks have ended with them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There are no threads."""

    def close(self) -> None:
        """Nothing to close."""

    # Methods for simulations

    async def sleep(self, seconds: float) -> None:
        """Like `asyncio.sleep` at half the cost. With 0 seconds, all ready tasks go first."""
        future = self.create_future()
        self.call_at(self.now + seconds, _wake, future)
        await future

    def run_until(self, end: float) -> None:
        """Plays until `end`; raises the first exception that no task awaits."""
        events._set_running_loop(self)
        try:
            while self._moment(end):
                pass
            self.now = max(self.now, end)
        finally:
            events._set_running_loop(None)

    def _moment(self, end: float) -> bool:
        """Runs all that can run, then advances to the next timer; False: there is none up to `end`.

        If the time was set past a timer, the timer runs as soon as possible.
        """
        ready, timers = self._ready, self._timers
        while ready:
            handle = ready.popleft()
            callback = handle._callback
            if callback is not None:
                self.steps += 1
                callback(*handle._args)
            # The traceback of a task that failed has this frame (since Python 3.13). It must not
            # keep the task, which reports its failure as it goes.
            del handle, callback
        if self.steps > self._most_steps:
            raise RuntimeError("this would go on for ever")
        if self.failures:
            failure = self.failures.pop(0)
            raise failure if isinstance(failure, BaseException) else RuntimeError(failure)
        while timers and timers[0][2]._callback is None:
            heappop(timers)
        if not timers or timers[0][0] > end:
            return False
        when, _, handle = heappop(timers)
        if when > self.now:
            self.now = when
        ready.append(handle)
        return True

    @property
    def due(self) -> bool:
        """Whether callbacks are left to run before time passes."""
        return bool(self._ready) or any(
            when <= self.now and handle._callback is not None for when, _, handle in self._timers
        )


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


# For tests


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def counting_turns(work: Awaitable[T]) -> tuple[T, int]:
    """The result of the work, and how often the loop has turned meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        return await work, turns
    finally:
        counting.cancel()


def running() -> VirtualLoop:
    """The running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def pass_time(seconds: float) -> None:
    """Nothing runs for so many seconds: all processes are frozen, the database's clock goes on."""
    running().now += seconds


async def settle() -> None:
    """Runs all tasks that can run, without any time passing."""
    loop = running()
    await loop.sleep(0.0)
    while loop.due:
        await loop.sleep(0.0)
