"""What changed with an ordered resize, in the past tense. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Cut(NamedTuple):
    """The cut of one partition, and whether everything before it is processed."""

    partition: int
    cut: str
    reached: bool


@dataclass(frozen=True, slots=True)
class CutsAwaited:
    """There was a resize, or there may have been one, of which the log's cuts are not known yet.

    The log is asked at once, and again at `due`; `attempt` counts how often that came.
    """

    due: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CutsTaken:
    """The log said where its resize number `resize` has cut the partitions.

    Many cuts come in several records: `first` is the first partition that this one may name,
    `next` the first one of the record that is still to come (None: it is the last one). The
    barriers are in force with the last.
    """

    resize: int
    resized_from: int
    resized_to: int
    first: int
    cuts: tuple[Cut, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class CutsReached:
    """These partitions are processed up to their cuts."""

    partitions: tuple[int, ...]
