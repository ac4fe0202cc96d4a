"""Trims of logs that no reader meets; see `broker.store.trims` for how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from uuid import uuid4

import orjson

from broker.core.errors import CutsOutdated, Unavailable
from broker.logs.names import canonical, has_owner
from broker.logs.ports import LogOwner, Logs
from broker.mailbox.asks import LogMoved
from broker.mailbox.patience import store_available
from broker.store.ports import Store
from broker.store.trims import NEVER, Fence, Trimming

T = TypeVar("T")
# The upkeep announces a trim of a log once a minute, so a second one in a row is rare.
ATTEMPTS = 5


class Trims:
    """The trims of logs that the service administers; Kafka's and unknown ones trim themselves."""

    def __init__(self, store: Store, logs: Logs) -> None:
        self._store, self._logs = store, logs

    async def fence(self, log: str) -> Fence | None:
        """A fence for making a reader of this log, or for setting positions in it.

        It is taken before the log is asked where it begins or ends. A trim that another replica
        left half done is carried out first. None: the service does not trim this log. Raises
        Unavailable.
        """
        if not has_owner(log):
            return None
        name = canonical(log)
        for _ in range(ATTEMPTS):
            with store_available():
                row = await self._store.trims.look(name)
            if row is None:
                return Fence(name, NEVER)
            if row.pending is None:
                return Fence(name, row.announced)
            await self._carry_out(name, row)
        raise LogMoved

    async def apart(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which takes a fence; it begins anew if a trim came in between, or
        a resize of which it had to know.

        Raises its errors, and Unavailable if these always come in between.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return await work()
            except (LogMoved, CutsOutdated):
                continue
        return await work()

    async def all(self) -> Mapping[str, Trimming]:
        """The rows of all logs, which the upkeep reads before it lists the queues."""
        with store_available():
            return await self._store.trims.all()

    async def finish(self, log: str, seen: Trimming | None) -> None:
        """Carry out what another replica has announced. Raises Unavailable."""
        if seen is not None and seen.pending is not None:
            await self._carry_out(canonical(log), seen)

    async def trim(
        self, log: str, below: Mapping[int, str], owner: LogOwner, seen: Trimming | None
    ) -> None:
        """Trim a log, unless a reader came or was set since `seen`; then the next upkeep does.

        Raises Unavailable; the trim is carried out later then if it was announced.
        """
        name, announced = canonical(log), uuid4().hex
        numbers = {str(number): position for number, position in below.items()}
        pending = {
            "below": numbers,
            "owner": [owner.queue_id, owner.queue, owner.created_at],
        }
        text = orjson.dumps(pending).decode()
        readers = None if seen is None else seen.readers
        with store_available():
            may = await self._store.trims.announce(name, readers, announced, text)
        # If not, another replica trims the log, or its readers have changed: the next upkeep will.
        if may:
            await self._carry_out(name, Trimming("", announced, text))

    async def _carry_out(self, log: str, row: Trimming) -> None:
        trim = orjson.loads(row.pending or "")
        below = {int(number): position for number, position in trim["below"].items()}
        await self._logs.trim(log, below, LogOwner(*trim["owner"]))
        with store_available():
            await self._store.trims.done(log, row.announced)

    async def forget(self, rows: Mapping[str, Trimming], read: Mapping[str, object]) -> None:
        """Forget the logs among `rows` that no queue reads: those not in `read`.

        What was announced is carried out before: a queue that is made later must not meet it.
        """
        for log, row in rows.items():
            if log not in read:
                if row.pending is not None:
                    with suppress(Unavailable):
                        await self._carry_out(log, row)
                with store_available():
                    await self._store.trims.forget(log, row.readers)
