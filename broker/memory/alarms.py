"""Alarms that replace APScheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from broker.memory.process import Process


class Alarms:
    """The alarms of one process, by its own clock: the port of `broker.mailbox.alarms`.

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
