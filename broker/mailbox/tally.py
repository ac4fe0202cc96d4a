"""What a replica has committed, counted for Prometheus.

Each record is counted by the replica that committed it and by no other, so that the sum over
replicas is the truth. Counters have no queue label: their number must not grow with what users
create; who asks about one queue reads its history.
"""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from broker.core.state import records as r
from broker.core.state.records import Entry

HANDOFF_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Tally:
    """Counters that `note` raises; whoever serves the metrics registers `collectors`."""

    def __init__(self) -> None:
        self._rebalances = Counter(
            "counterpoise_rebalances",
            "Rebalances begun, by trigger.",
            ("trigger",),
            registry=None,
        )
        self._grants = Counter(
            "counterpoise_grants",
            "Partitions granted, by how the previous owner let go.",
            ("handed_over",),
            registry=None,
        )
        self._handoff_seconds = Histogram(
            "counterpoise_handoff_seconds",
            "From the start of a handoff to its end, warm-up included.",
            buckets=HANDOFF_SECONDS,
            registry=None,
        )
        self._bound = Counter("counterpoise_flows_bound", "Flows bound.", registry=None)
        self._left = Counter(
            "counterpoise_flows_left", "Flows that left, by reason.", ("reason",), registry=None
        )

    @property
    def collectors(self) -> tuple[MetricWrapperBase, ...]:
        return (self._rebalances, self._grants, self._handoff_seconds, self._bound, self._left)

    def note(self, entries: Iterable[Entry]) -> None:
        """Count what was just committed."""
        for record in (record for entry in entries for record in entry.records):
            match record:
                case r.RebalanceStarted():
                    self._rebalances.labels(record.trigger).inc()
                case r.Granted():
                    for grant in record.grants:
                        self._grants.labels(grant.handed_over).inc()
                        if grant.by_handoff and grant.seconds is not None:
                            self._handoff_seconds.observe(grant.seconds)
                case r.FlowBound():
                    self._bound.inc()
                case r.FlowLeft() | r.FlowDeparted():
                    self._left.labels(record.reason).inc()
