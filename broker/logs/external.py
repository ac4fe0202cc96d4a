"""Logs outside the service, in Redis and Kafka: reached like consumers reach them, in threads.

The service needs them only to administer: nothing that a flow asks waits for one. Credentials are
the service's own (the setting `log_urls`), matched to a queue's log as consumers match theirs, and
they are never shown. Every call is bounded in time, so that a log that is away costs an
administrator some seconds and nobody else anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from broker.core.errors import Invalid, Unavailable
from broker.logs.builtin import Owner
from counterpoise.logs import (
    Bounds,
    InvalidPosition,
    LogError,
    LogNotFound,
    LogOwner,
    LogUnavailable,
    ManagedLog,
    open_managed,
)
from counterpoise.logs.address import InvalidLog, fitting, kind_of, parse_log, refuse_credentials

T = TypeVar("T")

CALL_SECONDS = 5.0
# Trimming and looking up times take as long as there is to do.
LONG_SECONDS = 50.0
# Lists that show ends leave a log alone for so long after it did not answer.
AWAY_SECONDS = 15.0
_THREADS = 4
_MOST_OPEN = 100


class OutsideLogs:
    """All logs that queues name and the service does not have itself."""

    def __init__(self, urls: str = "", *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`urls`: accesses with credentials, separated by blanks. Nothing is connected yet."""
        self._urls = urls
        self._monotonic = monotonic
        self._open: dict[str, ManagedLog] = {}
        self._away_until: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "outside-logs")

    async def make(self, log: str, partition_count: int, owner: Owner) -> None:
        """The log of a new queue. Raises Invalid if it cannot be had, also when out of reach."""
        try:
            await self._ask(log, lambda it: it.ensure(partition_count, _log_owner(owner)))
        except LogError as error:
            raise _unusable(error) from None

    async def partition_count(self, log: str) -> int:
        """How many partitions the log has. Raises Invalid if it cannot be asked."""
        try:
            return await self._ask(log, lambda it: it.partition_count())
        except LogError as error:
            raise _unusable(error) from None

    async def resized(
        self,
        log: str,
        owner: Owner,
        partition_count: int,
        revision: int,
        discarded: Sequence[int],
    ) -> None:
        """The owner has another count; what is discarded is deleted. Raises LogError."""
        of = _log_owner(owner)

        def act(it: ManagedLog) -> None:
            it.set_partition_count(partition_count, revision, of)
            if discarded:
                it.discard(discarded, of)

        await self._ask(log, act)

    async def drop(self, log: str, owner: Owner) -> None:
        """The owner is gone, and the messages with it. Raises LogError."""
        await self._ask(log, lambda it: it.drop(_log_owner(owner)))
        opened = self._open.pop(log, None)
        if opened is not None:
            opened.close()

    async def keep(
        self,
        log: str,
        owner: Owner,
        partition_count: int,
        revision: int,
        committed: Sequence[Mapping[int, str]],
        floor: Mapping[int, str],
    ) -> None:
        """The regular upkeep of a log that an owner decides about. Raises LogError.

        A log that is gone is made anew, and one that lost messages goes on, where its furthest
        reader had got to; `committed` is that for each of them. What lies below `floor` is trimmed.
        What is no position of this log (a client may commit anything) decides nothing.
        """

        of = _log_owner(owner)

        def act(it: ManagedLog) -> None:
            highest: dict[int, str] = {}
            for positions in committed:
                for number, position in positions.items():
                    known = highest.get(number)
                    if _is_position(it, position) and (
                        known is None or it.compare(position, known) > 0
                    ):
                        highest[number] = position
            try:
                ends = it.bounds(sorted(highest)).ends
                lost = {n: at for n, at in highest.items() if it.compare(at, ends[n]) > 0}
            except LogNotFound:
                lost = highest
            it.ensure(partition_count, of, lost)
            if it.partition_count() != partition_count:
                it.set_partition_count(partition_count, revision, of)
            below = {n: at for n, at in floor.items() if _is_position(it, at)}
            if below:
                it.trim(below, of)

        await self._ask(log, act, LONG_SECONDS)

    async def positions(self, log: str, where: str | float) -> Mapping[int, str]:
        """Positions at an end or from a time on, of all partitions. Raises Unavailable, Invalid."""

        def act(it: ManagedLog) -> Mapping[int, str]:
            # Asked for a time to come, it names the partitions that retire too.
            found = it.position_at(where if isinstance(where, float | int) else time.time() + 1e9)
            if isinstance(where, str):
                bounds = it.bounds(sorted(found))
                return bounds.starts if where == "earliest" else bounds.ends
            return found

        try:
            return await self._ask(log, act, LONG_SECONDS)
        except LogNotFound:
            return {}
        except LogUnavailable as error:
            raise Unavailable(f"The log cannot be asked right now: {error}.") from None
        except LogError as error:
            raise Invalid(f"The log cannot be asked: {error}; send positions.") from None

    async def bounds(self, log: str, partitions: Sequence[int], seconds: float) -> Bounds | None:
        """Where partitions start and end, for show: None if that cannot be told in time."""
        if self._away_until.get(log, 0.0) > self._monotonic():
            return None
        try:
            return await self._ask(log, lambda it: it.bounds(partitions), seconds)
        except LogError:
            self._away_until[log] = self._monotonic() + AWAY_SECONDS
            return None

    async def reached(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """Where partitions end: nothing if the log does not say."""
        try:
            return (await self._ask(log, lambda it: it.bounds(partitions))).ends
        except LogError:
            return {}

    def close(self) -> None:
        """Let go of all connections."""
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(
        self, log: str, act: Callable[[ManagedLog], T], seconds: float = 2 * CALL_SECONDS
    ) -> T:
        def work() -> T:
            opened = self._open.get(log)
            if opened is None:
                access = fitting(log, self._urls)
                opened = open_managed(log, access, timeout_seconds=CALL_SECONDS)
                while len(self._open) >= _MOST_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                opened = self._open.setdefault(log, opened)
            return act(opened)

        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.wait_for(running, seconds)
        except TimeoutError:
            raise LogUnavailable(f"the log {log} did not answer within {seconds:g} s") from None


def _is_position(log: ManagedLog, text: str) -> bool:
    try:
        log.compare(text, text)
    except InvalidPosition:
        return False
    return True


def check_log(log: str) -> None:
    """Raises Invalid for a `log` that is not one, or that carries credentials.

    One of a kind that is not known here is its consumers' own affair.
    """
    try:
        refuse_credentials(log)
        if kind_of(log) is not None:
            parse_log(log)
    except InvalidLog as error:
        raise Invalid(f"Of the queue's log: {error}.", [("log", str(error))]) from None


def _unusable(error: LogError) -> Invalid:
    hint = ""
    if isinstance(error, LogUnavailable):
        hint = (
            ". Check the address; how the service itself gets in (credentials, TLS) is said by its "
            "COUNTERPOISE_LOG_URLS"
        )
    return Invalid(f"The queue cannot have this log: {error}{hint}.", [("log", "cannot be used")])


def _log_owner(owner: Owner) -> LogOwner:
    return LogOwner(owner.queue_id, owner.queue, owner.created_at)
