"""What a second replica of the service buys: the same calls to one process and to two.

    python -m benchmarks.replicas [--rounds 3] [--calls 3000]

Two processes of the service on one embedded Postgres (durable). In turns all callers call the
first one, or half of them each; the other one then runs without callers. Each kind of call comes
from 32 connections, as fast as it is answered:

* *renewals*, *commits*: of two flows of each of 32 queues. With two replicas the flows of a queue
  call different ones, as behind a load balancer.
* *binds*: a flow binds to one of 32 queues, gets its 8 partitions, and unbinds. With two replicas
  the bind goes to one and the unbind to the other.
* *binds to one queue*: 32 flows bind to one queue, in its holddown, and unbind again. One replica
  decides those that wait together, and commits them in one transaction.
* *bare GETs*: of the route of Y2, by one process and by two. They share nothing, so what two of
  them cost more than one is what the machine takes from programs that run beside each other.

The figures are CPU seconds of the service (both replicas) and of Postgres for a call. Replicas,
Postgres and callers share the processors, so the rates by the clock say what this machine makes of
two replicas, and not what two machines would. CPU seconds say what adds up: the HTTP and the
decisions of a replica are its own. *replicas to a core of Postgres* is the ratio of both: so many
replicas, each with a busy core, keep one core of Postgres busy.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.binds import bind, queue_of
from benchmarks.calls import CONNECTIONS, Flow, cpu_seconds
from benchmarks.figures import Figure, beside, counted, rate, timed
from benchmarks.service import UNLIMITED, Served, started
from benchmarks.source import cpu_seconds as cpu_seconds_of_all
from benchmarks.wire import Caller, until_it_owns
from benchmarks.yardsticks import bare_service
from broker.postgres.embedded import EmbeddedPostgres

QUEUES = 32
PARTITIONS = 8
ONE, TWO = "one replica", "two replicas"
BARE = "bare GETs"
# For so many other calls there is one bind, because it costs that much more.
MEMBERSHIP = 10
# No flow loses its lease, and no holddown ends, while the benchmark runs.
LONG_SECONDS = 3600.0

# The number of the call, and the callers: one, or one of each of two processes.
Make = Callable[[int, Sequence[Caller]], Awaitable[object]]


@dataclass(frozen=True)
class Kind:
    """A kind of call: to which processes, by which callers, and how often in a round."""

    make: Make
    callers: Sequence[Caller]
    pids: Sequence[int]
    calls: int


@dataclass
class Costs:
    """Of one kind of call on so many processes; one value of each round, for each call."""

    service_seconds: list[float] = field(default_factory=list)
    """CPU, of all processes."""
    postgres_seconds: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    """Calls that were answered, by the clock."""


Found = dict[str, dict[str, Costs]]


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3000)
    given = parser.parse_args()
    for figure in run(given.rounds, given.calls):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """What calls cost one replica and two. A quick run leaves them out."""
    return [] if quick else run(3, 3000)


def run(rounds: int, calls: int) -> list[Figure]:
    """Measure and show."""
    with tempfile.TemporaryDirectory() as name, replicas(Path(name)) as (served, postgres):
        return shown(asyncio.run(measure(served, postgres, rounds, calls)))


@contextmanager
def replicas(directory: Path) -> Iterator[tuple[list[Served], int]]:
    """Two replicas, and the process of their Postgres."""
    command = [str(Path(sys.executable).with_name("counterpoise")), "serve", "--port", "0"]
    with EmbeddedPostgres(directory) as database:
        environment = {**UNLIMITED, "COUNTERPOISE_DATABASE_URL": database}
        pid = int((directory / "postgres" / "postmaster.pid").read_text().split()[0])
        with (
            started(command, directory / "log-1", environment) as first,
            started(command, directory / "log-2", environment) as second,
        ):
            yield [first, second], pid


async def measure(served: Sequence[Served], postgres: int, rounds: int, calls: int) -> Found:
    """The costs of each kind, by kind and number of processes."""
    async with AsyncExitStack() as stack:
        bare = [stack.enter_context(bare_service()) for _ in range(2)]
        gets = [await stack.enter_async_context(Caller(one.url)) for one in bare]
        both = [await stack.enter_async_context(Caller(one.url)) for one in served]
        pids = [one.pid for one in served]
        kinds = {BARE: Kind(get, gets, [one.pid for one in bare], calls)}
        for name, make in (await frequent(both[0])).items():
            kinds[name] = Kind(make, both, pids, calls)
        for name, make in (await membership(both[0])).items():
            kinds[name] = Kind(make, both, pids, calls // MEMBERSHIP)
        found: Found = {name: {ONE: Costs(), TWO: Costs()} for name in kinds}
        for number in range(rounds + 1):
            for name, kind in kinds.items():
                for who, callers in ((ONE, kind.callers[:1]), (TWO, kind.callers)):
                    costs = found[name][who] if number else Costs()  # The first is warm-up.
                    await cost(kind, postgres, callers, costs)
        return found


async def cost(kind: Kind, postgres: int, callers: Sequence[Caller], costs: Costs) -> None:
    """The calls of a round, from all connections; adds what they cost."""
    numbers = iter(range(kind.calls))

    async def one() -> None:
        for number in numbers:
            await kind.make(number, callers)

    def spent() -> tuple[float, float, float]:
        service = sum(cpu_seconds(pid) for pid in kind.pids)
        return service, cpu_seconds_of_all(postgres), time.perf_counter()

    before = spent()
    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    service, server, took = (b - a for a, b in zip(before, spent(), strict=True))
    costs.service_seconds.append(service / kind.calls)
    costs.postgres_seconds.append(server / kind.calls)
    costs.per_second.append(kind.calls / took)


async def get(number: int, callers: Sequence[Caller]) -> None:
    """A bare GET."""
    await callers[number % len(callers)].raw("GET", "/bare")


async def frequent(call: Caller) -> dict[str, Make]:
    """Renewals and commits of two flows of each queue."""
    bound = []
    for number in range(QUEUES):
        queue = f"busy-{number}"
        # Both bind in the holddown, so nothing has to be handed over.
        await call("POST", "/queues", queue_of(queue, 2, delay=1.0))
        bound += [(queue, await bind(call, queue, f"flow-{n}", LONG_SECONDS)) for n in range(2)]
    flows = []
    for queue, one in bound:
        (owned,) = (await until_it_owns(call, queue, one, 1))["partitions"]
        path = f"/queues/{queue}/flows/{one['flow_id']}"
        flows.append(Flow(path, one["flow_token"], owned["partition"], owned["epoch"]))

    def of(number: int, callers: Sequence[Caller]) -> tuple[Flow, Caller]:
        chosen = number % len(flows)
        return flows[chosen], callers[chosen % len(callers)]

    async def renew(number: int, callers: Sequence[Caller]) -> None:
        flow, caller = of(number, callers)
        await flow.heartbeat(caller)

    async def commit(number: int, callers: Sequence[Caller]) -> None:
        flow, caller = of(number, callers)
        await flow.commit(caller)

    return {"renewals": renew, "commits": commit}


async def membership(call: Caller) -> dict[str, Make]:
    """Binds, each with its unbind, which is one call here."""
    for number in range(CONNECTIONS):
        await call("POST", "/queues", queue_of(f"change-{number}", PARTITIONS))
    await call("POST", "/queues", queue_of("one", 10 * CONNECTIONS, LONG_SECONDS))
    free = [f"change-{number}" for number in range(CONNECTIONS)]

    async def bind_and_leave(queue: str, who: str, callers: Sequence[Caller]) -> None:
        bound = await bind(callers[0], queue, who, LONG_SECONDS)
        path = f"/queues/{queue}/flows/{bound['flow_id']}"
        await callers[-1].raw("DELETE", path, token=bound["flow_token"])

    async def many(number: int, callers: Sequence[Caller]) -> None:
        queue = free.pop()  # one call at a time for a queue
        await bind_and_leave(queue, f"flow-{number}", callers[:: 1 if number % 2 else -1])
        free.append(queue)

    async def single(number: int, callers: Sequence[Caller]) -> None:
        await bind_and_leave("one", f"flow-{number}", callers[:: 1 if number % 2 else -1])

    return {"binds": many, "binds to one queue": single}


def shown(found: Found) -> list[Figure]:
    """Figures by kind; the yardstick of two replicas is one."""
    figures: list[Figure] = []
    for kind, by in found.items():
        one, two = by[ONE], by[TWO]
        figures += _compared(
            f"{kind}: CPU of the service", one.service_seconds, two.service_seconds
        )
        if kind != BARE:
            name = f"{kind}: CPU of Postgres"
            figures += _compared(name, one.postgres_seconds, two.postgres_seconds)
            carried = [
                service / postgres
                for service, postgres in zip(two.service_seconds, two.postgres_seconds, strict=True)
                if postgres
            ]
            figures += beside(TWO, counted(f"{kind}: replicas to a core of Postgres", carried))
        name = f"{kind}: answered"
        figures += beside(ONE, rate(name, one.per_second))
        figures += beside(TWO, rate(name, two.per_second, ONE, one.per_second))
    return figures


def _compared(name: str, one: Sequence[float], two: Sequence[float]) -> list[Figure]:
    return [
        *beside(ONE, timed(name, one)),
        *beside(TWO, timed(name, two, ONE, statistics.median(one))),
    ]


if __name__ == "__main__":
    main()
