"""The sink of aggregates that users pass to `foreachBatch`."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.spark.aggregates.merging import (
    Counted,
    Emit,
    Late,
    Merge,
    Results,
    close_windows,
    microseconds,
)
from counterpoise.spark.aggregates.partials import Aggregate
from counterpoise.spark.aggregates.windows import Windows
from counterpoise.spark.channel.running_batch import RunningBatch, reads_several
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink import FencedSink
from counterpoise.spark.sink.database import Database, MakeEngine, TransactionLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from counterpoise.spark.aggregates.tables import AggregateKey


logger = logging.getLogger("counterpoise.spark")

_PLACES = ("window_start", "window_end")
_LIMITS = ("transaction_seconds", "retry_seconds")


class FencedAggregate:
    """Aggregates that are exact across all applications of a queue (docs, *Aggregates*):
    `.foreachBatch(FencedAggregate(url, "per_minute", values={"n": Count()}, windows=Windows("at",
    60)))`.

    `where` is as for `FencedSink`; the driver connects too. `table`: the result, which you create,
    with columns `window_start` and `window_end` (timestamptz; none without `windows`), those of
    `by`, and those of `values`. Or `emit(connection, rows)` is called in the transaction that
    closes windows, with a dictionary for each result. `values`: the aggregates by column of the
    result. `by`: the columns of a group. `windows` None: one result for each group, replaced after
    each micro-batch that changes it.

    `late`: what becomes of late rows: `drop`, `side`, or `merge`, for `keep_seconds` after the
    window was closed. `idle_seconds`: how long a partition without rows holds windows open; None:
    without limit. `name` (default: the table's) and `fence` are arguments of `FencedSink`.

    Raises InvalidSink.
    """

    def __init__(
        self,
        where: str | MakeEngine | None,
        table: str,
        *,
        values: Mapping[str, Aggregate],
        by: Sequence[str] = ("key",),
        windows: Windows | None = None,
        late: Late = "drop",
        keep_seconds: float = 86_400.0,
        idle_seconds: float | None = None,
        emit: Emit | None = None,
        name: str | None = None,
        **fence: Any,
    ) -> None:
        if importlib.util.find_spec("sqlalchemy") is None:
            raise InvalidSink("aggregates need SQLAlchemy: pip install 'counterpoise[sink]'")
        if late not in get_args(Late):
            raise InvalidSink(f"late is one of {', '.join(get_args(Late))}, not {late!r}")
        names = [*_PLACES, *by, *values]
        if not values or len(set(names)) < len(names):
            raise InvalidSink(
                "an aggregate needs values, and different names for them and for the columns in by"
            )
        plan = Counted(dict(values), tuple(by), windows, late, microseconds(keep_seconds))
        self.name = name or table
        self._results = Results(plan, table, emit)
        self._sink = FencedSink(where, Merge(plan, self._results), name=self.name, **fence)
        self._database = Database(where)
        # `idle_seconds` is of windows here.
        given = {name: fence[name] for name in fence.keys() & {*_LIMITS}}
        self._limits = TransactionLimits(**given)
        self._idle_seconds = idle_seconds
        self._created = False
        # What is counted and its service, by queue; known from its first micro-batch on.
        self._counted: dict[str, tuple[AggregateKey, str | None]] = {}
        self._closed = threading.Event()
        self._closer: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"FencedAggregate(name={self.name!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Count one micro-batch, and write what is complete; `foreachBatch` calls this.

        Raises InvalidSink, what `FencedSink` raises, and errors of SQLAlchemy.
        """
        if "queue" not in self._results.plan.by and reads_several(batch):
            raise InvalidSink(
                "the query reads several queues, and each has results of its own: name the column "
                "queue in by (and add it to the table of the result). Totals of all queues are "
                "sums over these results"
            )
        running = RunningBatch.all_of(batch)
        self._create()
        for one in running:
            self._check(one)
        self._sink(batch, batch_id)
        for one in running:
            self._learn(one)
        self.close_windows()
        if self._idle_seconds is not None and self._closer is None:
            self._closer = threading.Thread(
                target=self._close_idle, name="counterpoise-windows", daemon=True
            )
            self._closer.start()

    def close_windows(self) -> int:
        """Write the results of the windows that are complete; returns how many.

        Each micro-batch ends with this, and with `idle_seconds` it is repeated from then on. One of
        the queue's applications closes each window. 0 before the first micro-batch, and while the
        service, which knows the partitions, is away.
        """
        return sum(self._close_windows(key, url) for key, url in list(self._counted.values()))

    def _close_windows(self, key: AggregateKey, url: str | None) -> int:
        """Those of one queue."""
        from counterpoise.spark.aggregates import tables

        known: Collection[int] = ()
        live: Collection[int] = ()
        if self._results.plan.windows is not None:
            with self._database.transaction(self._limits) as connection:
                known = tables.clocks(connection, key, None).keys()
            # After the clocks: a partition with a clock that is not listed now, or as finished (of
            # a dynamic queue), has ended.
            try:
                with Client(url) as client:
                    listed = client.partitions(key.queue)
                live = {one.partition for one in listed if one.state != "finished"}
            except CounterpoiseError as error:
                logger.warning(
                    "counterpoise: windows of %s on queue %s stay open: %s",
                    self.name,
                    key.queue,
                    error,
                )
                return 0
        with self._database.transaction(self._limits) as connection:
            return close_windows(
                connection,
                key,
                self._results,
                live=live,
                known=known,
                idle_seconds=self._idle_seconds,
            )

    def dropped(self) -> int:
        """How many rows were late and dropped, or had no time, by all applications."""
        if not self._counted:
            return 0
        from counterpoise.spark.aggregates import tables

        with self._database.transaction(self._limits) as connection:
            keys = [key for key, _ in self._counted.values()]
            return sum(tables.dropped(connection, key) for key in keys)

    def forget(self, queue: str) -> None:
        """Drop what open windows have counted, before messages are delivered again on purpose
        (docs, *Delivering again*).

        Call it while no application writes.
        """
        from counterpoise.spark.aggregates import tables

        self._create()
        self._sink.forget(queue)
        with self._database.transaction(self._limits) as connection:
            tables.forget(connection, self.name, queue)

    def close(self) -> None:
        """Close no more idle windows from here; after `query.stop()`."""
        self._closed.set()
        if self._closer is not None:
            self._closer.join()

    def _create(self) -> None:
        from counterpoise.spark.aggregates import tables

        if not self._created:
            with self._database.transaction(self._limits):
                pass  # Waits while the database is unavailable.
            tables.create(self._database.engine())
            self._created = True

    def _key(self, running: RunningBatch) -> AggregateKey:
        from counterpoise.spark.aggregates.tables import AggregateKey

        return AggregateKey(self.name, running.planned.queue_id, running.planned.queue)

    def _check(self, running: RunningBatch) -> None:
        """Before rows of a queue are counted for the first time. Raises InvalidSink for a table of
        the result, or for open windows, that have other columns.
        """
        key = self._key(running)
        if key.queue_id and self._counted.get(key.queue, (None,))[0] != key:
            with self._database.transaction(self._limits) as connection:
                self._results.check(connection, key)

    def _learn(self, running: RunningBatch) -> None:
        key, view = self._key(running), running.channel.get("view")
        if key.queue_id and view is not None:
            self._counted[key.queue] = (key, view["url"] or None)

    def _close_idle(self) -> None:
        assert self._idle_seconds is not None
        while not self._closed.wait(max(0.1, self._idle_seconds / 4)):
            try:
                self.close_windows()
            except Exception as error:
                logger.warning("counterpoise: idle windows of %s stay open: %s", self.name, error)
