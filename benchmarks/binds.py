"""How soon a flow that binds learns what it owns, and how soon many flows at once are balanced.

    python -m benchmarks.binds [--rounds 200] [--flows 1000] [--partitions 10000]

A real service process on an embedded Postgres (durable: fsync is on), called over HTTP on loopback.
The callers share the machine with it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from benchmarks.service import measure_a_service
from benchmarks.wire import Caller

BIND_SECONDS = 0.015
CROWD_SECONDS = 5.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10_000)
    measure_a_service(measure, parser)


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """All measurements; prints as it goes."""
    async with Caller(url) as call:
        await call.open(10)
        await first_binds(call, arguments.rounds)
        await second_binds(call, arguments.rounds)
        for delay in (1.0, 0.0):
            await crowd(call, arguments.flows, arguments.partitions, delay)


def show(name: str, seconds: list[float], target: float | None = None) -> None:
    """A line with the median, the 99th percentile and their ratios to the target."""
    median = statistics.median(seconds)
    worst = sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))]
    line = f"{name:<58} p50 {median * 1e3:>9.1f} ms   p99 {worst * 1e3:>9.1f} ms"
    print(line + (f"   {median / target:>6.2f} of the target" if target else ""), flush=True)


async def bind(call: Caller, queue: str, who: str, lease_seconds: float = 60.0) -> Any:
    body = {"client_name": who, "instance_id": who, "lease_seconds": lease_seconds}
    return await call("POST", f"/queues/{queue}/flows", body)


async def first_binds(call: Caller, rounds: int) -> None:
    """The first flow of a queue: its bind returns all partitions."""
    taken = []
    for n in range(rounds):
        await call("POST", "/queues", queue_of(f"first-{n}", 8))
        began = time.perf_counter()
        bound = await bind(call, f"first-{n}", "one")
        taken.append(time.perf_counter() - began)
        assert len(bound["update"]["partitions"]) == 8
    show("bind to update, first flow of a queue", taken, BIND_SECONDS)


async def second_binds(call: Caller, rounds: int) -> None:
    """A second flow binds. The owner is told to hand over and releases; the second learns that it
    owns."""
    told, owning = [], []
    for n in range(rounds):
        queue = f"second-{n}"
        await call("POST", "/queues", queue_of(queue, 8))
        one = await bind(call, queue, "one")
        waiting = asyncio.create_task(poll(call, queue, one, one["update"]["revision"]))
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        binding = asyncio.create_task(bind(call, queue, "two"))
        update = await waiting
        told.append(time.perf_counter() - began)
        items = [
            {"partition": p["partition"], "epoch": p["epoch"], "position": "1"}
            for p in update["partitions"]
            if p["state"] == "revoking"
        ]
        assert len(items) == 4
        path = f"/queues/{queue}/flows/{one['flow_id']}/release"
        releasing = asyncio.create_task(
            call("POST", path, {"seq": 1, "partitions": items}, one["flow_token"])
        )
        two = await binding
        update = await poll(call, queue, two, two["update"]["revision"])
        owning.append(time.perf_counter() - began)
        assert len(update["partitions"]) == 4
        await releasing
    show("bind to the owner being told to hand over", told, BIND_SECONDS)
    show("bind to owning, the owner releasing at once", owning)


async def crowd(call: Caller, flows: int, partitions: int, delay: float) -> None:
    """Many flows bind at once, and release revoked partitions, until each owns its share."""
    queue = f"crowd-{delay:g}"
    await call("POST", "/queues", queue_of(queue, partitions, delay))
    share = partitions // flows
    await call.open(max(0, flows - 10))
    began = time.perf_counter()
    bound_at: list[float] = []

    async def join(who: str) -> None:
        one = await bind(call, queue, who)
        bound_at.append(time.perf_counter() - began)
        view = one["update"]
        path = f"/queues/{queue}/flows/{one['flow_id']}/release"
        while True:
            items = [
                {"partition": p["partition"], "epoch": p["epoch"], "position": "1"}
                for p in view["partitions"]
                if p["state"] == "revoking"
            ]
            if items:
                body = {"partitions": items}
                view = (await call("POST", path, body, one["flow_token"]))["update"]
            elif share <= len(view["partitions"]) <= share + 1:
                return
            else:
                view = await poll(call, queue, one, view["revision"]) or view

    async def balanced() -> None:
        while True:
            status = await call("GET", f"/queues/{queue}/rebalance")
            if status["status"] == "Ready" and len(bound_at) == flows:
                assert status["spread"] <= 1
                return
            await asyncio.sleep(0.02)

    joining = [asyncio.create_task(join(f"flow-{n}")) for n in range(flows)]
    await balanced()
    taken = time.perf_counter() - began
    await asyncio.gather(*joining)
    told = time.perf_counter() - began
    name = f"{flows} binds at once, {partitions} partitions, holddown {delay:g} s"
    show(f"{name}: bound", [max(bound_at)])
    show(f"{name}: balanced", [taken], CROWD_SECONDS)
    show(f"{name}: all told", [told])


async def poll(call: Caller, queue: str, bound: Any, after: int) -> Any:
    """The next update of a flow."""
    path = f"/queues/{queue}/flows/{bound['flow_id']}/updates?after={after}&wait=20"
    return await call("GET", path, token=bound["flow_token"])


def queue_of(name: str, partitions: int, delay: float = 0.0) -> dict[str, object]:
    """The settings of a queue."""
    return {
        "name": name,
        "partition_count": partitions,
        "rebalance_delay": delay,
        "max_handoff_time": 30,
    }


if __name__ == "__main__":
    main()
