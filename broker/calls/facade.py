"""All calls of one replica, by subject."""

from __future__ import annotations

from broker.calls.access import QueueAccess
from broker.calls.conditions import ConditionCalls
from broker.calls.cuts import CutCalls
from broker.calls.flow_rows import FlowRows
from broker.calls.flows import FlowCalls
from broker.calls.keys import KeyCalls
from broker.calls.lineage import LineageCalls
from broker.calls.log_readers import LogReaders
from broker.calls.logs import LogCalls
from broker.calls.monitoring import MonitoringCalls
from broker.calls.queues import QueueCalls
from broker.calls.trims import Trims
from broker.calls.updates import UpdateCalls
from broker.logs.ports import Logs
from broker.mailbox.replica import Replica


class Calls:
    """The calls of a replica; see `views` for their arguments and results.

    Every call raises the errors of `broker.core.errors`: QueueNotFound for a queue that does not
    exist, Unavailable while the database cannot be reached, and those named at the call.
    """

    def __init__(self, replica: Replica, logs: Logs) -> None:
        access = QueueAccess(replica)
        self.keys = KeyCalls(access)
        readers = LogReaders(access)
        rows = FlowRows(access)
        self.cuts = CutCalls(access, logs, readers)
        replica.ask_cuts = self.cuts.settle
        trims = Trims(access.store, logs)
        self.queues = QueueCalls(access, logs, readers, self.cuts, trims)
        self.logs = LogCalls(access, logs, readers, self.cuts, trims)
        self.monitoring = MonitoringCalls(access, logs)
        self.conditions = ConditionCalls(access, rows)
        self.lineage = LineageCalls(access, logs, readers)
        self.updates = UpdateCalls(access, rows)
        self.flows = FlowCalls(access, logs, rows, self.updates, self.cuts)
