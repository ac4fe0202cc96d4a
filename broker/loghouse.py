"""What the service does for the logs of its queues.

The control plane commits first, and the log follows: it is told the partition count after a resize,
and what was discarded, idempotently and again every minute, so that a crash in between costs
nothing but time. Until the log knows, publishers go on under the old count; nobody takes a retiring
partition's end for final before the log refuses that count (`counterpoise.logs`).

Only the built-in log is the service's own. It is named by a queue, `builtin:flights` is the log of
the queue `flights`, and other queues may read it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import structlog
from sqlalchemy.exc import SQLAlchemyError

from broker.core.errors import Invalid, Unavailable
from broker.logs import BuiltinLogs, LogNotFound, Owner, trim_floor
from broker.views import LogAccess

_log = structlog.get_logger()
_BUILTIN = "builtin:"
NOT_DISCARDED = (
    "The partitions are removed, but the database of the built-in log could not be reached to "
    "delete what they held; repeat the call."
)
LOG_AWAY = "The service cannot reach the database of the built-in log right now; try again."


def builtin_name(log: str) -> str | None:
    """The name of the built-in log that a queue's `log` means; None for other logs."""
    return log.removeprefix(_BUILTIN) if log.startswith(_BUILTIN) else None


class Loghouse:
    """The logs, as the service sees them."""

    def __init__(self, builtin: BuiltinLogs) -> None:
        self._builtin = builtin

    async def access(self, log: str, purpose: Literal["read", "publish"]) -> LogAccess | None:
        """Credentials for a queue's log; None where the consumer must bring its own.

        Raises Unavailable.
        """
        if builtin_name(log) is None:
            return None
        try:
            return await self._builtin.credentials(purpose)
        except (SQLAlchemyError, OSError):
            raise Unavailable(LOG_AWAY) from None

    async def make(self, name: str, partition_count: int, owner: Owner) -> None:
        """The log of a queue that was just created, empty. Raises Unavailable."""
        try:
            await self._builtin.ensure(name, partition_count, owner)
        except (SQLAlchemyError, OSError):
            raise Unavailable(LOG_AWAY) from None

    async def resized(
        self, name: str, partition_count: int, revision: int, discarded: Iterable[int] = ()
    ) -> None:
        """The queue has another partition count; what is discarded is deleted.

        If the log cannot be told its count `keep` does it later; what could not be deleted only
        the administrator can repeat, so that raises Unavailable.
        """
        numbers = list(discarded)
        try:
            await self._builtin.set_partition_count(name, partition_count, revision)
            if numbers:
                await self._builtin.discard(name, numbers)
        except (SQLAlchemyError, OSError, LogNotFound) as error:
            _log.warning(
                "the log does not know its partition count yet", queue=name, error=str(error)
            )
            if numbers:
                raise Unavailable(NOT_DISCARDED) from None

    async def forget(self, publishers_idle_seconds: float) -> None:
        """Deletes what dropped logs left, and publishers that have been silent for long."""
        try:
            await self._builtin.sweep_dropped()
            await self._builtin.forget_publishers(publishers_idle_seconds)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("the upkeep of the logs failed", error=str(error))

    async def drop(self, name: str) -> None:
        """The queue is gone, and its messages with it. Best effort."""
        try:
            await self._builtin.drop(name)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("a log could not be dropped", queue=name, error=str(error))

    async def positions(
        self, log: str, where: Literal["earliest", "latest"] | float
    ) -> dict[int, str]:
        """The position of each partition at an end of the log, or from a time on.

        Raises Invalid for logs that the service does not read itself, Unavailable.
        """
        name = builtin_name(log)
        if name is None:
            raise Invalid(
                "This queue's log is not built in, so the service cannot look up positions in it; "
                "send positions."
            )
        try:
            if isinstance(where, str):
                bounds = await self._builtin.bounds(name)
                first = where == "earliest"
                return {n: str(b.first if first else b.next) for n, b in bounds.items()}
            return {n: str(p) for n, p in (await self._builtin.position_at(name, where)).items()}
        except LogNotFound:
            return {}
        except (SQLAlchemyError, OSError):
            raise Unavailable(LOG_AWAY) from None

    async def keep(
        self,
        name: str,
        owner: Owner,
        partition_count: int,
        revision: int,
        committed: Iterable[Mapping[int, str | None]],
    ) -> None:
        """The regular upkeep of one log.

        Its count is the queue's, and what every reader has processed is trimmed. `committed`: for
        each queue that reads the log, its positions by partition.
        """
        try:
            if not await self._builtin.ensure(name, partition_count, owner):
                return
            if await self._builtin.partition_count(name) != partition_count:
                await self._builtin.set_partition_count(name, partition_count, revision)
            floor = trim_floor(
                {number: None if at is None else int(at) for number, at in positions.items()}
                for positions in committed
            )
            if floor:
                await self._builtin.trim(name, floor)
        except (SQLAlchemyError, OSError, LogNotFound, ValueError) as error:
            _log.warning("the upkeep of a log failed", queue=name, error=str(error))
