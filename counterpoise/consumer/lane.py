"""One lane: a grant of a partition, its messages read ahead, and how far it is handled.

`counterpoise.consumer.lanes` has the rules for all lanes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from counterpoise.consumer.message import Ownership
from counterpoise.flow.ledger import Grant
from counterpoise.flow.view import Key


@dataclass(frozen=True)
class Chunk:
    """Consecutive messages of a partition; `end` is the position after the last one."""

    batch: pa.RecordBatch
    end: str

    @property
    def start(self) -> str:
        first: str = self.batch.column("position")[0].as_py()
        return first

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first `count` messages and the others; 0 < count < number of messages."""
        rest = Chunk(self.batch.slice(count), self.end)
        return Chunk(self.batch.slice(0, count), rest.start), rest

    def one_by_one(self) -> list[Chunk]:
        """Chunks of one message each."""
        chunks, rest = [], self
        while rest.batch.num_rows > 1:
            first, rest = rest.split(1)
            chunks.append(first)
        return [*chunks, rest]


@dataclass
class Failure:
    """The message at `position` has failed `attempts` times; `error` is the last error."""

    position: str
    attempts: int
    error: Exception


@dataclass(eq=False)
class Lane:
    """One grant, and its messages read ahead. Guarded by `Lanes`.

    `grant.done` is the exception: the worker that handles the lane moves it.
    """

    grant: Grant
    owned: Ownership
    read_to: str | None = None
    # Its start was looked up in the log and must be committed before anything is read.
    start_pending: bool = False
    waiting: deque[Chunk] = field(default_factory=deque)
    waiting_messages: int = 0
    waiting_bytes: int = 0
    in_hand: int = 0
    # Whether the log had more messages at the last read.
    more: bool = False
    # Whether nothing was read into it yet.
    is_new: bool = True
    # How often waiting messages were dropped: a piece taken before is not put back.
    drops: int = 0
    queued: bool = False
    failure: Failure | None = None
    not_before: float = 0.0
    quarantined: bool = False
    # Since when the log has ended before the next position to read.
    ahead_since: float | None = None

    @property
    def partition(self) -> int:
        return self.grant.partition

    @property
    def epoch(self) -> int:
        return self.grant.epoch

    @property
    def key(self) -> Key:
        return self.grant.key

    @property
    def supplied(self) -> bool:
        """Whether a worker has messages of it, or finds some."""
        return bool(self.waiting) or self.in_hand > 0

    @property
    def position(self) -> str | None:
        """The position up to which it is handled; None: the queue's `start` decides."""
        return self.grant.done

    def drop_waiting(self) -> None:
        """Drop the messages read ahead; they can be read again."""
        self.waiting.clear()
        self.waiting_messages = self.waiting_bytes = 0
        self.drops += 1
        self.more = False
        self.read_to = self.grant.done


@dataclass(frozen=True)
class Piece:
    """Some messages of a lane that a worker handles, taken when the lane had so many `drops`."""

    lane: Lane
    chunk: Chunk
    drops: int
