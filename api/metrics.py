"""Metrics for Prometheus: requests, results of flows' calls, commits, queues and their lag.

Every application has its own registry, so that two services in one process count separately. Paths
are route templates, never names. Counters with the label `queue` are bounded in number
(`broker.replica.events`). A caller sees the series of the queues that exist and match its key;
without a database, of those that match. What has no queue is seen by all.

**The lag of queues** (`Lags`) is measured in the background, while somebody scrapes. Measuring a
queue reads the positions of its partitions and fetches their ends from its log, page after page. So
it costs most for the largest queues. Each queue is measured again after `LAG_SECONDS`, but not
before `LAG_REST` times as long as its measuring took: the work is bounded, however large the queues
are and however often somebody scrapes. Callers for whom a queue is due wait a moment, and get the
last known numbers. Without scrapes nothing is measured.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.types import Scope

from api.streams import DEFERRED, OpenCalls
from broker.calls.monitoring import MOST_LAGS
from broker.calls.views import LagView
from broker.core.access import matches
from broker.core.commands import Result
from broker.core.errors import BrokerError
from broker.replica.events import OTHER, EventCounters
from broker.service import Broker
from counterpoise import wire

LAG_SECONDS = 10.0
LAG_REST = 20.0
FIRST_LAG_SECONDS = 1.5
# A log that does not answer takes a second and a half.
LAGS_AT_ONCE = 4
MOST_LAGS_KNOWN = 2000
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 60.0)
STATUSES = ("Ready", "Holddown", "Rebalancing")
MOST_PARTITIONS = 20_000
"""Beyond these, or `MOST_LAGS` of one queue, the lag is exported by queue and not by partition."""
_OUTCOME = operator.attrgetter("outcome")
_METHODS = frozenset(("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"))


@dataclass(slots=True)
class _KnownLag:
    view: LagView
    next_at: float


class Lags:
    """The lag of queues, by name."""

    def __init__(self, broker: Broker, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._known: dict[str, _KnownLag] = {}
        self._measuring: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(LAGS_AT_ONCE)

    def _forget_old(self, now: float) -> None:
        """Queues that nobody asked for lately; they may be gone."""
        if len(self._known) > MOST_LAGS_KNOWN:
            self._known = {name: one for name, one in self._known.items() if one.next_at > now}

    async def of(self, names: Iterable[str]) -> Mapping[str, LagView]:
        """What is known of these queues; measures what is due."""
        wanted = list(names)
        now = self._monotonic()
        self._forget_old(now)
        due = [
            name for name in wanted if name not in self._known or self._known[name].next_at <= now
        ]
        for name in due:
            if name not in self._measuring:
                self._measuring[name] = asyncio.create_task(self._measure(name))
        if due:
            measuring = [self._measuring[name] for name in due]
            await asyncio.wait(measuring, timeout=FIRST_LAG_SECONDS)
        return {name: self._known[name].view for name in wanted if name in self._known}

    async def _measure(self, name: str) -> None:
        async with self._places:
            began = self._monotonic()
            lag = asyncio.ensure_future(self._broker.monitoring.lag(name))
            # What takes longer goes on without a place: others do not wait for a log that hangs.
            await asyncio.wait([lag], timeout=FIRST_LAG_SECONDS)
        try:
            view = await lag
        except (BrokerError, TimeoutError):
            self._known.pop(name, None)
        else:
            now = self._monotonic()
            self._known[name] = _KnownLag(view, now + max(LAG_SECONDS, LAG_REST * (now - began)))
        finally:
            del self._measuring[name]


class Metrics:
    """The metrics of one application."""

    def __init__(self, open_calls: OpenCalls, tally: EventCounters) -> None:
        self.registry = CollectorRegistry()
        self._labels = tally.queues
        for collector in tally.collectors:
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Gauge(
            "counterpoise_build_info",
            "1; the label says which version of the service this is.",
            ("version",),
            registry=self.registry,
        ).labels(installed_version()).set(1)
        self._requests = Counter(
            "counterpoise_http_requests",
            "Requests answered.",
            ("method", "path", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "counterpoise_http_request_duration_seconds",
            "From a request's arrival to the end of its answer; long polls wait by design.",
            ("method", "path"),
            buckets=SECONDS,
            registry=self.registry,
        )
        # To look up both by their labels takes longer than to count.
        self._of_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._results = Counter(
            "counterpoise_flow_results",
            "Partitions named in commit, release, ready and children, by outcome.",
            ("queue", "call", "outcome"),
            registry=self.registry,
        )
        self._labels.register(self._results)
        for call in ("commit", "release", "ready", "children"):
            self._labels.from_zero(self._results, call=call, outcome="stale_epoch")
        open_gauge = Gauge(
            "counterpoise_http_open_calls",
            "Long polls and event streams that are open.",
            registry=self.registry,
        )
        open_gauge.set_function(lambda: len(open_calls))

    def count_request(self, method: str, path: str, started: float, status: int) -> None:
        """A request has ended that was `started` by `time.perf_counter`."""
        known = self._of_route.get((method, path, status))
        if known is None:
            counter = self._requests.labels(method, path, str(status))
            known = self._of_route[method, path, status] = (
                counter,
                self._seconds.labels(method, path),
            )
        counter, seconds = known
        counter.inc()
        seconds.observe(time.perf_counter() - started)

    def count(self, scope: Scope, started: float, status: int) -> None:
        """The request of this scope is answered, or waits, and is counted when it ends."""
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        if calls := scope.get(DEFERRED):
            calls[0].count = functools.partial(self.count_request, method, path, started)
        else:
            self.count_request(method, path, started, status)

    def count_results(self, queue: str, call: str, results: Iterable[Result]) -> None:
        """By outcome, what became of the items of a call."""
        outcomes = collections.Counter(map(_OUTCOME, results))
        label = self._labels.of(queue)
        for outcome, count in outcomes.items():
            self._results.labels(label, call, outcome).inc(count)

    async def exposition(
        self,
        queues: Sequence[wire.Queue] | None,
        lags: Mapping[str, LagView],
        patterns: tuple[str, ...],
    ) -> bytes:
        """All that the owner of these patterns may see, in Prometheus' text format.

        `queues` None: they are not known now. A large exposition is written in a thread, beside
        other work.
        """
        names = None if queues is None else {queue.name for queue in queues}
        self._labels.show(names or ())
        visible = _Visible(self.registry, names, patterns, [*_families(queues or (), lags)])
        return await asyncio.to_thread(generate_latest, visible)

    def keep(self, existing: Collection[str]) -> None:
        """These are all queues that exist: the counters of others end."""
        self._labels.keep(existing)


class _Visible(CollectorRegistry):
    """What a registry has of some queues, and what has no queue; and more."""

    def __init__(
        self,
        registry: CollectorRegistry,
        names: Collection[str] | None,
        patterns: tuple[str, ...],
        more: Sequence[Metric],
    ) -> None:
        super().__init__()
        self._registry, self._names, self._patterns, self._more = registry, names, patterns, more

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if self._shows(one.labels)]
            yield family
        yield from self._more

    def _shows(self, labels: Mapping[str, str]) -> bool:
        name = labels.get("queue")
        if name is None:
            return True
        if name == OTHER:
            return "*" in self._patterns
        return name in self._names if self._names is not None else matches(self._patterns, name)


def _families(queues: Sequence[wire.Queue], lags: Mapping[str, LagView]) -> Iterator[Metric]:
    """The gauges of queues."""

    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"counterpoise_{name}", text, labels=("queue", *labels))

    for attribute, name, text in (
        ("partition_count", "queue_partitions", "Configured partitions."),
        (
            "operational_partition_count",
            "queue_operational_partitions",
            "Partitions, retiring ones included.",
        ),
        ("flow_count", "queue_flows", "Bound flows."),
        ("active_flow_count", "queue_active_flows", "Flows that own a partition."),
        (
            "paused_partition_count",
            "paused_partitions",
            "Partitions that an administrator has paused; the lag leaves them out.",
        ),
        ("revision", "queue_revision", "The queue's revision."),
    ):
        family = gauge(name, text)
        for queue in queues:
            family.add_metric((queue.name,), getattr(queue, attribute))
        yield family
    status = gauge("queue_rebalance_status", "1 for the current status.", "status")
    conditions = gauge(
        "queue_conditions",
        "What consumers report, by kind: quarantined, invalid_position or end_refused "
        "(partitions), log_away, rows_dropped or state_lost (consumers); of the service: "
        "mirror_failed, resize_paused, over_capacity or pin_unmet (partitions).",
        "kind",
    )
    lag = gauge("queue_lag_messages", "Messages that are not processed yet, at most; their sum.")
    seconds = gauge(
        "queue_lag_seconds",
        "How long ago the oldest message that is not processed yet was published; 0: there is "
        "none. Left out while the log does not say it.",
    )
    unknown = gauge("queue_lag_unknown_partitions", "Partitions whose lag the log does not say.")
    for queue in queues:
        for one in STATUSES:
            status.add_metric((queue.name, one), one == queue.rebalance_status)
        for kind, count in (queue.conditions or {}).items():
            conditions.add_metric((queue.name, kind), count)
        if queue.name in lags:
            found = lags[queue.name]
            lag.add_metric((queue.name,), found.messages)
            unknown.add_metric((queue.name,), found.unknown)
            if found.seconds is not None:
                seconds.add_metric((queue.name,), found.seconds)
    yield from (status, conditions, lag, seconds, unknown)
    partitions = gauge(
        "partition_lag_messages",
        "Messages of a partition that are not processed yet, at most. Left out for queues with "
        f"more than {MOST_LAGS} partitions.",
        "partition",
    )
    for queue in queues:
        behind = lags[queue.name].partitions if queue.name in lags else {}
        if len(behind) + len(partitions.samples) <= MOST_PARTITIONS:
            for number, messages in behind.items():
                partitions.add_metric((queue.name, str(number)), messages)
    yield partitions


def installed_version() -> str:
    """The installed version of the service."""
    try:
        return version("counterpoise-server")
    except PackageNotFoundError:
        return "unknown"
