"""Observes the running demo for the scenario and the display, one look at a time."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from counterpoise.client import Client
from counterpoise.demo.work.sink import Record
from counterpoise.logs import Log


@dataclass(frozen=True, slots=True)
class Seen:
    """The demo at one moment. Applications are keyed by name, partitions by number.

    Partitions that have ended are left out.
    """

    status: str
    trigger: str | None
    owners: Mapping[int, str | None]
    successors: Mapping[int, str | None]
    committed: Mapping[int, str | None]
    flows: Mapping[str, str]
    """By application: its flow's id."""
    draining: frozenset[str]
    backlog: Mapping[int, int]
    """By partition: flights published and not processed."""
    processed: Mapping[str, int]
    """By application: messages journaled, repeated ones included."""
    keys: Mapping[int, str] = field(default_factory=dict)
    """By partition of a dynamic queue: its key, which says its range of hashes."""
    waits_for: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By partition that waits: the partitions that must end before."""

    def owned(self, application: str) -> list[int]:
        """The partitions of an application."""
        return [number for number, owner in self.owners.items() if owner == application]


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
        left = {one.partition: one for one in partitions if one.state != "finished"}
        return Seen(
            status=status.status,
            trigger=status.trigger,
            owners={number: self._name(one.owner) for number, one in left.items()},
            successors={number: self._name(one.successor) for number, one in left.items()},
            committed={number: one.position for number, one in left.items()},
            flows={flow.client_name: flow.flow_id for flow in flows},
            draining=frozenset(flow.client_name for flow in flows if flow.draining),
            backlog=backlog(self._log, self._record, left),
            processed=dict(self._processed),
            keys={number: one.key for number, one in left.items() if one.key is not None},
            waits_for={
                int(one["partition"]): tuple(one["waits_for"])
                for one in status.raw.get("waiting") or ()
            },
        )

    def ends(self, partitions: Iterable[int]) -> Mapping[int, str]:
        """By partition: the position of the next message to be appended."""
        return self._log.bounds(list(partitions)).ends

    def _name(self, flow_id: str | None) -> str | None:
        return None if flow_id is None else self._names.get(flow_id, "?")


def backlog(log: Log, record: Record, partitions: Iterable[int]) -> dict[int, int]:
    """By partition: the number of messages in the log that are not in the statistics.

    The positions of the built-in log are numbers without holes, so they can be subtracted.
    """
    bounds = log.bounds(list(partitions))
    following = record.next_positions()
    return {
        number: int(end) - following.get(number, int(bounds.starts[number]))
        for number, end in bounds.ends.items()
    }
