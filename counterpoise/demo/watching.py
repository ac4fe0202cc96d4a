"""Observes the running demo for the scenario and the display, one look at a time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from counterpoise.client import Client
from counterpoise.demo.work.sink import Record
from counterpoise.logs import Log


@dataclass(frozen=True, slots=True)
class Seen:
    """The demo at one moment. Applications are keyed by name; lists are by partition."""

    status: str
    trigger: str | None
    owners: tuple[str | None, ...]
    successors: tuple[str | None, ...]
    committed: tuple[str | None, ...]
    flows: Mapping[str, str]
    """By application: its flow's id."""
    draining: frozenset[str]
    backlog: Mapping[int, int]
    """By partition: flights published and not processed."""
    processed: Mapping[str, int]
    """By application: messages journaled, repeated ones included."""

    def owned(self, application: str) -> list[int]:
        """The partitions of an application."""
        return [number for number, owner in enumerate(self.owners) if owner == application]


class Watcher:
    """Looks at the service, the log and the sink."""

    def __init__(self, client: Client, queue: str, record: Record, log: Log) -> None:
        self._client = client
        self._queue = queue
        self._record = record
        self._log = log
        self._names: dict[str, str] = {}
        self._processed: Counter[str] = Counter()
        self._last_entry = 0

    def look(self) -> Seen:
        """One look; a few milliseconds."""
        status = self._client.rebalance_status(self._queue)
        flows = self._client.flows(self._queue)
        partitions = self._client.partitions(self._queue)
        self._names |= {flow.flow_id: flow.client_name for flow in flows}
        new, self._last_entry = self._record.messages_after(self._last_entry)
        self._processed.update(new)
        return Seen(
            status=status.status,
            trigger=status.trigger,
            owners=tuple(self._name(partition.owner) for partition in partitions),
            successors=tuple(self._name(partition.successor) for partition in partitions),
            committed=tuple(partition.position for partition in partitions),
            flows={flow.client_name: flow.flow_id for flow in flows},
            draining=frozenset(flow.client_name for flow in flows if flow.draining),
            backlog=backlog(self._log, self._record, len(partitions)),
            processed=dict(self._processed),
        )

    def ends(self, partition_count: int) -> Mapping[int, str]:
        """By partition: the position of the next message to be appended."""
        return self._log.bounds(range(partition_count)).ends

    def _name(self, flow_id: str | None) -> str | None:
        return None if flow_id is None else self._names.get(flow_id, "?")


def backlog(log: Log, record: Record, partition_count: int) -> dict[int, int]:
    """By partition: the number of messages in the log that are not in the statistics.

    The positions of the built-in log are numbers without holes, so they can be subtracted.
    """
    bounds = log.bounds(range(partition_count))
    following = record.next_positions()
    return {
        number: int(end) - following.get(number, int(bounds.starts[number]))
        for number, end in bounds.ends.items()
    }
