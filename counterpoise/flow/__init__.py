"""A consumer's binding to a queue: `Flow` for threads, `AsyncFlow` for asyncio, on one core."""

from typing import TYPE_CHECKING

from counterpoise.flow.blocking import Flow
from counterpoise.flow.view import Owned, Warming
from counterpoise.lazy import lazily
from counterpoise.lease_time import lease_time

if TYPE_CHECKING:
    from counterpoise.flow.asyncio import AsyncFlow

__all__ = ["AsyncFlow", "Flow", "Owned", "Warming", "lease_time"]

if not TYPE_CHECKING:  # with __getattr__ visible, mypy would accept every name
    # A consumer with threads needs no asyncio, which takes a tenth of its memory.
    __getattr__ = lazily(__name__, {"AsyncFlow": "counterpoise.flow.asyncio"})
