"""Connections to the database of the built-in log, which may be another than the service's own.

None waits for ever for a database that neither answers nor refuses: connecting is bounded here,
each call by whoever makes it (see `builtin` and `credentials`), around all of it, as it may fall
silent at any of its steps. What the server goes on with, though nobody waits for it any
more, it gives up by itself, and with it the locks that keep publishers and other replicas waiting.
"""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

CONNECT_SECONDS = 5.0
# A replica that freezes in the middle of a transaction holds the others up for so long.
IDLE_SECONDS = 10.0
# The longest that a statement may take: deleting 10,000 large messages does take minutes.
STATEMENT_SECONDS = 600.0
_POOL_SIZE = 2


def log_engine(url: str) -> AsyncEngine:
    """An engine for the log at `url`, as libpq takes it. Nothing is connected yet."""

    async def connect(**_: Any) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_SECONDS,
            server_settings={
                "application_name": "counterpoise",
                "statement_timeout": str(int(STATEMENT_SECONDS * 1000)),
                "idle_in_transaction_session_timeout": str(int(IDLE_SECONDS * 1000)),
                "tcp_keepalives_idle": "30",
                "tcp_keepalives_interval": "10",
                "tcp_keepalives_count": "3",
            },
        )

    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": connect},
        pool_size=_POOL_SIZE,
        pool_timeout=CONNECT_SECONDS,
        # A connection that was closed meanwhile is replaced without anybody noticing.
        pool_pre_ping=True,
    )
