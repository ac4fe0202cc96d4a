"""Leases and the pulse: when nobody served, when the clock jumped, whose lease is over.

Leases run only while somebody serves (the contract, *Flow*): every replica stamps one row every
second, and a lease is over only while that stamp is fresh. Whoever finds it old begins the leases
anew that were alive then, under the row's lock, so that it happens once.

**All times here are the database's**, and its clock may be set. The stamp is the latest time that
was seen, so it shows that too, as far as it matters:

- *Forward*, by more than the gap: that looks like an outage and is taken for one. Leases begin
  anew and deadlines of handoffs move by the gap, so nobody loses time.
- *Back*, by more than the gap: the stamp lies in the future. Left alone, everything that is to end
  would end too late by as much: the lease of a dead consumer, a holddown, a handoff. So this is
  recorded like an outage, of negative length. All leases begin anew (one that was renewed after the
  step cannot be told from one that ended before it), and every deadline moves back with the clock:
  each queue's when its next turn finds an outage that it has not seen. Until then the queue is due,
  whatever its deadline says, so that somebody takes that turn although all who had it in memory are
  dead.
- By *less* than the gap: what is running is longer or shorter by as much, once.

What a replica decided by a time from before the step, and committed after it, is among what moves:
a queue that has moved is decided on only by who knows the new time (`broker.mailbox.clock`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
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

from broker.store.bulk import NOW, any_of, listed
from broker.store.ports import Outage, Pulse
from broker.store.tables import bound, flows, outages, queues, service

# Whether somebody served all the while, so that leases have run.
SERVED = (
    select(service.c.stamped_at + service.c.gap_seconds >= NOW).where(service.c.id == 1)
).scalar_subquery()


def lease_over(row: FromClause) -> ColumnElement[bool]:
    """Whether the lease of a flow is over; `row` is the table or has its columns."""
    return and_(row.c.lease_expires_at <= NOW, SERVED)


LEASE_OVER = lease_over(flows)

# The pulse. The usual one is one statement; if it stamps nothing, nobody served for a while, or the
# clock was set.

_LATEST_OUTAGE = select(outages).order_by(outages.c.id.desc()).limit(1)
_stamped = (
    update(service)
    .where(
        service.c.id == 1,
        service.c.stamped_at.between(NOW - bindparam("gap"), NOW + bindparam("gap")),
    )
    .values(stamped_at=NOW, gap_seconds=bindparam("gap"))
    .returning(service.c.stamped_at)
    .cte("stamped")
)
_outage = _LATEST_OUTAGE.subquery("outage")
STAMP = select(_stamped.c.stamped_at, _outage).select_from(
    _stamped.outerjoin(_outage, literal(True))
)
# Two statements: the time is asked for when the lock is held. That of a statement which had to wait
# for it is before the stamp of who held it.
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
    .where(listed(flows.c.id, _leased.c.id))
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
_went_back = select(func.max(outages.c.id)).where(outages.c.seconds < 0).scalar_subquery()
DUE = (
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
    .limit(bindparam("limit"))
)


async def pulse_after_gap(connection: AsyncConnection, gap_seconds: float) -> Pulse:
    """The pulse that `STAMP` was not: nobody served for a while, or never yet, or the clock went
    back.
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
    return Pulse(now, outage_of(outage))


def outage_of(values: Sequence[Any] | None) -> Outage | None:
    """The outage in these columns, if there is one."""
    return Outage(*values) if values and values[0] is not None else None
