"""State of `foreachBatch` that survives its owner: restored before a partition comes, exact when it
is here (docs, *Warm-up*, *Snapshots*).

Two threads work on the cells: Spark's, in which `foreachBatch` calls, and one of the handler's own,
which warms up what is coming, publishes what is here, and drops what has gone. What it knows of the
flow is the document `view` that the source says through the channel.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs import Log, LogAccessRefused, LogUnavailable
from counterpoise.spark.batch import QueueAccess
from counterpoise.spark.channel import Channel, channel_to, driver_home
from counterpoise.spark.door import LogDoor
from counterpoise.spark.errors import InvalidSchema
from counterpoise.spark.executor import ARROW_SCHEMA
from counterpoise.spark.offsets import Json, Slice
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.sink.batch import RunningBatch
from counterpoise.spark.warmup.snapshots import SnapshotStore, json_or_none
from counterpoise.spark.warmup.state import Cell, PartitionState, Restorer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("counterpoise.spark")

S = TypeVar("S")
R = TypeVar("R")

LOOK_SECONDS = 0.05
# A step of a warm-up that took no longer was short enough for the partition to be near.
NEAR_SECONDS = 1.0
ABSENT_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class Output:
    """What `apply` returned for the rows [start, end) of a partition; None if there were none."""

    partition: int
    epoch: int
    start: str
    end: str
    value: Any


class StatefulForeachBatch(Generic[S]):
    """A function for `foreachBatch` that keeps a state for each partition.

    `options`: those of the source (queue, url, logUrl, ...); with several queries on one queue in
    this application, `instanceId` has to be among them. `write(outputs, batch_id)` is called once
    for each micro-batch, with what `apply` returned for each partition; what it raises fails the
    query, and the states are restored when it runs again. `publish_seconds`: how often the state
    of a partition is published while it is worked here (its micro-batches wait while `dump` fills
    memory, not while that is written). `without_snapshot`: build a state from the log, or begin
    `empty`.

    The stream must be the source's own, not filtered or changed: history is read past Spark.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        state: PartitionState[S],
        write: Callable[[Sequence[Output], int], object],
        *,
        snapshots: SnapshotStore,
        publish_seconds: float = 60.0,
        without_snapshot: Literal["replay", "empty"] = "replay",
    ) -> None:
        """Raises InvalidOption. Nothing is asked of anybody before the first need."""
        self._options: SourceOptions = read_options(options)
        self._how = state
        self._write = write
        self._publish_seconds = publish_seconds
        self._cells: dict[int, Cell[S]] = {}
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._client = Client(self._options.url)
        self._door: LogDoor | None = None
        self._channel: Channel | None = None
        self._queue_id: str | None = None
        self._incarnation: str | None = None
        self._ready: dict[int, int] = {}
        self._said: Json | None = None
        self._pauses: dict[int, tuple[float, float]] = {}
        self._absent: dict[int, float] = {}
        self._ambiguous = False
        self._snapshots = snapshots
        self._without_snapshot = without_snapshot
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counterpoise-states", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ in Spark's thread

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        running = RunningBatch.of(batch)
        self._channel = running.channel
        table = rows_of(batch)
        planned = running.planned.read
        with contextlib.ExitStack() as held:
            cells = [(one, self._prepared(one, held)) for one in planned]
            outputs = []
            for one, cell in cells:
                rows = table.filter(pc.equal(table["partition"], one.partition))
                cell.clean = False
                value = self._how.apply(_state_of(cell), rows) if rows.num_rows else None
                outputs.append(Output(one.partition, one.epoch, one.start, one.end, value))
            self._write(outputs, batch_id)
            for one, cell in cells:
                cell.position, cell.clean = one.end, True

    def _prepared(self, one: Slice, held: contextlib.ExitStack) -> Cell[S]:
        """The partition's cell, locked, with its state at the start of the range."""
        cell = self._cell(one.partition)
        held.enter_context(cell.lock)
        goes_on = cell.epoch == one.epoch - 1 and cell.position == one.start
        if cell.epoch is not None and cell.epoch != one.epoch and not goes_on:
            cell.drop()  # of another tenure
        cell.epoch = one.epoch
        give_up_at = time.monotonic() + self._options.read_timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._restorer().bring_to(cell, one.start)
                return cell
            except CounterpoiseError as error:
                transient = isinstance(error, LogUnavailable | ServiceUnavailable)
                if not transient or time.monotonic() + pause > give_up_at:
                    raise
                logger.warning("counterpoise: the state of partition %d: %s", one.partition, error)
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)

    def close(self) -> None:
        """Publish what is here and stop. To be called when the query has been stopped."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        for cell in self._all():
            if cell.epoch is not None:
                self._publish(cell, cell.epoch)
        if self._door is not None:
            self._door.close()
        self._client.close()

    # ------------------------------------------------------------------ in the thread beside

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                view = self._view()
                if view is not None:
                    self._follow(view)
            except CounterpoiseError as error:
                logger.info("counterpoise: states wait: %s", error)
                self._closed.wait(_LONGEST_PAUSE_SECONDS)
            except Exception:
                logger.exception("counterpoise: warm-up of states failed; it is tried again")
                self._closed.wait(_LONGEST_PAUSE_SECONDS)

    def _view(self) -> Json | None:
        """What the source says of this query's flow, if it is bound."""
        channel = self._channel or self._find_channel()
        view = None if channel is None else channel.get("view")
        return view if view is not None and view.get("status") == "bound" else None

    def _find_channel(self) -> Channel | None:
        """The channel of the query, before it has called us."""
        options = self._options
        if options.instance_id is not None:
            return channel_to(options.instance_id)
        found = [view for view in _views(driver_home()) if view.get("queue") == options.queue]
        if len(found) == 1:
            return channel_to(found[0]["instance"])
        if found and not self._ambiguous:
            self._ambiguous = True
            logger.warning(
                "counterpoise: %d queries of this application read the queue %r: set the option "
                "instanceId, so that warm-up can begin before the first micro-batch",
                *(len(found), options.queue),
            )
        return None

    def _follow(self, view: Json) -> None:
        partitions = {int(number): one for number, one in view["partitions"].items()}
        now = time.monotonic()
        for cell in self._all():
            # A view can be older than the micro-batch that has made the cell.
            if cell.partition in partitions:
                self._absent.pop(cell.partition, None)
            elif now - self._absent.setdefault(cell.partition, now) > ABSENT_SECONDS:
                self._let_go(cell)
        ready: dict[int, int] = {}
        in_flight = set(view.get("inFlight", ()))
        for number, one in partitions.items():
            if self._closed.is_set():
                return
            if one["state"] == "warming":
                epoch = one["epoch"]
                if self._warm(number, epoch, one["position"]) or self._ready.get(number) == epoch:
                    ready[number] = epoch
            elif number not in in_flight:
                self._keep(number, one)
        self._say_ready(ready)

    def _warm(self, number: int, epoch: int, position: str | None) -> bool:
        """One step of a warm-up; whether it was short enough to be ready."""
        if position is None:
            return True
        cell = self._cell(number)
        if cell.epoch is not None and cell.epoch > epoch:
            return False  # granted meanwhile
        if cell.epoch == epoch:
            return True  # we are the owner: it is on its way to another flow of ours
        if cell.epoch is not None:
            # Worked here before, and by somebody else since.
            self._let_go(cell)
            cell = self._cell(number)
        began = time.monotonic()
        if not self._patiently(cell, position):
            return False
        return time.monotonic() - began < NEAR_SECONDS

    def _keep(self, number: int, one: Json) -> None:
        """A partition that is ours, of which nothing is in flight: restore it or publish it."""
        cell = self._cell(number)
        position = one["position"]
        if position is not None and not cell.usable():
            self._patiently(cell, position)
        epoch = cell.epoch
        due = time.monotonic() - cell.published_at >= self._publish_seconds
        if epoch is not None and (one["state"] == "revoking" or due):
            self._publish(cell, epoch)

    def _let_go(self, cell: Cell[S]) -> None:
        """The partition is somebody else's, or not coming any more."""
        if cell.epoch is not None:
            self._publish(cell, cell.epoch)
        with self._guard:
            self._cells.pop(cell.partition, None)
        self._pauses.pop(cell.partition, None)
        self._absent.pop(cell.partition, None)

    def _patiently(self, cell: Cell[S], position: str) -> bool:
        """Bring the cell there; False if it did not work, or it is too early to try again."""
        now = time.monotonic()
        not_before, pause = self._pauses.get(cell.partition, (0.0, _FIRST_PAUSE_SECONDS))
        if now < not_before:
            return False
        try:
            self._restorer().bring_to(cell, position)
        except CounterpoiseError as error:
            logger.warning("counterpoise: the state of partition %d: %s", cell.partition, error)
            longer = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
            self._pauses[cell.partition] = (time.monotonic() + pause, longer)
            return False
        self._pauses.pop(cell.partition, None)
        return True

    def _publish(self, cell: Cell[S], epoch: int) -> None:
        try:
            restorer = self._restorer()
            assert self._incarnation is not None
            if restorer.publish(cell, epoch, self._incarnation):
                logger.info("counterpoise: published partition %d", cell.partition)
        except (OSError, CounterpoiseError) as error:
            logger.warning(
                "counterpoise: the state of partition %d is not published: %s",
                *(cell.partition, error),
            )

    def _say_ready(self, ready: dict[int, int]) -> None:
        self._ready = ready
        document = {"partitions": {str(n): {"epoch": epoch} for n, epoch in sorted(ready.items())}}
        channel = self._channel or self._find_channel()
        if channel is None:
            return
        # A query that begins anew has a channel of its own, where nothing was said yet.
        if document != self._said or channel.stamp("ready") is None:
            channel.put("ready", document)
            self._said = document

    # ------------------------------------------------------------------ what both need

    def _all(self) -> list[Cell[S]]:
        with self._guard:
            return list(self._cells.values())

    def _cell(self, number: int) -> Cell[S]:
        with self._guard:
            return self._cells.setdefault(number, Cell(number))

    def _restorer(self) -> Restorer[S]:
        if self._queue_id is None:
            self._queue_id = self._client.queue(self._options.queue).id
        return Restorer(
            self._how, self._snapshots, self._queue_id, self._log, self._without_snapshot
        )

    def _log(self) -> Log:
        """The log, with credentials that it accepts."""
        with self._opening:
            if self._door is None:
                access = QueueAccess(self._client, self._options.queue)
                self._door = LogDoor(access, self._options.log_url)
            log = self._door.open()
            try:
                self._incarnation = log.bounds([]).incarnation
            except LogAccessRefused:
                log = self._door.open(fresh=True)
                self._incarnation = log.bounds([]).incarnation
            return log


def _views(home: str) -> Iterator[Json]:
    """The views that all sources of this application say."""
    for directory in Path(home).iterdir():
        with contextlib.suppress(OSError):
            view = json_or_none((directory / "view.json").read_bytes())
            if isinstance(view, dict):
                yield view


def _state_of(cell: Cell[R]) -> Any:
    return cell.state


def rows_of(batch: DataFrame) -> pa.Table:
    """The micro-batch as rows of the source. Raises InvalidSchema if it was changed on the way."""
    if batch.columns != ARROW_SCHEMA.names:
        raise InvalidSchema(
            "StatefulForeachBatch takes the stream as it comes from the source, with the columns "
            f"{', '.join(ARROW_SCHEMA.names)}, not {', '.join(batch.columns)}: history is read "
            "past Spark, so select and filter within apply"
        )
    return batch.toArrow().cast(ARROW_SCHEMA)
