"""Large work pauses; of all that pause one goes on at a time, and small calls go before it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from broker.pieces import OTHERS_SECONDS, TURNS, pause, pieces
from broker.testing.loop import running, virtual


@virtual
async def test_the_pieces_are_the_whole() -> None:
    for count in (0, 1, 3, 4, 7):
        found = [piece async for piece in pieces(range(count), 3)]
        assert [one for piece in found for one in piece] == list(range(count))
        assert all(len(piece) <= 3 for piece in found)


@virtual
async def test_work_of_one_piece_does_not_pause() -> None:
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    assert [piece async for piece in pieces(range(3), 3)] == [range(3)]
    assert not others


@virtual
async def test_one_worker_goes_on_at_a_time() -> None:
    turns: list[int] = [0]
    worked: list[tuple[int, int]] = []

    async def count() -> None:
        while len(worked) < 30:
            turns[0] += 1
            await asyncio.sleep(0)

    async def work(name: int) -> None:
        for _ in range(10):
            await pause()
            worked.append((turns[0], name))

    async with asyncio.TaskGroup() as group:
        group.create_task(count())
        for name in range(3):
            group.create_task(work(name))
    between = {after[0] - before[0] for before, after in pairwise(worked)}
    assert min(between) >= TURNS, "a call of several turns waits for several pieces"
    assert max(between) <= TURNS + 1
    assert [name for _, name in worked] == [0, 1, 2] * 10, "not in order"


@virtual
async def test_others_who_take_long_do_not_keep_a_worker_waiting_for_many_turns() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while turns < 100:
            turns += 1
            loop.now += OTHERS_SECONDS
            await asyncio.sleep(0)

    loop = running()
    busy = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    before = turns
    await pause()
    assert turns - before <= 3
    await busy


@virtual
async def test_a_worker_that_ends_while_it_pauses_holds_up_nobody() -> None:
    workers = [asyncio.ensure_future(pause()) for _ in range(3)]
    await asyncio.sleep(0)
    workers[1].cancel()
    await asyncio.wait(workers)
    assert [worker.cancelled() for worker in workers] == [False, True, False]
