"""The conditions that flows report, in memory; see `broker.store.conditions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from broker.memory.constraints import StoredFlow
from broker.memory.database import MemoryDatabase
from broker.store.conditions import Condition, counted

Call = Callable[[str, Callable[[], Any]], Awaitable[Any]]


class MemoryConditions:
    """A replica's access to them. `call` awaits a hook with the method's name, then does it."""

    def __init__(self, database: MemoryDatabase, call: Call) -> None:
        self._database, self._call = database, call

    async def report(self, flow_id: str, seq: int, reported: Sequence[Condition]) -> None:
        def work() -> None:
            flow = self._database.flows.get(flow_id)
            if flow is None or flow.reason is not None:
                return
            if flow.conditions_seq is None or seq > flow.conditions_seq:
                flow.conditions, flow.conditions_seq = tuple(reported), seq

        await self._call("report_conditions", work)

    async def of_flow(self, flow_id: str) -> Sequence[Condition]:
        def work() -> Sequence[Condition]:
            flow = self._database.flows.get(flow_id)
            return () if flow is None else flow.conditions

        found: Sequence[Condition] = await self._call("conditions_of_flow", work)
        return found

    async def of_queue(self, queue_id: str, limit: int) -> Sequence[tuple[str, Condition]]:
        def work() -> Sequence[tuple[str, Condition]]:
            found = [
                (flow_id, one)
                for flow_id, flow in self._database.flows.items()
                if flow.queue_id == queue_id and flow.reason is None
                for one in self._holding(flow_id, flow)
            ]
            return sorted(found, key=_order)[:limit]

        found: Sequence[tuple[str, Condition]] = await self._call("conditions_of_queue", work)
        return found

    async def counts(self, queue_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        def work() -> Mapping[str, Mapping[str, int]]:
            return counted(
                (flow.queue_id, one.kind, 1)
                for flow_id, flow in self._database.flows.items()
                if flow.queue_id in queue_ids and flow.reason is None
                for one in self._holding(flow_id, flow)
            )

        found: Mapping[str, Mapping[str, int]] = await self._call("condition_counts", work)
        return found

    def _holding(self, flow_id: str, flow: StoredFlow) -> Iterator[Condition]:
        partitions = self._database.queues[flow.queue_id].partitions
        for one in flow.conditions:
            if one.partition is None:
                yield one
                continue
            values = partitions.get(one.partition)
            if values is not None and (values.owner, values.epoch) == (flow_id, one.epoch):
                yield one


def _order(found: tuple[str, Condition]) -> tuple[bool, int, str]:
    flow_id, condition = found
    return condition.partition is not None, condition.partition or 0, flow_id
