"""A costly answer, computed once and shared among simultaneous callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """The result of `make`, at most `seconds` old; only one caller at a time computes it."""

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._monotonic = monotonic
        self._making = asyncio.Lock()
        self._cached: tuple[float, T] | None = None

    async def get(self) -> T:
        """Raises the errors of `make`; an error is not cached."""
        async with self._making:
            if self._cached is None or self._monotonic() - self._cached[0] > self._seconds:
                self._cached = (self._monotonic(), await self._make())
            return self._cached[1]
