"""The logs of all queues: each call goes to the kind of log, and errors become answers.

`LogsByKind` implements `broker.logs.ports.Logs`. `DynamicLogs` does so for the hash ranges of
dynamic built-in logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Literal, Protocol

import structlog

from broker.core.errors import BrokerError, Invalid, Unavailable
from broker.logs.aligned import AlignedLogs
from broker.logs.external import ExternalLogs
from broker.logs.peeking import Peek
from broker.logs.ports import (
    Bounds,
    Holder,
    LogAccess,
    LogDatabaseUnavailable,
    LogKind,
    LogOwner,
    Positions,
    Purpose,
    Root,
    Sealing,
    Span,
    messages_after,
)
from broker.logs.positions import number_of, trim_floor, with_passed
from broker.logs.publisher import Appended, append_one
from broker.logs.retention import Retention, Young, beyond, kept_bytes
from broker.pieces import pieces
from counterpoise.logs import (
    InvalidMessage,
    LogError,
    LogNotFound,
    LogUnavailable,
    Message,
    StaleRouting,
)
from counterpoise.logs.address import Kind, kind_of
from counterpoise.logs.ranges import HashRange, parse_range

DATABASE_AWAY = "The service cannot reach the database of the built-in log right now; try again."
_log = structlog.get_logger()
NOT_DISCARDED = (
    "The partitions are removed, but the log could not be reached to delete their messages; "
    "repeat the call."
)
UNREADABLE_KIND = "The service does not know this kind of log and cannot read its messages."
UNWRITABLE_KIND = (
    "The service does not know this kind of log and cannot append to it: publish with a client of "
    "the log."
)
OWN_ACCESS = (
    ". The service appends with its own access; where that may only read, publish with a publisher."
)
UNKNOWN_KIND = (
    "The service does not know this kind of log and cannot look up positions; send positions."
)
# How long a list of partitions waits for the ends from the log.
SHOW_SECONDS = 1.5


class RangeKind(Protocol):
    """See `broker.logs.hash_ranges.HashRanges`."""

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]: ...

    async def split(
        self,
        log: str,
        partition: int,
        at: int | None,
        owner: LogOwner,
        *,
        anywhere: bool = False,
        dry_run: bool = False,
    ) -> Sealing: ...

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing: ...

    async def sample(
        self, log: str, partition: int, owner: LogOwner
    ) -> tuple[HashRange, Mapping[int, int]]: ...


class DynamicLogs:
    """Implements `broker.logs.ports.RangeLogs`."""

    def __init__(self, ranges: RangeKind) -> None:
        self._ranges = ranges

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        """See `RangeLogs`."""
        with _answered():
            return await self._ranges.roots(log, latest=latest)

    async def split(
        self,
        log: str,
        partition: int,
        at: int | Literal["middle", "load"],
        owner: LogOwner,
        *,
        dry_run: bool = False,
    ) -> Sealing:
        """See `RangeLogs`. A load that cannot be halved is split in the middle of the range."""
        with _answered():
            if isinstance(at, int):
                return await self._ranges.split(log, partition, at, owner, dry_run=dry_run)
            middle = None
            if at == "load":
                middle = halves(*await self._ranges.sample(log, partition, owner))
            return await self._ranges.split(
                log, partition, middle, owner, anywhere=True, dry_run=dry_run
            )

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing:
        """See `RangeLogs`."""
        with _answered():
            return await self._ranges.merge(log, partition, other, owner, dry_run=dry_run)


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except LogDatabaseUnavailable:
        raise Unavailable(DATABASE_AWAY) from None
    except LogError as error:
        raise Invalid(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def halves(whole: HashRange, sampled: Mapping[int, int]) -> int | None:
    """The hash with which the second of two ranges begins that share the sampled load best.

    `sampled`: how often each hash occurs. None if one of the ranges would have no load; a split
    elsewhere then helps no more than one in the middle. Of equal ones the lowest.
    """
    hashes = sorted(key_hash for key_hash in sampled if key_hash in whole)
    total, before = sum(sampled[key_hash] for key_hash in hashes), 0
    best: tuple[int, int] | None = None
    for left, right in pairwise(hashes):
        before += sampled[left]
        uneven = abs(total - 2 * before)
        if best is None or uneven < best[0]:
            best = uneven, (left + right + 1) // 2
    return None if best is None else best[1]


class BuiltinKind(LogKind, Protocol):
    """The built-in logs: they also have credentials, sessions, publishers and rests to look
    after, and may be dynamic. See `broker.logs.builtin.BuiltinLogs`.
    """

    @property
    def ranges(self) -> RangeKind: ...

    @property
    def takes_cuts(self) -> bool: ...

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
        keys: Mapping[int, str] | None = None,
    ) -> bool: ...

    async def young(
        self, log: str, below: Mapping[int, int], seconds: float
    ) -> Mapping[int, Young]: ...

    async def holders(self) -> frozenset[str]: ...

    async def keys_in_use(self) -> frozenset[str]: ...

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None: ...

    async def watch(self) -> None: ...

    async def sweep_dropped(self) -> int: ...

    async def forget_publishers(self, idle_seconds: float) -> int: ...

    async def sweep_watches(self) -> int: ...

    async def drop_expired_credentials(self) -> None: ...


class LogsByKind:
    """Implements `broker.logs.ports.Logs`."""

    def __init__(
        self, builtin: BuiltinKind, external: ExternalLogs, keep_messages: int = 0
    ) -> None:
        """`keep_messages`: how many of each partition stay after every reader has passed them."""
        self._builtin = builtin
        self.ranges = DynamicLogs(builtin.ranges)
        self._external = external
        self._kinds: Mapping[Kind, LogKind] = {
            "builtin": builtin,
            "aligned": AlignedLogs(builtin),
            "redis": external,
            "kafka": external,
        }
        self._keep_messages = keep_messages

    def _kind(self, log: str) -> LogKind | None:
        """The kind of a log; None for one that the service does not know."""
        kind = kind_of(log)
        return None if kind is None else self._kinds[kind]

    def _known(self, log: str) -> LogKind:
        """The kind of a log that the service administers; only such logs have an owner."""
        kind = self._kind(log)
        assert kind is not None, log
        return kind

    def takes_cuts(self, log: str) -> bool:
        """See `Logs`."""
        return kind_of(log) == "builtin" and self._builtin.takes_cuts

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """See `Logs`."""
        kind = self._kind(log)
        try:
            if kind is None:
                return None
            return await kind.access(log, purpose, holder, refused=refused)
        except LogError as error:
            raise _cannot_be_asked(error) from None

    async def holders(self) -> frozenset[str]:
        """See `Logs`. Only the built-in log has credentials to give."""
        try:
            return await self._builtin.holders()
        except LogError as error:
            raise _cannot_be_asked(error) from None

    async def keys_in_use(self) -> frozenset[str]:
        """See `Logs`."""
        try:
            return await self._builtin.keys_in_use()
        except LogError as error:
            raise _cannot_be_asked(error) from None

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        """See `Logs`."""
        try:
            await self._builtin.revoke(holders, keys)
        except LogError as error:
            raise _cannot_be_asked(error) from None

    async def watch(self) -> None:
        """End sessions of clients that are in the way of others. Best effort, at short intervals.

        A failure is not logged: the database is away, which others say.
        """
        with suppress(LogError):
            await self._builtin.watch()

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        keys: Mapping[int, str] | None = None,
    ) -> None:
        """See `Logs`."""
        try:
            if keys is None:
                await self._known(log).ensure(log, partition_count, owner)
            else:
                await self._builtin.ensure(log, partition_count, owner, keys=keys)
        except LogError as error:
            raise _cannot_be_used(error) from None

    async def partition_count(self, log: str) -> int:
        """See `Logs`."""
        try:
            return await self._known(log).partition_count(log)
        except LogError as error:
            raise _cannot_be_used(error) from None

    def clusters(self, logs: Sequence[str]) -> Mapping[object, Sequence[str]]:
        """See `Logs`."""
        return self._external.clusters(logs)

    async def partition_counts(self, logs: Sequence[str]) -> Mapping[str, int]:
        """See `Logs`."""
        try:
            return await self._external.partition_counts(logs)
        except LogError as error:
            raise _cannot_be_used(error) from None

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        """See `Logs`."""
        kind = self._known(log)
        try:
            await kind.set_partition_count(log, partition_count, revision, owner)
            if discard:
                await kind.discard(log, discard, owner)
        except LogError as error:
            _log.warning("the log does not know its partition count yet", log=log, error=str(error))
            if discard:
                raise Unavailable(NOT_DISCARDED) from None

    async def positions(
        self, log: str, where: Literal["earliest", "latest"] | float
    ) -> Mapping[int, str]:
        """See `Logs`."""
        kind = self._kind(log)
        if kind is None:
            raise Invalid(UNKNOWN_KIND)
        try:
            if not isinstance(where, str):
                return await kind.position_at(log, where)
            bounds = await kind.bounds(log)
            return bounds.starts if where == "earliest" else bounds.ends
        except LogNotFound:
            return {}
        except LogError as error:
            raise _cannot_be_asked(error) from None

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """See `Logs`."""
        kind = self._kind(log)
        try:
            return {} if kind is None else (await kind.bounds(log, partitions)).ends
        except LogError:
            return {}

    async def bounds(self, log: str, partitions: Sequence[int] | None = None) -> Bounds | None:
        """See `Logs`."""
        kind = self._kind(log)
        is_outside = partitions is not None and kind is self._external
        try:
            if kind is None:
                return None
            seconds = SHOW_SECONDS if is_outside else None
            return await kind.bounds(log, partitions, seconds=seconds)
        except LogError as error:
            _log.warning("a log does not say where it ends", log=log, error=str(error))
            return None

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Span]:
        """See `Logs`. An invalid position has no lag."""
        kind = self._kind(log)
        if kind is None:
            return {}
        try:
            found = await kind.bounds(log, sorted(positions), seconds=SHOW_SECONDS)
        except LogError:
            return {}

        spans: dict[int, Span] = {}
        for number, at in positions.items():
            start, end = found.starts[number], found.ends[number]
            spans[number] = Span(start, end, messages_after(start, end, at))
        return spans

    async def ages(self, log: str, positions: Mapping[int, str]) -> Mapping[int, float]:
        """See `Logs`."""
        kind = self._kind(log)
        if kind is None or not positions:
            return {}
        try:
            return await kind.ages(log, positions, seconds=SHOW_SECONDS)
        except LogError:
            return {}

    async def store_offsets(self, log: str, group: str, positions: Mapping[int, str]) -> str | None:
        """See `Logs`."""
        try:
            await self._external.store_offsets(log, group, positions)
        except LogError as error:
            return str(error)
        return None

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """See `Logs`. In a log that is gone there is nothing."""
        kind = self._kind(log)
        if kind is None:
            raise Invalid(UNREADABLE_KIND)
        try:
            return await kind.peek(log, partition, position, limit, max_bytes)
        except LogNotFound:
            return Peek("0", "0", (), "0")
        except LogUnavailable as error:
            raise _cannot_be_asked(error) from None
        except LogError as error:
            raise Invalid(f"The service cannot read the log: {error}.") from None

    async def append(
        self,
        log: str,
        message: Message,
        id: str | None,
        partition_count: int,
        partition: int | None = None,
    ) -> Appended:
        """See `Logs`."""
        kind = self._kind(log)
        if kind is None:
            raise Invalid(UNWRITABLE_KIND)
        try:
            return await append_one(
                partial(kind.append, log), message, id, partition_count, partition
            )
        except InvalidMessage as error:
            raise Invalid(f"The log cannot hold this message: {error}.") from None
        except LogDatabaseUnavailable:
            raise Unavailable(DATABASE_AWAY) from None
        except (LogUnavailable, StaleRouting) as error:
            raise Unavailable(f"The log did not confirm the message: {error}{OWN_ACCESS}") from None
        except LogError as error:
            raise Invalid(f"The service cannot append to the log: {error}{OWN_ACCESS}") from None

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Sequence[Positions],
        keys: Mapping[int, str] | None = None,
        retention: Retention | None = None,
    ) -> Mapping[int, str]:
        """See `Logs`. The last `keep_messages` stay."""
        kind = self._known(log)
        try:
            numbered = partial(_numbered, log)
            readers = [dict(map(numbered, some.items())) for some in committed]
            if keys is not None:
                if not await self._builtin.ensure(log, len(keys), owner, keys=keys):
                    return {}
                bounds = await self._builtin.bounds(log)
                ranges: dict[int, HashRange] = {}
                async for some in pieces([*bounds.keys.items()]):
                    ranges.update(_ranges(some))
                readers = [await with_passed(positions, ranges) for positions in readers]
                floor = await self._floor(readers)
            else:
                reached = [_reached(some) for some in committed]
                if not await kind.ensure(log, partition_count, owner, reached):
                    return {}
                if await kind.partition_count(log) != partition_count:
                    await kind.set_partition_count(log, partition_count, revision, owner)
                floor = await self._floor(readers)
                if not floor:
                    return {}
                bounds = await kind.bounds(log, sorted(floor))
            left: dict[int, int] = {}
            async for several in pieces([*floor.items()]):
                left.update(_left(dict(several), bounds))
            if retention is not None and retention.keeps and left:
                left = await self._retained(log, left, retention)
            below: dict[int, str] = {}
            async for positions in pieces([*left.items()]):
                for number, at in positions:
                    if at > int(bounds.starts[number]):
                        below[number] = str(at)
            return below
        except LogError as error:
            _log.warning("the upkeep of a log failed", log=log, error=str(error))
            return {}

    async def _retained(
        self, log: str, floor: Mapping[int, int], retention: Retention
    ) -> dict[int, int]:
        """Up to where each partition of a built-in log may be trimmed."""
        young = await self._builtin.young(log, floor, retention.seconds)
        kept = 0.0
        async for some in pieces([*young.items()]):
            kept += kept_bytes(floor, dict(some))
        share = 1.0 if kept <= retention.most_bytes else retention.most_bytes / kept
        left: dict[int, int] = {}
        async for numbers in pieces([*floor]):
            these = {number: floor[number] for number in numbers}
            left.update(beyond(these, {one: young[one] for one in numbers if one in young}, share))
        return left

    async def _floor(self, readers: Sequence[Mapping[int, int | None]]) -> dict[int, int]:
        """See `trim_floor`."""
        floor: dict[int, int] = {}
        async for some in pieces([*readers[0]] if readers else []):
            those = ({number: one.get(number) for number in some} for one in readers)
            floor.update(trim_floor(those, self._keep_messages))
        return floor

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """See `Logs`."""
        try:
            await self._known(log).trim(log, below, owner)
        except LogNotFound:
            # It was deleted meanwhile, with its messages.
            return
        except LogError as error:
            raise Unavailable(f"The log cannot be trimmed: {error}; try again.") from None

    async def drop(self, log: str, owner: LogOwner) -> None:
        """See `Logs`."""
        try:
            await self._known(log).drop(log, owner)
        except LogError as error:
            if kind_of(log) == "builtin" or isinstance(error, LogUnavailable):
                raise Unavailable(f"The log cannot be dropped: {error}; try again.") from None
            _log.warning("a log could not be dropped", log=log, error=str(error))

    async def forget(self, publishers_idle_seconds: float) -> None:
        """Deletes the rest of dropped built-in logs, publishers that are silent for long, what
        readers have said of ends that have been, and credentials that have expired.

        Best effort: a failure is logged.
        """
        try:
            await self._builtin.forget_publishers(publishers_idle_seconds)
            await self._builtin.drop_expired_credentials()
            await self._builtin.sweep_watches()
            # Last: a large log takes minutes.
            await self._builtin.sweep_dropped()
        except LogError as error:
            _log.warning("the upkeep of the logs failed", error=str(error))

    def close(self) -> None:
        """Close connections to logs outside the service."""
        self._external.close()


def _cannot_be_used(error: LogError) -> BrokerError:
    """The reason why a queue cannot have this log now, for the administrator."""
    if isinstance(error, LogDatabaseUnavailable):
        return Unavailable(DATABASE_AWAY)
    hint = ""
    if isinstance(error, LogUnavailable):
        hint = (
            ". Check the address; the service's own access (credentials, TLS) is in its "
            "COUNTERPOISE_LOG_URLS"
        )
    return Invalid(f"The queue cannot have this log: {error}{hint}.", [("log", "cannot be used")])


def _cannot_be_asked(error: LogError) -> BrokerError:
    """The reason why the log of a queue does not answer."""
    if isinstance(error, LogDatabaseUnavailable):
        return Unavailable(DATABASE_AWAY)
    if isinstance(error, LogUnavailable):
        return Unavailable(f"The log does not answer right now: {error}.")
    return Invalid(f"The log does not answer: {error}; send positions.")


def _left(floor: Mapping[int, int], bounds: Bounds) -> dict[int, int]:
    """Where there is something to trim, up to which position."""
    starts, ends = bounds.starts, bounds.ends
    reached = {number: min(at, int(ends[number])) for number, at in floor.items() if number in ends}
    return {number: at for number, at in reached.items() if at > int(starts[number])}


def _ranges(keys: Iterable[tuple[int, str]]) -> dict[int, HashRange]:
    found = ((number, parse_range(key)) for number, key in keys)
    return {number: one for number, one in found if one is not None}


def _numbered(log: str, item: tuple[int, str | None]) -> tuple[int, int | None]:
    number, at = item
    return number, None if at is None else number_of(log, at)


def _reached(positions: Positions) -> dict[int, str]:
    return {number: at for number, at in positions.items() if at is not None}
