"""The states of the partitions that a query processes or warms up."""

from __future__ import annotations

import logging
import threading
from typing import Any, Generic, Literal, TypeVar

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import Log, LogAccessRefused
from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.tasks.log_connection import LogConnection, QueueAccess
from counterpoise.spark.warmup.snapshots import SnapshotStore
from counterpoise.spark.warmup.state import Cell, PartitionState, Restorer

logger = logging.getLogger("counterpoise.spark")

S = TypeVar("S")


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
        self._connection: LogConnection | None = None
        self._queue_id: str | None = None
        self._incarnation: str | None = None

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
        restorer = self._restorer()
        assert self._incarnation is not None, "a usable state was restored from the log"
        if restorer.publish(cell, cell.epoch, self._incarnation):
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
                access = QueueAccess(self._client, self._options.queue)
                self._connection = LogConnection(access, self._options.log_url)
            log = self._connection.open()
            try:
                self._incarnation = log.bounds([]).incarnation
            except LogAccessRefused:
                log = self._connection.open(fresh=True)
                self._incarnation = log.bounds([]).incarnation
            return log


def say_failed(cell: Cell[Any], error: Exception) -> None:
    """Log that restoring or publishing failed; with a traceback if the user's own code may be at
    fault.
    """
    foreseen = isinstance(error, OSError | CounterpoiseError)
    logger.warning(
        "counterpoise: the state of partition %d: %s",
        *(cell.partition, error),
        exc_info=None if foreseen else error,
    )
