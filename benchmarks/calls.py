"""What the frequent calls cost the service: how many a core answers, by its own CPU time.

    python -m benchmarks.calls [--rounds 7] [--calls 3000] [--url URL --pid PID]

The callers and Postgres are other processes and not counted. So the figures hold on a machine that
is busy otherwise, too. Flows call from 32 connections, as fast as they are answered. The yardstick
Y6 is the CPU time of a GET of the bare route (`benchmarks.bare`), under the same load.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.binds import bind, queue_of
from benchmarks.figures import Figure, rate, timed
from benchmarks.service import UNLIMITED, Served, run_service
from benchmarks.wire import Caller
from benchmarks.yardsticks import bare_service

CONNECTIONS = 32
FLOWS = 64
QUEUE = "calls"
# (figure, calls a second)
TARGETS = {"heartbeats": 3000, "commits": 1000}


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far, without its children (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@dataclass
class Flow:
    """A bound flow, and what it commits."""

    path: str
    token: str
    partition: int
    epoch: int
    position: int = 0

    async def heartbeat(self, call: Caller) -> None:
        await call.raw("POST", f"{self.path}/heartbeat", token=self.token)

    async def commit(self, call: Caller) -> None:
        self.position += 1
        item = {"partition": self.partition, "epoch": self.epoch, "position": str(self.position)}
        body = {"seq": self.position, "partitions": [item]}
        await call.raw("POST", f"{self.path}/commit", body, self.token)


async def bound_flows(call: Caller, count: int = FLOWS) -> list[Flow]:
    """Flows that own a partition each."""
    await call("POST", "/queues", queue_of(QUEUE, count, delay=1.0))
    found = [await bind(call, QUEUE, f"flow-{n}", 600.0) for n in range(count)]
    flows = []
    for one in found:
        path = f"/queues/{QUEUE}/flows/{one['flow_id']}"
        view: Any = one["update"]
        while not view["partitions"]:
            after = view["revision"]
            view = await call(
                "GET", f"{path}/updates?after={after}&wait=5", None, one["flow_token"]
            )
            view = view or {"revision": after, "partitions": []}
        owned = view["partitions"][0]
        flows.append(Flow(path, one["flow_token"], owned["partition"], owned["epoch"]))
    return flows


async def cost(pid: int, calls: int, make: Callable[[int], Awaitable[object]]) -> float:
    """Seconds of CPU that each of these calls costs the process."""
    numbers = iter(range(calls))

    async def one() -> None:
        for number in numbers:
            await make(number)

    began = cpu_seconds(pid)
    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return (cpu_seconds(pid) - began) / calls


async def measure(url: str, pid: int, rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds of CPU of a heartbeat, a commit and a bare GET, one of each round."""
    found: dict[str, list[float]] = {"heartbeats": [], "commits": [], "bare": []}
    with bare_service() as bare:
        async with Caller(url) as call, Caller(bare.url) as other:
            flows = await bound_flows(call)
            of = {
                "heartbeats": (pid, lambda n: flows[n % FLOWS].heartbeat(call)),
                "commits": (pid, lambda n: flows[n % FLOWS].commit(call)),
                "bare": (bare.pid, lambda n: other.raw("GET", "/bare")),
            }
            for number in range(rounds + 1):
                for name, (process, make) in of.items():
                    taken = await cost(process, calls, make)
                    if number:  # The first round is warm-up.
                        found[name].append(taken)
    return found


def shown(found: dict[str, list[float]]) -> list[Figure]:
    """Calls a second of CPU, and their cost in bare GETs."""
    bare = statistics.median(found["bare"])
    figures = [timed("Y6: CPU of a bare GET", found["bare"])]
    for name, target in TARGETS.items():
        figures += [
            rate(f"{name} a second of a core", [1 / one for one in found[name]], target=target),
            timed(f"CPU of one of the {name}", found[name], "Y6", bare),
        ]
    return figures


def figures(quick: bool = False) -> list[Figure]:
    """How many heartbeats and commits a core answers."""
    rounds, calls = (3, 1000) if quick else (9, 3000)

    async def run(served: Served) -> list[Figure]:
        return shown(await measure(served.url, served.pid, rounds, calls))

    return run_service(run, UNLIMITED)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--url", help="of a running service, instead of one of our own")
    parser.add_argument("--pid", type=int, help="its process")
    given = parser.parse_args()

    async def run(served: Served) -> list[Figure]:
        url, pid = given.url or served.url, given.pid or served.pid
        return shown(await measure(url, pid, given.rounds, given.calls))

    if given.url:
        found = asyncio.run(run(Served(given.url, "", given.pid)))
    else:
        found = run_service(run, UNLIMITED)
    for figure in found:
        print(figure)


if __name__ == "__main__":
    main()
