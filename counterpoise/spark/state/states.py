"""The states of the partitions that a query processes or warms up, and how one is restored.

A cell holds the result of the messages before its position. It is trusted only if it is *clean* (no
failed micro-batch has touched it), of the requested epoch, and not ahead. Otherwise it is restored
from the newest snapshot that is not ahead, or from the log's start. The messages in between are
read from the log. All of this happens under the cell's lock.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cmp_to_key
from typing import Any, BinaryIO, Generic, Literal, TypeVar

import pyarrow as pa

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import Bounds, Log, LogAccessRefused, PositionTrimmed
from counterpoise.spark.offsets import Slice
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.queue_log import QueueLog, ReadAccess
from counterpoise.spark.source.tasks import as_rows
from counterpoise.spark.state.snapshots import Snapshot, SnapshotStore

logger = logging.getLogger("counterpoise.spark")

S = TypeVar("S")

# How much is read and applied at a time when a state catches up.
PORTION_MESSAGES = 20_000
PORTION_BYTES = 64 * 1024 * 1024
KEPT_SNAPSHOTS = 3


class PartitionState(ABC, Generic[S]):
    """The user's definition of the state: its beginning, change, writing and reading.

    `apply` must depend on state and rows alone. Then the restored state equals the lost one.
    """

    @abstractmethod
    def empty(self, partition: int) -> S:
        """The state before the first message."""

    @abstractmethod
    def apply(self, state: S, rows: pa.Table) -> Any:
        """Change the state by rows of one partition, in order; returns their output.

        `rows` has the columns of the source; history comes with `replay` true, and its output is
        dropped.
        """

    @abstractmethod
    def dump(self, state: S, file: BinaryIO) -> None:
        """Write the state."""

    @abstractmethod
    def load(self, file: BinaryIO) -> S:
        """Read what `dump` has written."""


class Cell(Generic[S]):
    """The state of one partition; `lock` guards all of it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.lock = threading.RLock()
        self.state: S | None = None
        self.position: str | None = None
        # The incarnation of the log whose messages it holds.
        self.log: str | None = None
        # The epoch under which the partition is processed here; None while it only warms up.
        self.epoch: int | None = None
        self.clean = False
        self.published: str | None = None
        self.published_at = 0.0

    def usable(self) -> bool:
        """Whether there is a state that no failed micro-batch has touched."""
        return self.clean and self.position is not None

    def drop(self) -> None:
        """Forget the state."""
        self.state, self.position, self.clean = None, None, False


class Restorer(Generic[S]):
    """Brings cells to positions.

    `access` returns the open log, with current credentials.
    """

    def __init__(
        self,
        how: PartitionState[S],
        snapshots: SnapshotStore,
        queue: str,
        access: Callable[[], Log],
        without_snapshot: Literal["replay", "empty"] = "replay",
    ) -> None:
        self._how = how
        self._snapshots = snapshots
        self.queue = queue
        self._access = access
        self._without_snapshot = without_snapshot

    def bring_to(self, cell: Cell[S], target: str) -> None:
        """Make the cell's state that of all messages before `target`.

        Raises LogError; then the cell keeps its progress, and a later call continues.
        """
        with cell.lock:
            if cell.usable() and cell.position == target:
                return
            log = self._access()
            bounds = log.bounds([cell.partition])
            position = cell.position
            if (
                not cell.usable()
                or cell.log != bounds.incarnation
                or (position is not None and log.compare(position, target) > 0)
            ):
                self._load(cell, target, log, bounds)
            self._catch_up(cell, target, log, bounds)

    def publish(self, cell: Cell[S], epoch: int) -> bool:
        """Publish the cell's state. Returns whether there was anything new. Raises OSError.

        Micro-batches wait while the state is dumped to memory, but not while it is written to disk.
        """
        with cell.lock:
            position = cell.position
            if not cell.usable() or position is None or position == cell.published:
                return False
            assert cell.log is not None, "a usable state was restored from a log"
            snapshot = Snapshot(self.queue, cell.log, cell.partition, epoch, position)
            state: Any = cell.state
            content = io.BytesIO()
            self._how.dump(state, content)
            cell.published_at = time.monotonic()

        def write(file: BinaryIO) -> None:
            file.write(content.getbuffer())

        self._snapshots.publish(snapshot, write)
        cell.published = position
        self._prune(snapshot)
        return True

    # ------------------------------------------------------------------ the steps

    def _load(self, cell: Cell[S], target: str, log: Log, bounds: Bounds) -> None:
        cell.drop()
        cell.log = bounds.incarnation
        for snapshot in self._newest_first(log, cell.partition, bounds.incarnation):
            if log.compare(snapshot.position, target) > 0:
                continue
            try:
                cell.state = self._snapshots.load(snapshot, self._how.load)
            except OSError as error:
                logger.warning("counterpoise: %s; trying an older snapshot", error)
                continue
            cell.position = cell.published = snapshot.position
            # The next snapshot can wait: publishing now would delay the first micro-batch of a
            # grant.
            cell.published_at = time.monotonic()
            cell.clean = True
            return
        cell.state = self._how.empty(cell.partition)
        first = bounds.starts[cell.partition]
        begin = target if self._without_snapshot == "empty" else first
        if log.compare(begin, target) > 0:
            begin = target
        if begin != target:
            logger.warning(
                "counterpoise: there is no snapshot for partition %d at %s: its state is built "
                "from position %s of the log",
                cell.partition,
                target,
                begin,
            )
        if self._without_snapshot == "replay" and first != "0":
            _warn_of_gap(cell.partition, "0", first)
        cell.position, cell.published, cell.clean = begin, None, True

    def _catch_up(self, cell: Cell[S], target: str, log: Log, bounds: Bounds) -> None:
        while cell.position is not None and log.compare(cell.position, target) < 0:
            begin, first = cell.position, bounds.starts[cell.partition]
            if log.compare(target, first) < 0:
                # Nothing is left before it. A trim that comes later shows when it is read.
                _warn_of_gap(cell.partition, begin, target)
                cell.position = target
                return
            ends = {cell.partition: target}
            within = replace(bounds, ends={**bounds.ends, **ends})
            end = log.limit(
                {cell.partition: begin}, PORTION_MESSAGES, within, max_bytes=PORTION_BYTES
            )[cell.partition]
            if log.compare(end, begin) <= 0:
                end = target
            try:
                tables = list(log.read(cell.partition, begin, end, max_messages=PORTION_MESSAGES))
            except PositionTrimmed as error:
                _warn_of_gap(cell.partition, begin, error.first)
                first = error.first
                cell.position = first if log.compare(first, target) < 0 else target
                continue
            epoch = cell.epoch or 0
            history = Slice(cell.partition, epoch, begin, end, epoch, replay=True)
            rows = [as_rows(batch, history) for batch in tables if batch.num_rows]
            state: Any = cell.state
            cell.clean = False
            if rows:
                self._how.apply(state, pa.Table.from_batches(rows))
            cell.position, cell.clean = end, True

    def _newest_first(self, log: Log, partition: int, incarnation: str) -> list[Snapshot]:
        try:
            found = self._snapshots.found(self.queue, incarnation, partition)
        except OSError as error:
            logger.warning("counterpoise: the snapshots cannot be listed: %s", error)
            return []

        def order(a: Snapshot, b: Snapshot) -> int:
            return log.compare(a.position, b.position) or a.epoch - b.epoch

        return sorted(found, key=cmp_to_key(order), reverse=True)

    def _prune(self, published: Snapshot) -> None:
        """Keep the newest snapshots, and the newest up to this one.

        They differ after positions were set back: the newest are ahead then and of no use.
        """
        log, at = self._access(), published.position
        newest = self._newest_first(log, published.partition, published.log)
        reached = [one for one in newest if log.compare(one.position, at) <= 0]
        kept = {*newest[:KEPT_SNAPSHOTS], *reached[:KEPT_SNAPSHOTS]}
        self._snapshots.prune(self.queue, published.log, published.partition, kept)


def _warn_of_gap(partition: int, begin: str, end: str) -> None:
    logger.warning(
        "counterpoise: the state of partition %d is restored without positions %s to %s, which "
        "the log has trimmed",
        partition,
        begin,
        end,
    )


class States(Generic[S]):
    """A cell for each partition. Any thread may call; each cell has a lock of its own.

    Makes no call to service or log before a state is needed.
    """

    def __init__(
        self,
        options: SourceOptions,
        how: PartitionState[S],
        snapshots: SnapshotStore,
        without_snapshot: Literal["replay", "empty"],
    ) -> None:
        self._options = options
        self._how = how
        self._snapshots = snapshots
        self._without_snapshot = without_snapshot
        self._cells: dict[int, Cell[S]] = {}
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._client = Client(options.url)
        self._connection: QueueLog | None = None
        self._queue_id: str | None = None

    def all(self) -> list[Cell[S]]:
        """The present cells."""
        with self._guard:
            return list(self._cells.values())

    def cell(self, partition: int) -> Cell[S]:
        """The cell of the partition, created if needed."""
        with self._guard:
            return self._cells.setdefault(partition, Cell(partition))

    def bring_to(self, cell: Cell[S], position: str) -> None:
        """Bring the state to `position`. Raises CounterpoiseError, and what `how` raises."""
        self._restorer().bring_to(cell, position)

    def publish(self, cell: Cell[S]) -> None:
        """Publish the state if it changed and its partition is processed here.

        Raises OSError, CounterpoiseError, and what `how` raises.
        """
        if cell.epoch is None or not cell.usable():
            return
        if self._restorer().publish(cell, cell.epoch):
            logger.info("counterpoise: published partition %d", cell.partition)

    def let_go(self, cell: Cell[S]) -> None:
        """Publish the state and forget the cell: the partition has another owner or is no longer
        coming.

        A failure to publish is only logged, because the state can be rebuilt from the log.
        """
        try:
            self.publish(cell)
        except Exception as error:
            say_failed(cell, error)
        with self._guard:
            self._cells.pop(cell.partition, None)

    def close(self) -> None:
        """Publish all states of partitions that are processed here."""
        for cell in self.all():
            self.let_go(cell)
        if self._connection is not None:
            self._connection.close()
        self._client.close()

    def _restorer(self) -> Restorer[S]:
        if self._queue_id is None:
            self._queue_id = self._client.queue(self._options.queue).id
        return Restorer(
            self._how, self._snapshots, self._queue_id, self._log, self._without_snapshot
        )

    def _log(self) -> Log:
        """The log, opened with credentials that it accepts."""
        with self._opening:
            if self._connection is None:
                access = ReadAccess(self._client, self._options.queue)
                self._connection = QueueLog(access, self._options.log_url)
            log = self._connection.open()
            try:
                log.bounds([])
            except LogAccessRefused:
                log = self._connection.open(fresh=True)
            return log


def say_failed(cell: Cell[Any], error: Exception) -> None:
    """Log that restoring or publishing failed; with a traceback if the user's own code may be at
    fault.
    """
    foreseen = isinstance(error, OSError | CounterpoiseError)
    logger.warning(
        "counterpoise: the state of partition %d: %s",
        cell.partition,
        error,
        exc_info=None if foreseen else error,
    )
