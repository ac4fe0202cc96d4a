"""Whether 5,000 flows on one replica keep their leases, alone and next to floods.

    python -m benchmarks.overload [--flows 5000] [--lease 15] [--seconds 20] [--connections 50]

A real service process on an embedded Postgres (durable: fsync is on), called over HTTP on loopback.
The flows poll as clients do: they wait for a third of the lease and ask again. Next to them run,
one after the other and each for longer than the lease: no flood, callers without a token, a flow
that heartbeats without pause, callers with invented tokens, a flow that commits 4,096 partitions
at a time, the same with bodies of the largest size. Fails when a flow loses its lease. Figures: how
long polls take beyond their wait (the maximum shows how close a lease came to its end); the answers
to the floods; the service's memory. All callers share the machine with the service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.service import measure_a_service, memory_mb
from benchmarks.wire import Caller, until_it_owns

QUEUE = "overload"
BIG_QUEUE = "overload-big"
PARTITIONS = 4096
BODY_BYTES = 8 * 2**20


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=5000)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=50)
    measure_a_service(measure, parser)


@dataclass
class Flows:
    """Flows that poll; `late`: the seconds that polls took beyond their wait."""

    call: Caller
    lease: float
    bound: list[dict[str, Any]] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def bind(self, count: int) -> None:
        """Binds so many flows and lets each poll until `stop`; a refused bind is repeated."""
        gate = asyncio.Semaphore(200)

        async def one(number: int) -> None:
            body = {"client_name": "b", "instance_id": f"b-{number}", "lease_seconds": self.lease}
            async with gate:
                while True:
                    try:
                        bound = await self.call("POST", f"/queues/{QUEUE}/flows", body)
                        break
                    except RuntimeError as error:
                        self.failed[str(error).split()[2]] += 1
                        await asyncio.sleep(1)
            self.bound.append(bound)
            # Spread over time, like flows that bound at different times.
            wait = self.lease / 3 * (0.05 + 0.95 * number / count)
            self._tasks.append(asyncio.create_task(self._poll(bound, wait)))

        await asyncio.gather(*(one(number) for number in range(count)))

    async def _poll(self, bound: dict[str, Any], wait: float) -> None:
        path = f"/queues/{QUEUE}/flows/{bound['flow_id']}/updates"
        after = bound["update"]["revision"]
        while True:
            began = time.monotonic()
            try:
                answer = await self.call(
                    "GET", f"{path}?after={after}&wait={wait:.3f}", token=bound["flow_token"]
                )
            except RuntimeError as error:
                self.failed[str(error).split()[2]] += 1
                await asyncio.sleep(0.5)
                continue
            if answer is None:
                self.late.append(time.monotonic() - began - wait)
            else:
                after = answer["revision"]
            wait = self.lease / 3

    async def stop(self) -> None:
        """No more polls."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def flood(
    call: Caller,
    seconds: float,
    connections: int,
    path: str,
    token: Callable[[], str | None],
    body: bytes | None = None,
) -> Counter[str]:
    """Calls with a token or reads, without pause; counts the answers by status (cut: no answer)."""
    answers: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < until:
            sent = token()
            try:
                await call("GET" if sent is None else "POST", path, body, sent)
                answers["200"] += 1
            except (OSError, EOFError):
                # The call was refused before the body was read, which ends the connection.
                answers["cut"] += 1
                await asyncio.sleep(0.25)
            except RuntimeError as error:
                answers[str(error).split()[2]] += 1

    await asyncio.gather(*(one() for _ in range(connections)))
    return answers


async def measure(url: str, arguments: argparse.Namespace) -> None:
    """All measurements; prints as it goes."""
    async with Caller(url) as call, Caller(url) as other:
        await call("POST", "/queues", {"name": QUEUE, "partition_count": 1, "rebalance_delay": 0})
        flows = Flows(call, arguments.lease)
        before = memory_mb(url)
        began = time.monotonic()
        await flows.bind(arguments.flows)
        print(f"{arguments.flows} flows bound in {time.monotonic() - began:.1f} s", end="")
        print(f", refused meanwhile: {dict(flows.failed) or 'none'}")
        a_flow = flows.bound[0]
        heartbeat = f"/queues/{QUEUE}/flows/{a_flow['flow_id']}/heartbeat"
        numbers = iter(range(10**9))
        commit, token, commits = await big_commits(call, PARTITIONS)
        floods: list[tuple[str, str, Callable[[], str | None], bytes | None] | None] = [
            None,
            ("without a token", f"/queues/{QUEUE}", lambda: None, None),
            ("a flow's heartbeats", heartbeat, lambda: str(a_flow["flow_token"]), None),
            ("made-up tokens", heartbeat, lambda: f"made-up-{next(numbers)}", None),
            ("commits of 10,000", commit, lambda: token, commits),
            ("commits of 8 MiB", commit, lambda: token, commits.ljust(BODY_BYTES)),
        ]
        for each in floods:
            flows.late.clear()
            flows.failed.clear()
            if each is None:
                await asyncio.sleep(arguments.seconds)
                name, answers = "nobody", Counter[str]()
            else:
                name, path, told, body = each
                answers = await flood(
                    other, arguments.seconds, arguments.connections, path, told, body
                )
            show(name, flows, answers, arguments.seconds)
        bound = (await call("GET", f"/queues/{QUEUE}"))["flow_count"]
        print(f"flows bound at the end: {bound} of {arguments.flows}", end="")
        if before is not None:
            print(f"; the service's memory: {before:.0f} -> {memory_mb(url) or 0:.0f} MB", end="")
        print()
        await flows.stop()
        if bound != arguments.flows:
            raise SystemExit("flows have lost their leases")


async def big_commits(call: Caller, partitions: int) -> tuple[str, str, bytes]:
    """A flow that owns so many partitions: the path of its commits, its token, a commit of all."""
    spec = {"name": BIG_QUEUE, "partition_count": partitions, "rebalance_delay": 0}
    await call("POST", "/queues", spec)
    bound = await call(
        "POST", f"/queues/{BIG_QUEUE}/flows", {"client_name": "big", "lease_seconds": 3600}
    )
    view = await until_it_owns(call, BIG_QUEUE, bound, partitions)
    items = [{**item, "position": "1042"} for item in view["partitions"]]
    named = [{key: item[key] for key in ("partition", "epoch", "position")} for item in items]
    path = f"/queues/{BIG_QUEUE}/flows/{bound['flow_id']}/commit"
    return path, bound["flow_token"], json.dumps({"partitions": named}).encode()


def show(name: str, flows: Flows, answers: Counter[str], seconds: float) -> None:
    late = sorted(flows.late) or [0.0]
    middle, most = late[len(late) // 2], late[-1]
    nearly = late[int(len(late) * 0.99)]
    got = ", ".join(f"{count / seconds:.0f}/s {code}" for code, count in sorted(answers.items()))
    print(
        f"next to {name:20s} {len(late) / seconds:5.0f} polls/s, late by {middle * 1000:.0f} ms"
        f" (99 %: {nearly * 1000:.0f} ms, most: {most * 1000:.0f} ms)"
        f", failed: {dict(flows.failed) or 'none'}{'; flood: ' + got if got else ''}",
        flush=True,
    )


if __name__ == "__main__":
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    main()
