"""Connections of the driver that remember what the types of a statement are.

asyncpg reads from the server what an array type is, on each connection anew and again for each
statement with other ones: several round trips, and 5 ms of the server's time for each. The ids of
built-in types are the same in every Postgres, so what one connection has read holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import asyncpg

# Postgres gives ids below this by hand (access/transam.h); others differ between databases.
_BUILT_IN = 10_000

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
