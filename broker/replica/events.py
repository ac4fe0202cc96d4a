"""What a replica has committed: counted for Prometheus, and a line in the log for each event.

Each record is counted and logged by the replica that committed it and by no other. So the sum over
replicas is the truth, and an event is logged once.

**Counters** have the queue as a label. Their number must not grow with what users create: a replica
counts so many queues by name, and all others as one, `OTHER`. A name stays taken until the queue is
known to be gone (`QueueLabels.forget`, `keep`); who may not see a queue is not shown its counters
(`api.metrics`). A counter that an alert asks for begins at 0 when the queue is first shown: from a
series that begins with its first event, Prometheus learns of no increase.

**Log lines** answer what an operator asks: why did it rebalance? Who left, and why? Which handoff
was forced? Each line names queue and revision, and where it applies the flow with its client, the
partition with its epoch, and the reason. What every handoff passes through (warm-up, revoke) is in
the history and not here. One transaction may force thousands of handoffs: the first have a line
each, the rest are counted.
"""

from __future__ import annotations

import logging
from collections import Counter as Counted
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import structlog
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from broker.core import records as r
from broker.core.model import HandedOver
from broker.core.records import Entry, Record

HANDOFF_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
AGE_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0, 7200.0),
)
"""The table `commit_ages` has counts by these bounds: change them only with its contents."""
ROUND_TRIP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
MOST_QUEUES = 1000
OTHER = "(other)"
"""Stands for all queues beyond the first `MOST_QUEUES`; no queue can have this name."""
LOGGER = "queues"
# Forced handoffs of one transaction that have a line each.
MOST_LINES = 20
# Clients whose names are remembered, so that a flow that has left can be named.
MOST_NAMES = 10_000
_log = structlog.get_logger(LOGGER)
# In the history and the event stream, and not in the log.
UNLOGGED = (
    r.Released,
    r.ReleasedInPart,
    r.WarmupsStarted,
    r.RevokesStarted,
    r.WarmupsEnded,
    r.WarmupsReady,
    r.HandoffsRedirected,
    r.HandoffsCalledOff,
    # Logged once for all queues by the replica that notices it (`broker.replica.clock`).
    r.DeadlinesMoved,
    r.ClockWentBack,
    # The bind or the drain was logged.
    r.PairsFirst,
    # The resize was logged.
    r.CutsAwaited,
    r.CutsTaken,
    r.CutsReached,
    # The grants that follow are logged.
    r.WaitsEnded,
    # Follows the end of the last child, which was logged.
    r.FinishedRemoved,
)


class QueueLabels:
    """The queues that are counted by name, and the metrics with such a label."""

    def __init__(self, most: int = MOST_QUEUES) -> None:
        self._most = most
        self._names: set[str] = set()
        self._metrics: list[MetricWrapperBase] = []
        self._from_zero: list[tuple[Counter, dict[str, str]]] = []
        self._shown: set[str] = set()

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

    def from_zero(self, counter: Counter, **labels: str) -> None:
        """Each queue that is shown has this series, from the start."""
        self._from_zero.append((counter, labels))

    def show(self, existing: Iterable[str]) -> None:
        """These queues are about to be shown."""
        for label in {self.of(name) for name in existing} - self._shown:
            self._shown.add(label)
            for counter, labels in self._from_zero:
                counter.labels(queue=label, **labels)

    def keep(self, existing: Collection[str]) -> None:
        """These are all queues that exist: forget the others."""
        for name in self._names.difference(existing):
            self.forget(name)

    def forget(self, name: str) -> None:
        """The queue of this name is gone."""
        if name in self._names:
            self._names.discard(name)
            self._shown.discard(name)
            for metric in self._metrics:
                metric.remove_by_labels({"queue": name})


class EventCounters:
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
            "How long partitions paused: from the moment an owner is told to finish, or from its "
            "last sign of life if that is earlier, to the end of the handoff.",
            ("queue",),
            buckets=HANDOFF_SECONDS,
            registry=None,
        )
        self._unowned_seconds = Histogram(
            "counterpoise_unowned_duration_seconds",
            "How long partitions paused that were granted without a handoff: from the last sign of "
            "life of an owner whose lease ended, else from the moment it left.",
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
        self._held = Counter(
            "counterpoise_flows_held_back",
            "Flows bound that wait, because their key has moved as much as it may in an hour.",
            ("queue",),
            registry=None,
        )
        self._left = Counter(
            "counterpoise_flows_left",
            "Flows that left, by reason; lease_expired: they went silent.",
            ("queue", "reason"),
            registry=None,
        )
        self.publish_to_committed = Histogram(
            "counterpoise_publish_to_committed_seconds",
            "How long after it was published a message was committed; of samples, up to one of "
            "each partition every 5 seconds.",
            ("queue",),
            buckets=AGE_SECONDS,
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
        self.queues.from_zero(self._rebalances, trigger="bind")
        self.queues.from_zero(self._handoffs, outcome="forced")
        self.queues.from_zero(self._held)
        self.queues.from_zero(self._left, reason="lease_expired")

    @property
    def collectors(self) -> tuple[MetricWrapperBase, ...]:
        return (*self._of_queues, self.commit_batch, self.round_trip)

    @property
    def _of_queues(self) -> tuple[MetricWrapperBase, ...]:
        return (
            self._rebalances,
            self._handoffs,
            self._handoff_seconds,
            self._unowned_seconds,
            self.publish_to_committed,
            self._grants,
            self._warmups,
            self._bound,
            self._held,
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
                    if record.held_until is not None:
                        self._held.labels(queue).inc()
                case r.FlowLeft():
                    self._left.labels(queue, record.reason).inc()

    def _granted(self, queue: str, record: r.Granted) -> None:
        """A record may have hundreds of grants, and to find a counter takes longer than to raise
        it.
        """
        handed = [grant for grant in record.grants if grant.by_handoff]
        for counter, grants in ((self._grants, record.grants), (self._handoffs, handed)):
            for handed_over, count in Counted(grant.handed_over for grant in grants).items():
                counter.labels(queue, handed_over).inc(count)
        for histogram, by_handoff in (
            (self._handoff_seconds, True),
            (self._unowned_seconds, False),
        ):
            seconds = [
                grant.seconds
                for grant in record.grants
                if grant.by_handoff is by_handoff and grant.seconds is not None
            ]
            if seconds:
                observe = histogram.labels(queue).observe
                for each in seconds:
                    observe(each)


class EventLog:
    """Logs what was committed; nothing unless the log wants messages of the level INFO."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def note(self, queue: str, entries: Sequence[Entry]) -> None:
        """Log what was just committed in the queue of this name."""
        if not logging.getLogger(LOGGER).isEnabledFor(logging.INFO):
            return
        for entry in entries:
            for record in entry.records:
                self._log(record, {"queue": queue, "revision": entry.revision})

    def _log(self, record: Record, place: dict[str, Any]) -> None:
        match record:
            case r.FlowBound():
                self._remember(record.flow_id, record.client_name)
                held = record.held_until
                more = {} if held is None else {"held_seconds": round(held - record.at, 3)}
                _log.info("flow bound", **place, **self._flow("flow", record.flow_id), **more)
            case r.FlowsAdmitted():
                for flow_id in record.flow_ids:
                    _log.info("flow admitted", **place, **self._flow("flow", flow_id))
            case r.FlowLeft():
                event = "lease expired" if record.reason == "lease_expired" else "flow left"
                flow = self._flow("flow", record.flow_id)
                _log.info(event, **place, **flow, reason=record.reason)
            case r.FlowDraining():
                _log.info("flow draining", **place, **self._flow("flow", record.flow_id))
            case r.HolddownStarted():
                seconds = round(record.until - record.at, 3)
                _log.info("holddown started", **place, reason=record.trigger, seconds=seconds)
            case r.HolddownSettled():
                _log.info("holddown settled, nothing moves", **place)
            case r.RebalanceStarted():
                rebalance = record.rebalance_id
                _log.info("rebalance started", **place, reason=record.trigger, rebalance=rebalance)
            case r.RebalanceFinished():
                _log.info("rebalance finished", **place)
            case r.GrantedOutside():
                _log.info("granted without a rebalance", **place, reason=record.trigger)
            case r.Granted():
                self._log_grants(record, place)
            case r.EpochsRaised():
                # Else they retire again, which was logged.
                if record.handed_over == HandedOver.FORCED:
                    _log.info("positions set", **place, partitions=len(record.partitions))
            case r.PartitionsAdded():
                _log.info("partitions added", **place, first=record.first, end=record.end)
            case r.ChildrenAdded():
                _log.info("children added", **place, partitions=len(record.children))
            case r.PartitionFinished():
                flow = self._flow("flow", record.flow_id)
                _log.info("partition finished", **place, partition=record.partition, **flow)
            case r.PartitionsRetired():
                _log.info("partitions retiring", **place, partitions=len(record.partitions))
            case r.PartitionsRemoved():
                count = len(record.partitions)
                _log.info("partitions removed", **place, partitions=count, reason=record.outcome)
            case r.Paused():
                which = self._held(record.partitions)
                _log.info("paused", **place, **which, until=record.until, reason=record.reason)
            case r.Resumed():
                _log.info("resumed", **place, **self._held(record.partitions), reason=record.why)
            case r.Pinned():
                count = len(record.partitions)
                pinned = {"client": record.client_name, "reason": record.reason}
                _log.info("pinned", **place, partitions=count, **pinned)
            case r.Unpinned():
                _log.info("unpinned", **place, partitions=len(record.partitions))
            case r.SettingsChanged():
                _log.info("settings changed", **place, changes=dict(record.changes))
            case _:
                assert isinstance(record, UNLOGGED), record

    @staticmethod
    def _held(partitions: Sequence[int]) -> dict[str, int]:
        """How many partitions were paused or resumed; nothing for the whole queue."""
        return {"partitions": len(partitions)} if partitions else {}

    def _log_grants(self, record: r.Granted, place: dict[str, Any]) -> None:
        """How partitions passed to their owners, and each that was taken by force."""
        ways = Counted(grant.handed_over for grant in record.grants)
        _log.info("partitions granted", **place, **ways)
        forced = [grant for grant in record.grants if grant.by_force]
        for grant in forced[:MOST_LINES]:
            _log.info(
                "handoff forced",
                **place,
                partition=grant.partition,
                epoch=grant.epoch,
                **({} if grant.previous is None else self._flow("owner", grant.previous)),
                **self._flow("successor", grant.flow_id),
                reason="not released by its deadline",
                seconds=None if grant.seconds is None else round(grant.seconds, 3),
            )
        if len(forced) > MOST_LINES:
            _log.info("more handoffs forced", **place, partitions=len(forced) - MOST_LINES)

    def _flow(self, role: str, flow_id: str) -> dict[str, str]:
        """A flow, with the name of its client if this replica saw it bind."""
        name = self._names.get(flow_id)
        if name is None:
            return {role: flow_id}
        return {role: flow_id, "client" if role == "flow" else f"{role}_client": name}

    def _remember(self, flow_id: str, client_name: str) -> None:
        self._names[flow_id] = client_name
        if len(self._names) > MOST_NAMES:
            self._names.popitem(last=False)
