"""Writes the audit, in the transaction of what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import NOW
from broker.store.key_ports import Act
from broker.store.tables import audit


async def record_acts(connection: AsyncConnection, acts: Sequence[Act]) -> None:
    """Writes one row for each act."""
    if acts:
        rows = [{"at": NOW, **asdict(act)} for act in acts]
        await connection.execute(insert(audit).values(rows))
