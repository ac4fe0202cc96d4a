"""What flows cost that only wait: memory, processor, and how soon all are told of a change.

    python -m benchmarks.idle [--flows 5000] [--seconds 60]

Each flow has a connection and a long poll of a third of its lease (60 s), one after another, as
clients do. The change adds a partition for each flow: the time runs from the call until the last
flow was told. The callers share the machine with the service, and parse every answer. Y8 is the
same for as many callers of a bare application (`benchmarks.bare`), which decides and stores nothing
and tells all the same bytes. At the end all wait again, and the queue is deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import time
from contextlib import suppress
from typing import Any

from benchmarks.binds import AT_ONCE, bind, poll, queue_of, until_ready
from benchmarks.calls import cpu_seconds
from benchmarks.figures import Figure
from benchmarks.service import UNLIMITED, Served, memory_mb, run_service
from benchmarks.wire import Caller
from benchmarks.yardsticks import bare_service

LEASE_SECONDS = 60.0
SETTLE_SECONDS = 5.0
QUEUE = "idle"
SETTINGS = {**UNLIMITED, "COUNTERPOISE_ADDRESS_IDLE_CONNECTIONS": "20000"}
FILES = 20_000


async def measure(served: Served, count: int, seconds: float) -> list[Figure]:
    """Memory for each flow, the share of a core, and the change."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(FILES, hard)), hard))
    async with Caller(served.url) as call:
        await call("POST", "/queues", queue_of("warm", 1))
        await bind(call, "warm", "one", LEASE_SECONDS)
        await call("POST", "/queues", queue_of(QUEUE, count, delay=1.0))
        before = memory_mb(served.url)
        gate = asyncio.Semaphore(AT_ONCE)
        told: list[float] = []
        changed = False

        async def one(number: int) -> tuple[Any, int]:
            nonlocal changed
            async with gate:
                bound = await bind(call, QUEUE, f"flow-{number}", LEASE_SECONDS)
            after = bound["update"]["revision"]
            while True:
                view = await poll(call, QUEUE, bound, after)
                if view is not None:
                    after = view["revision"]
                    if changed and len(view["partitions"]) == 2:
                        told.append(time.perf_counter())
                        return bound, after

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        await until_ready(call, QUEUE, count)
        # The answers to what the binds changed are over.
        await asyncio.sleep(SETTLE_SECONDS)
        grown = ((memory_mb(served.url) or 0) - (before or 0)) * 1024 / count
        began, cpu = time.perf_counter(), cpu_seconds(served.pid)
        await asyncio.sleep(seconds)
        share = (cpu_seconds(served.pid) - cpu) / (time.perf_counter() - began)
        changed, began = True, time.perf_counter()
        cpu = cpu_seconds(served.pid)
        await call("PATCH", f"/queues/{QUEUE}", {"partition_count": 2 * count})
        flows = await asyncio.gather(*tasks)
        all_told, cpu = max(told) - began, cpu_seconds(served.pid) - cpu
        half = statistics.median(told) - began
        ends = [asyncio.create_task(_until_it_is_gone(call, *flow)) for flow in flows]
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        await call("DELETE", f"/queues/{QUEUE}?force=true")
        all_gone = max(await asyncio.gather(*ends)) - began
    bare, bare_cpu = await _bare(count)
    name = f"{count:,} idle flows"
    return [
        Figure(f"{name}, lease 60 s: memory of each with its connection", grown, "KB", target=25),
        Figure(f"{name}, lease 60 s: share of a core", 100 * share, "%", target=5),
        Figure(f"{name}: half told of a change", half * 1e3, "ms"),
        Figure(f"{name}: all told of a change", all_told * 1e3, "ms", target=300),
        Figure(f"{name}: CPU of the service until then", cpu * 1e3, "ms", cpu / bare_cpu, "Y8"),
        Figure(f"{name}: all told that the queue is deleted", all_gone * 1e3, "ms"),
        Figure(f"Y8: {count:,} callers of a bare application: all told", bare * 1e3, "ms"),
        Figure("Y8: CPU of the bare application until then", bare_cpu * 1e3, "ms"),
    ]


async def _until_it_is_gone(call: Caller, bound: Any, after: int) -> float:
    """Polls until the queue is deleted; returns when it was told so."""
    with suppress(RuntimeError):  # 404
        while True:
            await poll(call, QUEUE, bound, after)
    return time.perf_counter()


async def _bare(count: int) -> tuple[float, float]:
    """Seconds until all callers of a bare application were told, and of its CPU until then."""
    with bare_service() as bare:
        async with Caller(bare.url) as call:
            await call.open(count + 1)
            waiting = [asyncio.create_task(call.raw("GET", "/waiting")) for _ in range(count)]
            await asyncio.sleep(SETTLE_SECONDS)
            began, cpu = time.perf_counter(), cpu_seconds(bare.pid)
            if int(await call.raw("GET", "/tell")) != count:
                raise RuntimeError("not all callers of the bare application were waiting")
            await asyncio.gather(*waiting)
            return time.perf_counter() - began, cpu_seconds(bare.pid) - cpu


def figures(quick: bool = False) -> list[Figure]:
    """What idle flows cost."""
    # Whole polls of 20 s.
    count, seconds = (1000, 20.0) if quick else (5000, 60.0)
    return run_service(lambda served: measure(served, count, seconds), SETTINGS)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} before the start")
    run = lambda served: measure(served, given.flows, given.seconds)  # noqa: E731
    for figure in run_service(run, SETTINGS):
        print(figure)


if __name__ == "__main__":
    main()
