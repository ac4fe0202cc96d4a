"""A process that can freeze and die, and its alarms, which replace APScheduler."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from broker.testing.loop import VirtualLoop


class Process:
    """One process, from its start to its end. Its clock is independent of other clocks."""

    def __init__(self, loop: VirtualLoop, origin_seconds: float = 0.0, rate: float = 1.0) -> None:
        """The clock shows `origin_seconds` when the loop's shows 0, and is `rate` times as fast."""
        self.loop, self.rate = loop, rate
        self.dead = self.frozen = False
        self._origin_seconds = origin_seconds
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._waiting: list[asyncio.Future[None]] = []

    def now(self) -> float:
        """The process's own monotonic clock."""
        return self._origin_seconds + self.rate * self.loop.now

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Any:
        """Call back after so many seconds of its own clock, if it runs then. Returns a handle to
        cancel.
        """
        return self.loop.call_at(self.loop.now + seconds / self.rate, self.do, callback, *args)

    def do(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back if it runs: now, or when it is thawed, or never if it is dead."""
        if self.frozen:
            self._backlog.append((callback, args))
        elif not self.dead:
            callback(*args)

    async def sleep(self, seconds: float) -> None:
        """Continue after so many seconds of its own clock, when it runs."""
        await self.loop.sleep(seconds / self.rate)
        await self.alive()

    async def alive(self) -> None:
        """Continue when it runs; never, if it is dead."""
        while self.frozen:
            self._waiting.append(self.loop.create_future())
            await self._waiting[-1]
        if self.dead:
            await self.loop.create_future()

    def freeze(self) -> None:
        """Nothing of it runs until it is thawed."""
        self.frozen = True

    def thaw(self) -> None:
        """Everything continues as if no time had passed."""
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        backlog, self._backlog = self._backlog, []
        for callback, args in backlog:
            self.loop.call_soon(self.do, callback, *args)

    def die(self) -> None:
        """Nothing of it ever runs again."""
        self.thaw()
        self.dead = True


class VirtualAlarms:
    """The alarms of one process, by its own clock: the port of `broker.replica.alarms`.

    With `on` False only periodic alarms ring. `rung`: how often each key rang.
    """

    def __init__(self, process: Process) -> None:
        self.on = True
        self.rung: Counter[str] = Counter()
        self._process = process
        self._handles: dict[str, Any] = {}
        self._tasks: list[Any] = []

    @property
    def waiting(self) -> frozenset[str]:
        """The keys of the alarms that are set."""
        return frozenset(self._handles)

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        """`stop` has cancelled everything."""

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        known = self._handles.pop(key, None)
        if known is not None:
            known.cancel()
        if delay_seconds is not None and self.on:
            delay = max(0.0, delay_seconds) / self._process.rate
            self._handles[key] = self._process.loop.call_later(delay, self._ring, key, callback)

    def _ring(self, key: str, callback: Callable[[], None]) -> None:
        self._handles.pop(key, None)
        self.rung[key] += 1
        self._process.do(callback)

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async def again() -> None:
            while not self._process.dead:
                await self._process.sleep(seconds)
                await callback()

        self._tasks.append(self._process.loop.create_task(again()))
