"""The readers that Spark drives: of a stream, a thin shell on `Consumption`, and of a batch.

Spark creates a reader in planner processes too and pickles it for the tasks, so its constructor
does nothing. All methods of the stream's reader except `read` are called in the query's own
process, and the first call with an offset opens the consumption there. After a crash in the middle
of a micro-batch this is `partitions`, with the offsets of that batch from the checkpoint. They name
the instance to bind as, and only after the bind it is known which slices are still held (docs,
*Spark*).

The batch's reader, `spark.read.format("counterpoise")`, reads a snapshot of a queue's log. It only
reads: it binds no flow, does not take part in the balance and commits nothing. The ranges are
decided while Spark plans the read (`batch`). The tasks are those of streams (`tasks`). Their rows
have no epoch (null), because there was no grant.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from counterpoise.lease_time import lease_time
from counterpoise.spark.offsets import Json, Offset, offset_of
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.log_partition import LogPartition
from counterpoise.spark.source.without_driver import refuse_state

if TYPE_CHECKING:
    from counterpoise.spark.source.opening import Opened, PreparedBatch, ReachedLog


# How long a stop waits for a bind.
_STOP_SECONDS = 5.0


class CounterpoiseStreamReader(DataSourceStreamReader):
    """Reads the partitions of a queue that this query's flow owns.

    How Spark asks for the next offset depends on its version: `with_limits`, `without_limits`.
    """

    def __init__(self, options: SourceOptions, cores: int, home: str | None = None) -> None:
        self._options = options
        self._cores = cores
        self._home = home
        self._opened: Opened | None = None
        self._prepared: PreparedBatch | None = None
        self._reached: ReachedLog | None = None
        self._looked = False
        self._opening = threading.Lock()
        self._stopped = threading.Event()
        self._available_now = False
        self._fresh_instance = str(uuid.uuid4())
        # When Spark last asked for an offset; the lease is renewed only for a limited time after
        # it.
        self._asked_at = 0.0

    # ------------------------------------------------------------------ called by Spark

    def initialOffset(self) -> Json:  # noqa: N802
        # It names the instance, so that the driver can find this query's flow before there is data.
        instance = self._options.instance_id or self._fresh_instance
        return Offset(self._options.queue, instance=instance).to_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self._asked_at = lease_time()
        if self._opened is None and self._prepared is not None and end == self._prepared.end:
            threading.Thread(target=self._bind, name="counterpoise-binder", daemon=True).start()
            return self._prepared.groups
        return self._open(end).consumption.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        if self._home is None:
            refuse_state(self._options)
        return _read(partition)

    def stop(self) -> None:
        self._stopped.set()
        # The binder may be binding; then it stops what it has begun.
        if self._opening.acquire(timeout=_STOP_SECONDS):
            self._opening.release()
        if self._opened is not None:
            self._opened.consumption.stop()

    # ------------------------------------------------------------------ the next offset

    def next_offset(self, start: Json, most: int | None) -> Json:
        """The offset after `start`; `start` itself when there is nothing to read now.

        `most`: so many messages; None: no limit. Raises CannotStart and what
        `Consumption.next_offset` raises.
        """
        if (prepared := self._prepare(start)) is not None:
            return prepared.end
        opened = self._open(start)
        # With Trigger.AvailableNow this may wait longer than a micro-batch may take.
        self._asked_at = math.inf
        try:
            if self._available_now:
                opened.aim_at_now()
            return opened.consumption.next_offset(start, most)
        finally:
            self._asked_at = lease_time()

    # ------------------------------------------------------------------ opening

    def _prepare(self, document: Json) -> PreparedBatch | None:
        """At the first offset of a new query: the micro-batch to run before it binds, if any.

        A query that comes back binds at once, because partitions may wait for it.
        """
        options = self._options
        looked, self._looked = self._looked, True
        if looked or self._opened is not None or self._available_now or options.warmup:
            return None
        start = offset_of(document, options.queue)
        if options.instance_id is not None or start.instance != self._fresh_instance:
            return None
        from counterpoise.spark.source.opening import PreparedBatch, prepare

        ignore_signals()
        log_to_stderr()
        found = prepare(options, start, self._cores, home=self._home)
        if isinstance(found, PreparedBatch):
            self._prepared = found
        else:
            self._reached = found
        return self._prepared

    def _bind(self) -> None:
        """Bind as soon as the prepared micro-batch is done. With a trigger interval, Spark asks for
        the next offset much later; without one, it may be first. Its question binds in any case.
        """
        assert self._prepared is not None
        with suppress(Exception):  # Spark's own call tries again, and says so
            if self._prepared.wait_done(self._stopped):
                opened = self._open(self._prepared.end)
                if self._stopped.is_set():
                    opened.consumption.stop()

    def _open(self, document: Json) -> Opened:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_now(document)
            return self._opened

    def _open_now(self, document: Json) -> Opened:
        # The tasks load this module too, and need neither a flow nor its HTTP client.
        from counterpoise.spark.source.opening import open_consumption

        offset = offset_of(document, self._options.queue)
        ignore_signals()
        log_to_stderr()
        self._asked_at = lease_time()
        reached, self._reached = self._reached, None
        return open_consumption(
            self._options,
            self._options.instance_id or offset.instance,
            self._cores,
            renew_while=self._is_driven,
            home=self._home,
            known_as=offset.instance,
            available_now=self._available_now,
            prepared=self._prepared,
            reached=reached,
        )

    def _is_driven(self) -> bool:
        """Whether Spark still asks: a query that hangs must not keep its partitions."""
        return lease_time() - self._asked_at < self._options.max_batch_seconds

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: only options, and no secret. `home`: whether the session is known."""
        return {
            "_options": self._options.for_tasks(),
            "_cores": self._cores,
            "_home": self._home,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_cores"], state["_home"])  # type: ignore[misc]


def _read(partition: LogPartition) -> Iterator[pa.RecordBatch]:
    # The processes that plan load this module too, and read nothing.
    from counterpoise.spark.source.tasks import ahead, read_slices

    return ahead(lambda pause: read_slices(partition, sleep=pause))


def ignore_signals() -> None:
    """Let Spark end this process by closing its socket, so that `stop` is reached.

    `query.stop()` also sends SIGTERM, which would end it before. Ctrl-C in a terminal reaches the
    whole process group; the driver decides what to do about it.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def log_to_stderr() -> None:
    """Show what the query gets and loses, on the driver's stderr.

    The process is the source's own, and no program configures its log.
    """
    package = logging.getLogger("counterpoise")
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


class CounterpoiseBatchReader(DataSourceReader):
    """Reads the chosen ranges of a queue's log."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        """Raises InvalidOption for an option that only a stream has. Does nothing else."""
        self._options = options.for_batch()
        self._cores = cores

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read. Raises CannotStart and InvalidOption, which say what to do."""
        # The tasks load this module too, and never call the service.
        from counterpoise.spark.source.batch import plan_batch

        return plan_batch(self._options, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return iter(())  # Spark makes one of its own where there is nothing to read
        return _read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: only options, and no secret."""
        return {"_options": self._options.for_tasks(), "_cores": self._cores}
