"""How long a very large queue holds up the others: heartbeats of another queue, meanwhile.

    python -m benchmarks.large [--partitions 100000] [--most-ms 50]

A flow of a small queue sends one heartbeat after the other, and nothing else is asked of the
service, while the large queue's partitions get their first owner, and while a second flow joins.
Figures: how late its slowest heartbeat was, and how long it all took. Fails if one of these was
later than `--most-ms`.

What is no decision is measured too and has no limit: to create the queue, and to read a view of all
its partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.service import measure_a_service
from benchmarks.wire import Caller

LARGE, SMALL = "large", "small"


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--most-ms", type=float, default=50.0)
    measure_a_service(measure, parser)


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """Create, bind, bind again; print."""
    heartbeats: list[float] = []
    async with Caller(url) as call, Caller(url) as other:
        await other("POST", "/queues", {"name": SMALL, "partition_count": 1})
        flow = await other(
            "POST", f"/queues/{SMALL}/flows", {"client_name": "small", "lease_seconds": 60}
        )
        beating = asyncio.create_task(beat(other, flow, heartbeats))
        try:
            await asyncio.sleep(2)
            show("nothing else", heartbeats, 2.0)
            spec: dict[str, Any] = {
                "name": LARGE,
                "partition_count": arguments.partitions,
                "rebalance_delay": 2,
                "max_handoff_time": 600,
            }
            async with shown("create", heartbeats):
                await call("POST", "/queues", spec)
            slowest = []
            for name in ("first owner", "second flow"):
                # It answers at once: the rebalance comes after the holddown.
                bound = await call(
                    "POST", f"/queues/{LARGE}/flows", {"client_name": name, "lease_seconds": 600}
                )
                await asyncio.sleep(1)
                async with shown(name, heartbeats) as late:
                    await until_decided(call)
                slowest += late
                if name == "first owner":
                    async with shown("read its view", heartbeats):
                        await call(
                            "GET",
                            f"/queues/{LARGE}/flows/{bound['flow_id']}",
                            token=bound["flow_token"],
                        )
            if slowest and max(slowest) * 1000 > arguments.most_ms:
                raise SystemExit(f"a heartbeat was later than {arguments.most_ms:g} ms")
        finally:
            beating.cancel()


async def beat(call: Caller, flow: dict[str, Any], heartbeats: list[float]) -> None:
    """One heartbeat after the other; how long each took."""
    path = f"/queues/{SMALL}/flows/{flow['flow_id']}/heartbeat"
    while True:
        began = time.perf_counter()
        await call("POST", path, token=flow["flow_token"])
        heartbeats.append(time.perf_counter() - began)


async def until_decided(call: Caller) -> None:
    """Until the holddown is over and nothing has changed any more for a while."""
    seen, since = None, time.perf_counter()
    while time.perf_counter() - since < 1:
        queue = await call("GET", f"/queues/{LARGE}")
        now = None if queue["rebalance_status"] == "Holddown" else queue["revision"]
        if now is None or now != seen:
            seen, since = now, time.perf_counter()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def shown(what: str, heartbeats: list[float]) -> AsyncIterator[list[float]]:
    """Tells of the heartbeats within; these are in the list afterwards."""
    heartbeats.clear()
    late: list[float] = []
    began = time.perf_counter()
    yield late
    late += heartbeats
    show(what, heartbeats, time.perf_counter() - began)


def show(what: str, heartbeats: list[float], seconds: float) -> None:
    middle, most = statistics.median(heartbeats), max(heartbeats)
    print(
        f"{what:16s} {seconds:5.1f} s; heartbeats {1000 * middle:5.1f} ms in the middle,"
        f" {1000 * most:6.1f} ms at the most",
        flush=True,
    )


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    main()
