"""Time passes only when no task can run, and an endless wait fails at once."""

from __future__ import annotations

import asyncio

import pytest

from broker.testing.loop import VirtualLoop, pass_time, running, settle, virtual
from broker.testing.process import Process, VirtualAlarms


@virtual
async def test_an_hour_takes_no_time() -> None:
    """Or rather, few steps."""
    await asyncio.sleep(3600)
    assert running().now == 3600
    assert running().steps < 10


@virtual
async def test_timeouts_and_sleeps_come_in_their_order() -> None:
    seen: list[str] = []

    async def note(what: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(what)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await asyncio.gather(note("third", 3), note("first", 1), note("last", 4))
    assert seen == ["first"]
    assert running().now == 2


def test_a_wait_that_never_ends_is_reported() -> None:
    @virtual
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        waits()


def test_an_endless_wait_next_to_a_periodic_task_is_reported() -> None:
    @virtual
    async def waits() -> None:
        VirtualAlarms(Process(running())).every("pulse", 100.0, settle)
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        waits()


def test_a_task_that_fails_without_a_waiter_fails_the_test() -> None:
    @virtual
    async def goes_on() -> None:
        async def fails() -> None:
            raise ValueError("unheard")

        tasks = [asyncio.ensure_future(fails())]
        await settle()
        tasks.clear()
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="unheard"):
        goes_on()


def test_an_endless_loop_without_passing_time_is_ended() -> None:
    loop = VirtualLoop(most_steps=1000)

    async def spin() -> None:
        while loop.steps <= 1000:  # noqa: ASYNC110 - it spins on purpose
            await asyncio.sleep(0)

    loop.create_task(spin())
    with pytest.raises(RuntimeError, match="for ever"):
        loop.run_until(1.0)


@virtual
async def test_settling_runs_all_ready_tasks_and_passes_no_time() -> None:
    seen: list[int] = []

    async def go(steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        running().call_later(0.0, seen.append, steps)

    tasks = [asyncio.ensure_future(go(steps)) for steps in (1, 500)]
    await settle()
    assert seen == [1, 500]
    assert running().now == 0.0
    assert all(task.done() for task in tasks)


@virtual
async def test_a_frozen_process_continues_as_if_no_time_had_passed() -> None:
    process, seen = Process(running()), list[str]()
    process.later(1.0, seen.append, "due")
    process.freeze()
    await asyncio.sleep(2)
    assert seen == []
    process.thaw()
    await settle()
    assert seen == ["due"]


@virtual
async def test_a_dead_process_does_nothing_any_more() -> None:
    process, seen = Process(running()), list[str]()
    process.later(1.0, seen.append, "due")
    waiting = asyncio.ensure_future(process.sleep(1.0))
    process.die()
    await asyncio.sleep(2)
    assert seen == []
    assert not waiting.done()


@virtual
async def test_processes_have_clocks_of_their_own() -> None:
    fast, rung = Process(running(), origin_seconds=100.0, rate=2.0), list[float]()
    alarms = VirtualAlarms(fast)
    alarms.set("one", 10.0, lambda: rung.append(fast.now()))
    alarms.set("two", 10.0, lambda: rung.append(0.0))
    alarms.set("two", None, lambda: None)
    assert alarms.waiting == {"one"}
    await asyncio.sleep(6)
    assert rung == [110.0]
    assert alarms.rung == {"one": 1}


@virtual
async def test_all_may_be_frozen_at_once() -> None:
    rung: list[float] = []
    running().call_later(1.0, lambda: rung.append(running().now))
    pass_time(60.0)
    await settle()
    assert rung == [60.0]
