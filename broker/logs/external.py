"""The kinds of logs outside the service, Redis and Kafka, with the same clients as consumers.

`ManagedLog` is the port of such a log as the service treats it. The clients of these logs block, so
they are called in threads. The service needs them only for administration: no call of a flow waits
for them. Credentials are the service's own (the setting `log_urls`), matched to a queue's log as
consumers match theirs, and they are never shown. Every call is bounded in time, so a log that is
away only delays administrators, by some seconds.

**A log that hangs hurts itself alone.** Each call on a log takes a thread, until the log has
answered or failed, even if its caller has given up. So for each caller (a key) there are PER_LOG
threads for one log and PER_CALLER for all logs; the service itself, its mirrors, its questions
about partition counts, and all flows together have more. Who wants more waits, and holds up nobody
else.

**The service is nobody's probe.** Whoever may create queues names the addresses of their logs. So
the service connects only where `log_urls` has an access, or, without that setting, on its own
machine. And whatever goes wrong on the way to a log has one answer, so that it does not show who
listens at an address and what they say; the reason is in the service's own log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Generic, Protocol, TypeVar, cast

import structlog

from broker.logs.peeking import Peek, peek_at
from broker.logs.ports import (
    CALLER,
    FLOWS,
    GROWTH,
    MIRRORS,
    Bounds,
    Holder,
    LogOwner,
    Purpose,
)
from broker.tasks import disregard
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    InvalidMessage,
    InvalidPosition,
    LogError,
    LogNotFound,
    LogRefused,
    LogUnavailable,
    StaleRouting,
)
from counterpoise.logs.address import (
    Host,
    check_access,
    fitting,
    is_on_this_machine,
    parse_log,
)
from counterpoise.logs.opening import implementation
from counterpoise.logs.port import Log

# Each has a class (log, access, *, timeout_seconds), and imports the client of its server.
_KINDS: Mapping[str, tuple[str, str]] = {
    "redis": ("broker.logs.redis_upkeep", "RedisUpkeep"),
    "kafka": ("broker.logs.kafka_upkeep", "KafkaUpkeep"),
}
K = TypeVar("K")
T = TypeVar("T")
CALL_SECONDS = 5.0
# Trimming and looking up times may take longer.
LONG_SECONDS = 50.0
# How long lists do not ask a log for ends after it did not answer.
AWAY_SECONDS = 15.0
_FAR_SECONDS = 1e9
PER_LOG = 2
PER_CALLER = 8
_PER_GROUP = 32
# Each is made when it is needed; the bounds above come first.
_THREADS = 1000
_MOST_OPEN = 100
# Of the reason in the service's log.
_MOST_TOLD = 500
_log = structlog.get_logger()


class ManagedLog(Log, Protocol):
    """A log outside the service as the service treats it: made, resized and dropped with its queue.

    All calls may be repeated. Raises LogUnavailable, LogError; LogNotFound where it says so. What
    names an `owner` changes nothing when the log is another queue's: it came too late.
    """

    def ensure(
        self, partition_count: int, owner: LogOwner, begins: Mapping[int, str] | None = None
    ) -> str:
        """Make the log unless it exists; its incarnation. The count of one that exists stays.

        `begins`: positions that consumers have reached. A partition that ends below one has lost
        messages; it goes on there, so that no position consumers know means another message, and
        what lies below can no longer be read. Raises
        LogRefused if it belongs to another queue, LogError if it cannot keep a log's promises.
        """
        ...

    def partition_count(self) -> int:
        """How many partitions the log has. Raises LogNotFound."""
        ...

    def set_partition_count(
        self, partition_count: int, revision: int, owner: LogOwner | None = None
    ) -> bool:
        """Refuse appends routed with another count from now on; False if that comes too late.

        `revision` is the queue's that set the count; lower ones than seen change nothing. Raises
        LogNotFound.
        """
        ...

    def trim(self, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        """Delete what lies below these positions. Repeating or lowering one does nothing."""
        ...

    def discard(self, partitions: Sequence[int], owner: LogOwner | None = None) -> frozenset[int]:
        """Delete what these hold and return which: those outside the count. Raises LogNotFound."""
        ...

    def position_at(self, time: float) -> Mapping[int, str]:
        """Of each partition the first position published at `time` (Unix seconds) or later.

        Nothing published since lies below it; the partition's end without such a message.
        """
        ...

    def drop(self, owner: LogOwner) -> None:
        """Delete the log with all it holds, if it is this queue's."""
        ...


class TopicLog(Protocol):
    """A log in Kafka, whose cluster has other topics, and consumer groups."""

    def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Those of topics of the cluster; topics that are not there or refused are left out.

        Raises LogUnavailable.
        """
        ...

    def store_offsets(self, group: str, positions: Mapping[int, str]) -> None:
        """Store the positions as offsets of a consumer group without members.

        Raises LogRefused, LogUnavailable.
        """
        ...


def access_of(log: str, urls: str) -> str | None:
    """The service's access to a log; None: its own address will do.

    Raises LogRefused, and InvalidLog for what is no address.
    """
    access = fitting(log, urls)
    if access is None and (urls.split() or not is_on_this_machine(parse_log(log))):
        raise LogRefused(
            f"the service connects to no address like that of {log}; its operator lists addresses "
            "in COUNTERPOISE_LOG_URLS (without it: those of the service's own machine)"
        )
    return access


@lru_cache(10_000)
def _cluster_of(log: str, urls: str) -> tuple[tuple[Host, ...], str | None]:
    """The servers of a log, and the service's access. Raises as `access_of`."""
    address = parse_log(log)
    return tuple(sorted(address.hosts, key=str)), access_of(address.canonical(), urls)


def open_managed(log: str, access: str | None, *, timeout_seconds: float) -> ManagedLog:
    """A Redis or Kafka log. Raises LogError like `counterpoise.logs.open_log`."""
    address = parse_log(log)
    if access is not None:
        check_access(address, access)
    if address.kind == "builtin":
        raise LogError(f"the service manages the log {log} in another way")
    opened = implementation(log, _KINDS)(log, access, timeout_seconds=timeout_seconds)
    return cast("ManagedLog", opened)


class ExternalLogs:
    """All logs of queues outside the service; see `LogKind`."""

    def __init__(self, urls: str = "", *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`urls`: accesses with credentials, separated by blanks. Nothing is connected yet."""
        self._urls = urls
        self._monotonic = monotonic
        self._open: dict[str, ManagedLog] = {}
        self._away_until: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "external-logs")
        self._running: Counter[str] = Counter()
        self._per_log: _Places[tuple[str, str]] = _Places(lambda _: PER_LOG)
        self._per_caller: _Places[str] = _Places(_places_of)

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> None:
        """None: consumers and publishers bring their own."""

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
    ) -> bool:
        """See `LogKind`. Raises LogRefused for the log of another queue."""

        def act(it: ManagedLog) -> None:
            it.ensure(partition_count, owner, _lost(it, _furthest(it, committed)))

        await self._ask(log, act, LONG_SECONDS if committed else None)
        return True

    async def partition_count(self, log: str) -> int:
        """See `LogKind`."""
        return await self._ask(log, lambda it: it.partition_count())

    def clusters(self, logs: Sequence[str]) -> Mapping[object, Sequence[str]]:
        """See `Logs`."""
        found: dict[object, list[str]] = {}
        for log in logs:
            with suppress(LogError):
                found.setdefault(_cluster_of(log, self._urls), []).append(log)
        return found

    async def partition_counts(self, logs: Sequence[str]) -> Mapping[str, int]:
        """Those of logs in one cluster of Kafka, asked through one of them; see `Logs`."""

        def act(it: ManagedLog) -> dict[str, int]:
            names = {log: parse_log(log).name for log in logs}
            counts = cast("TopicLog", it).partition_counts(sorted({*names.values()}))
            return {log: counts[name] for log, name in names.items() if name in counts}

        return await self._ask(next((log for log in logs if log in self._open), logs[0]), act)

    async def set_partition_count(
        self, log: str, partition_count: int, revision: int, owner: LogOwner
    ) -> bool:
        """See `LogKind`."""
        return await self._ask(
            log, lambda it: it.set_partition_count(partition_count, revision, owner)
        )

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner
    ) -> frozenset[int]:
        """See `LogKind`."""
        return await self._ask(log, lambda it: it.discard(sorted(partitions), owner))

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """See `LogKind`. Invalid positions (a client may commit any string) are left out."""

        def act(it: ManagedLog) -> None:
            known = {number: at for number, at in below.items() if _is_position(it, at)}
            if known:
                it.trim(known, owner)

        await self._ask(log, act, LONG_SECONDS)

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """See `LogKind`. After a call that took more than `seconds`, others are refused at once."""

        def act(it: ManagedLog) -> Bounds:
            # For a time in the future it also names the retiring partitions.
            every = it.position_at(time.time() + _FAR_SECONDS) if partitions is None else partitions
            return it.bounds(sorted(every))

        if seconds is None:
            return await self._ask(log, act, LONG_SECONDS if partitions is None else None)
        if self._away_until.get(log, 0.0) > self._monotonic():
            raise _unreachable(log)
        try:
            return await self._ask(log, act, seconds)
        except LogError:
            self._away_until[log] = self._monotonic() + AWAY_SECONDS
            raise

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """See `LogKind`."""
        return await self._ask(log, lambda it: it.position_at(time), LONG_SECONDS)

    async def ages(
        self, log: str, positions: Mapping[int, str], *, seconds: float
    ) -> Mapping[int, float]:
        """See `LogKind`."""
        return await self._ask(log, lambda it: it.ages(positions), seconds)

    async def store_offsets(self, log: str, group: str, positions: Mapping[int, str]) -> None:
        """Store the positions of a log in Kafka as offsets of a consumer group.

        Raises LogRefused.
        """

        def act(it: ManagedLog) -> None:
            cast("TopicLog", it).store_offsets(group, positions)

        await self._ask(log, act)

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """See `LogKind`."""
        return await self._ask(log, lambda it: peek_at(it, partition, position, limit, max_bytes))

    async def append(self, log: str, batch: AppendBatch) -> AppendResult:
        """See `LogKind`."""
        return await self._ask(log, lambda it: it.append(batch))

    async def drop(self, log: str, owner: LogOwner) -> None:
        """See `LogKind`."""
        await self._ask(log, lambda it: it.drop(owner))
        opened = self._open.pop(log, None)
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Close all connections."""
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(
        self, log: str, act: Callable[[ManagedLog], T], seconds: float | None = None
    ) -> T:
        """The result of `act` on the log, within these seconds, by default 2 * CALL_SECONDS."""

        access = access_of(log, self._urls)

        def work() -> T:
            opened = self._open.get(log)
            if opened is None:
                opened = open_managed(log, access, timeout_seconds=CALL_SECONDS)
                for other in [*self._open]:
                    if len(self._open) < _MOST_OPEN:
                        break
                    # Closing it would fail the calls on it.
                    if not self._running[other] and (idle := self._open.pop(other, None)):
                        idle.close()
                opened = self._open.setdefault(log, opened)
            try:
                return act(opened)
            except _TOLD:
                raise
            except Exception as error:
                # Whoever listens there may answer anything.
                _log.warning("a log cannot be reached", log=log, error=str(error)[:_MOST_TOLD])
                raise _unreachable(log) from None

        seconds = 2 * CALL_SECONDS if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._in_thread(log, work)
        except TimeoutError:
            _log.warning("a log cannot be reached", log=log, error=f"no answer in {seconds:g} s")
            raise _unreachable(log) from None

    async def _in_thread(self, log: str, work: Callable[[], T]) -> T:
        """The result of `work`, whose thread keeps its places until it ends."""
        caller = CALLER.get()
        loop = asyncio.get_running_loop()
        # In this order: who waits for a hanging log takes no place from the caller's other logs.
        await self._per_log.take((caller, log))
        try:
            await self._per_caller.take(caller)
        except BaseException:
            self._per_log.give_back((caller, log))
            raise
        self._running[log] += 1

        def end() -> None:
            self._running -= Counter((log,))
            self._per_caller.give_back(caller)
            self._per_log.give_back((caller, log))

        def placed() -> T:
            try:
                return work()
            finally:
                # The loop is closed when the service has stopped.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(end)

        try:
            running = loop.run_in_executor(self._threads, placed)
        except RuntimeError:
            # The service stops.
            end()
            raise _unreachable(log) from None
        # Whoever gives up, the thread works on, and gives the places back.
        disregard(running)
        await asyncio.wait((running,))
        return running.result()


# What is known only of a log that answers as one; the texts are the service's own.
_TOLD = (
    LogNotFound,
    LogRefused,
    InvalidMessage,
    InvalidPosition,
    StaleRouting,
)


def _unreachable(log: str) -> LogUnavailable:
    """Whatever went wrong on the way to a log."""
    return LogUnavailable(f"the log {log} cannot be reached; the service's own log has the reason")


class _Places(Generic[K]):
    """So many places for each name; who finds none waits, in the order of arrival."""

    def __init__(self, most: Callable[[K], int]) -> None:
        self._most = most
        self._free: dict[K, asyncio.Semaphore] = {}
        # Who has a place or waits for one.
        self._there: Counter[K] = Counter()

    async def take(self, name: K) -> None:
        free = self._free.setdefault(name, asyncio.Semaphore(self._most(name)))
        self._there[name] += 1
        try:
            await free.acquire()
        except BaseException:
            self._leave(name)
            raise

    def give_back(self, name: K) -> None:
        self._free[name].release()
        self._leave(name)

    def _leave(self, name: K) -> None:
        self._there[name] -= 1
        if not self._there[name]:
            del self._there[name], self._free[name]


def _places_of(caller: str) -> int:
    return _PER_GROUP if caller in ("", FLOWS, GROWTH, MIRRORS) else PER_CALLER


def _furthest(log: ManagedLog, committed: Sequence[Mapping[int, str]]) -> Mapping[int, str]:
    """The furthest position of any reader in each partition, without invalid positions."""
    furthest: dict[int, str] = {}
    for positions in committed:
        for number, position in positions.items():
            if _is_position(log, position) and (
                number not in furthest or log.compare(position, furthest[number]) > 0
            ):
                furthest[number] = position
    return furthest


def _lost(log: ManagedLog, reached: Mapping[int, str]) -> Mapping[int, str]:
    """The reached positions that are beyond the ends of the log."""
    if not reached:
        return {}
    try:
        ends = log.bounds(sorted(reached)).ends
    except LogNotFound:
        return reached
    return {number: at for number, at in reached.items() if log.compare(at, ends[number]) > 0}


def _is_position(log: ManagedLog, text: str) -> bool:
    try:
        log.compare(text, text)
    except InvalidPosition:
        return False
    return True
