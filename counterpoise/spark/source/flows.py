"""The flows of a query: several seen as one, and their bind.

The queue is balanced over flows, so an application with n flows (the option `flows`) gets n shares.
They have the instance ids I, I#2, ..., I#n; so a restart that binds as I takes all their places
again.

To the rest of the source they are one flow (`BoundFlow`, `FlowGroup`):

- *Partitions.* It holds the partitions of all its flows. A partition that moves between two of them
  is seen once, under its highest epoch: the lower epoch is over, even if its flow was not told yet.
- *Calls.* A call for a partition goes to the flow that holds or held it under that epoch. The
  service decides the outcome, and the epoch fences it like every call.
- *Binding.* While one of them is binding, the set of held partitions is uncertain. Commits and
  releases of the other flows continue.
- *The end.* If one was replaced, the query ends: another query runs as the same instance, and has
  taken over the other flows too or is about to. A flow that an administrator has unbound, or whose
  lease ended while it drained, is left out: the query continues with a smaller share, and ends with
  its last flow.
"""

from __future__ import annotations

import logging
import operator
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Generic, TypeVar

from counterpoise.conditions import Condition
from counterpoise.errors import CounterpoiseError, ServiceUnavailable, StateKept
from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.view import Key, Owned, Warming
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import CannotStart, StateLost
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.bound_flow import BoundFlow
from counterpoise.wire import ChildrenItem, LogAccess, Position, ReleaseItem

logger = logging.getLogger("counterpoise.spark")

T = TypeVar("T", Owned, Warming)
A = TypeVar("A")
R = TypeVar("R")

# Reasons for being gone that concern one flow alone.
_LEAVES_THE_OTHERS = ("unbound", "lease_expired")
# How many former holders (by partition and epoch) are remembered, for late answers.
_REMEMBERED = 10_000


def numbered(name: str, number: int) -> str:
    """The instance id or the client name of flow `number`, counted from 1."""
    return name if number == 1 else f"{name}#{number}"


class FlowGroup:
    """At least one flow; see `BoundFlow`. As thread-safe as the flows are."""

    def __init__(self, flows: Sequence[BoundFlow]) -> None:
        """The first flow has the instance id that names all. `close` closes them all."""
        self._flows = list(flows)
        self._owned: _Union[Owned] = _Union()
        self._warming: _Union[Warming] = _Union()
        self._holders: dict[tuple[int, int], int] = {}
        self._left_out: set[int] = set()

    # ------------------------------------------------------------------ identity and status

    @property
    def instance_id(self) -> str:
        """The first flow's; the others' are derived from it."""
        return self._flows[0].instance_id

    @property
    def queue_id(self) -> str | None:
        """Of the queue that all are bound to; None if the service does not name it."""
        return self._flows[0].queue_id

    @property
    def flow_ids(self) -> Sequence[str]:
        """The ids of all bound flows."""
        return tuple(flow_id for flow in self._flows for flow_id in flow.flow_ids)

    @property
    def status(self) -> str:
        """`gone` if the query has to end, `binding` while one is being bound, else `bound`."""
        if self._ending() is not None:
            return "gone"
        statuses = [flow.status for flow in self._members()]
        return next((status for status in statuses if status != "bound"), "bound")

    @property
    def gone_reason(self) -> str | None:
        """Why the query has to end."""
        ending = self._ending()
        return None if ending is None else ending.gone_reason

    @property
    def last_error(self) -> CounterpoiseError | None:
        """The first error of the flows; if one ends the query, only that flow's."""
        ending = self._ending()
        flows = self._members() if ending is None else [ending]
        return next((flow.last_error for flow in flows if flow.last_error is not None), None)

    @property
    def in_doubt(self) -> bool:
        """Whether others may own partitions of any of the flows; see `Flow.in_doubt`."""
        return any(flow.in_doubt for flow in self._members())

    @property
    def draining(self) -> bool:
        """Whether all flows drain."""
        members = self._members()
        return bool(members) and all(flow.draining for flow in members)

    @property
    def log(self) -> str | None:
        """The queue's log, without credentials."""
        return self._first("log")

    # ------------------------------------------------------------------ partitions

    @property
    def partitions(self) -> Mapping[int, Owned]:
        """The partitions of all flows: the same object as long as nothing changes."""
        views = [flow.partitions for flow in self._flows]
        owned = self._owned.of(views)
        for index, view in enumerate(views):
            for number, held in view.items():
                self._holders[number, held.epoch] = index
        while len(self._holders) > _REMEMBERED + len(owned):
            self._holders.pop(next(iter(self._holders)), None)
        return owned

    @property
    def warming(self) -> Mapping[int, Warming]:
        """The partitions that they warm up."""
        return self._warming.of([flow.warming for flow in self._flows])

    # ------------------------------------------------------------------ calls

    def commit(
        self,
        positions: Iterable[Position],
        *,
        timeout_seconds: float | None = None,
    ) -> dict[int, str]:
        """Outcomes by partition. Raises ServiceUnavailable if any call failed."""
        return self._told(
            positions,
            lambda item: (item[0], item[1]),
            lambda flow, share: flow.commit(share, timeout_seconds=timeout_seconds),
        )

    def release_many(
        self, items: Iterable[ReleaseItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        """Outcomes by partition. Raises ServiceUnavailable if any call failed."""
        return self._told(
            items,
            lambda item: (item.partition, item.epoch),
            lambda flow, share: flow.release_many(share, timeout_seconds=timeout_seconds),
        )

    def children_many(
        self, items: Iterable[ChildrenItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        """Outcomes by partition. Raises ServiceUnavailable if any call failed."""
        return self._told(
            items,
            lambda item: (item.partition, item.epoch),
            lambda flow, share: flow.children_many(share, timeout_seconds=timeout_seconds),
        )

    def ready(self, partition: int, epoch: int | None = None) -> str:
        """Report a partition as warmed up, through the flow that is to get it."""
        for flow in self._flows:
            warming = flow.warming.get(partition)
            if warming is not None and epoch in (None, warming.epoch):
                return flow.ready(partition, epoch)
        return FLOW_GONE

    def refresh(self, *, timeout_seconds: float | None = None) -> None:
        """Fetch the committed positions of the partitions that warm up."""

        def refresh(flow: BoundFlow) -> None:
            flow.refresh(timeout_seconds=timeout_seconds)

        each([flow for flow in self._members() if flow.warming], refresh)

    def report(
        self, conditions: Iterable[Condition], *, timeout_seconds: float | None = None
    ) -> None:
        """Report what is wrong: of partitions through the flow that owns them, else through all.

        Raises ServiceUnavailable if any call failed.
        """
        found = list(conditions)
        # One after the other: hardly ever there is a call to make.
        for flow in self._members():
            owned = flow.partitions
            mine = [one for one in found if one.partition is None or one.partition in owned]
            flow.report(mine, timeout_seconds=timeout_seconds)

    def drain(self, timeout_seconds: float | None = None) -> None:
        """Drain all. Raises ServiceUnavailable if any call failed; then repeat it."""

        def drain(flow: BoundFlow) -> None:
            flow.drain(timeout_seconds)

        each(self._members(), drain)

    def log_access(self, *, fresh: bool = False) -> LogAccess | None:
        """Credentials for the log, from the first flow that is not gone."""
        return (self._members() or self._flows)[0].log_access(fresh=fresh)

    # ------------------------------------------------------------------ waiting and the end

    def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool:
        """Wait for a change of the binding flow, or of the first."""
        members = self._members() or self._flows
        flow = next((one for one in members if one.status == "binding"), members[0])
        return flow.wait(timeout_seconds, after)

    def close(self, *, timeout_seconds: float = 5.0, reason: str | None = None) -> None:
        """Unbind all. Never raises. `reason` as in `Flow.close`."""

        def close(flow: BoundFlow) -> None:
            flow.close(timeout_seconds=timeout_seconds, reason=reason)

        each(self._flows, close)

    # ------------------------------------------------------------------ internal

    def _members(self) -> list[BoundFlow]:
        """The flows that are not left out."""
        members = []
        for index, flow in enumerate(self._flows):
            if flow.status != "gone":
                members.append(flow)
            elif flow.gone_reason in _LEAVES_THE_OTHERS and index not in self._left_out:
                self._left_out.add(index)
                logger.warning(
                    "counterpoise: flow %s is over (%s): the query goes on with %d of its flows",
                    flow.instance_id,
                    flow.gone_reason,
                    len(self._flows) - len(self._left_out),
                )
        return members

    def _ending(self) -> BoundFlow | None:
        """The flow whose end ends the query."""
        gone = [flow for flow in self._flows if flow.status == "gone"]
        for flow in gone:
            if flow.gone_reason not in _LEAVES_THE_OTHERS:
                return flow
        return gone[-1] if len(gone) == len(self._flows) else None

    def _holder(self, partition: int, epoch: int) -> int:
        """The flow that holds or held the partition under this epoch; any, if unknown."""
        for index, flow in enumerate(self._flows):
            held = flow.partitions.get(partition)
            if held is not None and held.epoch == epoch:
                return index
        return self._holders.get((partition, epoch), 0)

    def _told(
        self,
        items: Iterable[A],
        key: Callable[[A], Key],
        tell: Callable[[BoundFlow, Sequence[A]], dict[int, str]],
    ) -> dict[int, str]:
        """The outcomes by partition of one call per flow, each with the items of its grants.

        All calls are made, even if one fails.
        """
        shares: dict[int, list[A]] = {}
        for item in items:
            shares.setdefault(self._holder(*key(item)), []).append(item)

        def told(index: int) -> dict[int, str]:
            flow, share = self._flows[index], shares[index]
            try:
                return tell(flow, share)
            except CounterpoiseError:
                if flow.status == "gone":
                    return {key(item)[0]: FLOW_GONE for item in share}
                raise

        outcomes: dict[int, str] = {}
        for answer in each(list(shares), told):
            outcomes.update(answer)
        return outcomes

    def _first(self, name: str) -> str | None:
        values = (getattr(flow, name) for flow in self._flows)
        return next((value for value in values if value is not None), None)


class _Union(Generic[T]):
    """The union of views, computed again only when one of them has changed."""

    def __init__(self) -> None:
        empty: Mapping[int, T] = MappingProxyType({})
        self._last: tuple[Sequence[Mapping[int, T]], Mapping[int, T]] = ((), empty)

    def of(self, views: Sequence[Mapping[int, T]]) -> Mapping[int, T]:
        before, whole = self._last
        if len(before) == len(views) and all(map(operator.is_, before, views)):
            return whole
        latest: dict[int, T] = {}
        for view in views:
            for number, one in view.items():
                if number not in latest or latest[number].epoch < one.epoch:
                    latest[number] = one
        whole = MappingProxyType(dict(sorted(latest.items())))
        self._last = (views, whole)
        return whole


def each(items: Sequence[A], act: Callable[[A], R]) -> list[R]:
    """Act on all at once and wait for all. Then raises the first error, if any."""
    if len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(len(items), "counterpoise-flows") as pool:
        doing = [pool.submit(act, item) for item in items]
    return [one.result() for one in doing]


def bind(
    options: SourceOptions,
    instance_id: str | None,
    *,
    warmup: bool,
    at_once: bool = False,
    keeps_state: bool = False,
    renew_while: Callable[[], bool],
    wake: threading.Event,
    handoffs: Handoffs,
) -> BoundFlow:
    """The bound flow. On a change of its view, `wake` is set and `handoffs` is told. `at_once`: no
    holddown if no other flow is bound.

    `keeps_state`: in Spark, so the queue has to be exclusive.

    Raises CannotStart if it is not bound within `startTimeoutSeconds`, and StateLost.
    """
    instance_id = instance_id or str(uuid.uuid4())
    client_name = options.client_name or f"{socket.gethostname()}:{os.getpid()}"

    def changed(*_: object) -> None:
        wake.set()

    def granted(owned: Owned) -> None:
        handoffs.granted(owned)
        wake.set()

    def lost(owned: Owned) -> None:
        handoffs.lost(owned)
        wake.set()

    flows = [
        Flow(
            options.queue,
            url=options.url,
            client_name=numbered(client_name, number),
            instance_id=numbered(instance_id, number),
            lease_seconds=options.lease_seconds,
            warmup=warmup,
            at_once=at_once,
            keeps_state=keeps_state,
            weight=options.weight,
            max_partitions=options.max_partitions,
            renew_while=renew_while,
            on_granted=granted,
            on_revoking=changed,
            on_retiring=changed,
            on_lost=lost,
            on_warming=changed,
            on_warming_ended=changed,
        )
        for number in range(1, options.flows + 1)
    ]
    _open(flows, options)
    return flows[0] if len(flows) == 1 else FlowGroup(flows)


def _open(flows: list[Flow], options: SourceOptions) -> None:
    seconds = max(0.1, options.start_timeout_seconds)
    try:
        each(flows, lambda flow: flow.open(seconds))
        if len({flow.queue_id for flow in flows} - {None}) > 1:
            raise CounterpoiseError("it was deleted and made again just now; start once more")
    except BaseException as error:
        each(flows, lambda flow: flow.close(timeout_seconds=1.0))
        if isinstance(error, ServiceUnavailable):
            raise CannotStart(
                f"no service for queue {options.queue!r} within {options.start_timeout_seconds:g} "
                f"s: {error}. Check the option 'url' (or COUNTERPOISE_URL) and that the service "
                "runs"
            ) from None
        if isinstance(error, StateKept):
            raise StateLost(f"queue {options.queue!r}: {error}") from None
        if isinstance(error, CounterpoiseError):
            raise CannotStart(f"queue {options.queue!r}: {error}") from None
        raise
