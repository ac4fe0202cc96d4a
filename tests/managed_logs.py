"""Logs outside the service's database, as its upkeep makes them."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.logs.external import ManagedLog, open_managed
from broker.logs.ports import LogOwner

OWNER = LogOwner("id", "flights", 1.0)


def made(url: str, access: str | None = None, count: int = 4, seconds: float = 5.0) -> ManagedLog:
    """A log that is opened and made."""
    log = open_managed(url, access, timeout_seconds=seconds)
    log.ensure(count, OWNER)
    return log


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
