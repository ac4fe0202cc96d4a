"""The number of consumers for an autoscaler: the rules, and no flapping on the real core.

An autoscaler follows the number every 15 s, without any patience of its own; as Kubernetes' does,
it takes a change of a tenth for none.
Its consumers take half a minute to start and drain before they end.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from broker.core.transitions import State
from broker.scaling import Load, Rule, advise, load_of

RULE = Rule(lag_per_consumer=1000, quiet_seconds=300)
LOAD = Load(partitions=8, lag=0, consumers=4, consumers_before=4, is_ready=True, quiet_for=1000.0)


@pytest.mark.parametrize(
    ("load", "consumers", "why"),
    [
        (LOAD, 3, "shrinking"),
        (replace(LOAD, lag=3999), 4, "lag"),
        (replace(LOAD, lag=4001), 5, "lag"),
        (replace(LOAD, lag=1499), 3, "shrinking"),
        (replace(LOAD, lag=1500), 4, "lag"),
        # A step is more than a tenth, up and down.
        (replace(LOAD, partitions=40, consumers=20), 17, "shrinking"),
        (replace(LOAD, partitions=40, consumers=20, lag=8499), 17, "shrinking"),
        (replace(LOAD, partitions=40, consumers=20, lag=8500), 20, "lag"),
        (replace(LOAD, partitions=40, consumers=20, lag=20_001), 23, "lag"),
        (replace(LOAD, partitions=22, consumers=20, lag=20_001), 22, "lag"),
        # Never more than partitions.
        (replace(LOAD, lag=10**9), 8, "lag"),
        (replace(LOAD, lag=10**9, partitions=2, consumers=2), 2, "lag"),
        (replace(LOAD, consumers=12, lag=10**9), 8, "lag"),
        # In a holddown those count that were there before it.
        (replace(LOAD, consumers=3, is_ready=False, quiet_for=0.0), 4, "holding"),
        (replace(LOAD, consumers=3, is_ready=False, quiet_for=0.0, lag=7500), 8, "lag"),
        (replace(LOAD, quiet_for=299.9), 4, "quiet"),
        (replace(LOAD, lag=None), 4, "unknown"),
        (replace(LOAD, lag=None, consumers=3, is_ready=False), 4, "unknown"),
        (replace(LOAD, consumers=0, consumers_before=0), 0, "shrinking"),
        (replace(LOAD, consumers=0, consumers_before=0, lag=1), 1, "lag"),
    ],
)
def test_the_rules(load: Load, consumers: int, why: str) -> None:
    advice = advise(load, RULE)
    assert (advice.consumers, advice.why) == (consumers, why)


BY_AGE = replace(RULE, max_lag_seconds=60.0)
OLD = replace(LOAD, lag=3000, lag_seconds=61.0)


@pytest.mark.parametrize(
    ("load", "consumers", "why"),
    [
        (OLD, 6, "age"),
        (replace(OLD, consumers=1), 3, "lag"),
        (replace(OLD, consumers=1, lag=900), 2, "age"),
        (replace(OLD, consumers=8), 8, "age"),
        (replace(OLD, lag=9000), 8, "lag"),
        # What waited because of the change is no reason for the next one.
        (replace(OLD, quiet_for=60.0), 4, "quiet"),
        (replace(OLD, quiet_for=61.0), 6, "age"),
        (replace(OLD, is_ready=False, quiet_for=0.0), 4, "holding"),
        # None leaves while the oldest message is half as old as it may be.
        (replace(LOAD, lag=100, lag_seconds=30.5), 4, "age"),
        (replace(LOAD, lag=100, lag_seconds=30.0), 3, "shrinking"),
        (replace(LOAD, lag_seconds=0.0), 3, "shrinking"),
        (replace(LOAD, lag=100), 4, "unknown"),
        (replace(LOAD, lag=7500), 8, "lag"),
    ],
)
def test_the_rules_with_a_largest_age(load: Load, consumers: int, why: str) -> None:
    advice = advise(load, BY_AGE)
    assert (advice.consumers, advice.why) == (consumers, why)


def test_the_age_alone_changes_nothing() -> None:
    assert advise(OLD, RULE) == advise(replace(OLD, lag_seconds=None), RULE)


def test_the_bounds_hold_whatever_the_load() -> None:
    bounded = replace(RULE, minimum=2, maximum=6)
    assert advise(replace(LOAD, consumers=0), bounded).consumers == 2
    assert advise(replace(LOAD, lag=10**9), bounded).consumers == 6
    few = replace(LOAD, partitions=1, consumers=0)
    assert advise(few, bounded).consumers == 1


Follow = Callable[[Load], int]


@dataclass
class Change:
    """Consumers are started, or one that is bound is told to leave."""

    at: float
    is_up: bool
    status: str


class Cluster:
    """A queue on the real core, its messages, and an autoscaler; virtual time in steps of 1 s."""

    START_SECONDS = 30
    SYNC_SECONDS = 15
    TOLERANCE = 0.1
    RATE = 100.0  # messages a second and consumer

    def __init__(self, follow: Follow, arrivals: Callable[[int], float], partitions: int = 8):
        settings = Settings(partition_count=partitions, rebalance_delay=5.0, max_handoff_time=30.0)
        self.queue = Queue("q", "q", settings, 0.0)
        replay_all(self.queue, (r.PartitionsAdded(0, partitions, 0.0),), 1)
        self.follow, self.arrivals = follow, arrivals
        self.lag = [0.0] * partitions
        self.now = 0
        self.replicas = 0
        self.made = 0
        self.starting: list[tuple[int, str]] = []
        self.alive: list[str] = []
        self.changes: list[Change] = []
        self.most = 0
        self.random = random.Random(7)
        # Of each partition, after each second.
        self.arrived = [0.0]
        self.oldest = 0.0

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.core()
            self.consume()
            if self.now % self.SYNC_SECONDS == 0:
                self.scale()
            for at, name in [one for one in self.starting if one[0] <= self.now]:
                self.starting.remove((at, name))
                self.alive.append(name)
                self.do(c.Bind(name, name, name, 10.0, False))

    def do(self, command: c.Command) -> None:
        decide(self.queue, command, float(self.now))
        self.queue.journal.forget()

    def core(self) -> None:
        self.do(c.Advance())
        for partition in list(self.queue.existing()):
            if partition.state is State.REVOKING and partition.owner is not None:
                item = c.ReleaseItem(partition.number, partition.epoch)
                self.do(c.Release(partition.owner.id, (item,)))
        for flow in list(self.queue.flows.values()):
            if flow.draining and not (flow.owned and self.queue.takers):
                self.do(c.Unbind(flow.id))

    def consume(self) -> None:
        self.arrived.append(self.arrived[-1] + self.arrivals(self.now) / len(self.lag))
        for number in range(len(self.lag)):
            self.lag[number] += self.arrivals(self.now) / len(self.lag)
        for flow in self.queue.flows.values():
            can = self.RATE
            for number in sorted(flow.owned, key=lambda number: -self.lag[number]):
                if self.queue.partitions[number].state is State.OWNED:
                    done = min(can, self.lag[number])
                    self.lag[number] -= done
                    can -= done

    @property
    def age(self) -> float:
        """How long the oldest message that is not processed has waited."""
        most = max(self.lag)
        if most < 1:
            return 0.0
        return float(self.now - bisect_right(self.arrived, self.arrived[-1] - most))

    def scale(self) -> None:
        lag = math.ceil(sum(self.lag))
        self.oldest = max(self.oldest, self.age)
        wanted = self.follow(load_of(self.queue, lag, float(self.now), lag_seconds=self.age))
        status = self.queue.status.value
        if self.replicas and abs(1.0 - wanted / self.replicas) <= self.TOLERANCE:
            return
        if wanted > self.replicas:
            self.changes.append(Change(self.now, True, status))
        while self.replicas < wanted:
            self.made += 1
            self.starting.append((self.now + self.START_SECONDS, f"c{self.made}"))
            self.replicas += 1
        while self.replicas > wanted:
            self.replicas -= 1
            if self.starting:
                self.starting.pop()
            else:
                self.changes.append(Change(self.now, False, status))
                self.do(c.Drain(self.alive.pop()))
        self.most = max(self.most, self.replicas)

    def restart_one(self) -> None:
        """A pod is replaced, as in a rolling deployment: the autoscaler's number stays."""
        name = self.alive.pop(0)
        self.do(c.Unbind(name))
        self.made += 1
        self.starting.append((self.now + 4, f"c{self.made}"))

    @property
    def reversals(self) -> int:
        """How often a consumer left, and others were started after it; or the other way round."""
        return sum(a.is_up != b.is_up for a, b in pairwise(self.changes))


def ours(load: Load) -> int:
    return advise(load, RULE).consumers


def by_lag_alone(load: Load) -> int:
    return min(math.ceil((load.lag or 0) / RULE.lag_per_consumer), load.partitions)


def daily(now: int) -> float:
    """Enough for 3.5 consumers, with waves, and a burst in the middle."""
    burst = 400.0 if 3600 <= now < 3900 else 0.0
    return 350.0 + 100.0 * math.sin(now / 300) + burst


@pytest.mark.long
def test_it_does_not_flap_where_the_lag_alone_would() -> None:
    told, naive = Cluster(ours, daily), Cluster(by_lag_alone, daily)
    told.run(4 * 3600)
    naive.run(4 * 3600)
    assert naive.reversals > 5 * max(1, told.reversals)
    assert told.most <= len(told.lag)
    # Nobody is told to leave while anything moves, nor soon after another one was.
    downs = [change for change in told.changes if not change.is_up]
    assert downs
    assert all(change.status == "Ready" for change in downs)
    assert all(b.at - a.at >= RULE.quiet_seconds for a, b in pairwise(downs))
    # It does its work: what came is processed but for what is allowed to wait.
    assert sum(told.lag) < RULE.lag_per_consumer * len(told.lag)


def by_age(load: Load) -> int:
    """With a `lag_per_consumer` that never demands a second consumer."""
    return advise(load, replace(BY_AGE, lag_per_consumer=10**7)).consumers


def in_proportion_to_the_age(load: Load) -> int:
    return min(max(1, math.ceil(load.consumers * (load.lag_seconds or 0.0) / 60)), load.partitions)


@pytest.mark.long
def test_by_age_no_change_is_the_answer_to_the_one_before() -> None:
    told, naive = Cluster(by_age, daily), Cluster(in_proportion_to_the_age, daily)
    told.run(4 * 3600)
    naive.run(4 * 3600)
    assert told.reversals * 3 < naive.reversals
    assert told.oldest < 4 * 60
    # What waited because of a change is processed, or has waited for 60 s since.
    assert all(b.at - a.at > 60 for a, b in pairwise(told.changes))


def test_a_rolling_deployment_changes_nothing() -> None:
    cluster = Cluster(ours, lambda now: 350.0)
    cluster.run(1800)
    before, replicas = len(cluster.changes), cluster.replicas
    for _ in range(len(cluster.alive)):
        cluster.restart_one()
        cluster.run(20)
    assert all(change.is_up for change in cluster.changes[before:])
    assert cluster.replicas >= replicas


def test_many_consumers_end_at_the_minimum_without_lag() -> None:
    bounded = replace(RULE, quiet_seconds=30, minimum=2)
    cluster = Cluster(lambda load: advise(load, bounded).consumers, lambda now: 0.0, partitions=20)
    cluster.lag = [1000.0] * 20
    cluster.run(60)
    assert (cluster.replicas, cluster.most) == (20, 20)
    cluster.run(900)
    assert cluster.replicas == 2


def test_an_idle_queue_goes_to_nothing_and_comes_back() -> None:
    cluster = Cluster(ours, lambda now: 500.0 if now < 1200 else 0.0)
    cluster.run(1200)
    assert cluster.replicas >= 5
    cluster.run(4 * 3600)
    assert cluster.replicas == 0
    cluster.arrivals = lambda now: 10.0
    cluster.run(60)
    assert cluster.replicas == 1
