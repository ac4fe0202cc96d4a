"""The tables of keys, sessions and audit in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from broker.core.access import matches
from broker.memory.database import MemoryDatabase
from broker.store.key_ports import Act, AuditRow, Keys, SessionRow

Call = Callable[[str, Callable[[], Any]], Awaitable[Any]]
USED_SECONDS = 60.0


class MemoryKeys:
    """A replica's access to them. `call` awaits a hook with the method's name, then does it."""

    def __init__(self, database: MemoryDatabase, call: Call) -> None:
        self._database, self._call = database, call

    async def look(self, key_ids: Sequence[str]) -> Keys:
        def work() -> Keys:
            tables, now = self._database.key_tables, self._database.clock()
            found = {id for id in key_ids if id in tables.keys and tables.counts(id, now)}
            return Keys(bool(tables.keys), {id: tables.keys[id].row for id in found})

        answer: Keys = await self._call("look", work)
        return answer

    async def keyless(self, limit: int) -> Sequence[tuple[str, str]]:
        def work() -> Sequence[tuple[str, str]]:
            tables, now = self._database.key_tables, self._database.clock()
            return [
                (flow.queue_id, id)
                for id, flow in sorted(self._database.flows.items())
                if flow.reason is None
                and flow.values.key_id in tables.keys
                and not tables.counts(flow.values.key_id, now)
            ][:limit]

        answer: Sequence[tuple[str, str]] = await self._call("keyless", work)
        return answer

    async def used(self, key_ids: Sequence[str]) -> None:
        def work() -> None:
            now = self._database.clock()
            for id in key_ids:
                key = self._database.key_tables.keys.get(id)
                if key and (key.last_used_at is None or key.last_used_at < now - USED_SECONDS):
                    key.last_used_at = now

        await self._call("used", work)

    async def begin_session(self, hash: bytes, key_id: str, seconds: float, most: int) -> float:
        def work() -> float:
            now, sessions = self._database.clock(), self._database.key_tables.sessions
            sessions[hash] = (SessionRow(key_id, now + seconds), now)
            of_key = [hash for hash, (row, _) in sessions.items() if row.key_id == key_id]
            for surplus in of_key[: max(0, len(of_key) - most)]:
                del sessions[surplus]
            return now + seconds

        answer: float = await self._call("begin_session", work)
        return answer

    async def session(self, hash: bytes) -> SessionRow | None:
        def work() -> SessionRow | None:
            row, _ = self._database.key_tables.sessions.get(hash, (None, 0.0))
            return row if row is not None and row.ends_at > self._database.clock() else None

        answer: SessionRow | None = await self._call("session", work)
        return answer

    async def end_session(self, hash: bytes) -> None:
        await self._call("end_session", lambda: self._database.key_tables.sessions.pop(hash, None))

    async def flow_of_token(self, hash: bytes) -> tuple[str, str, str | None] | None:
        def work() -> tuple[str, str, str | None] | None:
            flows = self._database.flows.items()
            return next(
                (
                    (flow.queue_id, id, flow.values.key_id)
                    for id, flow in flows
                    if flow.token_hash == hash and flow.reason is None
                ),
                None,
            )

        answer: tuple[str, str, str | None] | None = await self._call("flow_of_token", work)
        return answer

    async def record(self, acts: Sequence[Act]) -> None:
        tables, clock = self._database.key_tables, self._database.clock
        if acts:
            await self._call("record", lambda: tables.record(acts, clock()))

    async def audit(
        self, limit: int, before: int | None, patterns: Sequence[str], queue: str | None
    ) -> Sequence[AuditRow]:
        def shown(act: Act) -> bool:
            there = act.queue is not None and matches(tuple(patterns), act.queue)
            return (queue is None or act.queue == queue) and (there or "*" in patterns)

        def work() -> Sequence[AuditRow]:
            rows = [row for row in self._database.key_tables.audit if shown(row.act)]
            return [row for row in reversed(rows) if before is None or row.id < before][:limit]

        answer: Sequence[AuditRow] = await self._call("audit", work)
        return answer

    async def purge(self, audit_before: float) -> None:
        def work() -> None:
            tables, now = self._database.key_tables, self._database.clock()
            tables.audit = [row for row in tables.audit if row.at >= audit_before]
            tables.sessions = {
                hash: session
                for hash, session in tables.sessions.items()
                if session[0].ends_at > now
            }

        await self._call("purge_keys", work)
