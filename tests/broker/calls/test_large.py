"""Calls on a large queue: none holds the event loop, and a page costs no more than itself.

Counted in executed lines of the service, not in seconds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.calls import views
from broker.calls.bound_flows import BoundFlow
from broker.calls.items import MOST_NAMED, refuse_items
from broker.core.commands import CommitItem
from broker.core.draft import SLICE
from broker.core.errors import Invalid
from broker.logs.ports import Positions, Span
from broker.logs.positions import FAR, Reach
from broker.pieces import PIECE
from broker.testing.loop import VirtualLoop
from tests.broker.shell import Service, World, dynamic, spec

pytestmark = pytest.mark.long

BROKER = str(Path(broker.__file__).parent)
# The database in memory does everything at once.
CALLS = (f"{BROKER}/calls", f"{BROKER}/pieces", f"{BROKER}/logs")
DECISIONS = (f"{BROKER}/core", f"{BROKER}/replica")
PAGES = (*CALLS, f"{BROKER}/core", f"{BROKER}/replica")
LARGE = 12 * PIECE
# For each item of a piece.
MOST_LINES = 10
# As in `tests/broker/core/test_scale.py`, and not twice as many.
MOST_LINES_OF_A_SLICE = 400 * SLICE


class Measuring(VirtualLoop):
    """Counts the lines of the longest callback, and of all of them, while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = self.longest = self.total = 0

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._measured, callback, args)

    def _measured(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.lines = 0
        callback(*args)
        self.longest = max(self.longest, self.lines)

    @contextmanager
    def counting(self, parts: tuple[str, ...]) -> Iterator[None]:
        """Lines of these parts of the service."""
        before, self.longest, self.total = sys.gettrace(), 0, 0

        def trace(frame: Any, event: str, _argument: Any) -> Any:
            if not frame.f_code.co_filename.startswith(parts):
                return None
            if event == "line":
                self.lines += 1
                self.total += 1
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


WHERE: dict[str, Any] = {
    "earliest": "earliest",
    "time": 5.0,
    "positions": {number: str(number % 7 and 0) for number in range(LARGE)},
}


def test_a_dynamic_queue_of_many_ranges_is_made_in_pieces() -> None:
    async def test(loop: Measuring) -> None:
        one = await World().replica()
        with loop.counting(DECISIONS):
            spec = dynamic("orders", *map(str, range(LARGE)))
            made = await asyncio.create_task(one.create_queue(spec))
        assert made.partition_count == LARGE
        assert loop.longest < MOST_LINES_OF_A_SLICE

    measured(test)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_positions_are_set_in_pieces(where: str, dry_run: bool) -> None:
    async def test(loop: Measuring) -> None:
        _, one = await large()
        with loop.counting(CALLS):
            done = await one.set_positions("orders", WHERE[where], dry_run=dry_run)
        assert len(done.partitions) == LARGE
        assert loop.longest < MOST_LINES * PIECE

    measured(test)


@pytest.mark.parametrize("end", [0, 2 * FAR])
def test_positions_far_above_the_known_ends_are_checked_in_pieces(
    end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the first commit after a start of the service, which knows no ends yet."""

    async def test(loop: Measuring) -> None:
        _, one = await large()
        [bound] = (await one.flows("orders", 10, None)).items
        flow = BoundFlow(await one.replica.coordinator("orders"), bound.flow_id)
        while len(await one.view("orders", bound.flow_id)) < LARGE:
            await loop.sleep(1.0)

        async def spans(log: str, positions: Positions) -> Mapping[int, Span]:
            return dict.fromkeys(positions, Span("0", str(end), None))

        monkeypatch.setattr(one.logs, "spans", spans)
        items = [CommitItem(number, 1, str(2 * FAR)) for number in range(LARGE)]
        with loop.counting(CALLS), pytest.raises(Invalid) if not end else nullcontext() as refused:
            await refuse_items(flow, Reach(one.logs), items)
        # What was counted counts when this callback ends.
        await asyncio.sleep(0)
        assert refused is None or len(refused.value.errors) <= MOST_NAMED
        # Each is looked at in several ways.
        assert loop.longest < 3 * MOST_LINES * PIECE

    measured(test)


def test_the_last_page_of_partitions_costs_as_much_as_the_first() -> None:
    async def test(loop: Measuring) -> None:
        _, one = await large()
        await costs_the_same(loop, lambda after: one.partitions("orders", 10, after))

    measured(test)


def test_a_page_of_a_queue_that_shrank_does_not_walk_the_removed() -> None:
    async def test(loop: Measuring) -> None:
        _, one = await large()
        await one.change_queue("orders", {"partition_count": 10}, discard=True)
        with loop.counting(PAGES):
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
    loop: Measuring, page: Callable[[str | None], Coroutine[Any, Any, views.Page[Any]]]
) -> None:
    """The first page and one near the end."""
    costs = []
    for after in (None, str(LARGE - 50)):
        with loop.counting(PAGES):
            found = await page(after)
        first = 0 if after is None else int(after) + 1
        assert [item.partition for item in found.items] == list(range(first, first + 10))
        costs.append(loop.total)
    assert costs[1] <= 1.1 * costs[0]
    assert max(costs) < LARGE


def test_a_large_decision_holds_the_loop_for_one_slice_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First owners, a second flow, and the first one leaves. Two slices are committed together."""
    # No time passes here within a step, and a slice takes longer than this.
    monkeypatch.setattr("broker.replica.transaction.STEP_SECONDS", -1.0)

    async def test(loop: Measuring) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=5 * SLICE))
        queue = one.memory(world.stored("orders")[0])
        assert queue is not None
        longest: list[int] = []

        async def until_decided() -> None:
            while queue.unfinished_at is not None:
                await loop.sleep(0.01)
            longest.append(loop.longest)
            loop.longest = 0

        with loop.counting(DECISIONS):
            first = await one.join("orders", "first", lease=600)
            await until_decided()
            await one.join("orders", "second", lease=600)
            await until_decided()
            await one.unbind("orders", first)
            await until_decided()
        assert max(longest) < MOST_LINES_OF_A_SLICE, longest

    measured(test)
