"""The queues that read a log: its owner, the followers of the owner's count, trims and ends.

A log is trimmed only where no reader meets the trim; see `broker.store.trims` for how.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TypeVar
from uuid import uuid4

import orjson
import structlog

from broker.calls.access import QueueAccess, mention, sentence
from broker.calls.rendering import queue_row_view, queue_view
from broker.core import commands as c
from broker.core.access import Caller, Right
from broker.core.errors import (
    BrokerError,
    Forbidden,
    Invalid,
    LogChanged,
    QueueNotFound,
    Unavailable,
)
from broker.core.model import MOST_PARTITIONS
from broker.core.queue import Queue
from broker.logs.names import builtin_name, canonical, decides_count, has_owner, parts_of
from broker.logs.ports import LogOwner, Logs
from broker.replica.store_calls import store_available
from broker.replica.transaction import Submission
from broker.store.ports import Act, Store
from broker.store.trims import NEVER, End, Fence, Trimming
from counterpoise import wire
from counterpoise.logs.address import kind_of, parse_log

_log = structlog.get_logger()
AT_ONCE = 500
T = TypeVar("T")
# The upkeep announces a trim of a log once a minute, so a second one in a row is rare.
ATTEMPTS = 5
# Logs without readers that are trimmed or dropped; one that is away takes some seconds.
PENDING_AT_ONCE = 8


class LogReaders:
    """The queues by the logs that they read; see `broker.logs` for what an owner is."""

    def __init__(self, queues: QueueAccess) -> None:
        self._queues = queues

    async def all(self) -> AsyncIterator[wire.Queue]:
        """All queues by name, each as it is when the iteration reaches it. Raises Unavailable."""
        cursor = None
        while True:
            with store_available():
                rows = await self._queues.store.list(AT_ONCE, cursor)
            for row in rows:
                queue = queue_row_view(row)
                yield queue
            if len(rows) < AT_ONCE:
                return
            cursor = queue.name

    async def of(self, log: str) -> list[wire.Queue]:
        """All queues that read this log, also beside others, in the order of their creation."""
        spelling = canonical(log)
        found = [
            queue
            async for queue in self.all()
            if spelling in (canonical(queue.log), *parts_of(queue.log))
        ]
        return sorted(found, key=lambda queue: (queue.created_at, queue.name))

    async def owns(self, name: str, log: str) -> bool:
        """Whether this queue owns its log. The name of a built-in log names its owner."""
        if not has_owner(log):
            return False
        source = builtin_name(log)
        if source is not None:
            return source == name
        readers = await self.of(log)
        return bool(readers) and readers[0].name == name

    async def followers(self, name: str, log: str) -> list[wire.Queue]:
        """The other queues that read the log which this one owns."""
        return [reader for reader in await self.of(log) if reader.name != name]

    async def owner(self, log: str, but: str) -> wire.Queue | None:
        """The owner of this log, if it is not `but`; None if the log has no owner.

        Raises Invalid for a built-in log that does not exist.
        """
        source = builtin_name(log)
        if source is None:
            readers = [queue for queue in await self.of(log) if queue.name != but]
            return readers[0] if readers and has_owner(log) else None
        if source == but:
            return None
        try:
            owner = await self._queues.read(source, queue_view)
        except QueueNotFound:
            raise Invalid(
                f"The log builtin:{source} belongs to the queue {source!r}, which does not exist; "
                "create that first.",
                [("log", f"names the queue {source!r}, which does not exist")],
            ) from None
        if builtin_name(owner.log) != source:
            raise Invalid(
                f"The queue {source!r} has no log of its own; it reads {owner.log}. Name that log.",
                [("log", f"names the queue {source!r}, whose log is {owner.log}")],
            )
        return owner

    async def owners(self, log: str, but: str) -> list[wire.Queue]:
        """The owners of aligned logs. Raises Invalid for a log that the queue `but` cannot read."""
        found: list[wire.Queue] = []
        for part in parts_of(log):
            owner = await self.owner(part, but)
            if owner is None:
                raise Invalid(
                    "A queue that reads several logs side by side owns none of them: create it "
                    "under another name.",
                    [("log", f"names the queue {but!r} itself")],
                )
            if owner.partitioning != "fixed":
                raise Invalid(
                    f"The queue {owner.name!r} is dynamic, and only logs with fixed partitions are "
                    "read side by side.",
                    [("log", f"names the dynamic queue {owner.name!r}")],
                )
            found.append(owner)
        return found

    async def aligned_count(self, log: str, but: str) -> int:
        """The partition count of a queue that reads these logs side by side.

        The owners are resized one after the other. Between that, the partitions that one of them
        has and another has not (yet, or any more) are read like the others.
        """
        owners = await self.owners(log, but)
        return len(owners) * max(owner.partition_count for owner in owners)

    async def refuse_wide(self, queue: wire.Queue, count: int, caller: Caller | None) -> None:
        """Raises Invalid if a queue that reads this one's log beside others would get too many
        partitions with this count.
        """
        if count <= queue.partition_count or 2 * count <= MOST_PARTITIONS:
            return
        wide = [
            one.name
            for one in (await self.of(queue.log) if has_owner(queue.log) else ())
            if count * len(parts_of(one.log)) > MOST_PARTITIONS
        ]
        if wide:
            which = sentence(mention(wide, caller))
            raise Invalid(
                f"{which} reads this log beside others, and would have more than "
                f"{MOST_PARTITIONS} partitions in all; choose fewer, or delete that queue first.",
                [("partition_count", "is too large for a queue with aligned logs")],
            )

    async def refuse_resize_of_follower(self, queue: wire.Queue) -> None:
        if len(parts_of(queue.log)) > 1:
            names = ", ".join(builtin_name(part) or part for part in parts_of(queue.log))
            raise Invalid(
                f"This queue reads the logs of {names} and has their partitions; resize each of "
                "them.",
                [("partition_count", f"follows the queues {names}")],
            )
        if decides_count(queue.log):
            raise Invalid(
                f"This queue has the partition count of {queue.log}; add partitions to the topic, "
                "and the queue follows within a minute.",
                [("partition_count", "follows the topic")],
            )
        owner = await self.owner(queue.log, but=queue.name) if has_owner(queue.log) else None
        if owner is not None and not await self.owns(queue.name, queue.log):
            raise Invalid(
                f"This queue reads the log of {owner.name!r} and has its partition count; "
                "resize that queue.",
                [("partition_count", f"follows the queue {owner.name!r}")],
            )

    async def refuse_foreign(self, log: str, name: str, caller: Caller, right: Right) -> None:
        """Raises Forbidden unless the caller has the right on the log, too, that the queue `name`
        reads: on the name of the log, and on the queue that owns it.
        """
        if kind_of(log) is None or "*" in caller.patterns:
            return
        names = [parse_log(part).name for part in parts_of(log)]
        if has_owner(log) and builtin_name(log) is None:
            names += [each.name for each in await self.of(log)][:1]
        for other in names:
            if not caller.has(right, other):
                raise Forbidden(
                    f"The queue {name!r} reads a log of other queues that your key is not for."
                )

    async def follow(
        self, name: str, partition_count: int, discard: bool, act: Act | None = None
    ) -> None:
        """A queue that reads another's log has that queue's partition count.

        One that reads several has the largest of them. It discards nothing: what one log has
        discarded is not read, and the others still have theirs.
        """
        # A queue that was deleted meanwhile follows no other.
        with suppress(QueueNotFound):
            log = await self._queues.read(name, lambda queue: queue.settings.log)
            if len(parts_of(log)) > 1:
                partition_count, discard = await self.aligned_count(log, name), False
            changes = {"partition_count": partition_count}
            await self._queues.submit(name, lambda: Submission(c.Change(changes, discard), act=act))


@contextmanager
def alone(
    queue: str, *, but: type[BrokerError] | tuple[type[BrokerError], ...] = ()
) -> Iterator[None]:
    """What keeps this queue from following its log is logged, and keeps no other from it; `but`
    these errors are raised.
    """
    try:
        yield
    except but:
        raise
    except BrokerError as error:
        _log.warning("a queue does not follow its log", queue=queue, error=str(error))
    except Exception:
        _log.exception("a queue cannot follow its log", queue=queue)


def log_owner(queue: Queue | wire.Queue) -> LogOwner:
    """This queue as the owner of its log."""
    at = queue.created_at
    return LogOwner(queue.id, queue.name, at.timestamp() if isinstance(at, datetime) else at)


def owner_among(readers: Sequence[wire.Queue]) -> wire.Queue | None:
    """The owner among the queues that read one log, given in the order of their creation."""
    if not readers:
        return None
    alone = [queue for queue in readers if len(parts_of(queue.log)) == 1]
    name = builtin_name(alone[0].log) if alone else None
    return next((queue for queue in alone if name in (None, queue.name)), None)


class Trims:
    """The trims and ends of logs that the service administers; Kafka's and unknown ones trim
    themselves, and stay.
    """

    def __init__(self, store: Store, logs: Logs) -> None:
        self._store, self._logs = store, logs

    async def fences(self, log: str, but: str) -> list[Fence]:
        """The fences of the logs that a queue is to read; none for its own, which is made later."""
        found = [await self.fence(part) for part in parts_of(log) if builtin_name(part) != but]
        return [fence for fence in found if fence is not None]

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
                row = await self._store.trims.read(name)
            if row is None:
                return Fence(name, NEVER)
            if row.pending is None:
                return Fence(name, row.announced)
            await self._carry_out(name, row)
        raise LogChanged("trimmed")

    async def apart(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which takes a fence; it begins anew if a trim came in between, or
        a resize of which it had to know.

        Raises its errors, and Unavailable if these always come in between.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return await work()
            except LogChanged:
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
        text = _text(below, owner)
        readers = None if seen is None else seen.readers
        with store_available():
            may = await self._store.trims.announce(name, readers, announced, text)
        # If not, another replica trims the log, or its readers have changed: the next upkeep will.
        if may:
            await self._carry_out(name, Trimming("", announced, text))

    async def end(self, log: str, owner: LogOwner) -> End:
        """The end of a log, for the transaction that deletes its queue; to be made before the log's
        other readers are listed. Raises Unavailable.
        """
        name = canonical(log)
        with store_available():
            row = await self._store.trims.read(name)
        seen = None if row is None else row.readers
        return End(name, seen, uuid4().hex, _text({}, owner, drop=True))

    async def drop(self, end: End) -> None:
        """Drop the log whose queue was deleted; if that fails, the upkeep does it later."""
        with _later(end.log):
            await self._carry_out(end.log, Trimming("", end.name, end.pending))

    async def _carry_out(self, log: str, row: Trimming) -> None:
        pending = orjson.loads(row.pending or "")
        owner = LogOwner(*pending["owner"])
        if pending.get("drop"):
            await self._logs.drop(log, owner)
        else:
            below = {int(number): position for number, position in pending["below"].items()}
            await self._logs.trim(log, below, owner)
        with store_available():
            await self._store.trims.done(log, row.announced)

    async def forget(self, rows: Mapping[str, Trimming], read: Mapping[str, object]) -> None:
        """Forget the logs among `rows` that no queue reads: those not in `read`.

        What was announced is carried out before: a queue that is made later must not meet it.
        """
        places = asyncio.Semaphore(PENDING_AT_ONCE)

        async def carry_out(log: str, row: Trimming) -> None:
            async with places:
                with _later(log):
                    await self._carry_out(log, row)

        unread = {log: row for log, row in rows.items() if log not in read}
        pending = [carry_out(log, row) for log, row in unread.items() if row.pending is not None]
        await asyncio.gather(*pending)
        for log, row in unread.items():
            with store_available():
                await self._store.trims.forget(log, row.readers)


def _text(below: Mapping[int, str], owner: LogOwner, *, drop: bool = False) -> str:
    """What is pending. A replica of a version without ends trims nothing, and takes it for done."""
    numbers = {str(number): position for number, position in below.items()}
    fields = {"below": numbers, "owner": [owner.queue_id, owner.queue, owner.created_at]}
    return orjson.dumps({**fields, "drop": True} if drop else fields).decode()


@contextmanager
def _later(log: str) -> Iterator[None]:
    """What a log that is away does not allow now stays announced, and the upkeep tries it again."""
    try:
        yield
    except Unavailable as error:
        _log.warning("the upkeep will trim or drop a log later", log=log, error=str(error))
