"""Ending a consumer in order on SIGINT and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """A `Consumer`."""

    def stop(self, *, now: bool = False) -> None: ...


@contextmanager
def stop_on_signals(consumer: Stoppable) -> Iterator[None]:
    """Hand over in order on the first SIGINT or SIGTERM, end without waiting on the second.

    For the main thread; in another thread it does nothing. Afterwards the earlier handlers are
    restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        consumer.stop(now=signals > 1)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
