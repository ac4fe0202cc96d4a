"""How fast the store in Postgres is; medians over some rounds, and the service's own CPU.

    python -m benchmarks.store [--url postgresql://...] [--rounds 7]

Without a URL it starts an embedded Postgres in a temporary directory, as the service would
(durable: fsync is on).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from broker.core import commands as c
from broker.core import records as r
from broker.core.model import MOST_PARTITIONS, Flow, Partition, Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.records import Entry
from broker.core.replay import replay_all
from broker.postgres import migrations
from broker.postgres.embedded import EmbeddedPostgres
from broker.store.ports import Commit, PositionCommit
from broker.store.postgres import PostgresStore

FLOWS = 1000


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url
        if url is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(EmbeddedPostgres(Path(directory)))
        migrations.upgrade(url)
        asyncio.run(measure(url, arguments.rounds))


async def measure(url: str, rounds: int) -> None:
    """Every measurement on a queue of its own; prints as it goes."""
    store = PostgresStore(url)
    await store.start()
    try:
        orders = Bench(store)
        await orders.create(MOST_PARTITIONS)
        one = [orders.bound(1) for _ in range(rounds)]
        await _timed("commit of 1 bind", one)
        many = [orders.bound(FLOWS) for _ in range(rounds)]
        await _timed(f"commit of {FLOWS:,} binds", many)
        orders.now += 10
        await _timed(f"commit of {MOST_PARTITIONS:,} grants", [orders.do(c.Advance())])
        flow_ids = list(orders.queue.flows)[:FLOWS]
        await _timed(f"renew {FLOWS:,} flows", [lambda: store.renew(flow_ids)] * rounds)
        items = [
            PositionCommit(orders.queue.id, p.owner.id, None, p.number, p.epoch, "12345")
            for p in [*orders.queue.partitions.values()][:FLOWS]
            if p.owner
        ]
        positions = [lambda: store.commit_positions(items)] * rounds
        await _timed(f"commit_positions of {len(items):,} rows", positions)
        await _timed("pulse", [store.pulse] * rounds)
        await _timed("due", [lambda: store.due(1000)] * rounds)

        large = [Bench(store) for _ in range(3)]
        creates = [lambda bench=bench: bench.create(MOST_PARTITIONS) for bench in large]
        await _timed(f"create {MOST_PARTITIONS:,} partitions", creates)
        await large[0].bound(100)()
        large[0].now += 10
        await _timed(f"commit of {MOST_PARTITIONS:,} grants", [large[0].do(c.Advance())])
        load = [lambda: store.load(large[0].queue.id)] * 3
        await _timed(f"load {MOST_PARTITIONS:,} owned partitions", load)
    finally:
        await store.stop()


class Bench:
    """A queue whose decisions are measured only at their commit."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.now = 1000.0
        settings = Settings(MOST_PARTITIONS, log="builtin:bench")
        self.queue = Queue(str(uuid4()), f"bench-{uuid4()}", settings, self.now)

    async def create(self, partitions: int) -> None:
        self.queue.settings.partition_count = partitions
        records = (r.PartitionsAdded(0, partitions, self.now),)
        replay_all(self.queue, records, 1)
        commit = Commit(
            self.queue, 0, "c", [Entry(1, self.now, records)], [*self.queue.partitions.values()]
        )
        await self.store.create(commit)
        self.queue.journal.forget()

    def bound(self, number: int) -> Callable[[], Awaitable[None]]:
        """The commit of so many flows that bind at once."""
        flow_ids = [str(uuid4()) for _ in range(number)]
        return self.do(*(c.Bind(flow_id, flow_id, "bench", 60.0) for flow_id in flow_ids))

    def do(self, *commands: c.Command) -> Callable[[], Awaitable[None]]:
        """Decides now; the returned function commits. Call them in the order of the decisions."""
        queue, mark = self.queue, self.queue.journal.mark()
        entries: list[Entry] = []
        for command in commands:
            entries += decide(queue, command, self.now).entries
        changed = list(queue.journal.changed_since(mark))
        flows = {flow.id: flow for flow in changed if isinstance(flow, Flow)}
        bound = [x.flow_id for e in entries for x in e.records if isinstance(x, r.FlowBound)]
        flows |= {flow_id: queue.flows[flow_id] for flow_id in bound}
        partitions = {p.number: p for p in changed if isinstance(p, Partition)}
        queue.journal.forget()
        revision, seen = queue.revision, entries[0].revision - 1

        async def commit() -> None:
            # Later commands were decided meanwhile; the row has the values of that moment.
            latest, queue.revision = queue.revision, revision
            try:
                await self.store.commit(
                    Commit(
                        queue,
                        seen,
                        str(uuid4()),
                        entries,
                        list(partitions.values()),
                        list(flows.values()),
                        dict.fromkeys(bound, b"hash"),
                    )
                )
            finally:
                queue.revision = latest

        return commit


async def _timed(name: str, calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Runs calls one after another; prints the medians of time and of this process's CPU."""
    took, spent = [], []
    for call in calls:
        began, cpu = time.perf_counter(), time.process_time()
        await call()
        took.append(time.perf_counter() - began)
        spent.append(time.process_time() - cpu)
    print(
        f"{name:<36} {statistics.median(took) * 1000:9.1f} ms"
        f"   CPU {statistics.median(spent) * 1000:8.1f} ms   ({len(calls)} rounds)"
    )


if __name__ == "__main__":
    main()
