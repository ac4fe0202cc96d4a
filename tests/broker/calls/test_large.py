"""A page of a large queue costs no more than itself, counted in executed lines of the service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.core.model import MOST_PARTITIONS
from broker.testing.loop import VirtualLoop
from counterpoise import wire
from tests.broker.shell import Service, World, dynamic, spec

pytestmark = pytest.mark.long

BROKER = str(Path(broker.__file__).parent)
# The database in memory does everything at once.
PAGES = tuple(f"{BROKER}/{part}" for part in ("calls", "logs", "core", "replica"))
LARGE = MOST_PARTITIONS


class Measuring(VirtualLoop):
    """Counts lines of the service while it is told to."""

    total = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Lines of PAGES."""
        before, self.total = sys.gettrace(), 0

        def trace(frame: Any, event: str, _argument: Any) -> Any:
            if not frame.f_code.co_filename.startswith(PAGES):
                return None
            self.total += event == "line"
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def measured(test: Callable[[Measuring], Coroutine[Any, Any, None]]) -> None:
    loop = Measuring()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


async def large() -> tuple[World, Service]:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=LARGE))
    await one.join("orders", "first", lease=600)
    return world, one


def test_the_last_page_of_partitions_costs_as_much_as_the_first() -> None:
    async def test(loop: Measuring) -> None:
        _, one = await large()
        await costs_the_same(loop, lambda after: one.partitions("orders", 10, after))

    measured(test)


def test_a_page_of_a_queue_that_shrank_does_not_walk_the_removed() -> None:
    async def test(loop: Measuring) -> None:
        _, one = await large()
        await one.change_queue("orders", {"partition_count": 10}, discard=True)
        with loop.counting():
            page = await one.partitions("orders", 10, "4")
        assert [item.partition for item in page.items] == [5, 6, 7, 8, 9]
        assert loop.total < LARGE

    measured(test)


def test_pages_of_a_dynamic_queue_cost_the_same() -> None:
    async def test(loop: Measuring) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(dynamic("orders", *(f"k{number}" for number in range(LARGE))))
        await costs_the_same(loop, lambda after: one.partitions("orders", 10, after))
        await costs_the_same(loop, lambda after: one.lineage("orders", 10, after))

    measured(test)


async def costs_the_same(
    loop: Measuring, page: Callable[[str | None], Coroutine[Any, Any, wire.Page[Any]]]
) -> None:
    """The first page and one near the end."""
    costs = []
    for after in (None, str(LARGE - 50)):
        with loop.counting():
            found = await page(after)
        first = 0 if after is None else int(after) + 1
        assert [item.partition for item in found.items] == list(range(first, first + 10))
        costs.append(loop.total)
    assert costs[1] <= 1.1 * costs[0]
    assert min(costs) < LARGE
