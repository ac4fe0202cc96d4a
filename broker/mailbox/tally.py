"""What a replica has committed, counted for Prometheus.

Each record is counted by the replica that committed it and by no other, so that the sum over
replicas is the truth.

Counters have the queue as a label. Their number must not grow with what users create: a replica
counts so many queues by name, and all others as one, `OTHER`. A name stays taken until the queue is
known to be gone (`QueueLabels.keep`); who may not see a queue is not shown its counters
(`api.http.metrics`).
"""

from collections import Counter as Counted
from collections.abc import Collection, Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from broker.core import records as r
from broker.core.records import Entry

HANDOFF_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
ROUND_TRIP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
MOST_QUEUES = 1000
OTHER = "(other)"
"""Stands for all queues beyond the first `MOST_QUEUES`; no queue can have this name."""


class QueueLabels:
    """The queues that are counted by name, and the metrics with such a label."""

    def __init__(self, most: int = MOST_QUEUES) -> None:
        self._most = most
        self._names: set[str] = set()
        self._metrics: list[MetricWrapperBase] = []

    def of(self, name: str) -> str:
        """The value of the label `queue`."""
        if name in self._names:
            return name
        if len(self._names) >= self._most:
            return OTHER
        self._names.add(name)
        return name

    def register(self, *metrics: MetricWrapperBase) -> None:
        """Their series of a queue end with it."""
        self._metrics += metrics

    def keep(self, existing: Collection[str]) -> None:
        """These are all queues that exist: forget the others."""
        for name in self._names.difference(existing):
            self._names.discard(name)
            for metric in self._metrics:
                metric.remove_by_labels({"queue": name})


class Tally:
    """Counters that `note` raises; whoever serves the metrics registers `collectors`."""

    def __init__(self, queues: QueueLabels | None = None) -> None:
        self.queues = queues or QueueLabels()
        self._rebalances = Counter(
            "counterpoise_rebalances",
            "Rebalances begun, by trigger.",
            ("queue", "trigger"),
            registry=None,
        )
        self._handoffs = Counter(
            "counterpoise_handoffs",
            "Handoffs that ended, by outcome: graceful, forced, orphaned, replaced, called_off.",
            ("queue", "outcome"),
            registry=None,
        )
        self._handoff_seconds = Histogram(
            "counterpoise_handoff_duration_seconds",
            "How long partitions paused: from the moment an owner is told to finish to the end of "
            "the handoff.",
            ("queue",),
            buckets=HANDOFF_SECONDS,
            registry=None,
        )
        self._grants = Counter(
            "counterpoise_grants",
            "Partitions granted, with or without a handoff, by how the previous owner let go.",
            ("queue", "handed_over"),
            registry=None,
        )
        self._warmups = Counter(
            "counterpoise_warmups",
            "Warm-ups that ended: ready (the successor said so) or cut_short (by time or a drain).",
            ("queue", "outcome"),
            registry=None,
        )
        self._bound = Counter("counterpoise_flows_bound", "Flows bound.", ("queue",), registry=None)
        self._left = Counter(
            "counterpoise_flows_left",
            "Flows that left, by reason; lease_expired: they went silent.",
            ("queue", "reason"),
            registry=None,
        )
        self.commit_batch = Histogram(
            "counterpoise_commit_batch_calls",
            "Commits of flows that went to the database together; of all queues.",
            buckets=(1, 2, 5, 10, 20, 50, 100),
            registry=None,
        )
        self.round_trip = Histogram(
            "counterpoise_database_round_trip_duration_seconds",
            "Answered round trips of frequent statements to the database of the queues.",
            buckets=ROUND_TRIP_SECONDS,
            registry=None,
        )
        self.queues.register(*self._of_queues)

    @property
    def collectors(self) -> tuple[MetricWrapperBase, ...]:
        return (*self._of_queues, self.commit_batch, self.round_trip)

    @property
    def _of_queues(self) -> tuple[MetricWrapperBase, ...]:
        return (
            self._rebalances,
            self._handoffs,
            self._handoff_seconds,
            self._grants,
            self._warmups,
            self._bound,
            self._left,
        )

    def note(self, name: str, entries: Iterable[Entry]) -> None:
        """Count what was just committed on the queue of this name."""
        queue = self.queues.of(name)
        for record in (record for entry in entries for record in entry.records):
            match record:
                case r.RebalanceStarted():
                    self._rebalances.labels(queue, record.trigger).inc()
                case r.Granted():
                    self._granted(queue, record)
                case r.WarmupsEnded():
                    outcome = "ready" if record.ready else "cut_short"
                    self._warmups.labels(queue, outcome).inc(len(record.partitions))
                case r.HandoffsCalledOff():
                    self._handoffs.labels(queue, "called_off").inc(len(record.partitions))
                case r.FlowBound():
                    self._bound.labels(queue).inc()
                case r.FlowLeft() | r.FlowDeparted():
                    self._left.labels(queue, record.reason).inc()

    def _granted(self, queue: str, record: r.Granted) -> None:
        """A record may have hundreds of grants, and to find a counter takes longer than to raise
        it.
        """
        handed = [grant for grant in record.grants if grant.by_handoff]
        for counter, grants in ((self._grants, record.grants), (self._handoffs, handed)):
            for handed_over, count in Counted(grant.handed_over for grant in grants).items():
                counter.labels(queue, handed_over).inc(count)
        seconds = [grant.seconds for grant in handed if grant.seconds is not None]
        if seconds:
            observe = self._handoff_seconds.labels(queue).observe
            for each in seconds:
                observe(each)
