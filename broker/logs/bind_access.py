"""Credentials for a flow that is being bound, made while its bind is committed.

To make them takes about as long as the commit, and neither needs the other. But a flow without
credentials reads nothing, and a client whose bind fails binds again: credentials that can never be
made would bring the queue one owner after another that does nothing. So they come before the
commit, and beside it only where they could be made the last time. If that fails all the same, the
flow is unbound again, and the next ones come before their commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.core.errors import Unavailable
from broker.logs.ports import Holder, LogAccess, Logs
from broker.tasks import disregard
from counterpoise.logs.address import kind_of


class BindAccess:
    """Commits binds, each with credentials for its log."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        # Kinds of logs whose credentials could be made the last time.
        self._reliable: set[str | None] = set()

    async def make(
        self,
        log: str,
        holder: Holder,
        commit: Callable[[], Awaitable[object]],
        undo: Callable[[], Awaitable[object]],
    ) -> LogAccess | None:
        """The holder's credentials; `commit` is done when they are returned.

        Raises what `commit` raises, and Unavailable if there are no credentials; then nothing is
        committed, or `undo` was called.
        """
        kind = kind_of(log)
        if kind not in self._reliable:
            access = await self._logs.access(log, "read", holder)
            self._reliable.add(kind)
            await commit()
            return access
        making = asyncio.ensure_future(self._soon(log, holder))
        try:
            await commit()
        except BaseException:
            disregard(making)
            making.cancel()
            raise
        try:
            return await making
        except Unavailable:
            self._reliable.discard(kind)
            await undo()
            raise

    async def _soon(self, log: str, holder: Holder) -> LogAccess | None:
        """The holder's credentials, asked for when the commit is on its way: others wait for it."""
        await asyncio.sleep(0)
        return await self._logs.access(log, "read", holder)
