"""Rows of keys, sessions and audit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.store.key_ports import Act, AuditRow, KeyRow, SessionRow


@dataclass
class MemoryKey:
    """A key and what changes about it."""

    row: KeyRow
    revoked_at: float | None = None
    last_used_at: float | None = None


@dataclass
class KeyTables:
    """All of them. A test makes a key by putting it into `keys`."""

    keys: dict[str, MemoryKey] = field(default_factory=dict)
    sessions: dict[bytes, tuple[SessionRow, float]] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    next_id: int = 1

    def counts(self, key_id: str, now: float) -> bool:
        """Whether the key is neither revoked nor past its end."""
        key = self.keys[key_id]
        return key.revoked_at is None and (key.row.ends_at is None or key.row.ends_at > now)

    def record(self, acts: Iterable[Act], now: float) -> None:
        """Writes the audit."""
        for act in acts:
            self.audit.append(AuditRow(self.next_id, now, act))
            self.next_id += 1
