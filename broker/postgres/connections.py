"""Connections for what is rare: checks, migrations, restores, keys. They block.

Opened as all others are (`counterpoise.logs.postgres`). What the service does all the time goes
over asyncpg (`driver`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg

from counterpoise.logs import postgres
from counterpoise.logs.errors import InvalidLog

CONNECT_SECONDS = 10
Connection: TypeAlias = psycopg.Connection[Any]


class DatabaseUnreachable(Exception):
    """The database does not accept a connection; the message is one line, without credentials."""


def connect(url: str, *, autocommit: bool = False) -> Connection:
    """Raises DatabaseUnreachable."""
    try:
        return postgres.connect(
            psycopg.connect,
            postgres.read(url),
            autocommit=autocommit,
            connect_timeout=CONNECT_SECONDS,
            application_name="counterpoise",
        )
    except (psycopg.OperationalError, InvalidLog) as error:
        raise DatabaseUnreachable(line_of(error)) from None


def line_of(error: Exception) -> str:
    """What a driver says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
