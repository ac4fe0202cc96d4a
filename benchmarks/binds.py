"""How soon a flow that binds learns what it owns, and how soon many flows at once are balanced.

    python -m benchmarks.binds [--rounds 200] [--flows 1000] [--partitions 4096]

Figures: a bind, a join, a leave, and a join with many partitions. A real service process on an
embedded Postgres (durable: fsync is on), called over HTTP on loopback. The callers share the
machine with it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from benchmarks.figures import Figure, counted, timed
from benchmarks.service import UNLIMITED, Served, measure_a_service, run_service
from benchmarks.wire import Caller
from benchmarks.yardsticks import yardsticks

FEW, MANY = 64, 512
BIND_SECONDS = 0.015
AT_ONCE = 200
CROWD_SECONDS = 2.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=4096)
    measure_a_service(measure, parser, UNLIMITED)


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


@dataclass
class Handoffs:
    """Seconds from a call to what others see of it, one of each round."""

    told: list[float] = field(default_factory=list)
    owning: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)


async def second_binds(call: Caller, rounds: int) -> None:
    """A second flow joins, and the first one leaves."""
    found = Handoffs()
    for n in range(rounds):
        await join_and_leave(call, f"second-{n}", 8, found)
    show("bind to the owner being told to hand over", found.told, BIND_SECONDS)
    show("bind to owning, the owner releasing at once", found.owning)
    show("unbind to the other flow owning all", found.left)


async def join_and_leave(call: Caller, queue: str, partitions: int, found: Handoffs) -> None:
    """A second flow binds, the owner is told and releases at once, the second learns that it owns
    its half. Then the first one leaves.
    """
    await call("POST", "/queues", queue_of(queue, partitions))
    one = await bind(call, queue, "one")
    waiting = asyncio.create_task(poll(call, queue, one, one["update"]["revision"]))
    # Its poll has arrived before the second one binds.
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    binding = asyncio.create_task(bind(call, queue, "two"))
    update = await waiting
    found.told.append(time.perf_counter() - began)
    items = revoked(update)
    assert len(items) == partitions // 2
    path = f"/queues/{queue}/flows/{one['flow_id']}"
    body = {"seq": 1, "partitions": items}
    releasing = asyncio.create_task(call("POST", f"{path}/release", body, one["flow_token"]))
    two = await binding
    # Its first view may be as the release left it.
    update = two["update"]
    while len(update["partitions"]) < partitions // 2:
        update = await poll(call, queue, two, update["revision"]) or update
    found.owning.append(time.perf_counter() - began)
    assert len(update["partitions"]) == partitions // 2
    await releasing
    waiting = asyncio.create_task(poll(call, queue, two, update["revision"]))
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    leaving = asyncio.create_task(call("DELETE", path, token=one["flow_token"]))
    update = await waiting
    found.left.append(time.perf_counter() - began)
    assert len(update["partitions"]) == partitions
    await leaving


async def follow(call: Caller, queue: str, bound: Any) -> None:
    """Releases at once what the flow is told to, until cancelled."""
    path, view = f"/queues/{queue}/flows/{bound['flow_id']}/release", bound["update"]
    while True:
        items = revoked(view)
        if items:
            view = (await call("POST", path, {"partitions": items}, bound["flow_token"]))["update"]
        else:
            view = await poll(call, queue, bound, view["revision"]) or view


async def join_among(call: Caller, queue: str, partitions: int, flows: int) -> float:
    """Seconds from a bind until the flow owns its share, with so many others that release at
    once.
    """
    await call("POST", "/queues", queue_of(queue, partitions))
    async with asyncio.TaskGroup() as group:
        others = [
            group.create_task(follow(call, queue, await bind(call, queue, f"flow-{n}")))
            for n in range(flows)
        ]
        await until_ready(call, queue, flows)
        began = time.perf_counter()
        last = await bind(call, queue, "last")
        update = last["update"]
        while len(update["partitions"]) < partitions // (flows + 1):
            update = await poll(call, queue, last, update["revision"]) or update
        taken = time.perf_counter() - began
        for one in others:
            one.cancel()
    return taken


async def until_ready(call: Caller, queue: str, flows: int) -> None:
    """So many flows are bound, and own their shares."""
    while True:
        status = await call("GET", f"/queues/{queue}/rebalance")
        shown = await call("GET", f"/queues/{queue}")
        if status["status"] == "Ready" and status["spread"] <= 1 and shown["flow_count"] == flows:
            return
        await asyncio.sleep(0.02)


async def commits_of(database_url: str, queue: str) -> int:
    """The transactions that changed the queue so far."""
    connection = await asyncpg.connect(database_url)
    try:
        found: int = await connection.fetchval(
            "SELECT count(DISTINCT commit_id) FROM counterpoise.records AS r"
            " JOIN counterpoise.queues AS q ON q.id = r.queue_id WHERE q.name = $1",
            queue,
        )
        return found
    finally:
        await connection.close()


def figures(quick: bool = False) -> list[Figure]:
    """What joins and leaves cost: in units of Y1 + Y2, and crowds also in transactions."""

    async def run(served: Served) -> list[Figure]:
        found = await _figures(served, 20 if quick else 150)
        return found + await _crowds(served, 1 if quick else 5)

    return run_service(run, UNLIMITED)


async def _crowds(served: Served, rounds: int) -> list[Figure]:
    """1,000 flows that come at once, and 1,000 handoffs among 100 flows."""
    seconds, commits, shares = list[float](), list[float](), list[float]()
    for n in range(rounds):
        async with Caller(served.url) as call:
            seconds.append(await crowd(call, 1000, 4096, 0.0, f"thousand-{n}"))
            commits.append(await commits_of(served.database_url, f"thousand-{n}"))
        queue = f"handoffs-{n}"
        async with Caller(served.url) as call, asyncio.TaskGroup() as group:
            await call("POST", "/queues", queue_of(queue, 2000))
            tasks = []
            for first in (0, 50):
                before = await commits_of(served.database_url, queue)
                binds = (bind(call, queue, f"flow-{n}") for n in range(first, first + 50))
                for bound in await asyncio.gather(*binds):
                    tasks.append(group.create_task(follow(call, queue, bound)))
                await until_ready(call, queue, first + 50)
            shares.append((await commits_of(served.database_url, queue) - before) / 1000)
            for task in tasks:
                task.cancel()
    name = "1,000 binds at once, 4,096 partitions"
    return [
        timed(f"{name}: balanced", seconds, target=2000),
        counted(f"{name}: transactions", commits, 20),
        counted("transactions for each of 1,000 handoffs among 100 flows", shares, 0.05),
    ]


async def _figures(served: Served, rounds: int) -> list[Figure]:
    small, large, bound = Handoffs(), Handoffs(), list[float]()
    async with yardsticks(served.database_url) as yard, Caller(served.url) as call:
        await call.open(10)
        for n in range(rounds):
            await yard.sample()
            queue = f"first-{n}"
            await call("POST", "/queues", queue_of(queue, FEW))
            began = time.perf_counter()
            await bind(call, queue, "one")
            bound.append(time.perf_counter() - began)
            await join_and_leave(call, f"few-{n}", FEW, small)
        # The statements have been planned for few partitions by now.
        for n in range(max(5, rounds // 10)):
            await yard.sample()
            await join_and_leave(call, f"many-{n}", MANY, large)
        among: dict[int, list[float]] = {4: [], 8: []}
        for n in range(max(5, rounds // 3)):
            for flows, taken in among.items():
                await yard.sample()
                taken.append(await join_among(call, f"among-{flows}-{n}", FEW, flows))
        return [
            *yard.figures(),
            yard.timed(f"bind to update, {FEW} partitions", bound, 8),
            yard.timed(f"bind to owner told, {FEW} partitions", small.told, 8),
            yard.timed(f"join to balanced, {FEW} partitions", small.owning, 18),
            *(
                yard.timed(f"join to balanced, {FEW} partitions, {n} → {n + 1} flows", taken, 18)
                for n, taken in among.items()
            ),
            yard.timed(f"leave to others own, {FEW} partitions", small.left, 10),
            timed(
                f"join to balanced, {MANY} partitions",
                large.owning,
                f"of {FEW} partitions",
                statistics.median(small.owning),
                2.5,
            ),
        ]


async def crowd(call: Caller, flows: int, partitions: int, delay: float, queue: str = "") -> float:
    """Many flows bind at once, and release revoked partitions, until each owns its share; the
    seconds until the queue is balanced.
    """
    queue = queue or f"crowd-{delay:g}"
    await call("POST", "/queues", queue_of(queue, partitions, delay))
    share = partitions // flows
    await call.open(max(0, flows - 10))
    began = time.perf_counter()
    bound_at: list[float] = []
    without_share = {f"flow-{n}" for n in range(flows)}
    all_told = asyncio.Event()

    # Beyond its limit the service answers 429.
    gate = asyncio.Semaphore(AT_ONCE)

    async def join(who: str) -> None:
        async with gate:
            one = await bind(call, queue, who)
        bound_at.append(time.perf_counter() - began)
        view = one["update"]
        path = f"/queues/{queue}/flows/{one['flow_id']}/release"
        # Who has its share may have to give of it again, as long as others come.
        while True:
            items = revoked(view)
            if not items and share <= len(view["partitions"]) <= share + 1:
                without_share.discard(who)
            else:
                without_share.add(who)
            (all_told.clear if without_share else all_told.set)()
            if items:
                body = {"partitions": items}
                async with gate:
                    view = (await call("POST", path, body, one["flow_token"]))["update"]
            else:
                view = await poll(call, queue, one, view["revision"]) or view

    async def balanced() -> None:
        while True:
            status = await call("GET", f"/queues/{queue}/rebalance")
            if status["status"] == "Ready" and len(bound_at) == flows:
                assert status["spread"] <= 1
                return
            await asyncio.sleep(0.02)

    # A join that fails ends the wait for the balance, too.
    async with asyncio.TaskGroup() as group:
        joins = [group.create_task(join(f"flow-{n}")) for n in range(flows)]
        await balanced()
        taken = time.perf_counter() - began
        await all_told.wait()
        told = time.perf_counter() - began
        for one in joins:
            one.cancel()
    name = f"{flows} binds at once, {partitions} partitions, holddown {delay:g} s"
    show(f"{name}: bound", [max(bound_at)])
    show(f"{name}: balanced", [taken], CROWD_SECONDS)
    show(f"{name}: all told", [told])
    return taken


def revoked(view: Any) -> list[dict[str, object]]:
    """The items of the release that a view asks for."""
    return [
        {"partition": one["partition"], "epoch": one["epoch"], "position": "1"}
        for one in view["partitions"]
        if one["state"] == "revoking"
    ]


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
