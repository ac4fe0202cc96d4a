"""Size: the cost of a change in a large queue, and the memory of a partition.

Costs are counted in executed lines of the core and in entries of the journal, not in seconds.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.model import MOST_PARTITIONS, Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from tests.broker.core.large import commit, large

PARTITIONS, FLOWS = 100_000, 10_000


def cost(queue: Queue, act: Callable[[], Decision]) -> tuple[Decision, int]:
    """The decision, and how many lines of the core it executed."""
    lines = 0

    def trace(frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decision = act()
    finally:
        sys.settrace(before)
    return decision, lines


# It takes seconds to make the queue.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("scale")]


@pytest.fixture(scope="module", autouse=True)
def without_collections() -> Iterator[None]:
    """Millions of objects that stay: to search them for garbage takes twice as long as to make
    them."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(scope="module")
def queue() -> Queue:
    return large(PARTITIONS, FLOWS)


def test_a_join_costs_no_pass_over_partitions_or_flows(queue: Queue) -> None:
    """Nine handoffs among 100,000 partitions and 10,000 flows."""
    _, lines = cost(queue, lambda: decide(queue, c.Bind("x", "i-x", "test", 10.0), 0.0))
    assert lines < 1000
    queue.journal.forget()
    rebalanced, lines = cost(queue, lambda: decide(queue, c.Advance(), 5.0))
    moves = [
        move for x in rebalanced.records if isinstance(x, r.RevokesStarted) for move in x.moves
    ]
    assert len(moves) == 9
    assert lines < 10_000
    assert queue.journal.mark() < 300
    assert len(rebalanced.notices) == 9
    queue.journal.forget()
    for number, owner, _ in moves:
        release = c.Release(owner, (c.ReleaseItem(number, 1),))
        _, lines = cost(queue, lambda: decide(queue, release, 6.0))  # noqa: B023
        assert lines < 1000
        queue.journal.forget()
    assert queue.status == "Ready"
    _, lines = cost(queue, lambda: decide(queue, c.Unbind("x"), 7.0))
    assert lines < 2000
    queue.journal.forget()
    _, lines = cost(queue, lambda: decide(queue, c.Advance(), 12.0))
    assert lines < 10_000


def test_a_million_partitions_take_at_most_440_bytes_each(queue: Queue) -> None:
    """Measured with 100,000 partitions, ten to a flow; flows, sets and counts included."""
    each = size_of(queue) / PARTITIONS
    print(f"{each:.0f} bytes for each partition")
    assert each <= 440


def size_of(root: Any) -> int:
    """The bytes of all objects reachable from `root`."""
    seen: set[int] = set()
    waiting, size = [root], 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _CODE):
            continue
        seen.add(id(thing))
        size += sys.getsizeof(thing)
        waiting += gc.get_referents(thing)
    return size


_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, Enum)


def test_a_decision_on_all_partitions_costs_as_much_for_each() -> None:
    """First owners, a second flow, the handoffs' deadlines, an expired lease, a flow that is back,
    and resizes, of the largest queue.

    The bounds are for a partition: lines of the core, and entries of the journal.
    """
    most = MOST_PARTITIONS // 2
    queue = Queue("id", "large", Settings(partition_count=most, rebalance_delay=0.0), 0.0)
    commit(queue, (r.PartitionsAdded(0, most, 0.0),))
    _check_cost(queue, c.Bind("a", "i-a", "test", 10.0), 1.0)
    _check_cost(queue, c.Bind("b", "i-b", "test", 10.0), 2.0)
    _check_cost(queue, c.Advance(), 10.0)
    queue.settings.rebalance_delay = 5.0
    _check_cost(queue, c.Unbind("a", "lease_expired"), 11.0)
    _check_cost(queue, c.Bind("a2", "i-a", "test", 10.0), 11.0)
    _check_cost(queue, c.Change({"partition_count": 2 * most}), 12.0)
    _check_cost(queue, c.Change({"partition_count": 10}), 13.0)
    _check_cost(queue, c.Change({"partition_count": 10}, discard=True), 14.0)


def _check_cost(queue: Queue, command: c.Command, now: float) -> None:
    decision, lines = cost(queue, lambda: decide(queue, command, now))
    changed = len(decision.effects.partitions)
    name, entries = type(command).__name__, queue.journal.mark()
    print(f"{name}: {changed} partitions, {lines / changed:.0f} lines, {entries / changed:.1f}")
    assert changed >= MOST_PARTITIONS // 4
    assert lines < 300 * changed
    assert entries < 4 * changed + 100
    queue.journal.forget()
