"""The calls about conditions: what consumers report of their work, and what of it holds (the
contract, *Conditions*). The service itself reports mirrors that fail, resizes that wait for what is
paused, partitions that no flow may take, and pins without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from broker.calls.access import QueueAccess
from broker.calls.bound_flows import BoundFlow, BoundFlows
from broker.calls.rendering import (
    OVER_CAPACITY,
    PIN_UNMET,
    RESIZE_PAUSED,
    resize_is_paused,
    row_of,
)
from broker.calls.times import time_of
from broker.core.pins import unmet
from broker.core.queue import Queue
from broker.replica.store_calls import store_available
from broker.store.conditions import Condition
from counterpoise import wire

MIRROR_FAILED = "mirror_failed"
# Partitions in a text.
MOST_NAMED = 10
# In place of a client's name.
SERVICE = "the service"


@dataclass(frozen=True, slots=True)
class ReportedCondition:
    """What a consumer says; `partition` and `epoch` are None for a condition of the whole flow."""

    kind: str
    text: str
    partition: int | None = None
    epoch: int | None = None


class ConditionCalls:
    """Reports of consumers, and what administrators see of them."""

    def __init__(self, queues: QueueAccess, bound: BoundFlows) -> None:
        self._queues = queues
        self._bound = bound

    async def report(
        self, flow: BoundFlow, seq: int, reported: Sequence[ReportedCondition]
    ) -> None:
        """Replaces what the flow reports, and renews its lease.

        A report with the `seq` of an earlier one or a lower one changes nothing. Raises FlowGone,
        FlowNotFound, QueueNotFound, Unavailable.
        """
        await self._bound.renew(flow)
        with store_available():
            before = await self._queues.store.conditions.of_flow(flow.flow_id)
            since = {(one.kind, one.partition, one.epoch): one.since for one in before}
            now = self._queues.replica.clock.now()
            conditions = [
                Condition(
                    one.kind,
                    one.text,
                    one.partition,
                    one.epoch,
                    since.get((one.kind, one.partition, one.epoch), now),
                )
                for one in reported
            ]
            await self._queues.store.conditions.report(flow.flow_id, seq, conditions)

    async def of_queue(self, name: str, limit: int) -> wire.Page[wire.HeldCondition]:
        """The conditions that hold: of whole flows first, then by partition. Raises QueueNotFound.

        `limit`: the most of them.
        """
        queue_id, own = await self._queues.read(name, lambda queue: (queue.id, _own(queue)))
        with store_available():
            reported = await self._queues.store.conditions.of_queue(queue_id, limit)
            failures = await self._queues.store.mirrors.failures([queue_id])
        own += [_said(MIRROR_FAILED, one.text, one.since) for one in failures.values()]
        if not reported:
            return wire.Page(tuple(own[:limit]), None)

        def extract(queue: Queue) -> list[wire.HeldCondition]:
            return [
                wire.HeldCondition(
                    one.kind,
                    one.text,
                    one.partition,
                    one.epoch,
                    time_of(one.since),
                    flow_id,
                    queue.flows[flow_id].client_name,
                )
                for flow_id, one in reported
                # The queue may have changed since.
                if flow_id in queue.flows and _holds(queue, flow_id, one)
            ]

        shown = (*own, *await self._queues.read(name, extract))
        return wire.Page(shown[:limit], None)

    async def with_counts(self, found: Sequence[wire.Queue]) -> tuple[wire.Queue, ...]:
        """The queues, each with the number of its conditions by kind."""
        ids = [queue.id for queue in found]
        with store_available():
            counts: Mapping[str, Mapping[str, int]] = await self._queues.store.conditions.counts(
                ids
            )
            mirrored = [queue.id for queue in found if queue.mirror_group is not None]
            failures = await self._queues.store.mirrors.failures(mirrored) if mirrored else {}

        def conditions(queue: wire.Queue) -> Mapping[str, int]:
            own = {MIRROR_FAILED: 1} if queue.id in failures else {}
            return {**counts.get(queue.id, {}), **own, **(queue.conditions or {})}

        return tuple(structs.replace(queue, conditions=conditions(queue)) for queue in found)


def _own(queue: Queue) -> list[wire.HeldCondition]:
    """What the service itself says of the queue."""
    return [*_paused(queue), *_over_capacity(queue), *_unmet_pins(queue)]


def _over_capacity(queue: Queue) -> list[wire.HeldCondition]:
    """That partitions are more than all flows may take, if they are."""
    if not queue.over_capacity:
        return []
    # Of the flow that was bound last: without it there may have been room.
    since = max(flow.bound_at for flow in queue.flows.values() if flow.takes)
    count = queue.over_capacity
    text = (
        f"{'1 partition has' if count == 1 else f'{count} partitions have'} no owner, or one that "
        "drains: all consumers have their max_partitions; start another consumer, or raise "
        "max_partitions"
    )
    return [_said(OVER_CAPACITY, text, since)]


def _paused(queue: Queue) -> list[wire.HeldCondition]:
    """That a resize waits for what is paused, if it does."""
    if not resize_is_paused(row_of(queue)):
        return []
    since = max(one.since for one in queue.pauses.of.values())
    numbers = _few(queue.pauses.numbers)
    which = "the queue is" if queue.pauses.whole else f"partitions {numbers} are"
    text = (
        f"{which} paused, and a resize does not end before that is over: resume, or discard the "
        "messages of retiring partitions with the resize"
    )
    return [_said(RESIZE_PAUSED, text, since)]


def _unmet_pins(queue: Queue) -> list[wire.HeldCondition]:
    """That pins have no effect, for each consumer that they name."""
    numbers = dict[str, list[int]]()
    for number in unmet(queue):
        numbers.setdefault(queue.pins.of[number].client_name, []).extend(queue.group(number))
    takers = {flow.client_name for flow in queue.flows.values() if flow.takes}
    found = []
    for name, pinned in numbers.items():
        why = (
            "the consumer, or all of them, have their max_partitions"
            if name in takers
            else "no consumer of this name takes part"
        )
        text = (
            f"{'partition' if len(pinned) == 1 else 'partitions'} {_few(pinned)} pinned to "
            f"{name!r}: {why}, so the pin has no effect; start the consumer, or unpin"
        )
        since = min(queue.pins.of[queue.group(number)[0]].since for number in pinned)
        found.append(_said(PIN_UNMET, text, since))
    return found


def _said(kind: str, text: str, since: float) -> wire.HeldCondition:
    """A condition of the service itself."""
    text = text[: wire.MOST_TEXT_CHARACTERS]
    return wire.HeldCondition(kind, text, None, None, time_of(since), None, SERVICE)


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:MOST_NAMED])) + (", …" if numbers[MOST_NAMED:] else "")


def _holds(queue: Queue, flow_id: str, condition: Condition) -> bool:
    if condition.partition is None:
        return True
    if not queue.exists(condition.partition):
        return False
    partition = queue.partitions[condition.partition]
    owner = partition.owner
    return owner is not None and (owner.id, partition.epoch) == (flow_id, condition.epoch)
