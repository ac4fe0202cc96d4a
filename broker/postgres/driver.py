"""Connections of asyncpg: opened as all others are, and quick with the types of a statement.

**One way to open them** (`connect`). asyncpg reads a URL otherwise than libpq does, and than the
service's other driver. So it gets the parameters one by one, and the settings of every connection
(`counterpoise.logs.postgres`).

**Types are remembered.** asyncpg reads from the server what an array type is, on each connection
anew and again for each statement with other ones: several round trips, and 5 ms of the server's
time for each. The ids of built-in types are the same in every Postgres, so what one connection has
read holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import asyncpg

from counterpoise.logs import postgres

# Postgres gives ids below this by hand (access/transam.h); others differ between databases.
_BUILT_IN = 10_000

# By libpq's names: as asyncpg's arguments, or in the query of a URL alone.
_ARGUMENTS = {
    "host": "host",
    "port": "port",
    "user": "user",
    "password": "password",
    "passfile": "passfile",
    "dbname": "database",
    "sslmode": "ssl",
    "target_session_attrs": "target_session_attrs",
    "krbsrvname": "krbsrvname",
    "gsslib": "gsslib",
}
_IN_A_QUERY = (
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslrootcert",
    "sslcrl",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
)
# A peer that is gone is noticed, also by the server.
_ALIVE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_read: dict[frozenset[int], Sequence[Any]] = {}


class _Remembered(NamedTuple):
    """In place of the statement that reads types: nothing was sent to the server."""

    name: str = "remembered"


class RememberingConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that reads a built-in type only if no connection of this process has.

    `_introspect_types` is private to asyncpg. Where a later release no longer calls it, its
    connections read again.
    """

    __slots__ = ()

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        wanted = frozenset(typeoids)
        if (known := _read.get(wanted)) is not None:
            return known, _Remembered()
        rows, statement = await super()._introspect_types(typeoids, timeout)
        if max(wanted) < _BUILT_IN:
            _read[wanted] = rows
        return rows, statement


async def connect(
    url: str, settings: Mapping[str, str], **more: Any
) -> asyncpg.Connection[asyncpg.Record]:
    """A connection with the settings of every connection, or these in their place.

    `more`: parameters of `asyncpg.connect`. Raises InvalidLog and asyncpg's errors, OSError.
    """
    parameters = postgres.read(url)
    arguments = _arguments(parameters)
    wanted = {**postgres.SETTINGS, **_ALIVE, **settings}
    while True:
        sent = postgres.known(parameters, wanted)
        options = postgres.startup(parameters, sent)["options"]
        try:
            return await asyncpg.connect(
                connection_class=RememberingConnection,
                server_settings={"application_name": "counterpoise", "options": options},
                **arguments,
                **more,
            )
        except asyncpg.UndefinedObjectError as error:
            if not postgres.learned(parameters, sent, error):
                raise


def _arguments(parameters: Mapping[str, str]) -> dict[str, Any]:
    """What asyncpg takes for them."""
    given = {name: value for name, value in parameters.items() if value}
    found: dict[str, Any] = {
        ours: given[name] for name, ours in _ARGUMENTS.items() if name in given
    }
    query = {name: given[name] for name in _IN_A_QUERY if name in given}
    if query.get("sslrootcert") == "system":
        # Of libpq: the authorities of the system, and all is verified.
        found["ssl"] = True
    return {"dsn": f"postgresql://?{urlencode(query, quote_via=quote)}", **found}
