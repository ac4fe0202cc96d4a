"""Keys, sessions and the audit in Postgres, see `broker.store.ports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Text,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import NOW, any_of
from broker.store.connections import Connections
from broker.store.ports import (
    USED_SECONDS,
    Act,
    AuditRow,
    KeyRow,
    Keys,
    KeySummary,
    NewKey,
    SessionRow,
)
from broker.store.tables import audit, bound, flows, keys, sessions

PURGE_AT_ONCE = 10_000


_COUNTS: ColumnElement[bool] = keys.c.revoked_at.is_(None) & or_(
    keys.c.ends_at.is_(None), keys.c.ends_at > NOW
)
_KEYS = select(*(keys.c[name] for name in KeyRow._fields)).where(any_of(keys.c.id, "ids"), _COUNTS)
_STATE = case(
    (keys.c.revoked_at.is_not(None), "revoked"), (keys.c.ends_at <= NOW, "ended"), else_="valid"
).label("state")
_SUMMARIES = select(
    *(keys.c[name] for name in KeySummary._fields if name != "state"), _STATE
).order_by(keys.c.created_at, keys.c.id)
# Others wait that make a key, also by `broker.access_keys`; those that only read do not.
_ALONE = text(f"LOCK TABLE {keys.fullname} IN SHARE ROW EXCLUSIVE MODE")
_ANY = select(exists(select(keys.c.id)))
# Few keys end, and flows of each are found by the index on their key.
_ENDED = select(keys.c.id).where(
    or_(keys.c.revoked_at.is_not(None), keys.c.ends_at.is_not(None) & (keys.c.ends_at <= NOW))
)
_KEYLESS = (
    select(flows.c.queue_id, flows.c.id)
    .where(
        bound,
        flows.c.key_id.is_not(None),
        flows.c.key_id == func.any(func.array(_ENDED.scalar_subquery())),
    )
    .order_by(flows.c.id)
    .limit(bindparam("most"))
)
_first = select(keys.c.id).order_by(keys.c.created_at, keys.c.id).limit(1)
_LONG_ENDED = delete(keys).where(
    or_(keys.c.revoked_at < bindparam("before"), keys.c.ends_at < bindparam("before")),
    keys.c.id != _first.scalar_subquery(),
    # Flows of a key end because it is here and has ended.
    ~exists(select(flows.c.id).where(bound, flows.c.key_id == keys.c.id)),
    ~exists(select(sessions.c.hash).where(sessions.c.key_id == keys.c.id)),
)
_USED = (
    update(keys)
    .where(
        any_of(keys.c.id, "ids"),
        or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < NOW - USED_SECONDS),
    )
    .values(last_used_at=NOW)
)
_SESSIONS = select(
    sessions.c.hash,
    sessions.c.key_id,
    sessions.c.ends_at,
    case((sessions.c.unlocked_until > NOW, sessions.c.unlocked_until)).label("unlocked_until"),
).where(any_of(sessions.c.hash, "hashes"), sessions.c.ends_at > NOW)
_BEGIN = (
    insert(sessions)
    .from_select(
        ["hash", "key_id", "created_at", "ends_at"],
        select(
            bindparam("hash", type_=sessions.c.hash.type),
            bindparam("key", type_=Text),
            NOW,
            NOW + bindparam("seconds", type_=Double),
        ),
    )
    .returning(sessions.c.ends_at)
)
_OLDEST = (
    select(sessions.c.hash)
    .where(sessions.c.key_id == bindparam("key"))
    .order_by(sessions.c.created_at.desc())
    .offset(bindparam("most"))
)
_ACT = [field.name for field in fields(Act)]


class PostgresKeys:
    """The tables of keys, sessions and audit."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def read(self, key_ids: Sequence[str]) -> Keys:
        async with self._connections.single() as one:
            counting = (await one.execute(_KEYS, {"ids": [*key_ids]})).all()
            any_made = bool((await one.execute(_ANY)).scalar_one())
        return Keys(any_made, {row.id: KeyRow(*row) for row in counting})

    async def make(self, key: NewKey, act: Act, *, only_first: bool) -> KeySummary | None:
        async with self._connections.transaction() as one:
            if only_first:
                await one.execute(_ALONE)
                if (await one.execute(_ANY)).scalar_one():
                    return None
            values = {**key._asdict(), "queues": [*key.queues], "created_at": NOW}
            await one.execute(insert(keys).values(values))
            made = await _summary(one, key.id)
            assert made is not None
            await record_acts(one, [replace(act, after=made.audited)])
        return made

    async def one(self, key_id: str) -> KeySummary | None:
        async with self._connections.single() as connection:
            return await _summary(connection, key_id)

    async def page(
        self, limit: int, after: str | None, *, everything: bool
    ) -> Sequence[KeySummary]:
        query = _SUMMARIES.limit(limit)
        if after is not None:
            last = select(keys.c.created_at, keys.c.id).where(keys.c.id == after)
            query = query.where(tuple_(keys.c.created_at, keys.c.id) > last.scalar_subquery())
        if not everything:
            query = query.where(_COUNTS)
        async with self._connections.single() as one:
            return [KeySummary(*tuple(row)) for row in await one.execute(query)]

    async def revoke(self, key_id: str, act: Act) -> KeySummary | None:
        revoking = (
            update(keys)
            .where(keys.c.id == key_id, keys.c.revoked_at.is_(None))
            .values(revoked_at=NOW)
            .returning(keys.c.id)
        )
        async with self._connections.transaction() as one:
            before = await _summary(one, key_id)
            revoked = (await one.execute(revoking)).first() is not None
            after = await _summary(one, key_id)
            if revoked and before is not None and after is not None:
                await record_acts(one, [replace(act, before=before.audited, after=after.audited)])
        return after

    async def keyless(self, limit: int) -> Sequence[tuple[str, str]]:
        async with self._connections.single() as one:
            found = await one.execute(_KEYLESS, {"most": limit})
        return [(row.queue_id, row.id) for row in found]

    async def used(self, key_ids: Sequence[str]) -> None:
        async with self._connections.single() as one:
            await one.execute(_USED, {"ids": [*key_ids]})

    async def begin_session(self, hash: bytes, key_id: str, seconds: float, most: int) -> float:
        values = {"hash": hash, "key": key_id, "seconds": seconds}
        async with self._connections.transaction() as one:
            ends_at: float = (await one.execute(_BEGIN, values)).scalar_one()
            oldest = await one.execute(_OLDEST, {"key": key_id, "most": most})
            if surplus := list(oldest.scalars()):
                await one.execute(delete(sessions).where(sessions.c.hash.in_(surplus)))
        return ends_at

    async def sessions(self, hashes: Sequence[bytes]) -> Mapping[bytes, SessionRow]:
        async with self._connections.single() as one:
            rows = (await one.execute(_SESSIONS, {"hashes": [*hashes]})).all()
        return {row.hash: SessionRow(row.key_id, row.ends_at, row.unlocked_until) for row in rows}

    async def unlock_session(self, hash: bytes, seconds: float, act: Act) -> float | None:
        unlocking = (
            update(sessions)
            .where(sessions.c.hash == hash, sessions.c.ends_at > NOW)
            .values(unlocked_until=func.least(NOW + seconds, sessions.c.ends_at))
            .returning(sessions.c.unlocked_until)
        )
        async with self._connections.transaction() as one:
            until: float | None = (await one.execute(unlocking)).scalar_one_or_none()
            if until is not None:
                await record_acts(one, [act])
        return until

    async def lock_session(self, hash: bytes) -> None:
        locking = update(sessions).where(sessions.c.hash == hash).values(unlocked_until=None)
        async with self._connections.single() as one:
            await one.execute(locking)

    async def end_session(self, hash: bytes) -> None:
        async with self._connections.single() as one:
            await one.execute(delete(sessions).where(sessions.c.hash == hash))

    async def flow_of_token(self, hash: bytes) -> tuple[str, str, str | None] | None:
        query = select(flows.c.queue_id, flows.c.id, flows.c.key_id).where(
            flows.c.token_hash == hash, bound
        )
        async with self._connections.single() as one:
            row = (await one.execute(query)).first()
        return None if row is None else (row.queue_id, row.id, row.key_id)

    async def record(self, acts: Sequence[Act]) -> None:
        if acts:
            async with self._connections.single() as one:
                await record_acts(one, acts)

    async def audit(
        self, limit: int, before: int | None, patterns: Sequence[str], queue: str | None
    ) -> Sequence[AuditRow]:
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        if queue is not None:
            query = query.where(audit.c.queue == queue)
        if "*" not in patterns:
            query = query.where(matching(audit.c.queue, patterns))
        async with self._connections.single() as one:
            rows = (await one.execute(query)).all()
        return [
            AuditRow(row.id, row.at, Act(**{name: getattr(row, name) for name in _ACT}))
            for row in rows
        ]

    async def purge(self, before: float) -> None:
        some = select(audit.c.id).where(audit.c.at < before).limit(PURGE_AT_ONCE)
        statement = delete(audit).where(audit.c.id.in_(some)).returning(literal(1))
        async with self._connections.single() as one:
            await one.execute(delete(sessions).where(sessions.c.ends_at <= NOW))
            await one.execute(_LONG_ENDED, {"before": before})
            while len((await one.execute(statement)).all()) == PURGE_AT_ONCE:
                pass


async def _summary(connection: AsyncConnection, key_id: str) -> KeySummary | None:
    row = (await connection.execute(_SUMMARIES.where(keys.c.id == key_id))).first()
    return None if row is None else KeySummary(*tuple(row))


async def record_acts(connection: AsyncConnection, acts: Sequence[Act]) -> None:
    """Writes the audit, one row for each act, in the transaction of what was done."""
    if acts:
        rows = [{"at": NOW, **asdict(act)} for act in acts]
        await connection.execute(insert(audit).values(rows))


def matching(name: ColumnElement[Any], patterns: Sequence[str]) -> ColumnElement[bool]:
    """Whether a queue's name matches one of the patterns of `broker.core.access`."""
    like = [each.replace("_", r"\_").replace("*", "%").replace("?", "_") for each in patterns]
    return name.op("LIKE", is_comparison=True)(func.any(literal(like, ARRAY(Text))))
