"""Conditions: what consumers say is wrong with their work (the contract, *Conditions*).

A flow reports all its conditions at once, so a report that is lost or repeated does no harm, and
one that comes late is refused by its `seq`. They are stored as one row of the flow, only when they
change, and nothing else writes that row: commits, renewals and handoffs know nothing of them.

So a condition is **not deleted when it ends with its epoch**; it is no longer shown:

- A condition of a partition holds while its flow owns the partition under the epoch it names.
- A condition of the flow (no partition) holds while the flow is bound.

The row itself goes with the flow's row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson
from sqlalchemy import BigInteger, Double, Text, bindparam, cast, column, func, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB, insert

from broker.store.bulk import PreparedStatement, any_of
from broker.store.tables import bound, conditions, flows, has_conditions, partitions

KINDS = (
    "quarantined",
    "log_away",
    "rows_dropped",
    "state_lost",
    "invalid_position",
    "end_refused",
)
"""The kinds that this version knows. Others, of later clients, are counted as `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Condition:
    """`partition` and `epoch` are None for a condition of the whole flow. `since`: Unix seconds."""

    kind: str
    text: str
    partition: int | None
    epoch: int | None
    since: float


class ConditionStore(Protocol):
    """The conditions that flows have reported. Raises StoreUnavailable."""

    async def report(self, flow_id: str, seq: int, reported: Sequence[Condition]) -> None:
        """Replace what the flow reports. Without effect if it is not bound, or after a report with
        this `seq` or a higher one.
        """

    async def of_flow(self, flow_id: str) -> Sequence[Condition]:
        """What the flow has reported last, whether it still holds or not."""

    async def of_queue(self, queue_id: str, limit: int) -> Sequence[tuple[str, Condition]]:
        """The conditions of a queue that hold, each with its flow: of whole flows first, then by
        partition; at most `limit`.
        """

    async def counts(self, queue_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """How many conditions of each kind hold, by queue; queues and kinds without any are left
        out.
        """


class PostgresConditions:
    """Implements `ConditionStore`; `fetch` carries out one statement."""

    def __init__(
        self, fetch: Callable[[PreparedStatement, Mapping[str, Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._fetch = fetch

    async def report(self, flow_id: str, seq: int, reported: Sequence[Condition]) -> None:
        encoded = orjson.dumps([asdict(one) for one in reported]).decode()
        values = {"flow": flow_id, "seq": seq, "conditions": encoded}
        await self._fetch(_REPORT, values)

    async def of_flow(self, flow_id: str) -> Sequence[Condition]:
        found = await self._fetch(_OF_FLOW, {"flow": flow_id})
        return _decoded(found[0][0]) if found else ()

    async def of_queue(self, queue_id: str, limit: int) -> Sequence[tuple[str, Condition]]:
        found = await self._fetch(_OF_QUEUE, {"queue": queue_id, "limit": limit})
        return [(flow_id, Condition(*values)) for flow_id, *values in found]

    async def counts(self, queue_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        found = await self._fetch(_COUNTS, {"queue_ids": [*queue_ids]})
        return counted((queue_id, kind, count) for queue_id, kind, count in found)


def counted(found: Iterable[tuple[str, str, int]]) -> Mapping[str, Mapping[str, int]]:
    """Counts by queue and kind; kinds that this version does not know are one."""
    counts: dict[str, Counter[str]] = {}
    for queue_id, kind, count in found:
        counts.setdefault(queue_id, Counter())[kind if kind in KINDS else OTHER] += count
    return counts


def _decoded(encoded: str) -> Sequence[Condition]:
    return tuple(Condition(**values) for values in orjson.loads(encoded))


_FLOW = bindparam("flow", type_=Text)
_QUEUE = bindparam("queue", type_=Text)
# The lock waits for a deletion of the queue, which then has no flow.
_given = (
    select(
        flows.c.id,
        flows.c.queue_id,
        bindparam("seq", type_=BigInteger),
        cast(bindparam("conditions", type_=Text), JSONB),
    )
    .where(flows.c.id == _FLOW, bound)
    .with_for_update(read=True, key_share=True)
)
_written = insert(conditions).from_select(["flow_id", "queue_id", "seq", "conditions"], _given)
_REPORT = PreparedStatement(
    _written.on_conflict_do_update(
        index_elements=[conditions.c.flow_id],
        set_={"seq": _written.excluded.seq, "conditions": _written.excluded.conditions},
        where=conditions.c.seq < _written.excluded.seq,
    ).returning(conditions.c.flow_id)
)
_ENCODED = cast(conditions.c.conditions, Text)
_OF_FLOW = PreparedStatement(select(_ENCODED).where(conditions.c.flow_id == _FLOW))
_of_bound = conditions.join(flows, flows.c.id == conditions.c.flow_id)
_one = (
    func.jsonb_to_recordset(conditions.c.conditions)
    .table_valued(
        column("kind", Text),
        column("text", Text),
        column("partition", BigInteger),
        column("epoch", BigInteger),
        column("since", Double),
        name="one",
    )
    .render_derived(with_types=True)
    .lateral("one")
)
# With many flows, each with many conditions, they are chosen in the database.
_holding = _of_bound.join(_one, true()).outerjoin(
    partitions,
    (partitions.c.queue_id == conditions.c.queue_id) & (partitions.c.number == _one.c.partition),
)
_holds = or_(
    _one.c.partition.is_(None),
    (partitions.c.owner == conditions.c.flow_id) & (partitions.c.epoch == _one.c.epoch),
)
_OF_QUEUE = PreparedStatement(
    select(
        conditions.c.flow_id,
        _one.c.kind,
        _one.c.text,
        _one.c.partition,
        _one.c.epoch,
        _one.c.since,
    )
    .select_from(_holding)
    .where(conditions.c.queue_id == _QUEUE, has_conditions, bound, _holds)
    .order_by(_one.c.partition.nulls_first(), conditions.c.flow_id)
    .limit(bindparam("limit", type_=BigInteger))
)
_COUNTS = PreparedStatement(
    select(conditions.c.queue_id, _one.c.kind, func.count())
    .select_from(_holding)
    .where(any_of(conditions.c.queue_id, "queue_ids"), has_conditions, bound, _holds)
    .group_by(conditions.c.queue_id, _one.c.kind)
)
