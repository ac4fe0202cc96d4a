"""State of `foreachBatch` that outlives its owner: warm before a partition comes, then exact.

Docs: *Warm-up*, *Snapshots*. Two threads use the states: Spark's, in which `foreachBatch` is called
(`StatefulForeachBatch`), and one in the background (`StateKeeper`), which warms them up, publishes
and drops them as partitions come and go. It learns of the flow from the document `view` that the
source writes to the channel, and answers with the document `ready`. If the log or the user's own
code fails for one partition, only that partition waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.backoff import Backoff
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs import LogNotFound, LogUnavailable, PositionAhead
from counterpoise.logs.errors import ReadRetries
from counterpoise.spark.channel.channel import Channel, channel_to, known_home
from counterpoise.spark.channel.running_batch import RunningBatch
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.offsets import Json, Slice
from counterpoise.spark.options import SourceOptions, read_options
from counterpoise.spark.source.log_partition import ARROW_SCHEMA
from counterpoise.spark.state.snapshots import SnapshotStore, json_or_none
from counterpoise.spark.state.states import Cell, PartitionState, States, say_failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


logger = logging.getLogger("counterpoise.spark")

S = TypeVar("S")


@dataclass(frozen=True)
class Output:
    """What `apply` returned for the rows [start, end) of a partition; None: there were no rows."""

    partition: int
    epoch: int
    start: str
    end: str
    value: Any


class StatefulForeachBatch(Generic[S]):
    """A function for `foreachBatch` that keeps a state for each partition.

    `options`: those of the source (queue, url, logUrl, ...); with several queries on one queue in
    this application, they must include `instanceId`. `write(outputs, batch_id)` is called once for
    each micro-batch, with what `apply` returned for each partition. If it raises, the query fails,
    and the states are restored when it runs again. `publish_seconds`: how often the state of a
    partition is published while it is processed here (its micro-batches wait while `dump` fills
    memory, but not for the disk). `without_snapshot`: rebuild a state from the log, or begin
    `empty`.

    The stream must be the source's own, unchanged: history is read from the log, not through Spark.
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
        """Raises InvalidOption. Makes no call to service or log before a state is needed."""
        self._options: SourceOptions = read_options(options)
        self._how = state
        self._write = write
        self._states = States(self._options, state, snapshots, without_snapshot)
        self._keeper = StateKeeper(self._options, self._states, publish_seconds)
        self._keeper.start()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        running = RunningBatch.of(batch)
        if running.planned.queue != self._options.queue:
            raise InvalidOption(
                f"StatefulForeachBatch has the options of the queue {self._options.queue!r}, and "
                f"its query reads {running.planned.queue!r}: the history would be of another "
                "queue. Give both the same options"
            )
        self._keeper.channel = running.channel
        table = rows_of(batch)
        if running.planned.divides:
            table = in_order(table)
        planned = running.planned.read
        with contextlib.ExitStack() as held:
            cells = [(one, self._prepared(one, running.planned.log, held)) for one in planned]
            outputs = []
            for one, cell in cells:
                rows = table.filter(pc.equal(table["partition"], one.partition))
                cell.clean = False
                state: Any = cell.state
                value = self._how.apply(state, rows) if rows.num_rows else None
                outputs.append(Output(one.partition, one.epoch, one.start, one.end, value))
            self._write(outputs, batch_id)
            for one, cell in cells:
                cell.position, cell.clean = one.end, True

    def _prepared(self, one: Slice, log: str, held: contextlib.ExitStack) -> Cell[S]:
        """The partition's cell, locked, with its state at the start of the range."""
        cell = self._states.cell(one.partition)
        held.enter_context(cell.lock)
        goes_on = cell.epoch == one.epoch - 1 and cell.position == one.start
        of_another_tenure = cell.epoch is not None and cell.epoch != one.epoch and not goes_on
        if of_another_tenure or cell.log != log:
            cell.drop()
        cell.epoch = one.epoch
        retries = ReadRetries(self._options.read_timeout_seconds)
        while True:
            try:
                self._states.bring_to(cell, one.start)
                return cell
            except (LogUnavailable, ServiceUnavailable, LogNotFound, PositionAhead) as error:
                pause = retries.pause_after(error)
                if pause is None:
                    raise
                logger.warning("counterpoise: the state of partition %d: %s", one.partition, error)
                time.sleep(pause)

    def close(self) -> None:
        """Publish the states and stop. Call it when the query has stopped."""
        if self._keeper.close():
            self._states.close()


def rows_of(batch: DataFrame) -> pa.Table:
    """The micro-batch as rows of the source. Raises InvalidOption if its columns were changed."""
    if batch.columns != ARROW_SCHEMA.names:
        raise InvalidOption(
            "StatefulForeachBatch needs the unchanged stream of the source, with the columns "
            f"{', '.join(ARROW_SCHEMA.names)}, not {', '.join(batch.columns)}: history is "
            "read from the log directly, so select and filter within apply"
        )
    return batch.toArrow().cast(ARROW_SCHEMA)


def in_order(rows: pa.Table) -> pa.Table:
    """The rows in the order of their positions, which are decimal numbers."""
    return rows.take(pc.sort_indices(pc.cast(rows["position"], pa.int64())))


POLL_SECONDS = 0.05
# If a step of a warm-up took no longer than this, the partition is near enough.
NEAR_SECONDS = 1.0
ABSENT_SECONDS = 1.0
BACKOFF = Backoff(0.1, 2.0)


class StateKeeper(Generic[S]):
    """Runs from `start` to `close`. The query sets `channel` at its first call; before that, the
    thread searches for the query's channel.
    """

    def __init__(self, options: SourceOptions, states: States[S], publish_seconds: float) -> None:
        self.channel: Channel | None = None
        self._options = options
        self._states = states
        self._publish_seconds = publish_seconds
        self._ready: dict[int, int] = {}
        self._said: Json | None = None
        # By partition: when a failed state may be tried again, and how often it has failed.
        self._failed: dict[int, tuple[float, int]] = {}
        self._absent: dict[int, float] = {}
        self._ambiguous = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counterpoise-states", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> bool:
        """End the thread. Returns False if it was closed before."""
        if self._closed.is_set():
            return False
        self._closed.set()
        self._thread.join()
        return True

    def follow(self, view: Json) -> None:
        """Process one view of the source: a step for each partition, then write which are ready."""
        partitions = {int(number): one for number, one in view["partitions"].items()}
        self._drop_absent(partitions)
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

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                view = self._view()
                if view is not None:
                    self.follow(view)
            except CounterpoiseError as error:
                logger.info("counterpoise: states wait: %s", error)
                self._closed.wait(BACKOFF.longest_seconds)
            except Exception:
                logger.exception("counterpoise: warm-up of states failed; it is tried again")
                self._closed.wait(BACKOFF.longest_seconds)

    # ------------------------------------------------------------------ a partition

    def _drop_absent(self, partitions: dict[int, Json]) -> None:
        now = time.monotonic()
        for cell in self._states.all():
            # A view can be older than the micro-batch that created the cell.
            if cell.partition in partitions:
                self._absent.pop(cell.partition, None)
            elif now - self._absent.setdefault(cell.partition, now) > ABSENT_SECONDS:
                self._let_go(cell)

    def _warm(self, number: int, epoch: int, position: str | None) -> bool:
        """One step of a warm-up. Returns whether it was short enough to report ready."""
        if position is None:
            return True
        cell = self._states.cell(number)
        if cell.epoch is not None and cell.epoch > epoch:
            return False  # granted meanwhile
        if cell.epoch is not None:
            # Processed here before, and by another owner since.
            self._let_go(cell)
            cell = self._states.cell(number)
        began = time.monotonic()
        # A grant and its micro-batch may come meanwhile.
        if not self._bring_to(cell, position, lambda: cell.epoch is None):
            return False
        return cell.epoch is None and time.monotonic() - began < NEAR_SECONDS

    def _bring_to(self, cell: Cell[S], position: str, still: Callable[[], bool]) -> bool:
        """Bring the state to the position if that is `still` wanted when its lock is free. Returns
        whether it went well.
        """

        def bring() -> None:
            with cell.lock:
                if still():
                    self._states.bring_to(cell, position)

        return self._patiently(cell, bring)

    def _keep(self, number: int, one: Json) -> None:
        """Restore or publish the state of a granted partition that is not in flight."""
        cell = self._states.cell(number)
        position = one["position"]
        if position is not None and not cell.usable():
            # A micro-batch may bring it past the view meanwhile.
            self._bring_to(cell, position, lambda: not cell.usable())
        # An unusable state has nothing to publish; a failed restore has set its pause.
        if cell.usable() and (one["state"] == "revoking" or self._is_due(cell)):
            self._patiently(cell, partial(self._states.publish, cell))

    def _is_due(self, cell: Cell[S]) -> bool:
        return time.monotonic() - cell.published_at >= self._publish_seconds

    def _let_go(self, cell: Cell[S]) -> None:
        self._states.let_go(cell)
        self._failed.pop(cell.partition, None)
        self._absent.pop(cell.partition, None)

    def _patiently(self, cell: Cell[S], act: Callable[[], None]) -> bool:
        """Do it to the cell. Returns False if it failed, or if it is too early to try again."""
        now = time.monotonic()
        not_before, failures = self._failed.get(cell.partition, (0.0, 0))
        if now < not_before:
            return False
        try:
            act()
        except Exception as error:
            say_failed(cell, error)
            failures += 1
            not_before = time.monotonic() + BACKOFF.after(failures)
            self._failed[cell.partition] = (not_before, failures)
            return False
        self._failed.pop(cell.partition, None)
        return True

    # ------------------------------------------------------------------ the channel

    def _view(self) -> Json | None:
        """The source's view of this query's flow, if the flow is bound."""
        if self.channel is not None and self.channel.stamp("view") is None:
            # The query has ended, and may begin again as another instance.
            self.channel = None
        channel = self.channel or self._find_channel()
        view = None if channel is None else channel.get("view")
        return view if view is not None and view.get("status") == "bound" else None

    def _find_channel(self) -> Channel | None:
        """The channel of the query, before its first call. Raises Unsupported."""
        options = self._options
        if options.instance_id is not None:
            return channel_to(options.instance_id)
        found = [view for view in _views(known_home()) if view.get("queue") == options.queue]
        if len(found) == 1:
            return channel_to(found[0]["instance"])
        if found and not self._ambiguous:
            self._ambiguous = True
            logger.warning(
                "counterpoise: %d queries of this application read the queue %r: set the option "
                "instanceId, so that warm-up can begin before the first micro-batch",
                len(found),
                options.queue,
            )
        return None

    def _say_ready(self, ready: dict[int, int]) -> None:
        self._ready = ready
        document = {"partitions": {str(n): {"epoch": epoch} for n, epoch in sorted(ready.items())}}
        channel = self.channel or self._find_channel()
        if channel is None:
            return
        # A restarted query has a new channel without a document.
        if document != self._said or channel.stamp("ready") is None:
            channel.put("ready", document)
            self._said = document


def _views(home: str) -> Iterator[Json]:
    """The views of all sources of this application."""
    for directory in Path(home).iterdir():
        with contextlib.suppress(OSError):
            view = json_or_none((directory / "view.json").read_bytes())
            if isinstance(view, dict):
                yield view
