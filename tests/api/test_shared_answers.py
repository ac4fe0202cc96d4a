"""An expensive result is computed once for all concurrent callers."""

import asyncio

import pytest

from api.routes.service import Cached


async def test_concurrent_callers_share_one_result_until_it_is_old() -> None:
    now, made, gate = 0.0, 0, asyncio.Event()

    async def make() -> int:
        nonlocal made
        await gate.wait()
        made += 1
        return made

    cached = Cached(make, 1.0, lambda: now)
    asking = [asyncio.ensure_future(cached.get()) for _ in range(100)]
    gate.set()
    assert set(await asyncio.gather(*asking)) == {1}
    now = 1.0
    assert await cached.get() == 1
    now = 1.1
    assert await cached.get() == 2


async def test_a_failure_is_not_cached() -> None:
    answers: list[OSError | int] = [OSError("away"), 7]

    async def make() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cached = Cached(make, 1.0)
    with pytest.raises(OSError, match="away"):
        await cached.get()
    assert await cached.get() == 7


async def test_who_waits_for_a_slow_result_takes_it() -> None:
    """As probes of a service whose database hangs: each would wait for all before it."""
    now, made = 0.0, 0

    async def make() -> int:
        nonlocal now, made
        await asyncio.sleep(0)
        now += 1.5
        made += 1
        return made

    cached = Cached(make, 1.0, lambda: now)
    assert set(await asyncio.gather(*(cached.get() for _ in range(100)))) == {1}
    assert await cached.get() == 2
