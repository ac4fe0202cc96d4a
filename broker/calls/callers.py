"""Callers by their credentials: keys, sessions, tokens of flows (docs, *Security*).

A replica has the keys that were used lately in memory, and reads them again once a second. A key
that was not read again within `TRUSTED_SECONDS` is asked for at once, and if the store does not
answer it is not accepted. So a key that ends is refused everywhere within that time, whatever
happens to the replica or to its connection. What stays open (event streams) waits in `until_ended`.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import NamedTuple

from broker.calls.access import QueueAccess
from broker.calls.monitoring import number_of
from broker.calls.times import time_of, with_times
from broker.core import commands as c
from broker.core.access import (
    RIGHTS,
    Caller,
    Role,
    digest,
    flow_caller,
    key_id_of,
)
from broker.core.errors import (
    BrokerError,
    Forbidden,
    Invalid,
    QueueNotFound,
    Unauthorized,
    Unavailable,
)
from broker.replica.store_calls import UNAVAILABLE, store_available
from broker.replica.transaction import Submission
from broker.store.ports import USED_SECONDS, Act, KeyRow, StoreUnavailable
from counterpoise import wire

REFRESH_SECONDS = 1.0
TRUSTED_SECONDS = 4.0
# A call that may go by what is known waits no longer for a store that does not answer.
STALE_SECONDS = 0.4
# A key that was not used for so long is forgotten here.
IDLE_SECONDS = 600.0
SESSION_SECONDS = 12 * 3600.0
UNLOCKED_SECONDS = 600.0
MOST_SESSIONS = 100
MOST_ENDED_AT_ONCE = 1000
FOR_THIS_FLOW = "A flow's token is valid only for this flow and its own queue."
NEVER = float("-inf")
_LOGGED_OUT = "This session has ended; log in again."
_UNKNOWN = "This key is not known here, was revoked, or has reached its end."


class _Known(NamedTuple):
    """A key as it was read, and the monotonic times of that and of its last use (NEVER: nobody has
    shown its secret)."""

    row: KeyRow
    read_at: float
    used_at: float


class CallerCalls:
    """Who calls, on one replica."""

    def __init__(self, queues: QueueAccess) -> None:
        self._queues = queues
        self._keys = queues.store.keys
        self._monotonic = queues.replica.monotonic
        self._known: dict[str, _Known] = {}
        self._noted_at: dict[str, float] = {}
        self._any_made = False
        self._looked_at = NEVER
        # What waits for the end of a key (its id), of a session (its hash), of a service without
        # keys (None).
        self._ended: dict[str | bytes | None, set[asyncio.Event]] = {}
        self._reads = queues.replica.batcher(self._read_many)

    # Who calls

    @property
    def some_known(self) -> bool:
        """Whether the service has ever had a key, as far as this replica knows."""
        return self._any_made

    async def any_made(self) -> bool:
        """Whether the service has ever had a key. Raises Unavailable."""
        if not self._any_made and self._monotonic() - self._looked_at > TRUSTED_SECONDS:
            with store_available():
                await self._reads.put(None)
        return self._any_made

    async def by_key(
        self, token: str, address: str | None = None, *, stale_may: bool = False
    ) -> Caller:
        """The holder of a key. Raises Unauthorized, Unavailable.

        `stale_may`: without the store the key counts if it did when it was read last.
        """
        key_id = key_id_of(token)
        row = None if key_id is None else await self._row(key_id, stale_may=stale_may)
        if row is None or not hmac.compare_digest(row.hash, digest(token)):
            raise Unauthorized(_UNKNOWN)
        self._is_used(row.id)
        return _caller(row, address)

    async def by_session(self, token: str, address: str | None = None) -> Caller:
        """The holder of a session. Raises Unauthorized, Unavailable."""
        hash = digest(token)
        with store_available():
            session = (await self._keys.sessions([hash])).get(hash)
        row = None if session is None else await self._row(session.key_id)
        if session is None or row is None:
            raise Unauthorized(_LOGGED_OUT)
        self._is_used(row.id)
        caller = _caller(row, address)
        ends = [time for time in (session.ends_at, caller.ends_at) if time is not None]
        return replace(
            caller, ends_at=min(ends), session=hash, unlocked_until=session.unlocked_until
        )

    async def by_flow_token(
        self, token: str, queue: str | None, address: str | None = None
    ) -> Caller:
        """A bound flow, on a call that is not about this flow alone.

        Raises Unauthorized, and Forbidden unless `queue` names the flow's queue.
        """
        with store_available():
            found = await self._keys.flow_of_token(digest(token))
        if found is None:
            raise Unauthorized("This is neither a key nor the token of a bound flow.")
        queue_id, flow_id, key_id = found
        if queue is not None:
            with suppress(QueueNotFound):
                if (await self._queues.replica.coordinator(queue)).queue_id == queue_id:
                    return flow_caller(flow_id, queue, key_id, address)
        raise Forbidden(FOR_THIS_FLOW)

    def _is_used(self, key_id: str) -> None:
        if (known := self._known.get(key_id)) is not None:
            self._known[key_id] = known._replace(used_at=self._monotonic())

    async def _row(self, key_id: str, *, stale_may: bool = False) -> KeyRow | None:
        known = self._known.get(key_id)
        if known is not None and self._monotonic() - known.read_at <= TRUSTED_SECONDS:
            return known.row
        try:
            with store_available():
                async with asyncio.timeout(STALE_SECONDS if stale_may else None):
                    return await self._reads.put(key_id)
        except (Unavailable, TimeoutError):
            if stale_may and known is not None:
                return known.row
            raise Unavailable(UNAVAILABLE) from None

    # Sessions

    async def log_in(self, key: str, address: str | None) -> tuple[str, Caller]:
        """A new session of a key: its token, and who it makes the caller. Raises Unauthorized."""
        caller = await self.by_key(key, address)
        assert caller.key_id is not None
        token = secrets.token_urlsafe(32)
        with store_available():
            await self._keys.begin_session(
                digest(token), caller.key_id, SESSION_SECONDS, MOST_SESSIONS
            )
        return token, await self.by_session(token, address)

    async def unlock(self, caller: Caller, key: str) -> Caller:
        """Lets the caller's session change something for UNLOCKED_SECONDS, because it has shown its
        key once more. No other session gets it. Returns the caller as it is then.

        Raises Invalid for a caller without a session, Forbidden for another key than that of the
        session, Unauthorized and Unavailable.
        """
        if caller.session is None:
            raise Invalid("There is no session to unlock: only that of a browser can be unlocked.")
        holder = await self.by_key(key, caller.address)
        if holder.key_id != caller.key_id:
            raise Forbidden(
                f"The session is that of the key {caller.key_id}, and only this key unlocks it. "
                "Log out, and log in with the other one."
            )
        act = Act(
            "unlock_session",
            key_id=caller.key_id,
            key_name=caller.key_name,
            address=caller.address,
        )
        with store_available():
            until = await self._keys.unlock_session(caller.session, UNLOCKED_SECONDS, act)
        if until is None:
            raise Unauthorized(_LOGGED_OUT)
        return replace(caller, unlocked_until=until)

    async def lock(self, caller: Caller) -> Caller:
        """Lets the caller's session only read again. Harmless when repeated."""
        if caller.session is not None:
            with store_available():
                await self._keys.lock_session(caller.session)
        return replace(caller, unlocked_until=None)

    async def log_out(self, token: str) -> None:
        """Ends a session. Harmless when repeated."""
        with store_available():
            await self._keys.end_session(digest(token))
        self._wake(digest(token))

    # The audit

    async def audit(
        self, caller: Caller, limit: int, cursor: str | None, queue: str | None
    ) -> wire.Page[wire.AuditItem]:
        """Administrative calls on the queues of the caller, newest first; the cursor is the last id
        of the previous page. Raises Invalid.
        """
        before = None if cursor is None else number_of(cursor)
        with store_available():
            rows = await self._keys.audit(limit + 1, before, caller.patterns, queue)
        items = tuple(
            wire.AuditItem(id=row.id, at=time_of(row.at), **with_times(asdict(row.act)))
            for row in rows[:limit]
        )
        return wire.Page(items, str(items[-1].id) if len(rows) > limit else None)

    # The end of keys

    async def until_ended(self, caller: Caller) -> None:
        """Returns when the caller's credential is no longer valid.

        Without a credential: when the service has a key.
        """
        if caller.key_id is None and self._any_made:
            return
        event = asyncio.Event()
        names = {caller.key_id, *([] if caller.session is None else [caller.session])}
        for name in names:
            self._ended.setdefault(name, set()).add(event)
        try:
            seconds = None
            if caller.ends_at is not None:
                seconds = max(0.0, caller.ends_at - self._queues.replica.clock.now())
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            for name in names:
                self._ended[name].discard(event)
                if not self._ended[name]:
                    del self._ended[name]

    async def refresh(self) -> None:
        """Reads again the keys that are in use; called once a second.

        Without the store nothing happens; the sweep reports that.
        """
        now = self._monotonic()
        for idle in [id for id, known in self._known.items() if _is_idle(known, now)]:
            del self._known[idle]
        used = [id for id, known in self._known.items() if known.used_at > NEVER]
        with suppress(StoreUnavailable):
            await self._read_many([None, *used, *(id for id in self._ended if isinstance(id, str))])
            await self._end_sessions()
            await self._note_uses(now)
            if self._any_made:
                await self._end_flows()

    async def _read_many(self, key_ids: Sequence[str | None]) -> Sequence[KeyRow | None]:
        began = self._monotonic()
        ids = sorted({key_id for key_id in key_ids if key_id is not None})
        found = await self._keys.read(ids)
        self._looked_at = began
        if found.any_made and not self._any_made:
            self._any_made = True
            self._wake(None)
        for key_id in ids:
            row, known = found.counting.get(key_id), self._known.get(key_id)
            if row is None:
                self._known.pop(key_id, None)
                self._wake(key_id)
            elif known is not None:
                self._known[key_id] = known._replace(row=row, read_at=began)
            else:
                # Somebody has only named it, unless a stream of its holder is open.
                self._known[key_id] = _Known(row, began, began if key_id in self._ended else NEVER)
        return [None if id is None else found.counting.get(id) for id in key_ids]

    async def _end_sessions(self) -> None:
        """Ends what is open by sessions that have ended, also at another replica."""
        if hashes := [name for name in self._ended if isinstance(name, bytes)]:
            there = await self._keys.sessions(hashes)
            for ended in set(hashes) - set(there):
                self._wake(ended)

    def _wake(self, name: str | bytes | None) -> None:
        for event in self._ended.get(name, ()):
            event.set()

    async def _note_uses(self, now: float) -> None:
        used = [
            id
            for id, known in self._known.items()
            if known.used_at > (noted := self._noted_at.get(id, NEVER))
            and now - noted > USED_SECONDS
        ]
        if used:
            await self._keys.used(used)
            self._noted_at = {id: at for id, at in self._noted_at.items() if id in self._known}
            self._noted_at.update(dict.fromkeys(used, now))

    async def _end_flows(self) -> None:
        """Unbinds flows whose key has ended."""
        keyless = await self._keys.keyless(MOST_ENDED_AT_ONCE)
        ended = [self._end_flow(queue_id, flow_id) for queue_id, flow_id in keyless]
        for result in await asyncio.gather(*ended, return_exceptions=True):
            # Another replica may have been first.
            if isinstance(result, Exception) and not isinstance(result, BrokerError):
                raise result

    async def _end_flow(self, queue_id: str, flow_id: str) -> None:
        coordinator = self._queues.replica.coordinator_of(queue_id)
        await coordinator.submit(Submission(c.Unbind(flow_id, "key_ended")))


def _is_idle(known: _Known, now: float) -> bool:
    if known.used_at == NEVER:
        return now - known.read_at > TRUSTED_SECONDS
    return now - known.used_at > IDLE_SECONDS


def _caller(row: KeyRow, address: str | None) -> Caller:
    role = Role(row.role)
    return Caller(
        RIGHTS[role],
        tuple(row.queues),
        role,
        key_id=row.id,
        key_name=row.name,
        ends_at=row.ends_at,
        address=address,
    )
