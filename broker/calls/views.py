"""Results of the facade (`broker.service.Broker`) that are no documents of the API.

What it answers to callers are the documents themselves (`counterpoise.wire`). Here is what only the
service sees. Times are Unix seconds by the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagView:
    """How many messages of a queue are not processed yet, at most, and the age of the oldest.
    Partitions that are paused do not count: nobody is to process them now.

    `messages` is the sum over the partitions whose lag is known; `unknown`: the number of others.
    `seconds`: the largest age of a partition's next message, 0 if nothing is unread, None if the
    age of no such message is known. `partitions`: by number; empty for a queue with many.
    """

    messages: int
    unknown: int
    seconds: float | None
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class EventView:
    """One committed revision: what changed, each as a mapping with its `type`, JSON-ready.

    All followers of the queue get the same view, so that it is rendered once. Times inside
    `changes` are Unix seconds; they are known by their names (`broker.calls.times.with_times`).
    """

    revision: int
    at: float
    changes: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """Whether this replica can serve; `problem` gives the reason if it cannot.

    `identity` names the tables that it serves, if they are in a database.
    """

    database: bool
    migrations: bool
    problem: str | None = None
    identity: str | None = None

    @property
    def ready(self) -> bool:
        return self.database and self.migrations
