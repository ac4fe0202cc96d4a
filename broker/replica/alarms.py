"""The alarm clock: APScheduler, one date job per queue at its next deadline, and the sweep.

The job is only a wake-up call. Deadlines are columns, the store's clock decides what is due, and
the sweep finds what a lost or late job left, so nothing is lost with the process. Jobs never count
as missed (`misfire_grace_time=None`: with a limit, a stall of the event loop would drop them
silently) and never pile up (`coalesce`).

APScheduler goes by the host's wall clock, which may be set. Forward, jobs ring early, and whoever
is called finds nothing due. Back, all of them, the sweep too, would ring late by as much; so once a
second, by the event loop's time, the wall clock is compared with a monotonic one, and jobs are
moved with it. There are date jobs alone: an interval job counts every time that it missed, which
takes for ever if the clock was decades behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler

WATCH_SECONDS = 1.0
# A smaller step of the wall clock makes no difference.
STEP_SECONDS = 0.05
# When the alarms stop, a call under way may take so long to end, and as long again to clean up.
END_SECONDS = 1.0


class Alarms(Protocol):
    """Calls back later. A simulation has its own."""

    def start(self) -> None:
        """Begins to call back."""

    def stop(self) -> None:
        """Calls nobody back any more."""

    async def finish(self) -> None:
        """After `stop`: gives the calls of `every` a moment to end, then cancels them.

        When this returns none of them uses the database any more, unless the database is silent.
        """

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
            # A job counts as running for a moment longer than it does, and one that were to begin
            # in that moment would be dropped.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1000},
        )
        self._watch: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to call back."""
        self._scheduler.start()
        self._watch_the_clock(_wall_less_monotonic())

    def stop(self) -> None:
        """Calls nobody back any more."""
        if self._watch is not None:
            self._watch.cancel()
        self._scheduler.shutdown(wait=False)

    async def finish(self) -> None:
        """See `Alarms`. The scheduler itself would cancel a call amid a transaction, and nobody
        would wait until the connection is given back.
        """
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=END_SECONDS)
        if self._under_way:
            for task in self._under_way:
                task.cancel()
            await asyncio.wait(self._under_way, timeout=END_SECONDS)

    def _watch_the_clock(self, before: float) -> None:
        difference = _wall_less_monotonic()
        if difference < before - STEP_SECONDS:
            back = timedelta(seconds=before - difference)
            for job in self._scheduler.get_jobs():
                job.modify(next_run_time=job.next_run_time - back)
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(WATCH_SECONDS, self._watch_the_clock, difference)

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        """Calls back once after the delay, in place of what was set for this key; None: not at
        all.
        """
        if delay_seconds is None:
            # It may have rung already, or never been set.
            with suppress(JobLookupError):
                self._scheduler.remove_job(key)
            return

        async def ring() -> None:
            callback()

        self._set(key, delay_seconds, ring)

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Calls back again and again, never twice at a time."""

        async def ring() -> None:
            began = time.monotonic()
            task = asyncio.create_task(callback())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            try:
                # A scheduler that shuts down cancels its jobs; `finish` sees to the call.
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(task)
            finally:
                self._set(key, seconds - (time.monotonic() - began), ring)

        self._set(key, seconds, ring)

    def _set(
        self, key: str, delay_seconds: float, ring: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        when = datetime.now(UTC) + timedelta(seconds=max(0.0, delay_seconds))
        self._scheduler.add_job(ring, "date", run_date=when, id=key, replace_existing=True)


def _wall_less_monotonic() -> float:
    return datetime.now(UTC).timestamp() - time.monotonic()
