"""The batch reader: `spark.read.format("counterpoise")`, a snapshot of a queue's log.

It only looks: it binds no flow, counts for no balance, commits nothing. What it needs of the
service is asked while Spark plans the read: the queue's partitions, and the way to its log. Where
the ranges end is decided then too, so all tasks read what was there at one moment, however long
they take and however often they are repeated. The tasks are those of streams (`executor`); their
rows are of no epoch (null), since nobody was granted what they read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from counterpoise.client import Client
from counterpoise.spark.door import LogDoor
from counterpoise.spark.executor import LogPartition, log_partition, read_slices
from counterpoise.spark.extent import Known, chosen, extents
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.patience import patiently
from counterpoise.spark.planning import pack
from counterpoise.spark.probe import ask_bounds
from counterpoise.wire import LogAccess, LogView

_CALL_SECONDS = 10.0


class QueueAccess:
    """The way to the log of a queue for somebody who is not bound to it."""

    def __init__(self, client: Client, queue: str) -> None:
        """Raises CounterpoiseError: QueueNotFound, ServiceUnavailable, ..."""
        self._client = client
        self._queue = queue
        self.view: LogView = client.log_access(queue, "read")

    @property
    def log(self) -> str | None:
        """The log's public name."""
        return self.view.log

    def log_access(self, *, fresh: bool = False) -> LogAccess | None:
        """What the service gave; `fresh`: asked for again."""
        if fresh:
            self.view = self._client.log_access(self._queue, "read")
        return self.view.access


class CounterpoiseBatchReader(DataSourceReader):
    """Reads what the options say of a queue's log."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        """Raises InvalidOption for an option that only a stream has. Nothing else happens yet."""
        self._options = options.for_batch()
        self._cores = cores

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read. Raises CannotStart and InvalidOption, saying what to do."""
        options = self._options
        give_up_at = time.monotonic() + options.start_timeout_seconds
        timeout_seconds = max(0.1, min(_CALL_SECONDS, options.start_timeout_seconds))
        with Client(options.url, timeout_seconds=timeout_seconds) as client:
            return patiently(lambda: self._plan(client), options, give_up_at)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read_slices(partition)

    def _plan(self, client: Client) -> list[InputPartition]:
        options = self._options
        access = QueueAccess(client, options.queue)
        known = Known(
            options.queue,
            {one.partition: one.position for one in client.partitions(options.queue)},
            access.view.start,
        )
        numbers = chosen(options.starting, options.ending, known)
        door = LogDoor(access, options.log_url)
        try:
            bounds, log = ask_bounds(door, numbers)
            slices = extents(options.starting, options.ending, known, log, bounds)
        finally:
            door.close()
        most = options.max_input_partitions or self._cores
        return [log_partition(door, options, group) for group in pack(slices, most)]

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: options alone, and none of them a secret."""
        return {"_options": self._options.for_tasks(), "_cores": self._cores}
