"""How many consumers a queue should have: a number for an autoscaler, such as KEDA.

More consumers than partitions are useless, and each change of their number costs a holddown and
handoffs, in which messages wait. The lag that grows in this time is no reason for another change:
an autoscaler that follows the lag alone would answer its own changes for ever. So (docs,
*Autoscaling*):

1. **Up** as far as the lag demands: one consumer for each `lag_per_consumer` messages, at most one
   for each partition.
2. **Down** by one step at a time, only while the lag is less than half of what the remaining
   consumers are there for, and only when the queue is Ready and has been left alone for
   `quiet_seconds`.
3. **Never down while anything moves.** In a holddown the consumers that were there before it count:
   one that is restarted comes back, and what runs must not be stopped in its place.
4. **Unknown is no change.** While the log does not say the lag, the present number stays.
5. **Up by age**, if there is a `max_lag_seconds`: half as many more while the oldest message that
   is not processed waits longer, but only when the queue has been Ready and left alone for as long.
   So what waited because of a change does not count: it was there before, or the consumers that
   there are now had the whole time for it. And none is taken away until the age is below half.
6. **Enough for the maxima.** If all consumers have a maximum (`max_partitions`), too few of them
   leave partitions without an owner. So there are at least as many as it takes with the mean of
   their maxima, also without lag: a moment without lag is no reason to serve a part of the queue.

The answer counts consumers, whatever their weights: `lag_per_consumer` is what one of mean weight
is there for.

A step is one consumer, and one more for each ten that are present: Kubernetes ignores a change of a
tenth or less (the tolerance of its HorizontalPodAutoscaler). A step up is at least as large, but
never beyond the bounds.

So two steps down are at least `quiet_seconds` apart, and a step down comes at least `quiet_seconds`
after any change. Nothing is remembered for it: the queue's own history says when it was changed.
So all replicas give the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from broker.core.queue import Queue
from broker.core.transitions import Status


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of a queue at one moment.

    `lag`: messages that are not processed yet, None if unknown, and `lag_seconds` the age of the
    oldest, 0 if there is none. `consumers`: bound flows that do
    not drain; `consumers_before`: as many as before the trigger of a holddown or rebalance that
    is under way. `quiet_for`: seconds since it was last changed, 0 unless Ready. `needed`: so many
    consumers like them may take all partitions; 0 if any number may.
    """

    partitions: int
    lag: int | None
    consumers: int
    consumers_before: int
    is_ready: bool
    quiet_for: float
    lag_seconds: float | None = None
    needed: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """`minimum`: the least answer, 0 or more. `maximum`: the most, None: one for each partition.
    `max_lag_seconds`: how long a message may wait, None: that does not count.
    """

    lag_per_consumer: int
    quiet_seconds: float = 300.0
    minimum: int = 0
    maximum: int | None = None
    max_lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """So many consumers, and why: `lag`, `maxima`, `age`, `holding`, `quiet`, `shrinking`,
    `unknown`.
    """

    consumers: int
    why: str


def advise(load: Load, rule: Rule) -> Advice:
    """How many consumers the queue should have."""
    most = load.partitions if rule.maximum is None else min(rule.maximum, load.partitions)
    advice = _unbounded(load, rule, most)
    return Advice(max(min(rule.minimum, most), min(advice.consumers, most)), advice.why)


def _unbounded(load: Load, rule: Rule, most: int) -> Advice:
    present = load.consumers if load.is_ready else max(load.consumers, load.consumers_before)
    if load.lag is None:
        return Advice(present, "unknown")
    by_lag = math.ceil(load.lag / rule.lag_per_consumer)
    demanded = min(max(by_lag, load.needed), most)
    step = present // 10 + 1
    if demanded > present:
        return Advice(max(demanded, present + step), "lag" if by_lag >= demanded else "maxima")
    if not load.is_ready:
        return Advice(present, "holding")
    age, limit = load.lag_seconds, rule.max_lag_seconds
    if limit is not None and age is not None and age > limit and load.quiet_for > limit:
        return Advice(present + math.ceil(present / 2), "age")
    if load.quiet_for < rule.quiet_seconds:
        return Advice(present, "quiet")
    if limit is not None and age is None:
        return Advice(present, "unknown")
    if limit is not None and age is not None and age * 2 > limit:
        return Advice(present, "age")
    fewer = max(0, present - step)
    if load.lag and load.lag * 2 >= rule.lag_per_consumer * fewer:
        return Advice(present, "lag")
    return Advice(fewer, "shrinking") if fewer >= load.needed else Advice(present, "maxima")


def load_of(queue: Queue, lag: int | None, now: float, *, lag_seconds: float | None = None) -> Load:
    """The load of a queue of the core."""
    is_ready = queue.status is Status.READY
    return Load(
        partitions=queue.share_count,
        lag=lag,
        consumers=queue.takers,
        consumers_before=queue.flows_before,
        is_ready=is_ready,
        quiet_for=max(0.0, now - queue.since) if is_ready else 0.0,
        lag_seconds=lag_seconds,
        needed=_needed(queue),
    )


def _needed(queue: Queue) -> int:
    room = 0
    for bind_number in queue.ranking.counts:
        most = queue.demand(bind_number).most
        if most is None:
            return 0
        room += most
    return math.ceil(queue.share_count * queue.takers / room) if room else 0
