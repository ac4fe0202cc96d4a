"""An answer that costs something, made once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """What `make` returns, at most `seconds` old. However many ask, one makes it at a time."""

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
        self._kept: tuple[float, T] | None = None

    async def get(self) -> T:
        """Raises what `make` raises, which is not kept."""
        async with self._making:
            if self._kept is None or self._monotonic() - self._kept[0] > self._seconds:
                self._kept = (self._monotonic(), await self._make())
            return self._kept[1]
