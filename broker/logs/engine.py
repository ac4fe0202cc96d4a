"""Connections to the database of the built-in log, which may be another than the service's own.

No connection waits for ever for a database that neither answers nor refuses. Connecting is bounded
here. The callers bound each call as a whole (see `builtin` and `clients`), because the database
may fall silent at any step. The server itself ends abandoned statements, and with them the locks
that make publishers and other replicas wait.

Most calls are rare and take several statements. Their connections are tested first, which costs
round trips. What a bind waits for is one statement without them (`clients.fetching`).
"""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from broker.postgres.driver import RememberingConnection

CONNECT_SECONDS = 5.0
# How long a replica that freezes within a transaction delays the others.
IDLE_SECONDS = 10.0
# The longest time of a statement: deleting 10,000 large messages takes minutes.
STATEMENT_SECONDS = 600.0
_POOL_SIZE = 2


def log_engine(url: str, *, tested: bool = True) -> AsyncEngine:
    """An engine for the log at `url`, as libpq takes it. Nothing is connected yet.

    `tested`: each connection is tested before it is used, and replaced if it was closed meanwhile.
    """

    async def connect(**_: Any) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            url,
            connection_class=RememberingConnection,
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
        pool_pre_ping=tested,
    )
