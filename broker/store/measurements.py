"""Measurements: an hour of each queue's lag, of what was published to it, and of how old messages
were when they were committed (`broker.calls.commit_ages`).

They are rows and not the memory of a replica. So all replicas show the same, also one that has just
started, and each queue is measured once, however many replicas there are. Every `ROUND_SECONDS`
each replica tries to begin a **round**. It succeeds if the last one began `LEAST_SECONDS` ago or
more. If the replica that began a round dies, the round is lost; any replica begins the next one.

**Ages** are counted by each replica for its own commits, and each adds its counts to those of the
others: one row of a queue for each slot of `SLOT_SECONDS`.

**The bound.** A round has at most `MOST_QUEUES` rows of four short columns, and rows are deleted
when they are older than `KEPT_SECONDS`: at most 144 rows of a queue, and 144,000 in all. Of the
ages there are at most 120 rows of a queue; a replica notes at most 1,000 queues at a time.

No row refers to its queue's row: ids of queues never come again, and the rows of a deleted queue
are gone after an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ARRAY, BigInteger, Text, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from broker.store.bulk import PreparedStatement
from broker.store.tables import commit_ages, measurements, service

ROUND_SECONDS = 30
LEAST_SECONDS = 25
KEPT_SECONDS = 3600
SLOT_SECONDS = 30
MOST_QUEUES = 1000


class Measurement(NamedTuple):
    """A queue in the round that began `at` (Unix seconds), in messages.

    `lag` and `end` are sums over its partitions; None if a log did not say one of them.
    """

    at: int
    lag: int | None
    end: int | None


class MeasurementStore(Protocol):
    """The measurements of the last hour. Raises StoreUnavailable."""

    async def begin(self, at: int) -> bool:
        """Begin a round, and delete what is too old. False: one began shortly before."""

    async def add(self, taken: Mapping[str, Measurement]) -> None:
        """Store measurements, by the ids of their queues."""

    async def of_queue(self, queue_id: str, since: int) -> Sequence[Measurement]:
        """Those of a queue in rounds from `since` on, in order."""

    async def add_ages(self, at: int, counts: Mapping[str, Sequence[int]]) -> None:
        """Add to the counts of the slot that begins `at`, by the ids of the queues."""

    async def ages_of_queue(self, queue_id: str, since: int) -> Sequence[int]:
        """The sums of a queue's counts in slots from `since` on; empty if there are none."""


def sums(rows: Iterable[Sequence[int]]) -> Sequence[int]:
    """Place by place."""
    return [sum(each) for each in zip_longest(*rows, fillvalue=0)]


class PostgresMeasurements:
    """Implements `MeasurementStore`; `fetch` carries out one statement."""

    def __init__(
        self, fetch: Callable[[PreparedStatement, Mapping[str, Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._fetch = fetch

    async def begin(self, at: int) -> bool:
        if not await self._fetch(_BEGIN, {"at": at, "least": at - LEAST_SECONDS}):
            return False
        for statement in (_FORGET, _FORGET_AGES):
            await self._fetch(statement, {"since": at - KEPT_SECONDS})
        return True

    async def add(self, taken: Mapping[str, Measurement]) -> None:
        values = {
            "queue_ids": [*taken],
            "ats": [one.at for one in taken.values()],
            "lags": [one.lag for one in taken.values()],
            "ends": [one.end for one in taken.values()],
        }
        await self._fetch(_ADD, values)

    async def of_queue(self, queue_id: str, since: int) -> Sequence[Measurement]:
        found = await self._fetch(_OF_QUEUE, {"queue": queue_id, "since": since})
        return [Measurement(*row) for row in found]

    async def add_ages(self, at: int, counts: Mapping[str, Sequence[int]]) -> None:
        # In one order, because other replicas add to the same rows.
        values = {
            "at": at,
            "queue_ids": sorted(counts),
            "counts": [f"{{{','.join(map(str, counts[queue]))}}}" for queue in sorted(counts)],
        }
        await self._fetch(_ADD_AGES, values)

    async def ages_of_queue(self, queue_id: str, since: int) -> Sequence[int]:
        found = await self._fetch(_AGES_OF_QUEUE, {"queue": queue_id, "since": since})
        return sums(counts for (counts,) in found)


# A round of the future began before the clock was set back: it does not hold up others.
_BEGIN = PreparedStatement(
    update(service)
    .where(
        service.c.id == 1,
        or_(
            service.c.measured_at.is_(None),
            service.c.measured_at <= bindparam("least", type_=BigInteger),
            service.c.measured_at > bindparam("at", type_=BigInteger),
        ),
    )
    .values(measured_at=bindparam("at", type_=BigInteger))
    .returning(service.c.id)
)
_FORGET = PreparedStatement(
    delete(measurements).where(measurements.c.at < bindparam("since", type_=BigInteger))
)
_FORGET_AGES = PreparedStatement(
    delete(commit_ages).where(commit_ages.c.at < bindparam("since", type_=BigInteger))
)
_ADD_AGES = PreparedStatement.read("commit_ages")
_AGES_OF_QUEUE = PreparedStatement(
    select(commit_ages.c.counts).where(
        commit_ages.c.queue_id == bindparam("queue", type_=Text),
        commit_ages.c.at >= bindparam("since", type_=BigInteger),
    )
)
_taken = (
    func.unnest(
        bindparam("queue_ids", type_=ARRAY(Text)),
        *(bindparam(name, type_=ARRAY(BigInteger)) for name in ("ats", "lags", "ends")),
    )
    .table_valued("queue_id", "at", "lag", "end")
    .render_derived()
)
_ADD = PreparedStatement(
    insert(measurements)
    .from_select(
        ["queue_id", "at", "lag", "end"],
        select(_taken.c.queue_id, _taken.c.at, _taken.c.lag, _taken.c.end),
    )
    .on_conflict_do_nothing()
)
_OF_QUEUE = PreparedStatement(
    select(measurements.c.at, measurements.c.lag, measurements.c.end)
    .where(
        measurements.c.queue_id == bindparam("queue", type_=Text),
        measurements.c.at >= bindparam("since", type_=BigInteger),
    )
    .order_by(measurements.c.at)
)
