"""What the broker asks of a store about keys, sessions and the audit.

Keys are made and revoked elsewhere (`broker.keys`). A key counts while it is neither revoked nor
past its end, by the store's clock. A replica learns that a key has ended by asking again, so no
notification can be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class KeyRow(NamedTuple):
    """A key that counts. `ends_at`: Unix seconds of the store."""

    id: str
    hash: bytes
    name: str
    role: str
    queues: Sequence[str]
    ends_at: float | None


class SessionRow(NamedTuple):
    """A session that has not ended; its key may have."""

    key_id: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class Keys:
    """Whether any key was ever made, and those of the asked keys that count, by id."""

    any_made: bool
    counting: Mapping[str, KeyRow]


@dataclass(frozen=True, slots=True)
class Act:
    """One administrative call, for the audit. `before` and `after` are JSON values.

    `flow_id` names the flow that the call was about; `address` is the caller's.
    """

    call: str
    queue: str | None = None
    flow_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    address: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An act as it was recorded; ids rise, but may have holes."""

    id: int
    at: float
    act: Act


class KeyStore(Protocol):
    """Keys, sessions and the audit. Each method raises StoreUnavailable."""

    async def look(self, key_ids: Sequence[str]) -> Keys:
        """Those of these keys that count."""

    async def keyless(self, limit: int) -> Sequence[tuple[str, str]]:
        """Bound flows whose key has ended, as (id of the queue, id of the flow)."""

    async def used(self, key_ids: Sequence[str]) -> None:
        """These keys were used just now."""

    async def begin_session(self, hash: bytes, key_id: str, seconds: float, most: int) -> float:
        """Begins a session, and ends the key's oldest ones above `most`. Returns when it ends."""

    async def session(self, hash: bytes) -> SessionRow | None:
        """The session with this hash."""

    async def end_session(self, hash: bytes) -> None:
        """Ends a session; harmless when repeated."""

    async def flow_of_token(self, hash: bytes) -> tuple[str, str, str | None] | None:
        """The queue's id, the id and the key's id of the bound flow whose token has this hash."""

    async def record(self, acts: Sequence[Act]) -> None:
        """Records acts that changed nothing; others are recorded with their change."""

    async def audit(
        self, limit: int, before: int | None, patterns: Sequence[str], queue: str | None
    ) -> Sequence[AuditRow]:
        """Acts with an id below `before`, newest first, of queues that match a pattern (`*` and
        `?`); those on no queue only for the pattern `*`.
        """

    async def purge(self, audit_before: float) -> None:
        """Forgets acts before this time, and sessions that have ended."""
