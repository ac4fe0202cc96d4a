"""How the cost of a decision grows: the core alone, in this process, without I/O.

    python -m benchmarks.growth [--quick]

* *partitions* (10 to 1,000,000) and *flows* (1 to 50,000): one flow joins a queue that is Ready,
  and after the holddown the rebalance is planned: the state is held, and all handoffs are begun.
  The time of the decision and the time of each handoff.
* *queues* (1 to 10,000): the same join in queue after queue, each with 16 partitions and 4 flows.

The yardstick **P** is a Python loop of 10⁶ additions, in the same process. All are CPU times, so
other work of the machine matters little.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterable

from benchmarks.figures import Figure, Series, spread
from broker.core import commands as c
from broker.core import records as r
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from tests.broker.core.large import large

P = "P"
ADDITIONS = 1_000_000
# The state held; (flows, partitions).
SIZES = ((1_000, 10_000), (10_000, 100_000))
LARGEST = (10_000, 1_000_000)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for one in figures(parser.parse_args().quick):
        if isinstance(one, Series):
            print(f"{one.plot}: {one.name}, slope {one.slope:.2f}")
            for size, cost in one.points:
                print(f"  {size:>10,.0f} {one.size_unit:<10} {cost:>12,.2f} {one.unit}")
        else:
            print(one)


def figures(quick: bool = False) -> list[Figure | Series]:
    """All growth, and the plans that have targets."""
    # Millions of objects that stay: the search for garbage would be in some of the figures.
    gc.disable()
    try:
        rounds = 3 if quick else 7
        return [
            *_plans((*SIZES, *(() if quick else (LARGEST,))), rounds),
            *_against_partitions(100_000 if quick else 1_000_000, rounds),
            *_against_flows(10_000 if quick else 50_000, rounds),
            *_against_queues(1_000 if quick else 10_000),
        ]
    finally:
        gc.enable()
        gc.collect()


def _plans(sizes: tuple[tuple[int, int], ...], rounds: int) -> list[Figure]:
    found = []
    for flows, partitions in sizes:
        queue = large(partitions, flows)
        took, yard = [], []
        for number in range(rounds):
            yard.append(addition_seconds())
            took.append(join(queue, number)[0])
        found.append(
            Figure(
                f"plan of a flow that joins {flows:,} flows, {partitions:,} partitions",
                statistics.median(took) * 1e3,
                "ms",
                statistics.median(took) / statistics.median(yard),
                P,
                spread=spread([one * 1e3 for one in took]),
                rounds=rounds,
            )
        )
    return found


def _against_partitions(most: int, rounds: int) -> list[Series]:
    """With at most 1,000 flows, and at least 10 partitions for each."""
    sizes = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, most)

    def of(partitions: int) -> Queue:
        return large(partitions, max(1, min(1_000, partitions // 10)))

    return _against("partitions", (size for size in sizes if size <= most), of, rounds)


def _against_flows(most: int, rounds: int) -> list[Series]:
    """With 100,000 partitions."""
    sizes = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, most)
    queues = (size for size in sizes if size <= most)
    return _against("flows", queues, lambda flows: large(100_000, flows), rounds)


def _against(
    what: str, sizes: Iterable[int], of: Callable[[int], Queue], rounds: int
) -> list[Series]:
    """A decision, and each of its handoffs, in queues of these sizes."""
    decisions, moves = [], []
    for size in dict.fromkeys(sizes):
        queue = of(size)
        found = [join(queue, number) for number in range(rounds)]
        decisions.append((float(size), statistics.median(took for took, _ in found) * 1e3))
        moves.append((float(size), statistics.median(took / n for took, n in found) * 1e6))
    plot = f"core against {what}"
    return [
        Series(plot, "a decision", what, "ms", tuple(decisions)),
        Series(plot, "for each handoff", what, "µs", tuple(moves)),
    ]


def _against_queues(most: int) -> list[Series]:
    queues: list[Queue] = []
    points: list[tuple[float, float]] = []
    for count in (1, 10, 100, 1_000, most):
        if count > most or (points and count == points[-1][0]):
            continue
        queues += [large(16, 4) for _ in range(count - len(queues))]
        # A queue of its own for each join, spread over all that are held.
        chosen = queues[:: max(1, count // 200)]
        took = [join(queue, count)[0] for queue in chosen]
        points.append((float(count), statistics.median(took) * 1e3))
    return [Series("core against queues", "a join and its plan", "queues", "ms", tuple(points))]


def join(queue: Queue, number: int) -> tuple[float, int]:
    """One flow joins: CPU seconds of the decision after the holddown, and handoffs. The queue is as
    before.
    """
    mark = queue.journal.mark()
    decide(queue, c.Bind(f"x{number}", f"i-x{number}", "bench", 60.0), 0.0)
    began = time.process_time()
    decision = decide(queue, c.Advance(), 5.0)
    took = time.process_time() - began
    handoffs = sum(len(one.moves) for one in decision.records if isinstance(one, r.RevokesStarted))
    queue.journal.undo(mark)
    queue.touched = set()
    assert handoffs, "nobody handed anything off"
    return took, handoffs


def addition_seconds() -> float:
    """The yardstick P, in CPU seconds."""
    began, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - began


if __name__ == "__main__":
    main()
