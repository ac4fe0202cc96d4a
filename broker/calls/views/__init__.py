"""Arguments and results of the facade (`broker.service.Broker`).

These are values, not domain objects: the model never leaves `broker`. Every time is in Unix
seconds by the database's clock; the API writes it as RFC 3339. Enumerated fields (`status`,
`state`, `phase`, `trigger`, `outcome`, `handed_over`, ...) carry exactly the strings of the
contract. A property of a queue has the contract's name, even if it lacks its unit
(`rebalance_delay`, `max_handoff_time` and `max_warmup_time` are seconds).
"""

from broker.calls.views.flows import BoundView as BoundView
from broker.calls.views.flows import ChildrenItem as ChildrenItem
from broker.calls.views.flows import CommitItem as CommitItem
from broker.calls.views.flows import HeartbeatView as HeartbeatView
from broker.calls.views.flows import NewChild as NewChild
from broker.calls.views.flows import PartitionInUpdate as PartitionInUpdate
from broker.calls.views.flows import ReadyItem as ReadyItem
from broker.calls.views.flows import ReleaseItem as ReleaseItem
from broker.calls.views.flows import Result as Result
from broker.calls.views.flows import ResultsView as ResultsView
from broker.calls.views.flows import UpdateView as UpdateView
from broker.calls.views.queues import MOST_NAMED as MOST_NAMED
from broker.calls.views.queues import AuditView as AuditView
from broker.calls.views.queues import EventView as EventView
from broker.calls.views.queues import FlowSummaryView as FlowSummaryView
from broker.calls.views.queues import HandoffView as HandoffView
from broker.calls.views.queues import LagView as LagView
from broker.calls.views.queues import LogAccessView as LogAccessView
from broker.calls.views.queues import Page as Page
from broker.calls.views.queues import PartitionView as PartitionView
from broker.calls.views.queues import PositionSet as PositionSet
from broker.calls.views.queues import PositionsView as PositionsView
from broker.calls.views.queues import QueueSpec as QueueSpec
from broker.calls.views.queues import QueueView as QueueView
from broker.calls.views.queues import ReadyCheck as ReadyCheck
from broker.calls.views.queues import RebalanceStatusView as RebalanceStatusView
from broker.calls.views.queues import ResizeView as ResizeView
from broker.calls.views.queues import WaitingView as WaitingView
