"""Ordered resizes: what the log says of its cuts, and which of them are reached.

The theory is in `broker.core.barriers`. The service knows the order of positions of the
built-in log, which are numbers, and no other log has cuts. So it takes no consumer's word for it
that a cut is reached: it compares the position. A call that says `reached_cut` only makes it look
at what other replicas have committed a moment ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import structlog
from msgspec import UNSET

from broker.calls.access import QueueAccess, act_of, mention
from broker.calls.readers import LogReaders, alone, log_owner
from broker.core import commands as c
from broker.core.access import Caller
from broker.core.barriers import Barriers
from broker.core.cuts import last_resize, refuse_unsettled
from broker.core.errors import BrokerError, Invalid, QueueNotFound, ResizeUnsettled, Unavailable
from broker.core.queue import Queue
from broker.logs.ports import Bounds, Logs, Positions
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.replica.transaction import Submission
from broker.store.ports import Act, Stored
from counterpoise import wire
from counterpoise.logs.numbered import TOO_LARGE, position_number

_log = structlog.get_logger()


class CutCalls:
    """The cuts of the logs, for the queues that read them."""

    def __init__(self, queues: QueueAccess, logs: Logs, readers: LogReaders) -> None:
        self._queues = queues
        self._store = queues.store
        self._logs = logs
        self._readers = readers

    def ordered(self, log: str, spec: wire.QueueCreate) -> bool:
        """Whether a new queue has ordered resizes: where it is not said, if it can.

        Raises Invalid where it is said, and cannot be.
        """
        refusal = self._unordered(log, spec.partitioning)
        if spec.ordered_resize and refusal is not None:
            raise refusal
        return refusal is None if spec.ordered_resize is UNSET else spec.ordered_resize

    def refuse_unordered(self, log: str, partitioning: str) -> None:
        """Raises Invalid where no resize can be ordered, and where there is none."""
        refusal = self._unordered(log, partitioning)
        if refusal is not None:
            raise refusal

    def _unordered(self, log: str, partitioning: str) -> Invalid | None:
        if partitioning == "dynamic":
            return Invalid(
                "A dynamic queue is never resized, and splits and merges keep the order of each "
                "key; leave ordered_resize out.",
                [("ordered_resize", "is for fixed queues")],
            )
        if not self._logs.takes_cuts(log):
            return Invalid(
                f"The log {log} takes no cuts, so a resize of it cannot keep the order of a key "
                "between partitions; only queues that read a built-in log have ordered resizes.",
                [("ordered_resize", "is for the built-in log")],
            )
        return None

    async def settled_followers(
        self, owner: str, followers: Iterable[str], caller: Caller | None
    ) -> tuple[int, int]:
        """At which resize of the owner these followers of its log are settled (`Change.checked`).

        Raises ResizeUnsettled if one of them is not, or does not have the owner's count yet.
        """
        checked = await self._queues.read(owner, last_resize)

        def refuse(queue: Queue) -> None:
            which = mention([queue.name], caller)
            refuse_unsettled(queue, which)
            if queue.settings.partition_count != checked[0]:
                raise ResizeUnsettled(which, "it has not followed its log yet")

        for name in followers:
            await self._queues.read(name, refuse)
        return checked

    async def settle(self, name: str) -> None:
        """Makes the log of this queue have its partition count, and takes over the log's cuts.

        Nothing if the queue has no ordered resizes. A failure is logged, and tried again when the
        queue is due.
        """
        try:
            await self._settle(name)
        except BrokerError as error:
            _log.warning("the cuts of a log are not known yet", queue=name, error=str(error))
        except Exception:
            _log.exception("taking the cuts of a log failed", queue=name)

    async def _settle(self, name: str, act: Act | None = None) -> None:
        def seen(queue: Queue) -> tuple[str, int, int] | None:
            settings = queue.settings
            if not settings.ordered_resize:
                return None
            return settings.log, settings.partition_count, queue.revision

        found = await self._queues.read(name, seen)
        if found is None:
            return
        log, count, revision = found
        if await self._readers.owns(name, log):
            owner = await self._queues.read(name, log_owner)
            await self._logs.set_partition_count(log, count, revision, owner)
            await self.lead(name, log, count)
        else:
            await self._follow(name, log, act)
        await self._queues.on(name, lambda queue: self._take(queue, log))

    async def _follow(self, name: str, log: str, act: Act | None) -> None:
        """This queue gets the log's count. Raises Unavailable while the log does not answer.

        It gets the count from the log and not from the log's owner, because the log numbers its
        resizes. By the number the queue recognizes a count that comes late.
        """
        bounds = await self._logs.bounds(log, ())
        if bounds is None:
            raise Unavailable(f"The log {log} does not say how many partitions it has.")
        command = c.FollowLog(bounds.resize, bounds.partition_count)
        await self._queues.submit(name, lambda: Submission(command, act=act))

    async def lead(
        self,
        name: str,
        log: str,
        count: int,
        *,
        discard: bool = False,
        caller: Caller | None = None,
    ) -> None:
        """The followers of this queue, the owner of the log, get its count and the log's cuts.

        Those with ordered resizes have followed the log, or await its cuts, when this is over. Only
        then the owner may take its own cuts: when it has reached them, it can be resized again. It
        waits for no others: one that cannot follow now does so with the upkeep, but does not
        discard then. So a discard that could not reach it is to be repeated.

        Two resizes on two replicas may come here in the other order than they were decided. So the
        count is read again at the end, until it is the same.
        """
        while True:
            for follower in await self._readers.followers(name, log):
                act = act_of(caller, "change_queue", follower.name)
                if follower.ordered_resize:
                    # A queue that was deleted meanwhile follows no other.
                    with suppress(QueueNotFound):
                        await self._settle(follower.name, act)
                    continue
                with alone(follower.name, but=Unavailable if discard else ()):
                    await self._readers.follow(follower.name, count, discard, act)
            led, discard = count, False
            count = await self._queues.read(name, lambda queue: queue.settings.partition_count)
            if count == led:
                return

    async def _take(self, coordinator: Coordinator, log: str) -> None:
        """Tells the queue the cuts of its log."""
        # Positions first: what is committed after that is found reached when it is committed, or
        # said by the owner.
        command = await self.cuts_of(coordinator, log, {})
        if command is not None:
            await coordinator.submit(Submission(command))

    async def look_again(self, name: str) -> None:
        """Finds what was missed: a resize by a replica that knows no cuts, and positions of
        consumers that know none."""

        def extract(queue: Queue) -> tuple[str, int, frozenset[int]]:
            barriers = queue.resize.barriers
            unreached = frozenset[int]() if barriers is None else frozenset(barriers.unreached)
            return queue.settings.log, queue.resize.seen, unreached

        log, seen, unreached = await self._queues.read(name, extract)
        bounds = await self._logs.bounds(log, ())
        if bounds is not None and bounds.resize > seen:
            await self.settle(name)
        if unreached:
            await self._queues.on(name, lambda queue: self._look_at(queue, sorted(unreached)))

    async def _look_at(self, coordinator: Coordinator, numbers: Sequence[int]) -> None:
        with store_available():
            stored = await self._store.positions(coordinator.queue_id, numbers)
        committed = [
            c.CommitItem(number, one.epoch, one.position)
            for number, one in stored.items()
            if one.position is not None
        ]
        await self.reached(coordinator, committed)

    async def cuts_of(
        self, coordinator: Coordinator, log: str, positions: Positions
    ) -> c.TakeCuts | None:
        """The cuts of the log's last resize, and which of them this queue has reached; None while
        the log does not answer.

        `positions` count instead of the committed ones.
        """
        with store_available():
            stored = await self._store.positions(coordinator.queue_id)
        bounds = await self._logs.bounds(log)
        if bounds is None:
            return None
        cuts = tuple(
            _cut(bounds, number, stored.get(number), positions)
            for number in sorted(bounds.cuts)
            if number < max(bounds.resized_from, bounds.partition_count)
        )
        return c.TakeCuts(bounds.resize, bounds.resized_from, bounds.partition_count, cuts)

    async def reached(self, coordinator: Coordinator, committed: Sequence[c.CommitItem]) -> None:
        """Lifts the barriers that waited for these positions, which are committed."""
        resize, numbers = await self._reached(coordinator, committed)
        if numbers:
            reached = (one for one in committed if one.partition in numbers)
            items = tuple((one.partition, one.epoch) for one in reached)
            await coordinator.submit(Submission(c.ReachCuts(resize, items)))

    async def reaching(
        self, coordinator: Coordinator, releases: Sequence[c.ReleaseItem]
    ) -> Sequence[c.ReleaseItem]:
        """The same, and of those that reach their cuts, which resize made them."""
        resize, numbers = await self._reached(coordinator, releases)
        if not numbers:
            return releases
        return [
            one._replace(reaches=resize) if one.partition in numbers else one for one in releases
        ]

    async def _reached(
        self, coordinator: Coordinator, committed: Sequence[c.CommitItem | c.ReleaseItem]
    ) -> tuple[int, Collection[int]]:
        """The partitions that reach their cuts with these positions, and the resize. An owner may
        know of a resize that this replica does not know yet.
        """
        says = any(one.reached_cut for one in committed)
        queue = coordinator.at_hand
        if queue is not None and queue.resize.barriers is None and not says:
            return 0, ()

        def extract(queue: Queue) -> tuple[int, Collection[int]] | None:
            barriers = queue.resize.barriers
            return None if barriers is None else _reached(barriers, committed)

        found = await coordinator.read(extract)
        if found is None and says:
            found = await coordinator.read(extract, fresh=True)
        return found or (0, ())


def _reached(
    barriers: Barriers, committed: Iterable[c.CommitItem | c.ReleaseItem]
) -> tuple[int, Collection[int]]:
    return barriers.resize, frozenset(
        one.partition
        for one in committed
        if one.partition in barriers.unreached
        and _number(one.position) >= int(barriers.cuts[one.partition])
    )


def _cut(bounds: Bounds, number: int, stored: Stored | None, given: Positions) -> c.LogCut:
    """The cut of a partition. Nothing before it is left if the log begins at it or past it."""
    start, cut = bounds.starts[number], bounds.cuts[number]
    if int(start) >= int(cut):
        return c.LogCut(number, cut, True)
    epoch, position, _ = stored or (None, None, None)
    is_reached = _number(given.get(number, position)) >= int(cut)
    return c.LogCut(number, cut, is_reached, None if number in given else epoch)


def _number(position: str | None) -> int:
    """A position as a number; below all others if it is none."""
    number = None if position is None else position_number(position, TOO_LARGE["builtin"])
    return -1 if number is None else number
