"""The age at commit: how long messages take from `publish` to their commit, measured by samples.

**Who knows what.** When a message was published, the log knows: it is in the message's row, stream
entry or record. When it was committed, the replica knows that committed it. The consumer knows
both, but its clock may be wrong, and a process of Spark that commits has seen positions alone. So
no client takes part. A commit says which positions it passes, from the committed one before to its
own. Each of them is a message, and the log knows its time.

**The samples.** Of each partition a replica keeps one message among those that were committed
since the last look, each with the same chance (of *n* messages that come on top of *m*, one takes
its place with the chance *n* / (*n* + *m*)). A *look*, every `LOOK_SECONDS`, asks the log how old
these messages are by now, and takes off the time since their commits. An age is of the log's clock
alone, and the time since the commit of this replica's, so no two clocks are compared (Kafka shows
none: there the service's counts). The result is too low by the way of the log's answer, some
milliseconds.

**What is not sampled**: what a release commits, at a handoff or at the end of a consumer; and
positions that are no numbers. Messages that are read again, after positions were set back, count
again. The first commit of a partition counts with its last message, because the replica does not
know where the log began.

**The bounds.** A commit costs no statement and asks no log: its old positions are in the answer of
its own statement, and of each statement at most `MOST_NOTED` items are noted, in memory. A look
asks for at most `MOST_PARTITIONS` messages of a queue, of the partitions that committed first after
the look before; at most `MOST_QUEUES` queues are noted at a time. It begins with no queue later
than `LOOK_BUDGET` after its own beginning, and the next one waits `REST` times as long as it took:
looking takes at most 5 % of the time. What a look does not reach is forgotten, and so is what a
replica has not looked at when it ends: the other samples are as good.

A client can only commit positions. One beyond the end of the log has no message, and is left out.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from broker.calls.access import QueueAccess
from broker.calls.monitoring import DECIMAL
from broker.core.errors import BrokerError
from broker.logs.ports import Logs
from broker.replica.events import AGE_SECONDS, MOST_QUEUES
from broker.store.measurements import SLOT_SECONDS
from broker.store.ports import PositionCommit
from counterpoise import wire

LOOK_SECONDS = 5.0
LOOK_BUDGET = 2.0
REST = 20.0
# A log that does not answer takes a second and a half.
AT_ONCE = 4
MOST_NOTED = 100
MOST_PARTITIONS = 64


@dataclass(slots=True)
class Noted:
    """A message of a partition, when it was committed (monotonic), and among how many."""

    position: int
    at: float
    among: int


class CommitAges:
    """The samples of this replica's commits."""

    def __init__(self, queues: QueueAccess, logs: Logs, random: Random | None = None) -> None:
        self._queues = queues
        self._logs = logs
        self._monotonic = queues.replica.monotonic
        self._random = random or Random()
        # By the ids of queues and partitions.
        self._samples: dict[str, dict[int, Noted]] = {}
        # What was seen and is not stored yet: how many by `AGE_SECONDS`, by the ids of queues.
        self._counts: dict[str, list[int]] = {}
        self._rests_until = float("-inf")

    # ------------------------------------------------------------------ commits

    def note(self, commits: Sequence[PositionCommit], replaced: Mapping[int, str | None]) -> None:
        """These were just committed; `replaced` as in `PositionOutcomes`."""
        now = self._monotonic()
        places = [*replaced]
        if len(places) > MOST_NOTED:
            places = self._random.sample(places, MOST_NOTED)
        for place in places:
            self._note(commits[place], replaced[place], now)

    def _note(self, commit: PositionCommit, replaced: str | None, now: float) -> None:
        if not DECIMAL.fullmatch(commit.position):
            return
        end = int(commit.position)
        if replaced is None:
            # Where the partition begins is not known here: its last message.
            start = end - 1
        elif DECIMAL.fullmatch(replaced):
            start = int(replaced)
        else:
            return
        if not 0 <= start < end:
            return
        of_queue = self._samples.get(commit.queue_id)
        if of_queue is None:
            if len(self._samples) >= MOST_QUEUES:
                return
            of_queue = self._samples[commit.queue_id] = {}
        known = of_queue.get(commit.partition)
        if known is None:
            if len(of_queue) < MOST_PARTITIONS:
                position = self._random.randrange(start, end)
                of_queue[commit.partition] = Noted(position, now, end - start)
            return
        known.among += end - start
        if (chosen := self._random.randrange(known.among)) < end - start:
            known.position, known.at = start + chosen, now

    # ------------------------------------------------------------------ looks

    async def look(self) -> None:
        """Asks the logs for the ages of what was noted, and counts them."""
        began = self._monotonic()
        if began < self._rests_until:
            return
        samples, self._samples = self._samples, {}
        loaded = {one.queue_id: one.queue for one in self._queues.replica.loaded()}
        waiting = iter(samples.items())

        async def work() -> None:
            for queue_id, of_queue in waiting:
                # One that is not in memory any more is gone, or nobody has used it for long.
                if (queue := loaded.get(queue_id)) is not None:
                    found = await self._ages(queue.settings.log, of_queue)
                    self._count(queue_id, queue.name, found)
                if self._monotonic() > began + LOOK_BUDGET:
                    return

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        now = self._monotonic()
        self._rests_until = now + REST * (now - began)

    async def _ages(self, log: str, of_queue: Mapping[int, Noted]) -> Sequence[float]:
        """How old these messages were when they were committed, in seconds."""
        asked = {partition: str(one.position) for partition, one in of_queue.items()}
        try:
            ages = await self._logs.ages(log, asked)
        except (BrokerError, TimeoutError):
            return ()
        now = self._monotonic()
        return [max(0.0, age - (now - of_queue[number].at)) for number, age in ages.items()]

    def _count(self, queue_id: str, name: str, seconds: Sequence[float]) -> None:
        if not seconds:
            return
        tally = self._queues.replica.tally
        observe = tally.publish_to_committed.labels(tally.queues.of(name)).observe
        counts = self._counts.setdefault(queue_id, [0] * (len(AGE_SECONDS) + 1))
        for one in seconds:
            observe(one)
            counts[bisect_left(AGE_SECONDS, one)] += 1

    # ------------------------------------------------------------------ the last hour

    async def store(self) -> None:
        """Stores what was counted, for all replicas. Raises StoreUnavailable; then it is lost."""
        counts, self._counts = self._counts, {}
        if counts:
            at = round(self._queues.replica.clock.now())
            await self._queues.store.measurements.add_ages(at - at % SLOT_SECONDS, counts)


def committed_after(counts: Sequence[int]) -> wire.CommittedAfter | None:
    """Of counts by `AGE_SECONDS`; None if there are none."""
    sampled = sum(counts)
    if not sampled:
        return None
    return wire.CommittedAfter(sampled, _quantile(counts, 0.5), _quantile(counts, 0.99))


def _quantile(counts: Sequence[int], share: float) -> float:
    """As Prometheus' `histogram_quantile`: evenly within a bucket, and at most the last bound."""
    rank = share * sum(counts)
    for (low, high), count in zip(pairwise((0.0, *AGE_SECONDS)), counts, strict=False):
        if rank <= count:
            return low + (high - low) * rank / count
        rank -= count
    return AGE_SECONDS[-1]
