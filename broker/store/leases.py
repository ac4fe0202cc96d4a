"""Leases and the pulse: outages, jumps of the clock, and expired leases.

Leases run only while replicas serve (the contract, *Flow*). Every replica stamps one row every
second, and a lease is over only while that stamp is fresh. The first replica that finds the stamp
old starts all leases anew that were alive at the stamp. It does so under the row's lock, so it
happens once.

**All times here are the database's**, and its clock may be set. The stamp is the latest time seen,
so it also shows steps of the clock that matter:

- *Forward*, by more than the gap: this looks like an outage and is treated as one. Leases start
  anew and deadlines of handoffs move by the gap, so no flow loses time.
- *Back*, by more than the gap: the stamp lies in the future. Without a correction everything would
  end too late by the step: the lease of a dead consumer, a holddown, a handoff. So the step is
  recorded like an outage of negative length. All leases start anew (a lease renewed after the step
  looks like one that ended before it). Every deadline moves back with the clock: each queue's at
  its next turn, which finds an outage that the queue has not seen. Until then the queue is due,
  whatever its deadline is. So a replica takes that turn even if all replicas that had the queue in
  memory are dead.
- By *less* than the gap: running times are longer or shorter by the step, once.

A decision that used a time from before the step and is committed after it moves too: only a replica
that knows the new time decides on a queue that has moved (`broker.replica.clock`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    Integer,
    Text,
    and_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import NOW, PreparedStatement, any_of, listed
from broker.store.connections import Connections
from broker.store.ports import Expiry, Lease, Outage, Pulse
from broker.store.tables import bound, flows, outages, queues, service

# Whether replicas served all the while, so that leases have run.
SERVED = (
    select(service.c.stamped_at + service.c.gap_seconds >= NOW).where(service.c.id == 1)
).scalar_subquery()


# The lease of a flow is over.
LEASE_OVER = and_(flows.c.lease_expires_at <= NOW, SERVED)

# The pulse. Usually it is one statement. If it stamps nothing, no replica served for a while, or
# the clock was set.

_GAP = bindparam("gap", type_=Double)
_LATEST_OUTAGE = select(outages).order_by(outages.c.id.desc()).limit(1)
_stamped = (
    update(service)
    .where(
        service.c.id == 1,
        service.c.stamped_at.between(NOW - _GAP, NOW + _GAP),
    )
    .values(stamped_at=NOW, gap_seconds=_GAP)
    .returning(service.c.stamped_at)
    .cte("stamped")
)
_outage = _LATEST_OUTAGE.subquery("outage")
STAMP = PreparedStatement(
    select(_stamped.c.stamped_at, _outage).select_from(_stamped.outerjoin(_outage, literal(True)))
)
# Two statements: the time is read while the lock is held. The time of a statement that waited for
# the lock would be earlier than the stamp of the lock's last holder.
LOCK_STAMP = select(service.c.id).where(service.c.id == 1).with_for_update()
LAST_STAMP = select(service.c.stamped_at, NOW.label("now")).where(service.c.id == 1)
_alive = (
    select(flows.c.id)
    .where(bound, flows.c.lease_expires_at > bindparam("began"))
    .order_by(flows.c.id)
    .with_for_update(key_share=True)
    .cte("alive")
)
RENEW_ALIVE = (
    update(flows)
    .where(listed(flows.c.id, _alive.c.id))
    .values(lease_expires_at=NOW + flows.c.lease_seconds)
)

# Leases. A renewal never waits for a lock: it covers rows of many queues, and a replica that holds
# a lock may be frozen. Locked rows are left out, and the caller sends them again.

RENEW = PreparedStatement.read("renewals")
BOUND = PreparedStatement(select(flows.c.id).where(any_of(flows.c.id, "flow_ids"), bound))
LEASES = PreparedStatement(
    select(flows.c.id, flows.c.lease_expires_at).where(any_of(flows.c.id, "flow_ids"), bound)
)
EXPIRIES = PreparedStatement(
    select(
        flows.c.id,
        flows.c.lease_expires_at,
        LEASE_OVER.label("over"),
        (flows.c.lease_expires_at - flows.c.lease_seconds).label("seen_at"),
    )
    .where(flows.c.queue_id == bindparam("queue", type_=Text), bound)
    .order_by(flows.c.id)
)
OUTAGES = PreparedStatement(
    select(outages)
    .where(outages.c.id > bindparam("after", type_=BigInteger))
    .order_by(outages.c.id)
)
_over = (
    select(flows.c.queue_id, func.min(flows.c.lease_expires_at).label("since"))
    .where(bound, LEASE_OVER)
    .group_by(flows.c.queue_id)
    .subquery("over")
)
_since = func.least(queues.c.next_deadline, _over.c.since)
_went_back = select(func.max(outages.c.id)).where(outages.c.seconds < 0).scalar_subquery()
DUE = PreparedStatement(
    select(queues.c.id)
    .select_from(queues.outerjoin(_over, _over.c.queue_id == queues.c.id))
    .where(
        or_(
            queues.c.next_deadline <= NOW,
            and_(queues.c.next_deadline.is_not(None), queues.c.outage_seen < _went_back),
            _over.c.since.is_not(None),
        )
    )
    .order_by(_since, queues.c.id)
    .limit(bindparam("limit", type_=Integer))
)


class PostgresLeases:
    """Leases and the pulse in Postgres."""

    _connections: Connections

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        if stamped := await self._connections.fetch(STAMP, {"gap": gap_seconds}):
            now, *outage = tuple(stamped[0])
            return Pulse(now, _outage_of(outage))
        return await self._connections.carry_out(lambda one: _pulse_after_gap(one, gap_seconds))

    async def expiries(self, queue_id: str) -> Expiry:
        found = await self._connections.fetch(EXPIRIES, {"queue": queue_id})
        over = tuple(flow_id for flow_id, _, is_over, _ in found if is_over)
        next_at = min((ends for _, ends, is_over, _ in found if not is_over), default=None)
        return Expiry(over, next_at, {flow_id: seen_at for flow_id, _, _, seen_at in found})

    async def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        found = await self._connections.fetch(RENEW, {"flow_ids": flow_ids})
        leases: dict[str, Lease | None] = {flow_id: Lease(*lease) for flow_id, *lease in found}
        if missing := sorted(set(flow_ids).difference(leases)):
            locked = await self._connections.fetch(BOUND, {"flow_ids": missing})
            leases |= dict.fromkeys((flow_id for (flow_id,) in locked), None)
        return leases

    async def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        return dict(await self._connections.fetch(LEASES, {"flow_ids": flow_ids}))

    async def outages(self, after: int) -> Sequence[Outage]:
        found = await self._connections.fetch(OUTAGES, {"after": after})
        return [Outage(*row) for row in found]

    async def due(self, limit: int) -> Sequence[str]:
        return [queue_id for (queue_id,) in await self._connections.fetch(DUE, {"limit": limit})]


async def _pulse_after_gap(connection: AsyncConnection, gap_seconds: float) -> Pulse:
    """The pulse when `STAMP` stamped nothing: no replica served for a while, or ever, or the clock
    went back.
    """
    await connection.execute(LOCK_STAMP)
    began, now = (await connection.execute(LAST_STAMP)).one()
    if began is not None and abs(now - began) > gap_seconds:
        await connection.execute(insert(outages).values(began=began, seconds=now - began))
        await connection.execute(RENEW_ALIVE, {"began": began if began < now else -math.inf})
    await connection.execute(
        update(service).where(service.c.id == 1).values(stamped_at=NOW, gap_seconds=gap_seconds)
    )
    outage = (await connection.execute(_LATEST_OUTAGE)).first()
    return Pulse(now, _outage_of(outage))


def _outage_of(values: Sequence[Any] | None) -> Outage | None:
    """The outage in these columns, if any."""
    return Outage(*values) if values and values[0] is not None else None
