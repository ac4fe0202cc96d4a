"""Two stores that get the same calls at the same time, and must give the same answers.

`Twins` is a `Store`: each call goes to Postgres and to its twin in memory, under one clock that the
test sets. The simulation's proof relies on the twin. So the calls of the simulation can be recorded
(`recorded`) and made to both.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any, NamedTuple
from unittest import mock

import psycopg

from broker.core.queue import Queue
from broker.store.ports import Commit, StoreError
from broker.store.postgres import PostgresStore
from broker.testing.database import MemoryDatabase
from broker.testing.store import MemoryStore
from tests.broker.store.conftest import EMPTY
from tests.simulation import world
from tests.simulation.plan import draw
from tests.simulation.service import Observed
from tests.world.store import picture

# Fractions of a second that Postgres' timestamps and floats represent exactly.
TICKS_PER_SECOND = 64
EPOCH = 1_700_000_000.0

# Replaces the time in this database: functions in a schema that is searched before Postgres' own.
_CLOCK = """
CREATE SCHEMA twins;
CREATE TABLE twins.clock (at double precision);
INSERT INTO twins.clock VALUES (0);
CREATE FUNCTION twins.clock_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
    AS 'SELECT pg_catalog.to_timestamp(at) FROM twins.clock';
CREATE FUNCTION twins.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
    AS 'SELECT pg_catalog.to_timestamp(at) FROM twins.clock';
"""
CLOCK_PATH = "twins, pg_catalog"
READS = (
    *(
        "find",
        "list",
        "load",
        "revisions",
        "entries_after",
        "history",
        "entries_at",
        "expiries",
        "positions",
    ),
    *("leases", "flow_rows", "outages", "due"),
)
WRITES = ("pulse", "create", "delete", "commit", "renew", "commit_positions", "purge")


def install_clock(url: str) -> None:
    """Install the clock that `Twins` sets, for connections with CLOCK_PATH as their search path."""
    with psycopg.connect(url) as connection:
        connection.execute(_CLOCK)


class Differ(AssertionError):
    """The twins gave different answers."""


class Twins:
    """One store, twice. `outcomes` counts the results by method."""

    def __init__(
        self, url: str, memory: Callable[[Callable[[], float]], MemoryDatabase] = MemoryDatabase
    ) -> None:
        """A database with the clock of `install_clock`, which is emptied."""
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(EMPTY)
        self._postgres = PostgresStore(url, pool_size=2)
        self._memory = MemoryStore(memory(lambda: self.now))
        self.outcomes: dict[tuple[str, str], int] = {}
        self.set(EPOCH)

    def set(self, now: float) -> None:
        """Set the time, rounded to 1/64 s."""
        self.now = round(now * TICKS_PER_SECOND) / TICKS_PER_SECOND
        self._connection.execute("UPDATE twins.clock SET at = %s", [self.now])

    async def stop(self) -> None:
        self._connection.close()
        await self._postgres.stop()

    async def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """The common answer or error of both; raises Differ if they do not agree."""
        answers = []
        for store in (self._memory, self._postgres):
            # A commit contains a queue, which must not become the store's own.
            given = copy.deepcopy(args) if method in ("create", "commit") else args
            answers.append(await _outcome(getattr(store, method)(*given, **named)))
        memory, postgres = answers
        if memory[0] != postgres[0]:
            raise Differ(
                f"{method}{args} {named or ''} at {self.now}\n"
                f"in memory:   {_said(memory)}\nin Postgres: {_said(postgres)}"
            )
        kind = type(postgres[1]).__name__ if isinstance(postgres[1], Exception) else "ok"
        self.outcomes[method, kind] = self.outcomes.get((method, kind), 0) + 1
        if isinstance(postgres[1], Exception):
            raise postgres[1]
        return postgres[1]

    def __getattr__(self, method: str) -> Any:
        if method not in (*READS, *WRITES):
            raise AttributeError(method)

        async def ask(*args: Any, **named: Any) -> Any:
            return await self.ask(method, *args, **named)

        return ask

    def owned(self) -> list[tuple[str, str, int, int]]:
        """The present owners: queue, flow, partition, epoch."""
        return [
            (queue_id, partition.owner, number, partition.epoch)
            for queue_id, queue in self._memory.database.queues.items()
            for number, partition in queue.partitions.items()
            if partition.owner is not None
        ]

    async def compare(self) -> None:
        """Compare everything."""
        database = self._memory.database
        queue_ids = sorted(database.queues)
        flow_ids = sorted(database.flows)
        for queue_id in queue_ids:
            queue = await self.ask("load", queue_id)
            await self.ask("positions", queue_id)
            await self.ask("expiries", queue_id)
            await self.ask("history", queue_id, 100, None, 1000)
            for revision in (0, queue.revision - 3, queue.revision):
                with suppress(KeyError):
                    await self.ask("entries_after", queue_id, revision)
        await self.ask("list", 100, None)
        await self.ask("leases", flow_ids)
        await self.ask("flow_rows", flow_ids)
        await self.ask("outages", 0)
        await self.ask("due", 100)


def _unfenced(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Trims of logs are not recorded, so fences against them mean nothing."""
    for commit in args:
        if isinstance(commit, Commit):
            commit.fences = ()
    return args


def _said(answer: tuple[Any, Any]) -> str:
    """The compared form of an answer and its text for the exception."""
    return f"{answer[0]} {answer[1] if isinstance(answer[1], Exception) else ''}".rstrip()


async def _outcome(call: Awaitable[Any]) -> tuple[Any, Any]:
    """The result of a call, in comparable form and as it is."""
    try:
        answer = await call
    except (StoreError, KeyError) as error:
        return ("raised", type(error).__name__, plain(vars(error))), error
    except AssertionError as error:
        # A constraint violation: each store words it differently.
        return ("raised", "AssertionError"), error
    return plain(answer), answer


def plain(value: Any) -> Any:
    """A value of any type in comparable form."""
    if isinstance(value, Queue):
        return plain(picture(value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, plain(asdict(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


class Call(NamedTuple):
    """A call of a simulated replica to its store."""

    at: float
    method: str
    args: tuple[Any, ...]
    named: dict[str, Any]


@functools.cache
def recorded(seed: int) -> list[Call]:
    """All calls to the database in a simulated run, in order."""
    calls: list[Call] = []

    class Recorder(Observed):
        _asked = False

    def recording(method: str) -> Callable[..., Any]:
        name = "outages_after" if method == "outages" else method
        carry_out = getattr(Observed, name)

        def ask(self: Recorder, *args: Any, **named: Any) -> Any:
            if self._asked:
                # Another method calls it as a part of itself.
                return carry_out(self, *args, **named)
            calls.append(Call(self.clock(), method, _unfenced(copy.deepcopy(args)), named))
            self._asked = True
            try:
                return carry_out(self, *args, **named)
            finally:
                self._asked = False

        return ask

    for method in (*READS, *WRITES):
        name = "outages_after" if method == "outages" else method
        setattr(Recorder, name, recording(method))
    with mock.patch.object(world, "Observed", Recorder):
        outcome = world.run(draw(seed))
    assert outcome.violation is None
    return calls
