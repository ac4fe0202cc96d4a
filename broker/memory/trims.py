"""The announced trims in memory; see `broker.store.trims`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from broker.store.ports import Commit, LogTrimmed
from broker.store.trims import Trimming

Call = Callable[[str, Callable[[], Any]], Awaitable[Any]]


class TrimTable:
    """The rows, by the address of the log."""

    def __init__(self) -> None:
        self.rows: dict[str, Trimming] = {}

    def pass_fence(self, commit: Commit) -> None:
        """The commit's fence holds. Raises LogTrimmed."""
        fence = commit.fence
        if fence is None:
            return
        row = self.rows.get(fence.log, Trimming("", fence.announced, None))
        if row.announced != fence.announced or row.pending is not None:
            raise LogTrimmed(fence.log)
        self.rows[fence.log] = replace(row, readers=commit.commit_id)


class MemoryTrims:
    """A replica's access to them. `call` awaits a hook with the method's name, then does it."""

    def __init__(self, table: TrimTable, call: Call) -> None:
        self._table, self._call = table, call

    async def all(self) -> Mapping[str, Trimming]:
        rows: Mapping[str, Trimming] = await self._call("trims", lambda: {**self._table.rows})
        return rows

    async def look(self, log: str) -> Trimming | None:
        row: Trimming | None = await self._call("trim", lambda: self._table.rows.get(log))
        return row

    async def announce(self, log: str, seen: str | None, name: str, pending: str) -> bool:
        def work() -> bool:
            row = self._table.rows.get(log)
            if row is None if seen is not None else row is not None:
                return False
            if row is not None and (row.readers != seen or row.pending is not None):
                return False
            readers = name if row is None else row.readers
            self._table.rows[log] = Trimming(readers, name, pending)
            return True

        announced: bool = await self._call("announce_trim", work)
        return announced

    async def done(self, log: str, announced: str) -> None:
        def work() -> None:
            row = self._table.rows.get(log)
            if row is not None and row.announced == announced:
                self._table.rows[log] = replace(row, pending=None)

        await self._call("trim_done", work)

    async def forget(self, log: str, seen: str) -> None:
        def work() -> None:
            row = self._table.rows.get(log)
            if row is not None and row.readers == seen and row.pending is None:
                del self._table.rows[log]

        await self._call("forget_trim", work)
