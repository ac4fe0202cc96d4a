"""The alarm clock: APScheduler, one date job per queue at its next deadline, and the sweep.

The job is only a wake-up call. Deadlines are columns, the store's clock decides what is due, and
the sweep finds what a lost or late job left, so nothing is lost with the process. Jobs never count
as missed (`misfire_grace_time=None`: with a limit, a stall of the event loop would drop them
silently) and never pile up (`coalesce`).

**The host's clock may be set.** APScheduler has its jobs' times by that clock: set back, it would
delay all of them, the sweep too, by as much. But it leaves to its job store which jobs are due, and
it sleeps by the event loop's clock, which nobody can set. So a store keeps when each job is due by
that clock (`LoopTimeStore`). There are date jobs alone: APScheduler skips the run of an interval
job that is due while the last one is under way, and the sweep would come half as often.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from time import monotonic
from typing import Any, Protocol

from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore, ConflictingIdError, JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler

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
            # A job counts as running for a moment longer than it does, and one that were to begin
            # in that moment would be dropped.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1000},
        )
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to call back."""
        self._scheduler.start()

    def stop(self) -> None:
        """Calls nobody back any more."""
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
            began = monotonic()
            task = asyncio.create_task(callback())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            try:
                # A scheduler that shuts down cancels its jobs; `finish` sees to the call.
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(task)
            finally:
                self._set(key, seconds - (monotonic() - began), ring)

        self._set(key, seconds, ring)

    def _set(
        self, key: str, delay_seconds: float, ring: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        when = datetime.now(UTC) + timedelta(seconds=max(0.0, delay_seconds))
        self._scheduler.add_job(ring, "date", run_date=when, id=key, replace_existing=True)


class LoopTimeStore(BaseJobStore):  # type: ignore[misc]
    """The jobs of a scheduler, in memory, due by the event loop's clock (`monotonic`).

    Of a job that is added, or gets another time, the host's clock says how long it has still to
    wait. How that clock is set later makes no difference.
    """

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[float, Job]] = {}
        # (due, id), the earliest first.
        self._order: list[tuple[float, str]] = []

    def lookup_job(self, job_id: str) -> Job | None:
        """The job of this id."""
        return self._jobs.get(job_id, (0.0, None))[1]

    def get_all_jobs(self) -> list[Job]:
        """All jobs, the earliest due first."""
        return [self._jobs[job_id][1] for _, job_id in self._order]

    def get_due_jobs(self, now: datetime) -> list[Job]:
        """The jobs that are due: their time is `now`, whatever the host's clock has said before."""
        time = monotonic()
        due = takewhile(lambda entry: entry[0] <= time, self._order)
        jobs = [self._jobs[job_id][1] for _, job_id in due]
        for job in jobs:
            job.next_run_time = now
        return jobs

    def get_next_run_time(self) -> datetime | None:
        """When the next job is due, by the host's clock as it is set now."""
        if not self._order:
            return None
        return datetime.now(UTC) + timedelta(seconds=self._order[0][0] - monotonic())

    def add_job(self, job: Job) -> None:
        """Adds a job. Raises ConflictingIdError if there is one of its id."""
        if job.id in self._jobs:
            raise ConflictingIdError(job.id)
        due = monotonic() + (job.next_run_time - datetime.now(UTC)).total_seconds()
        self._jobs[job.id] = due, job
        insort(self._order, (due, job.id))

    def update_job(self, job: Job) -> None:
        """Replaces the job of this id. Raises JobLookupError."""
        self.remove_job(job.id)
        self.add_job(job)

    def remove_job(self, job_id: str) -> None:
        """Removes the job of this id. Raises JobLookupError."""
        if job_id not in self._jobs:
            raise JobLookupError(job_id)
        due, _ = self._jobs.pop(job_id)
        del self._order[bisect_left(self._order, (due, job_id))]

    def remove_all_jobs(self) -> None:
        """Removes all jobs."""
        self._jobs.clear()
        self._order.clear()

    def shutdown(self) -> None:
        """The scheduler has stopped."""
        self.remove_all_jobs()
