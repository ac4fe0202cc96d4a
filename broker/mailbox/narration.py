"""What a replica has committed, told in its log: a line for each event that an operator asks about.

*Why did it rebalance? Who left, and why? Which handoff was forced?* Each line names queue and
revision, and where it applies the flow with its client, the partition with its epoch, and the
reason. Like the counters (`broker.mailbox.tally`), an event is told once, by the replica that
committed it. What every handoff passes through (warm-up, revoke) is in the history and not here.

One transaction may force thousands of handoffs: the first have a line each, the rest are counted.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import structlog

from broker.core import records as r
from broker.core.model import HandedOver
from broker.core.records import Entry, Record

LOGGER = "queues"
# Forced handoffs of one transaction that have a line each.
MOST_LINES = 20
# Clients whose names are remembered, so that a flow that has left can be named.
MOST_NAMES = 10_000

_log = structlog.get_logger(LOGGER)

# In the history and the event stream, and not in the log.
UNTOLD = (
    r.CutOff,
    # Follows a departure that was told.
    r.Orphaned,
    r.Released,
    r.WarmupsStarted,
    r.RevokesStarted,
    r.WarmupsEnded,
    r.WarmupsReady,
    r.HandoffsRedirected,
    r.HandoffsCalledOff,
    # Told once for all queues by the replica that notices it (`broker.mailbox.clock`).
    r.DeadlinesMoved,
    r.ClockWentBack,
    # The call that resizes was told.
    r.CutsAwaited,
    r.CutsTaken,
    r.CutsReached,
    # The grants that follow are told.
    r.WaitsEnded,
    # Follows the end of the last child, which was told.
    r.FinishedRemoved,
)


class Narration:
    """Tells what was committed; nothing unless the log wants messages of the level INFO."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def note(self, queue: str, entries: Sequence[Entry]) -> None:
        """Tell what was just committed in the queue of this name."""
        if not logging.getLogger(LOGGER).isEnabledFor(logging.INFO):
            return
        for entry in entries:
            for record in entry.records:
                self._tell(record, {"queue": queue, "revision": entry.revision})

    def _tell(self, record: Record, place: dict[str, Any]) -> None:
        match record:
            case r.FlowBound():
                self._remember(record.flow_id, record.client_name)
                _log.info("flow bound", **place, **self._flow("flow", record.flow_id))
            case r.FlowLeft() | r.FlowDeparted():
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
                self._tell_grants(record, place)
            case r.EpochsRaised():
                # Else they retire again, which was told.
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
            case r.SettingsChanged():
                _log.info("settings changed", **place, changes=dict(record.changes))
            case _:
                assert isinstance(record, UNTOLD), record

    def _tell_grants(self, record: r.Granted, place: dict[str, Any]) -> None:
        """How partitions passed to their owners, and each that was taken by force."""
        ways = Counter(grant.handed_over for grant in record.grants)
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
