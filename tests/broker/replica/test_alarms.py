"""The alarm clock on APScheduler, in real time."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, tzinfo
from typing import Self

import pytest

from broker.replica.alarms import SchedulerAlarms


@pytest.fixture
async def alarms() -> AsyncIterator[SchedulerAlarms]:
    alarms = SchedulerAlarms()
    alarms.start()
    yield alarms
    alarms.stop()
    await alarms.finish()


async def test_an_alarm_rings_once_and_the_latest_counts(alarms: SchedulerAlarms) -> None:
    rung: list[str] = []
    done = asyncio.Event()
    alarms.set("a", 60, lambda: rung.append("first"))
    alarms.set("a", 0.02, lambda: rung.append("second"))
    alarms.set("b", 0.01, lambda: rung.append("never"))
    alarms.set("b", None, lambda: None)
    alarms.set("c", None, lambda: None)
    alarms.set("d", -5, lambda: rung.append("at once"))
    alarms.set("e", 0.5, done.set)
    await asyncio.wait_for(done.wait(), 60)
    # On a busy machine both are due when the scheduler looks.
    assert sorted(rung) == ["at once", "second"]


async def test_a_stall_of_the_loop_drops_no_alarm(alarms: SchedulerAlarms) -> None:
    events = [asyncio.Event() for _ in range(50)]
    for n, event in enumerate(events):
        alarms.set(str(n), 0.02, event.set)
    time.sleep(1.5)  # noqa: ASYNC251
    async with asyncio.timeout(240):
        await asyncio.gather(*(event.wait() for event in events))


class Wall(datetime):
    """The host's wall clock, which tests may set."""

    set_by = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + cls.set_by


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> type[Wall]:
    """Replaces the wall clock, for the alarms and for APScheduler."""
    for module in (
        "broker.replica.alarms",
        "apscheduler.schedulers.base",
        "apscheduler.triggers.date",
    ):
        monkeypatch.setattr(f"{module}.datetime", Wall)
    monkeypatch.setattr(Wall, "set_by", timedelta())
    return Wall


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1), timedelta(days=20_000)])
async def test_alarms_ring_although_the_hosts_clock_was_set(
    wall: type[Wall], alarms: SchedulerAlarms, step: timedelta
) -> None:
    """Neither the sweep nor an alarm is delayed by the step."""
    if step > timedelta(days=1):
        # An alarm computed before the process has noticed the step.
        wall.set_by = -step
        alarms.set("known", None, lambda: None)
    again, done = asyncio.Semaphore(0), asyncio.Event()

    async def sweep() -> None:
        again.release()

    alarms.every("sweep", 0.1, sweep)
    alarms.set("done", 1.0, done.set)
    async with asyncio.timeout(240):
        await again.acquire()
        wall.set_by += step
        for _ in range(5):
            await again.acquire()
        await done.wait()


async def test_a_failed_callback_is_logged_and_called_again(
    alarms: SchedulerAlarms, caplog: pytest.LogCaptureFixture
) -> None:
    times = asyncio.Semaphore(0)

    async def work() -> None:
        times.release()
        raise RuntimeError("this time")

    alarms.every("w", 0.02, work)
    async with asyncio.timeout(240):
        for _ in range(3):
            await times.acquire()
    assert caplog.text.count("RuntimeError: this time") >= 2


async def test_a_periodic_callback_never_runs_twice_at_a_time(
    alarms: SchedulerAlarms,
) -> None:
    running = 0
    most = 0
    times = asyncio.Semaphore(0)

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.12)
        running -= 1
        times.release()

    alarms.every("w", 0.05, work)
    async with asyncio.timeout(240):
        for _ in range(3):
            await times.acquire()
    assert most == 1


async def test_a_stop_lets_a_call_under_way_end(caplog: pytest.LogCaptureFixture) -> None:
    alarms = SchedulerAlarms()
    alarms.start()
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        ended.set()

    alarms.every("a", 0.0, work)
    await asyncio.wait_for(begun.wait(), 60)
    alarms.stop()
    finishing = asyncio.create_task(alarms.finish())
    await asyncio.sleep(0)
    go_on.set()
    await finishing
    assert ended.is_set()
    assert not caplog.records


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_as_a_call_begins_is_no_error(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a call begin once `finish` has returned."""
    alarms = SchedulerAlarms()
    alarms.start()
    calls: list[bool] = []

    async def work() -> None:
        await asyncio.sleep(0)
        calls.append(True)

    alarms.every("a", 0.0, work)
    for _ in range(turns):
        await asyncio.sleep(0)
    alarms.stop()
    await alarms.finish()
    finished = len(calls)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(calls) == finished
    assert not caplog.records


async def test_a_stop_waits_for_the_clean_up_of_a_call_that_it_cancels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarms = SchedulerAlarms()
    alarms.start()
    monkeypatch.setattr("broker.replica.alarms.END_SECONDS", 0.05)
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    alarms.every("a", 0.0, work)
    await asyncio.wait_for(begun.wait(), 60)
    alarms.stop()
    await alarms.finish()
    assert cleaned.is_set()
