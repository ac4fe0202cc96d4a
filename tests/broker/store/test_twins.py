"""The store in memory equals Postgres for all calls of replicas in the simulation.

Runs of the simulation are played again on both (`twins.Twins`), under one clock, with disturbances
in between: unusual questions, calls of flows that own nothing, commits that are late or repeated, a
moved clock, other queues. A failure names its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg
import pytest

from broker.postgres import migrations
from broker.store.ports import Commit, PositionCommit, Positions, PositionWrite, Store, StoreError
from broker.testing.database import MemoryDatabase
from counterpoise.logs import postgres
from tests.broker.store.support import Replica
from tests.broker.store.twins import (
    CLOCK_PATH,
    READS,
    WRITES,
    Call,
    Differ,
    Twins,
    install_clock,
    recorded,
)

Outcomes = Counter[tuple[str, str]]

REFUSALS = (StoreError, KeyError, AssertionError)
EVERY_OUTCOME = {
    *((method, "ok") for method in (*READS, *WRITES)),
    *(("commit", why) for why in ("Conflict", "LeaseRenewed", "PositionSuperseded", "Overdue")),
    *(("commit", "QueueGone"), ("create", "NameTaken"), ("load", "QueueGone")),
    *(("delete", "FlowsBound"), ("delete", "QueueGone")),
    *(("entries_after", why) for why in ("KeyError", "QueueGone", "WentBack")),
}
# Names whose order differs between collations and bytes.
NAMES = ("a-b", "aB", "a.b", "ab", "A_b", "B", "a", "orders-2")


@pytest.fixture(scope="module")
def twins_url(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE twins")
    url = urlsplit(postgres_url)._replace(path="/twins").geturl()
    migrations.upgrade(url)
    install_clock(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(postgres.SETTINGS, "search_path", CLOCK_PATH)
        yield url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE twins WITH (FORCE)")


@asynccontextmanager
async def twins_on(url: str, memory: Any = MemoryDatabase) -> AsyncIterator[Twins]:
    twins = Twins(url, memory)
    try:
        yield twins
    finally:
        await twins.stop()


class Mischief:
    """Unusual calls, about existing and unknown queues and flows."""

    def __init__(self, twins: Twins, rng: random.Random) -> None:
        self.twins, self.rng = twins, rng
        self.queue_ids = ["no-queue"]
        self.flow_ids = ["no-flow"]
        self.commits: list[Commit] = []
        self.others: list[Replica] = []
        self.partitions = 13

    def learn(self, call: Call) -> None:
        """Remember the queues and flows of a replica's call, for later disturbances."""
        if call.method in ("create", "commit"):
            commit: Commit = call.args[0]
            self.commits.append(commit)
            if commit.queue.id not in self.queue_ids:
                self.queue_ids.append(commit.queue.id)
            self.flow_ids += [flow for flow in commit.token_hashes if flow not in self.flow_ids]

    async def ask(self) -> None:
        """A call that changes nothing."""
        rng, twins = self.rng, self.twins
        queue_id, revision = rng.choice(self.queue_ids), rng.randint(0, 40)
        numbers = rng.choices(range(self.partitions), k=rng.randint(0, 4))
        questions: list[Callable[[], Awaitable[Any]]] = [
            lambda: twins.list(rng.randint(1, 4), rng.choice((None, "", *NAMES))),
            lambda: twins.history(
                queue_id, rng.randint(1, 3), rng.choice((None, 1, 2, 3, 9)), rng.randint(0, 9)
            ),
            lambda: twins.entries_at(queue_id, rng.sample(range(40), 3)),
            lambda: twins.entries_after(queue_id, revision, rng.choice((None, 1, 3))),
            lambda: twins.positions(queue_id, rng.choice((None, numbers))),
            lambda: twins.leases(self._some(self.flow_ids)),
            lambda: twins.revisions(self._some(self.queue_ids)),
            lambda: twins.find(rng.choice(("orders", *NAMES))),
            lambda: twins.due(rng.randint(1, 3)),
            lambda: twins.flow_rows(self._some(self.flow_ids)),
            lambda: twins.outages(rng.randint(0, 3)),
            lambda: twins.expiries(queue_id),
            lambda: twins.load(queue_id),
        ]
        await refused(rng.choice(questions)())

    async def spoil(self, commit: Commit) -> None:
        """The commit, changed so that it is refused: at least it comes too late or too early."""
        rng = self.rng
        changed = {partition.number for partition in commit.partitions}
        # Of a partition that the commit removes nothing is written.
        there = [partition.number for partition in commit.queue.existing()]
        numbers = [number for number in there if number not in changed]
        writes, left, expired = [*commit.writes], dict(commit.left), set(commit.expired)
        if numbers and rng.random() < 0.5:
            writes += [self._write(number) for number in self._some(numbers)]
        bound = sorted(commit.queue.flows.keys() - commit.token_hashes.keys())
        if bound and rng.random() < 0.5:
            expired |= {*self._some(bound)}
            left |= dict.fromkeys(expired, "lease_expired")
        seen, now = rng.choice((commit.seen, commit.seen, 0)), self.twins.now
        await refused(
            self.twins.commit(
                replace(
                    commit,
                    seen=seen,
                    writes=writes,
                    left=left,
                    expired=frozenset(expired),
                    valid=(now - 2, now - 1) if rng.random() < 0.5 else (now + 1, now + 2),
                )
            )
        )

    async def harm(self) -> None:
        """A call that changes what the run's own calls will find."""
        rng, twins = self.rng, self.twins
        deeds: list[Callable[[], Awaitable[Any]]] = [
            lambda: twins.commit_positions([self._item() for _ in range(rng.randint(1, 6))]),
            lambda: twins.commit_positions([self._item() for _ in range(rng.randint(1, 6))]),
            lambda: twins.renew(self._some(self.flow_ids)),
            lambda: twins.purge(twins.now - rng.choice((0, 5, 30)), twins.now - rng.choice((0, 5))),
            lambda: twins.pulse(rng.choice((0.5, 3.0, 10.0))),
            self._wait,
            self._serve,
            self._other,
            self._other,
        ]
        if self.commits:
            deeds.append(lambda: twins.commit(rng.choice(self.commits)))
            deeds.append(lambda: twins.create(self.commits[0]))
        await refused(rng.choice(deeds)())

    async def end(self) -> None:
        """Delete everything."""
        for queue_id in self.queue_ids:
            await refused(self.twins.delete(queue_id, force=False))
            await refused(self.twins.delete(queue_id, force=True))
            await self.ask()

    async def _wait(self) -> None:
        self.twins.set(self.twins.now + self.rng.choice((0.5, 2.0, 3.0, 4.0, 11.0, -2.0, -7.0)))
        await self.twins.due(100)

    async def _serve(self) -> None:
        """Leases run out, and no replica acts on it."""
        for _ in range(self.rng.randint(1, 3)):
            self.twins.set(self.twins.now + 2)
            await self.twins.pulse()
        await self.twins.due(self.rng.randint(1, 3))

    async def _other(self) -> None:
        """Creates another queue, or changes one."""
        rng, twins = self.rng, self.twins
        if not self.others or rng.random() < 0.3:
            replica = Replica(cast(Store, twins), twins.now)
            name = rng.choice(NAMES)
            with suppress(StoreError):
                await replica.create(
                    rng.randint(1, 4), name, rebalance_delay=rng.choice((0.0, 5.0))
                )
                self.others.append(replica)
                self.queue_ids.append(replica.id)
            return
        replica = rng.choice(self.others)
        replica.now = twins.now
        if rng.random() < 0.2:
            await twins.delete(replica.id, force=rng.random() < 0.5)
            return
        name = f"{rng.choice('xyz')}-{len(self.flow_ids)}"
        if rng.random() < 0.7:
            await replica.bind(name, lease=rng.choice((1.0, 4.0, 10.0)))
            self.flow_ids.append(name)
        else:
            # Another replica commits first.
            other = await Replica(cast(Store, twins), twins.now).follow(replica.id)
            await other.bind(name)
            self.flow_ids.append(name)

    def _some(self, of: list[Any]) -> list[Any]:
        return self.rng.sample(of, self.rng.randint(0, min(4, len(of))))

    def _item(self) -> PositionCommit:
        """A commit, often by the owner, otherwise by any flow."""
        rng = self.rng
        seq, position = rng.choice((None, rng.randint(1, 40))), str(rng.randint(0, 99))
        above = rng.choice((None, "200+1"))
        owned = self.twins.owned()
        if owned and rng.random() < 0.6:
            queue_id, flow_id, number, epoch = rng.choice(owned)
            return PositionCommit(queue_id, flow_id, seq, number, epoch, position, above)
        return PositionCommit(
            rng.choice(self.queue_ids),
            rng.choice(self.flow_ids),
            seq,
            rng.randrange(self.partitions),
            rng.randint(1, 5),
            position,
            above,
        )

    def _write(self, number: int) -> PositionWrite:
        item = self._item()
        return PositionWrite(
            number, item.epoch, item.flow_id, item.position, item.seq, item.done_above
        )


async def refused(asked: Awaitable[Any]) -> None:
    """Any answer is fine, as long as the twins agree."""
    try:
        await asked
    except Differ:
        raise
    except REFUSALS:
        pass


async def play(seed: int, calls: Sequence[Call], url: str, memory: Any) -> Twins:
    """A run of the simulation with disturbances: harmless at first, later harmful."""
    rng = random.Random(seed)
    async with twins_on(url, memory) as twins:
        mischief = Mischief(twins, rng)
        in_order = rng.choice((len(calls), rng.randrange(len(calls))))
        for number, call in enumerate(calls):
            twins.set(max(call.at, twins.now))
            if call.method == "commit" and rng.random() < 0.3:
                await mischief.spoil(call.args[0])
            await refused(twins.ask(call.method, *call.args, **call.named))
            mischief.learn(call)
            if rng.random() < 0.2:
                await mischief.ask()
            if number >= in_order and rng.random() < 0.3:
                await mischief.harm()
            if number % 40 == 0:
                await twins.compare()
        for _ in range(25):
            await mischief.harm()
        await twins.compare()
        await mischief.end()
        await twins.compare()
    return twins


def outcomes_of(url: str, seeds: Iterable[int], memory: Any = MemoryDatabase) -> Outcomes:
    """How often each call had each outcome."""
    found: Outcomes = Counter()
    for seed in seeds:
        calls = recorded(seed)
        try:
            found.update(asyncio.run(play(seed, calls, url, memory)).outcomes)
        except Differ as error:
            raise Differ(f"seed {seed}: {error}") from None
    return found


@pytest.mark.long
def test_both_stores_answer_the_simulations_calls_alike(twins_url: str) -> None:
    found = outcomes_of(twins_url, range(3))
    assert found["commit", "ok"] > 20


@pytest.mark.long
def test_many_runs_with_every_answer_that_a_store_can_give(twins_url: str) -> None:
    found = outcomes_of(twins_url, range(100, 106))
    never = EVERY_OUTCOME - {outcome for outcome, times in found.items() if times > 1}
    assert not never


class Unserved(MemoryDatabase):
    """Leases run while no replica serves."""

    def _over(self, flow: Any) -> bool:
        return flow.reason is None and flow.lease_expires_at <= self.clock()


class Unfenced(MemoryDatabase):
    """A delayed retry moves a position back."""

    def _may_write(self, stored: Any, number: int, epoch: int, flow_id: str, seq: Any) -> bool:
        return super()._may_write(stored, number, epoch, flow_id, None)


class Immortal(MemoryDatabase):
    """The expiry of a lease is not checked again within a commit."""

    def commit(self, commit: Commit) -> Positions:
        return super().commit(replace(commit, expired=frozenset()))


class Eager(MemoryDatabase):
    """Leases that were over when the outage began begin anew too."""

    def pulse(self, gap_seconds: float) -> Any:
        outages = len(self.outages)
        pulse = super().pulse(gap_seconds)
        if len(self.outages) > outages:
            self.renew(list(self.flows))
        return pulse


class Unordered(MemoryDatabase):
    """The queue that has waited longest does not come first."""

    def due(self, limit: int) -> Sequence[str]:
        return sorted(super().due(10**6))[:limit]


class Forgetful(MemoryDatabase):
    """The newest record of a queue goes with the old ones."""

    def purge(self, flows_before: float, records_before: float) -> None:
        super().purge(flows_before, records_before)
        for stored in self.queues.values():
            stored.entries = [each for each in stored.entries if each[0].at >= records_before]


@pytest.mark.long
@pytest.mark.matrix("memory")
@pytest.mark.parametrize(
    "memory", [Unserved, Unfenced, Immortal, Eager, Unordered, Forgetful], ids=lambda m: m.__name__
)
def test_a_twin_that_differs_is_detected(twins_url: str, memory: Any) -> None:
    with pytest.raises(Differ):
        outcomes_of(twins_url, range(100, 106), memory)
