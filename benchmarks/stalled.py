"""How much memory the service uses for event streams whose readers never read, while views change.

    python -m benchmarks.stalled [--readers 1000] [--changes 40] [--partitions 200]

Each reader opens the stream of one flow, with the smallest buffer that the system gives, and reads
nothing. Then the queue grows repeatedly by a partition, which changes the view. Figures: the
service's memory with the readers connected, after half of the changes and after all of them. Fails
when the memory for a reader grows with the changes. The readers share the machine with the service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from benchmarks.service import measure_a_service, memory_mb, metric
from benchmarks.wire import Caller, until_it_owns

QUEUE = "stalled"
# The limit for each reader from half of the changes to all; 20 views of 200 partitions have 400 KB.
MOST_GROWTH_KB = 64.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--partitions", type=int, default=200)
    measure_a_service(measure, parser)


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """Bind one flow that owns all partitions, connect the readers, change, print."""
    async with Caller(url) as call:
        spec = {"name": QUEUE, "partition_count": arguments.partitions, "rebalance_delay": 0}
        await call("POST", "/queues", spec)
        bound = await call(
            "POST", f"/queues/{QUEUE}/flows", {"client_name": "s", "lease_seconds": 3600}
        )
        await until_it_owns(call, QUEUE, bound, arguments.partitions)
        before = memory_mb(url) or 0.0
        with ExitStack() as stack:
            for _ in range(arguments.readers):
                stack.enter_context(stalled(url, bound))
                await asyncio.sleep(0)
            await until_open(url, arguments.readers)
            connected = memory_mb(url) or 0.0
            show("connected", before, connected, arguments.readers)
            count = arguments.partitions
            seen = []
            for half in ("half of the changes", "all changes"):
                for _ in range(arguments.changes // 2):
                    count += 1
                    await call("PATCH", f"/queues/{QUEUE}", {"partition_count": count})
                    await until_it_owns(call, QUEUE, bound, count)
                seen.append(memory_mb(url) or 0.0)
                show(half, before, seen[-1], arguments.readers)
            if (seen[1] - seen[0]) * 1024 / arguments.readers > MOST_GROWTH_KB:
                raise SystemExit("what is kept for a reader grows with the changes")


def stalled(url: str, bound: dict[str, Any]) -> socket.socket:
    """An open stream of the flow's view that is never read."""
    parts = urlsplit(url)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((parts.hostname, parts.port))
    reader.sendall(
        f"GET /v1/queues/{QUEUE}/flows/{bound['flow_id']}/updates HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {bound['flow_token']}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    return reader


async def until_open(url: str, readers: int) -> None:
    """Wait until so many streams are open, by the service's metrics."""
    async with asyncio.timeout(120):
        while True:
            found = await asyncio.to_thread(metric, url, "counterpoise_http_open_calls")
            if found is not None and found >= readers:
                return
            await asyncio.sleep(1)


def show(when: str, before: float, now: float, readers: int) -> None:
    each = (now - before) * 1024 / readers
    print(f"{when:20s} {now:5.0f} MB, {each:4.0f} KB for each reader", flush=True)


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    main()
