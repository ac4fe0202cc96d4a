"""Leases and the pulse: when nobody served, whose lease is over, who begins anew.

Leases run only while somebody serves (the contract, *Flow*): every replica stamps one row every
second, and a lease is over only while that stamp is fresh. Whoever finds it old begins the leases
anew that were alive then, under the row's lock, so that it happens once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import NOW, any_of
from broker.store.ports import Outage, Pulse
from broker.store.tables import bound, flows, outages, queues, service

# Whether somebody served all the while, so that leases have run.
SERVED = (
    select(service.c.stamped_at + service.c.gap_seconds >= NOW).where(service.c.id == 1)
).scalar_subquery()
LEASE_OVER = and_(flows.c.lease_expires_at <= NOW, SERVED)

# The pulse. The usual one is one statement; if it stamps nothing, nobody served for a while.

_LATEST_OUTAGE = select(outages).order_by(outages.c.id.desc()).limit(1)
_stamped = (
    update(service)
    .where(service.c.id == 1, service.c.stamped_at >= NOW - bindparam("gap"))
    .values(stamped_at=NOW, gap_seconds=bindparam("gap"))
    .returning(service.c.stamped_at)
    .cte("stamped")
)
_outage = _LATEST_OUTAGE.subquery("outage")
STAMP = select(_stamped.c.stamped_at, _outage).select_from(
    _stamped.outerjoin(_outage, literal(True))
)
LAST_STAMP = (
    select(service.c.stamped_at, NOW.label("now")).where(service.c.id == 1).with_for_update()
)
_alive = (
    select(flows.c.id)
    .where(bound, flows.c.lease_expires_at > bindparam("began"))
    .order_by(flows.c.id)
    .with_for_update(key_share=True)
    .cte("alive")
)
RENEW_ALIVE = (
    update(flows)
    .where(flows.c.id == _alive.c.id)
    .values(lease_expires_at=NOW + flows.c.lease_seconds)
)

# Leases. A renewal waits for nobody: rows of many queues go out together, and who holds one may be
# frozen. What it leaves out for that is asked for again.

_leased = (
    select(flows.c.id)
    .where(any_of(flows.c.id, "flow_ids"), bound)
    .order_by(flows.c.id)
    .with_for_update(key_share=True, skip_locked=True)
    .cte("leased")
)
RENEWAL = (
    update(flows)
    .where(flows.c.id == _leased.c.id)
    .values(lease_expires_at=NOW + flows.c.lease_seconds)
)
RENEW = RENEWAL.returning(flows.c.id, flows.c.lease_expires_at, flows.c.view_revision)
BOUND = select(flows.c.id).where(any_of(flows.c.id, "flow_ids"), bound)
EXPIRIES = (
    select(flows.c.id, flows.c.lease_expires_at, LEASE_OVER.label("over"))
    .where(flows.c.queue_id == bindparam("queue"), bound)
    .order_by(flows.c.id)
)
_over = (
    select(flows.c.queue_id, func.min(flows.c.lease_expires_at).label("since"))
    .where(bound, LEASE_OVER)
    .group_by(flows.c.queue_id)
    .subquery("over")
)
_since = func.least(queues.c.next_deadline, _over.c.since)
DUE = (
    select(queues.c.id)
    .select_from(queues.outerjoin(_over, _over.c.queue_id == queues.c.id))
    .where(or_(queues.c.next_deadline <= NOW, _over.c.since.is_not(None)))
    .order_by(_since, queues.c.id)
    .limit(bindparam("limit"))
)


async def pulse_after_gap(connection: AsyncConnection, gap_seconds: float) -> Pulse:
    """The pulse that `STAMP` was not: nobody served for a while, or never yet."""
    began, now = (await connection.execute(LAST_STAMP)).one()
    if began is not None and now - began > gap_seconds:
        await connection.execute(insert(outages).values(began=began, seconds=now - began))
        await connection.execute(RENEW_ALIVE, {"began": began})
    await connection.execute(
        update(service).where(service.c.id == 1).values(stamped_at=NOW, gap_seconds=gap_seconds)
    )
    outage = (await connection.execute(_LATEST_OUTAGE)).first()
    return Pulse(now, outage_of(outage))


def outage_of(values: Sequence[Any] | None) -> Outage | None:
    """The outage in these columns, if there is one."""
    return Outage(*values) if values and values[0] is not None else None
