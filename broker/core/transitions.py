"""What can happen to a queue and to a partition, as data.

The tables are the specification: `replay` changes a status, a state or a life only through them,
and a pair that is not listed is a defect. The state diagrams of the documentation are drawn from
them.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The `rebalance_status` of a queue."""

    READY = "Ready"
    HOLDDOWN = "Holddown"
    REBALANCING = "Rebalancing"


class QueueEvent(StrEnum):
    """What changes the status of a queue."""

    HOLDDOWN_STARTED = "holddown started"
    HOLDDOWN_SETTLED = "holddown settled"
    REBALANCE_STARTED = "rebalance started"
    REBALANCE_FINISHED = "rebalance finished"


class State(StrEnum):
    """The state of a partition: who works on it. `Life` goes beside it."""

    UNASSIGNED = "unassigned"
    OWNED = "owned"
    WARMING = "warming"
    REVOKING = "revoking"
    REMOVED = "removed"
    WAITING = "waiting"
    FINISHED = "finished"


class PartitionEvent(StrEnum):
    """What changes the state of a partition."""

    GRANTED = "granted"
    ORPHANED = "orphaned"
    RELEASED = "released"
    WARMUP_STARTED = "warm-up started"
    CALLED_OFF = "called off"
    REVOKED = "revoked"
    REPLACED = "owner replaced"
    REMOVED = "removed"
    ADDED = "added"
    WAIT_ENDED = "wait ended"
    FINISHED = "finished"


class Life(StrEnum):
    """Whether a partition is to stay. One that is retiring is owned, warming and so on as well."""

    CONFIGURED = "configured"
    RETIRING = "retiring"
    REMOVED = "removed"


class LifeEvent(StrEnum):
    """What a resize does to a partition. `finished` and `discarded` are outcomes of its removal."""

    RETIRED = "retired"
    TAKEN_BACK = "taken back"
    FINISHED = "finished"
    DISCARDED = "discarded"
    ADDED = "added"


QUEUE_TRANSITIONS: dict[tuple[Status, QueueEvent], Status] = {
    (Status.READY, QueueEvent.HOLDDOWN_STARTED): Status.HOLDDOWN,
    (Status.READY, QueueEvent.REBALANCE_STARTED): Status.REBALANCING,
    (Status.HOLDDOWN, QueueEvent.HOLDDOWN_SETTLED): Status.READY,
    (Status.HOLDDOWN, QueueEvent.REBALANCE_STARTED): Status.REBALANCING,
    (Status.REBALANCING, QueueEvent.REBALANCE_FINISHED): Status.READY,
}

PARTITION_TRANSITIONS: dict[tuple[State, PartitionEvent], State] = {
    (State.UNASSIGNED, PartitionEvent.GRANTED): State.OWNED,
    (State.UNASSIGNED, PartitionEvent.REMOVED): State.REMOVED,
    (State.OWNED, PartitionEvent.WARMUP_STARTED): State.WARMING,
    (State.OWNED, PartitionEvent.REVOKED): State.REVOKING,
    (State.OWNED, PartitionEvent.RELEASED): State.UNASSIGNED,
    (State.OWNED, PartitionEvent.ORPHANED): State.UNASSIGNED,
    (State.OWNED, PartitionEvent.REPLACED): State.OWNED,
    (State.OWNED, PartitionEvent.REMOVED): State.REMOVED,
    (State.WARMING, PartitionEvent.CALLED_OFF): State.OWNED,
    (State.WARMING, PartitionEvent.REVOKED): State.REVOKING,
    (State.WARMING, PartitionEvent.GRANTED): State.OWNED,
    (State.WARMING, PartitionEvent.REPLACED): State.WARMING,
    (State.WARMING, PartitionEvent.ORPHANED): State.UNASSIGNED,
    (State.WARMING, PartitionEvent.REMOVED): State.REMOVED,
    (State.REVOKING, PartitionEvent.GRANTED): State.OWNED,
    (State.REVOKING, PartitionEvent.RELEASED): State.UNASSIGNED,
    (State.REVOKING, PartitionEvent.ORPHANED): State.UNASSIGNED,
    (State.REVOKING, PartitionEvent.REMOVED): State.REMOVED,
    (State.REMOVED, PartitionEvent.ADDED): State.UNASSIGNED,
    (State.WAITING, PartitionEvent.WAIT_ENDED): State.UNASSIGNED,
    (State.OWNED, PartitionEvent.FINISHED): State.FINISHED,
    (State.WARMING, PartitionEvent.FINISHED): State.FINISHED,
    (State.REVOKING, PartitionEvent.FINISHED): State.FINISHED,
    (State.FINISHED, PartitionEvent.REMOVED): State.REMOVED,
}

LIFE_TRANSITIONS: dict[tuple[Life, LifeEvent], Life] = {
    (Life.CONFIGURED, LifeEvent.RETIRED): Life.RETIRING,
    (Life.CONFIGURED, LifeEvent.DISCARDED): Life.REMOVED,
    (Life.RETIRING, LifeEvent.TAKEN_BACK): Life.CONFIGURED,
    (Life.RETIRING, LifeEvent.FINISHED): Life.REMOVED,
    (Life.RETIRING, LifeEvent.DISCARDED): Life.REMOVED,
    (Life.REMOVED, LifeEvent.ADDED): Life.CONFIGURED,
}


def diagram(
    transitions: dict[tuple[Status, QueueEvent], Status]
    | dict[tuple[State, PartitionEvent], State]
    | dict[tuple[Life, LifeEvent], Life],
) -> str:
    """A Mermaid state diagram of one of the tables."""
    lines = ["stateDiagram-v2"]
    for (before, event), after in transitions.items():
        lines.append(f"    {before.value} --> {after.value}: {event.value}")
    return "\n".join(lines) + "\n"
