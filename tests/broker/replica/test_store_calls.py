"""Many callers share one call."""

import asyncio
from collections.abc import Sequence

import pytest

from broker.replica.store_calls import Batcher
from broker.testing.loop import settle, virtual


@virtual
async def test_requests_that_arrive_during_a_call_share_the_next() -> None:
    calls: list[list[int]] = []

    async def double(items: Sequence[int]) -> Sequence[int]:
        calls.append(list(items))
        await asyncio.sleep(1)
        return [2 * item for item in items]

    batcher = Batcher(double, most=4)
    first = batcher.put(0)
    await asyncio.sleep(0.5)
    rest = [batcher.put(n) for n in range(1, 8)]
    assert await asyncio.gather(first, *rest) == [2 * n for n in range(8)]
    assert calls == [[0], [1, 2, 3, 4], [5, 6, 7]]


@virtual
async def test_a_caller_that_gave_up_does_not_affect_the_others() -> None:
    async def slow(items: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(1)
        return items

    batcher = Batcher(slow)
    answers = [batcher.put(n) for n in range(3)]
    await settle()
    answers[1].cancel()
    assert await answers[0] == 0
    assert await answers[2] == 2


@virtual
async def test_a_failure_is_told_to_its_batch_alone() -> None:
    async def picky(items: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if 13 in items:
            raise ValueError("13")
        return items

    batcher = Batcher(picky)
    with pytest.raises(ValueError, match="13"):
        await batcher.put(13)
    assert await batcher.put(14) == 14
