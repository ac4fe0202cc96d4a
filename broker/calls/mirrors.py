"""Positions of queues on Kafka, mirrored into consumer groups, for tools that watch groups.

A queue with a `mirror_group` has its committed positions stored as the offsets of this group. They
are for people only: nothing ever reads them back, and no rule of the contract depends on them.

**Who writes.** One replica (`broker.store.mirrors`), every `ROUND_SECONDS`. It reads the committed
positions in the database, whichever replica took the commits and releases, and stores those that
are not what it has stored last, all of a queue in one request. So an offset is at most a round and
a request older than the position, also after a handoff. Large queues are read less often.

**What may go wrong.** An offset is a copy of a position that was committed at some time.

* *Two replicas* write for a moment if one was frozen and its claim is over. Then an offset may go
  back to an older position. Whoever holds the claim stores all positions again every
  `WHOLE_SECONDS`, so it is right again by then. The same renews offsets before Kafka forgets them.
* *Positions that are set back* are mirrored as they are: offsets go back, and tools show the lag.
* *A partition without a position* has no offset, as in a group that has not committed. A new
  partition of a topic that grows gets its offset with its first commit.
* *A position before the first message* of the topic is mirrored as it is, and so is its lag.
* *The group has members*: Kafka refuses offsets from outside. Without rights, or without a broker,
  they are refused, too. All of it is tried again, after growing pauses. If it fails twice in a row,
  the queue has the condition `mirror_failed`. Queues and consumers do not notice.
* *Two queues took one group* at the same moment, when each was not yet seen by the other: only the
  one that was created first is mirrored, and the other has the condition.
* *The queue is deleted*, or gets another group: the offsets stay in Kafka until it forgets them. A
  group may have been the user's before; nothing is deleted there.

**A log that hangs** holds up its own mirror alone: a queue's next request begins after the last one
has ended, and mirrors have threads of their own (`broker.logs.external`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import uuid4

import structlog

from broker.calls.access import QueueAccess
from broker.calls.positions import stored_positions
from broker.logs.names import canonical
from broker.logs.ports import CALLER, MIRRORS, Logs
from broker.logs.positions import number_of
from broker.store.mirrors import Mirrored
from broker.store.ports import StoreUnavailable

_log = structlog.get_logger()

ROUND_SECONDS = 0.5
CLAIM_SECONDS = 5.0
CLAIM_PAUSE_SECONDS = 1.0
WHOLE_SECONDS = 60.0
# So many positions are read in a second, at most, of one queue.
POSITIONS_PER_SECOND = 4000
LONGEST_PAUSE_SECONDS = 15.0
TAKEN = "another queue on this topic is mirrored into it; choose another group"
# A failure is shown if so many attempts in a row have failed: one may meet a broker that restarts.
SHOWN_FAILURES = 2
MOST_TEXT = 300


@dataclass(slots=True)
class _Mirror:
    """What this replica knows of one queue's mirror. Times are of the replica.

    `stored`: the positions in the group, as far as this replica has stored them. `failures`: so
    many attempts in a row. `shown`: the failure that the store has; not None before the first
    success, because another replica may have reported one. `taken`: an earlier queue has the group.
    """

    stored: dict[int, str] = field(default_factory=dict)
    whole_at: float = 0.0
    next_at: float = 0.0
    failures: int = 0
    shown: str | None = ""
    taken: bool = False
    task: asyncio.Task[None] | None = None


class Mirrors:
    """The mirrors of all queues, as one replica keeps them."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._store = queues.store
        self._now = queues.replica.monotonic
        self._logs = logs
        self._replica = uuid4().hex
        self._claim_at = self._claimed_until = float("-inf")
        self._mirrors: dict[Mirrored, _Mirror] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def round(self) -> None:
        """One round, if the mirrors are this replica's. Raises StoreUnavailable.

        Requests to Kafka may go on after it.
        """
        if self._stopping.is_set():
            return
        now = self._now()
        if now >= self._claim_at:
            self._claim_at = now + CLAIM_PAUSE_SECONDS
            if await self._store.mirrors.claim(self._replica, CLAIM_SECONDS):
                self._claimed_until = now + CLAIM_SECONDS
        if now >= self._claimed_until:
            self._mirrors.clear()
            return
        found = await self._store.mirrors.queues()
        if self._stopping.is_set():
            return
        self._mirrors = {queue: self._mirrors.get(queue) or _Mirror() for queue in found}
        first: dict[tuple[str, str], Mirrored] = {}
        for queue, mirror in self._mirrors.items():
            group = canonical(queue.log), queue.group
            mirror.taken = first.setdefault(group, queue) != queue
            if now >= mirror.next_at and (mirror.task is None or mirror.task.done()):
                mirror.task = asyncio.create_task(self._mirror(queue, mirror))
                self._tasks.add(mirror.task)
                mirror.task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way, and begin nothing more."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _mirror(self, queue: Mirrored, mirror: _Mirror) -> None:
        CALLER.set(MIRRORS)
        now = self._now()
        mirror.next_at = now + LONGEST_PAUSE_SECONDS
        try:
            positions = await stored_positions(self._store, queue.queue_id)
            if now >= mirror.whole_at:
                mirror.stored.clear()
                mirror.whole_at = now + WHOLE_SECONDS
            new = {
                number: position
                for number, position in positions.items()
                if position is not None
                and mirror.stored.get(number) != position
                # What is no position of a topic was stored by hand.
                and number_of(queue.log, position) is not None
            }
            why = TAKEN if mirror.taken else None
            if new and not mirror.taken:
                why = await self._logs.store_offsets(queue.log, queue.group, new)
            await self._note(queue, mirror, new, why)
        except StoreUnavailable:
            # The sweep says that the database is away.
            mirror.next_at = now
            return
        except Exception:
            _log.exception("a mirror failed", log=queue.log, group=queue.group)
            return
        # The next round is soon enough after a success, and for most queues.
        pause = len(positions) / POSITIONS_PER_SECOND
        if mirror.failures:
            pause = max(pause, min(LONGEST_PAUSE_SECONDS, ROUND_SECONDS * 2**mirror.failures))
        mirror.next_at = self._now() + pause

    async def _note(
        self, queue: Mirrored, mirror: _Mirror, new: dict[int, str], why: str | None
    ) -> None:
        """What became of an attempt: `why` it failed."""
        if why is None:
            mirror.stored.update(new)
            mirror.failures = 0
        else:
            # Some may be stored.
            mirror.stored.clear()
            mirror.failures += 1
            why = f"the positions are not in the consumer group {queue.group}: {why}"[:MOST_TEXT]
            if mirror.failures < SHOWN_FAILURES:
                return
        # Without anything to store it is not known whether the mirror works.
        is_known = bool(new) or why is not None or (mirror.shown or "").endswith(TAKEN)
        if why != mirror.shown and is_known:
            await self._store.mirrors.report(queue, why)
            mirror.shown = why
