"""A consumer's binding to a queue: `Flow` for threads, `AsyncFlow` for asyncio, on one core."""

from counterpoise.flow.asyncio import AsyncFlow
from counterpoise.flow.blocking import Flow
from counterpoise.flow.view import Owned, Warming
from counterpoise.lease_time import lease_time

__all__ = ["AsyncFlow", "Flow", "Owned", "Warming", "lease_time"]
