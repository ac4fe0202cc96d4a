"""The records of partitions that begin, wait, end and go (the contract, *Lineage*).

The rules of all records are in `broker.core.state.records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Child(NamedTuple):
    """A new partition: its number, its key, and the keys of the partitions that it follows; a root
    follows none."""

    partition: int
    key: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildrenAdded:
    """Partitions exist. Each waits until its wait is said to be over, even if it has nothing to
    wait for."""

    children: tuple[Child, ...]
    at: float


@dataclass(frozen=True, slots=True)
class WaitsEnded:
    """All parents of these partitions are finished. They have no owner yet."""

    partitions: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class PartitionFinished:
    """The owner has processed the partition to its end. A handoff of it ends."""

    partition: int
    flow_id: str
    at: float


@dataclass(frozen=True, slots=True)
class FinishedRemoved:
    """No unfinished partition follows these any more: only their keys are remembered."""

    partitions: tuple[int, ...]
    at: float
