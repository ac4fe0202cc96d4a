"""The alarm clock: a timer of the event loop for each queue's next deadline, and
APScheduler for what comes again and again, like the sweep.

A timer is only a wake-up call. Deadlines are columns, the store's clock decides what is due, and
the sweep finds what a lost or late timer left, so nothing is lost with the process. Jobs never
count as missed (`misfire_grace_time=None`: with a limit, a stall of the event loop would drop them
silently) and never pile up (`coalesce`).

**The host's clock may be set.** The event loop's clock does not notice. APScheduler has its jobs'
times by the host's: set back by an hour, it would not sweep for an hour, also with interval jobs.
But it leaves to its job store which jobs are due, and it sleeps by the event loop's clock. So a
store keeps when each job is due by that clock (`LoopTimeStore`). There are date jobs alone: a job
only begins a call, and the next one is set when that has ended, so no two run at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol

from apscheduler.executors.debug import DebugExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore, ConflictingIdError, JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

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
            jobstores={"default": LoopTimeStore()},
            # It runs a job, which only begins a call, at once. The usual one cancels at its end
            # what has yet to begin, and logs that as an error.
            executors={"default": DebugExecutor()},
            job_defaults={"misfire_grace_time": None, "coalesce": True},
        )
        self._under_way: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    def start(self) -> None:
        """Begins to call back."""
        self._scheduler.start()

    def stop(self) -> None:
        """Calls nobody back any more."""
        self._stopped = True
        while self._timers:
            self._timers.popitem()[1].cancel()
        self._scheduler.shutdown(wait=False)

    async def finish(self) -> None:
        """See `Alarms`."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=END_SECONDS)
        if self._under_way:
            for task in self._under_way:
                task.cancel()
            await asyncio.wait(self._under_way, timeout=END_SECONDS)

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        """Calls back once after the delay, in place of what was set for this key; None: not at
        all.
        """
        before = self._timers.pop(key, None)
        if before is not None:
            before.cancel()
        if delay_seconds is None or self._stopped:
            return

        def ring() -> None:
            del self._timers[key]
            callback()

        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, delay_seconds), ring)

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Calls back again and again, never twice at a time."""

        async def call() -> None:
            began = monotonic()
            try:
                await callback()
            finally:
                again(max(0.0, seconds - (monotonic() - began)))

        def ring() -> None:
            # The scheduler ends a turn of the event loop later than it was told to.
            if not self._stopped:
                task = asyncio.create_task(call())
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

        def again(delay_seconds: float) -> None:
            when = datetime.now(UTC) + timedelta(seconds=delay_seconds)
            trigger = DateTrigger(when, UTC)
            self._scheduler.add_job(ring, trigger, id=key, replace_existing=True)

        again(seconds)


class LoopTimeStore(BaseJobStore):  # type: ignore[misc]
    """The few jobs of a scheduler, in memory, due by the event loop's clock (`monotonic`).

    Of a job that is added, or gets another time, the host's clock says how long it has still to
    wait. How that clock is set later makes no difference.
    """

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[float, Job]] = {}

    def lookup_job(self, job_id: str) -> Job | None:
        """The job of this id."""
        return self._jobs.get(job_id, (0.0, None))[1]

    def get_all_jobs(self) -> list[Job]:
        """All jobs."""
        return [job for _, job in self._jobs.values()]

    def get_due_jobs(self, now: datetime) -> list[Job]:
        """The jobs that are due: their time is `now`, whatever the host's clock has said before."""
        time = monotonic()
        jobs = [job for due, job in self._jobs.values() if due <= time]
        for job in jobs:
            job.next_run_time = now
        return jobs

    def get_next_run_time(self) -> datetime | None:
        """When the next job is due, by the host's clock as it is set now."""
        if not self._jobs:
            return None
        seconds = min(due for due, _ in self._jobs.values()) - monotonic()
        return datetime.now(UTC) + timedelta(seconds=seconds)

    def add_job(self, job: Job) -> None:
        """Adds a job. Raises ConflictingIdError if there is one of its id."""
        if job.id in self._jobs:
            raise ConflictingIdError(job.id)
        self._put(job)

    def update_job(self, job: Job) -> None:
        """Replaces the job of this id. Raises JobLookupError."""
        if job.id not in self._jobs:
            raise JobLookupError(job.id)
        self._put(job)

    def _put(self, job: Job) -> None:
        due = monotonic() + (job.next_run_time - datetime.now(UTC)).total_seconds()
        self._jobs[job.id] = due, job

    def remove_job(self, job_id: str) -> None:
        """Removes the job of this id. Raises JobLookupError."""
        if self._jobs.pop(job_id, None) is None:
            raise JobLookupError(job_id)

    def remove_all_jobs(self) -> None:
        """Removes all jobs."""
        self._jobs.clear()

    def shutdown(self) -> None:
        """The scheduler has stopped."""
        self.remove_all_jobs()
