"""Connections of the driver that remember what the types of a statement are.

asyncpg asks the server what an array type is, on each connection anew and again for each statement
with other ones: several round trips, and 5 ms of the server's time for each. The ids of built-in
types are the same in every Postgres, so what one connection was told holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import asyncpg

# Postgres gives ids below this by hand (access/transam.h); others differ between databases.
_BUILT_IN = 10_000

_told: dict[frozenset[int], Sequence[Any]] = {}


class _Remembered(NamedTuple):
    """In place of the statement that asked: its name says that nothing was sent to the server."""

    name: str = "remembered"


class RememberingConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that asks for a built-in type only if no connection of this process has.

    `_introspect_types` is private to asyncpg. Where a later release no longer calls it, its
    connections ask again.
    """

    __slots__ = ()

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        asked = frozenset(typeoids)
        if (told := _told.get(asked)) is not None:
            return told, _Remembered()
        rows, statement = await super()._introspect_types(typeoids, timeout)
        if max(asked) < _BUILT_IN:
            _told[asked] = rows
        return rows, statement
