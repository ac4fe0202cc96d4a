"""What the service does for the logs of its queues.

The control plane commits first, and the log follows: it is told the partition count after a resize,
and what was discarded, idempotently and again every minute, so that a crash in between costs
nothing but time. Until the log knows, publishers go on under the old count; nobody takes a retiring
partition's end for final before the log refuses that count (`counterpoise.logs`).

Every log that the service administers has one *owner*, the queue it was made for: its partition
count is the log's, and with it the log is dropped. Other queues may read the log too; they follow
the owner's count, and what they have not processed is not trimmed. `builtin:flights` belongs to the
queue `flights`, a log in Redis to the first queue that names it. A topic in Kafka belongs to nobody
here: all its queues follow the topic's count. Of other kinds of logs the service knows only the
name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from sqlalchemy.exc import SQLAlchemyError

from broker.core.errors import Invalid, Unavailable
from broker.logs.builtin import BuiltinLogs, LogNotFound, Owner, trim_floor
from broker.logs.external import OutsideLogs
from broker.logs.ports import LogAccess
from counterpoise.logs.address import kind_of, parse_log
from counterpoise.logs.errors import LogError

_log = structlog.get_logger()
_BUILTIN = "builtin:"
NOT_DISCARDED = (
    "The partitions are removed, but the log could not be reached to delete what they held; "
    "repeat the call."
)
LOG_AWAY = "The service cannot reach the database of the built-in log right now; try again."
# How long a list of partitions waits for the ends of the log.
SHOW_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Span:
    """Of one partition the first position, the end, and how many messages are past a position."""

    start: str
    end: str
    lag: int | None


def builtin_name(log: str) -> str | None:
    """The name of the built-in log that a queue's `log` means; None for other logs."""
    return log.removeprefix(_BUILTIN) if log.startswith(_BUILTIN) else None


def one_spelling(log: str) -> str:
    """The same for every spelling of a log's name; as it is for logs of other kinds."""
    return log if kind_of(log) is None else parse_log(log).canonical()


def has_owner(log: str) -> bool:
    """Whether the log's partition count is that of the queue that owns it."""
    return kind_of(log) in ("builtin", "redis")


def leads(log: str) -> bool:
    """Whether the log decides by itself how many partitions it has, and its queues follow."""
    return kind_of(log) == "kafka"


class Loghouse:
    """The logs, as the service sees them."""

    def __init__(self, builtin: BuiltinLogs, outside: OutsideLogs, keep_messages: int = 0) -> None:
        """`keep_messages`: how many of each partition stay once every reader is past them."""
        self._builtin = builtin
        self._outside = outside
        self._keep_messages = keep_messages

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

    async def make(self, log: str, partition_count: int, owner: Owner) -> None:
        """The log of a queue that was just created, empty. Raises Unavailable, Invalid."""
        name = builtin_name(log)
        if name is None:
            await self._outside.make(log, partition_count, owner)
            return
        try:
            await self._builtin.ensure(name, partition_count, owner)
        except (SQLAlchemyError, OSError):
            raise Unavailable(LOG_AWAY) from None

    async def partition_count(self, log: str) -> int:
        """How many partitions a log that `leads` has. Raises Invalid if it cannot be asked."""
        return await self._outside.partition_count(log)

    async def resized(
        self,
        log: str,
        owner: Owner,
        partition_count: int,
        revision: int,
        discarded: Iterable[int] = (),
    ) -> None:
        """The owner has another partition count; what is discarded is deleted.

        If the log cannot be told its count `keep` does it later; what could not be deleted only
        the administrator can repeat, so that raises Unavailable.
        """
        numbers = list(discarded)
        name = builtin_name(log)
        try:
            if name is None:
                await self._outside.resized(log, owner, partition_count, revision, numbers)
                return
            await self._builtin.set_partition_count(name, partition_count, revision, owner)
            if numbers:
                await self._builtin.discard(name, numbers, owner)
        except (SQLAlchemyError, OSError, LogNotFound, LogError) as error:
            _log.warning("the log does not know its partition count yet", log=log, error=str(error))
            if numbers:
                raise Unavailable(NOT_DISCARDED) from None

    async def forget(self, publishers_idle_seconds: float) -> None:
        """Deletes what dropped logs left, and publishers that have been silent for long."""
        try:
            await self._builtin.sweep_dropped()
            await self._builtin.forget_publishers(publishers_idle_seconds)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("the upkeep of the logs failed", error=str(error))

    async def drop(self, log: str, owner: Owner) -> None:
        """The owner is gone, and its messages with it. Best effort."""
        name = builtin_name(log)
        try:
            if name is None:
                await self._outside.drop(log, owner)
            else:
                await self._builtin.drop(name, owner)
        except (SQLAlchemyError, OSError, LogError) as error:
            _log.warning("a log could not be dropped", log=log, error=str(error))

    async def positions(
        self, log: str, where: Literal["earliest", "latest"] | float
    ) -> Mapping[int, str]:
        """The position of each partition at an end of the log, or from a time on.

        Raises Invalid for logs of kinds that the service does not know, Unavailable.
        """
        name = builtin_name(log)
        if kind_of(log) is None:
            raise Invalid(
                "The service does not know this kind of log and cannot look up positions in it; "
                "send positions."
            )
        if name is None:
            return await self._outside.positions(log, where)
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

    async def reached(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """Where these partitions of a log end; nothing if the log does not say."""
        if kind_of(log) is None:
            return {}
        name = builtin_name(log)
        if name is None:
            return await self._outside.reached(log, partitions)
        try:
            known = await self._builtin.bounds(name, partitions)
        except (SQLAlchemyError, OSError, LogNotFound):
            return {}
        return {n: str(known[n].next) if n in known else "0" for n in partitions}

    async def spans(self, log: str, positions: Mapping[int, str | None]) -> Mapping[int, Span]:
        """For show: where these partitions of a log start and end, and what is left from there on.

        Empty if the log does not say so soon. A position that is not the log's has no lag.
        """
        if kind_of(log) is None:
            return {}
        name = builtin_name(log)
        numbers = sorted(positions)
        if name is None:
            found = await self._outside.bounds(log, numbers, SHOW_SECONDS)
            if found is None:
                return {}
            starts, ends = found.starts, found.ends
        else:
            try:
                async with asyncio.timeout(SHOW_SECONDS):
                    known = await self._builtin.bounds(name, numbers)
            except (SQLAlchemyError, OSError, LogNotFound, TimeoutError):
                return {}
            starts = {n: str(known[n].first) if n in known else "0" for n in numbers}
            ends = {n: str(known[n].next) if n in known else "0" for n in numbers}
        return {
            number: Span(starts[number], ends[number], _lag(starts[number], ends[number], at))
            for number, at in positions.items()
        }

    async def keep(
        self,
        log: str,
        owner: Owner,
        partition_count: int,
        revision: int,
        committed: Iterable[Mapping[int, str | None]],
    ) -> None:
        """The regular upkeep of one log.

        Its count is the owner's, and what every reader has processed is trimmed, but for the last
        messages if some are to be kept. `committed`: for
        each queue that reads the log, its positions by partition.
        """
        name = builtin_name(log)
        readers = list(committed)
        try:
            floor = trim_floor(
                (
                    {number: None if at is None else int(at) for number, at in positions.items()}
                    for positions in readers
                ),
                self._keep_messages,
            )
            if name is None:
                await self._outside.keep(
                    log, owner, partition_count, revision, _known(readers), _as_text(floor)
                )
                return
            if not await self._builtin.ensure(name, partition_count, owner):
                return
            if await self._builtin.partition_count(name) != partition_count:
                await self._builtin.set_partition_count(name, partition_count, revision, owner)
            if floor:
                await self._builtin.trim(name, floor, owner)
        except (SQLAlchemyError, OSError, LogNotFound, LogError, ValueError) as error:
            _log.warning("the upkeep of a log failed", log=log, error=str(error))

    def close(self) -> None:
        """Let go of connections to logs outside the service."""
        self._outside.close()


def _lag(start: str, end: str, position: str | None) -> int | None:
    """Messages from a position to the end, at most; positions of known kinds are numbers."""
    if position is not None and not position.isdecimal():
        return None
    at = int(start) if position is None else max(int(start), int(position))
    return int(end) - at if at <= int(end) else None


def _known(readers: Sequence[Mapping[int, str | None]]) -> list[dict[int, str]]:
    return [{n: at for n, at in reader.items() if at is not None} for reader in readers]


def _as_text(floor: Mapping[int, int]) -> dict[int, str]:
    return {number: str(position) for number, position in floor.items()}
