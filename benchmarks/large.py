"""How long a very large queue delays other queues: heartbeats of one of them, meanwhile.

    python -m benchmarks.large [--partitions 4096] [--most-ms 50]

A flow of a small queue sends one heartbeat after the other. Meanwhile the large queue is created,
its partitions get their first owner, who reads its view and commits all of them, positions are set,
the history is read, a second flow joins, the first one leaves, and the queue shrinks and grows.
Figures: the median, the 99th percentile and the maximum of the heartbeats in each phase, and the
same without a large queue as the yardstick. Fails if a heartbeat took longer than `--most-ms`.

The machine must be idle: what others take of its processors is in the figures, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from benchmarks.service import measure_a_service
from benchmarks.wire import Caller

LARGE, SMALL = "large", "small"


class Beat(NamedTuple):
    """One heartbeat: when it was sent and when it was answered, in seconds."""

    sent: float
    answered: float


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=4096)
    parser.add_argument("--most-ms", type=float, default=50.0)
    measure_a_service(measure, parser)


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """Play the phases; print."""
    beats: list[Beat] = []
    slowest: list[float] = []
    async with Caller(url) as call, Caller(url) as other:
        await other("POST", "/queues", {"name": SMALL, "partition_count": 1})
        small = await other(
            "POST", f"/queues/{SMALL}/flows", {"client_name": "small", "lease_seconds": 60}
        )
        beating = asyncio.create_task(beat(other, small, beats))
        try:
            async with shown("yardstick", beats):
                await asyncio.sleep(3)
            spec: dict[str, Any] = {
                "name": LARGE,
                "partition_count": arguments.partitions,
                "rebalance_delay": 2,
                "max_handoff_time": 600,
            }
            async with shown("create", beats, slowest):
                await call("POST", "/queues", spec)
            async with shown("first owner", beats, slowest):
                answer = await bind(call, "first")
                await until_decided(call)
            first = json.loads(answer)
            path, token = f"/queues/{LARGE}/flows/{first['flow_id']}", first["flow_token"]
            async with shown("read its view", beats, slowest):
                answer = await call.raw("GET", f"{path}/updates?after=0&wait=0", token=token)
            items = [
                {"partition": one["partition"], "epoch": one["epoch"], "position": "0"}
                for one in json.loads(answer)["partitions"]
            ]
            body = json.dumps({"partitions": items}).encode()
            async with shown("commit all", beats, slowest):
                await call.raw("POST", f"{path}/commit", body, token=token)
            async with shown("set positions", beats, slowest):
                await call.raw("POST", f"/queues/{LARGE}/positions", {"to": "earliest"})
            async with shown("history", beats, slowest):
                await call.raw("GET", f"/queues/{LARGE}/rebalances")
            async with shown("second flow", beats, slowest):
                await bind(call, "second")
                await until_decided(call)
            async with shown("status", beats, slowest):
                await call.raw("GET", f"/queues/{LARGE}/rebalance")
            async with shown("first one leaves", beats, slowest):
                await call("DELETE", path, token=token)
                await until_decided(call)
            for what, count in (
                ("shrink", arguments.partitions // 2),
                ("grow", arguments.partitions),
            ):
                async with shown(what, beats, slowest):
                    await call("PATCH", f"/queues/{LARGE}", {"partition_count": count})
                    await until_decided(call)
        finally:
            beating.cancel()
    if max(slowest) * 1000 > arguments.most_ms:
        raise SystemExit(f"a heartbeat took longer than {arguments.most_ms:g} ms")


async def bind(call: Caller, name: str) -> bytes:
    """A flow of the large queue. The rebalance comes after the holddown."""
    body = {"client_name": name, "lease_seconds": 600}
    return await call.raw("POST", f"/queues/{LARGE}/flows", body)


async def beat(call: Caller, flow: dict[str, Any], beats: list[Beat]) -> None:
    """One heartbeat after the other, about a hundred a second: a flow's rate is limited."""
    path = f"/queues/{SMALL}/flows/{flow['flow_id']}/heartbeat"
    while True:
        sent = time.perf_counter()
        await call("POST", path, token=flow["flow_token"])
        beats.append(Beat(sent, time.perf_counter()))
        await asyncio.sleep(0.01)


async def until_decided(call: Caller) -> None:
    """Until the holddown is over and nothing has changed for a second."""
    seen, since = None, time.perf_counter()
    while time.perf_counter() - since < 1:
        queue = await call("GET", f"/queues/{LARGE}")
        now = None if queue["rebalance_status"] == "Holddown" else queue["revision"]
        if now is None or now != seen:
            seen, since = now, time.perf_counter()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def shown(
    what: str, beats: list[Beat], slowest: list[float] | None = None
) -> AsyncIterator[None]:
    """Prints the heartbeats that were answered within, and adds the longest to `slowest`."""
    first, began = len(beats), time.perf_counter()
    yield
    ended = time.perf_counter()
    # The last heartbeat that was sent within is answered by then.
    await asyncio.sleep(1)
    took = sorted(beat.answered - beat.sent for beat in beats[first:] if beat.sent < ended)
    p99 = took[min(len(took) - 1, len(took) * 99 // 100)]
    print(
        f"{what:16s} {ended - began:5.1f} s, {len(took):5d} heartbeats:"
        f" {1000 * statistics.median(took):5.1f} ms median, {1000 * p99:6.1f} ms 99 %,"
        f" {1000 * took[-1]:6.1f} ms max",
        flush=True,
    )
    if slowest is not None:
        slowest.append(took[-1])


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    main()
