"""The alarm clock: APScheduler, one date job per queue at its next deadline, and the sweep.

The job is only a wake-up call. Deadlines are columns, the store's clock decides what is due, and
the sweep finds what a lost or late job left, so nothing is lost with the process. Jobs never count
as missed (`misfire_grace_time=None`: with a limit, a stall of the event loop would drop them
silently) and never pile up (`coalesce`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler


class Alarms(Protocol):
    """Calls back later. A simulation has its own."""

    def start(self) -> None:
        """Begins to call back."""

    def stop(self) -> None:
        """Calls nobody back any more."""

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        """Calls back once after the delay, in place of what was set for this key; None: not at
        all.
        """

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Calls back again and again, never twice at a time."""


class SchedulerAlarms:
    """Alarms of APScheduler on the running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    def start(self) -> None:
        """Begins to call back."""
        self._scheduler.start()

    def stop(self) -> None:
        """Calls nobody back any more."""
        self._scheduler.shutdown(wait=False)

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        """Calls back once after the delay, in place of what was set for this key; None: not at
        all.
        """
        if delay_seconds is None:
            # It may have rung already, or never been set.
            with suppress(JobLookupError):
                self._scheduler.remove_job(key)
            return
        when = datetime.now(UTC) + timedelta(seconds=max(0.0, delay_seconds))

        async def ring() -> None:
            callback()

        self._scheduler.add_job(ring, "date", run_date=when, id=key, replace_existing=True)

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Calls back again and again, never twice at a time."""
        self._scheduler.add_job(
            callback, "interval", seconds=seconds, id=key, replace_existing=True
        )
