"""The plan of the running micro-batch: the source writes it, and `foreachBatch` finds it.

The document `plan` has the ranges that the micro-batch really reads. The source alone knows them
(docs, *The fenced sink*): the rows do not show a range whose messages were all filtered out, and
Spark's offsets do not show that a range was skipped. The source writes the plan before
`partitions()` returns, and Spark calls that before it runs any of the batch.

    {"start": {…}, "end": {…}, "queue_id": "…", "log": "…", "url": null,
     "read": [{"partition": 3, "epoch": 2, "from": "10", "to": "20"}], "skipped": […],
     "tasks": [[3, 5], [1]]}

`start` and `end` are Spark's offsets, `log` is the log's incarnation, `url` the source's option.
Epochs of `read` are those of the present grants. `tasks` has the partitions of `read` that each
input partition of the source holds, in Spark's order. A partition that is divided among several
(`minPartitions`, `maxRecordsPerPartition`) is one range of `read`, and in several of `tasks`.

Checked on PySpark 4.3: Spark calls `partitions(start, end)` before `foreachBatch`, for plain,
filtered (also by `where false`), stateful, joined and repartitioned streams, at the first run and
on replay. Asked twice for one micro-batch (a stream united with itself), the source answers the
same. A query that starts again with an unfinished micro-batch first asks for
`partitions(end, end)`, so the start has to match, too. A restarted query has another source, which
declares that it speaks for the instance of the checkpoint before it plans: a plan of an earlier run
is never taken. The running micro-batch ends at `availableOffsets` and begins at `committedOffsets`;
if both are the same, it has no rows of this source (timeouts, watermarks).

`RunningBatch` finds the query and its plan from the rows that `foreachBatch` gets. The session of
these rows is one of its own, which does not list the query. The state that all sessions of an
application share does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterpoise.spark.channel.channel import (
    Channel,
    channel_to,
    offsets_in,
    queues_in,
    refuse_connect,
)
from counterpoise.spark.errors import InvalidRows, SinkError, Unsupported
from counterpoise.spark.offsets import Json, Slice, joined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


logger = logging.getLogger("counterpoise.spark")


@dataclass(frozen=True)
class BatchPlan:
    """A plan as the driver reads it."""

    start: Json
    end: Json
    queue_id: str
    log: str
    read: tuple[Slice, ...]
    tasks: tuple[tuple[int, ...], ...]

    @property
    def queue(self) -> str:
        """The queue's name."""
        return str(self.end["queue"])

    @property
    def divides(self) -> bool:
        """Whether the rows of a partition are in several tasks."""
        partitions = [partition for group in self.tasks for partition in group]
        return len(set(partitions)) < len(partitions)


def plan_document(
    start: Json,
    end: Json,
    *,
    queue_id: str,
    log: str,
    url: str | None,
    read: Iterable[Slice],
    skipped: Iterable[Slice],
    tasks: Iterable[Sequence[Slice]],
) -> Json:
    """The document that the source writes. `tasks` holds the slices of each input partition."""
    return {
        "start": start,
        "end": end,
        "queue_id": queue_id,
        "log": log,
        "url": url,
        "read": [_range(one) for one in read],
        "skipped": [_range(one) for one in skipped],
        "tasks": [list(dict.fromkeys(one.partition for one in group)) for group in tasks],
    }


def planned_of(document: Mapping[str, Any]) -> BatchPlan:
    """The plan from the document."""
    return BatchPlan(
        document["start"],
        document["end"],
        document["queue_id"],
        document["log"],
        tuple(_slice(one) for one in document["read"]),
        tuple(tuple(group) for group in document["tasks"]),
    )


def _range(one: Slice) -> Json:
    return {
        "partition": one.partition,
        "epoch": one.epoch,
        "from": one.start,
        "to": one.end,
    }


def _slice(one: Mapping[str, Any]) -> Slice:
    return Slice(one["partition"], one["epoch"], one["from"], one["to"])


class PlanWriter:
    """The source's side: writes each plan to the channel.

    `queue_id` is the service's id of the queue: a queue recreated under its name has another.
    `url`: the source's option.
    """

    def __init__(self, channel: Channel, queue_id: str, log: str, url: str | None) -> None:
        self._channel = channel
        self._queue_id = queue_id
        self._log = log
        self._url = url

    def say(
        self,
        start: Json,
        end: Json,
        tasks: Iterable[Sequence[Slice]],
        skipped: Iterable[Slice],
    ) -> None:
        """Write the plan of the micro-batch; history that is only replayed is not part of it."""
        groups = [[one for one in group if not one.replay] for group in tasks]
        document = plan_document(
            start,
            end,
            queue_id=self._queue_id,
            log=self._log,
            url=self._url,
            read=joined(one for group in groups for one in group),
            skipped=skipped,
            tasks=groups,
        )
        try:
            self._channel.put("plan", document)
        except OSError as error:
            # A reader that needs the plan fails without it; a query without a fenced sink does not
            # need it.
            logger.warning(
                "counterpoise: the plan of the micro-batch could not be written: %s", error
            )


_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class RunningBatch:
    """The running micro-batch: Spark's query, its run, and the source's plan."""

    execution: Any
    run_id: str
    planned: BatchPlan
    channel: Channel

    @classmethod
    def of(cls, batch: DataFrame) -> RunningBatch:
        """The batch that `foreachBatch` got, of a query with one source.

        Raises Unsupported, SinkError.
        """
        execution, parts = _parts(batch)
        if len(parts) > 1:
            raise Unsupported(
                "the query reads several counterpoise sources, and the partitions of their rows "
                "cannot be told apart here: write each in a query of its own"
            )
        return cls._of_source(execution, *parts[0])

    @classmethod
    def all_of(cls, batch: DataFrame) -> list[RunningBatch]:
        """The batch that `foreachBatch` got, for each queue, also if nothing of it was read.

        Raises Unsupported, SinkError.
        """
        execution, parts = _parts(batch)
        return [cls._of_source(execution, start, end) for start, end in parts]

    @classmethod
    def _of_source(cls, execution: Any, start: Json | None, end: Json) -> RunningBatch:
        if end.get("instance") is None:
            raise Unsupported("the source has not bound its flow yet")
        channel = channel_to(str(end["instance"]))
        if start == end:
            # Spark runs such a batch for timeouts or watermarks, without asking the source.
            planned: BatchPlan | None = BatchPlan(end, end, end.get("queueId", ""), "", (), ())
        else:
            planned = planned_for(channel, start, end)
        if planned is None:
            # A precaution: every known version of Spark builds the RDD, and so asks for the plan,
            # earlier.
            execution.lastExecution().toRdd().getNumPartitions()
            planned = planned_for(channel, start, end)
        if planned is None:
            raise SinkError(
                "the source has not written the plan of this micro-batch: is the directory for "
                "temporary files full, or counterpoise of another version than when it started?"
            )
        return cls(execution, str(execution.runId()), planned, channel)

    def still_held(
        self,
        superseded: Iterable[tuple[int, int]],
        within_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> list[tuple[int, int]]:
        """Those (partition, epoch) that the flow still believes to own after `within_seconds`."""
        give_up_at = clock() + within_seconds
        left = list(superseded)
        while left:
            view = self.channel.get("view") or {}
            held = {
                (int(number), one.get("epoch"))
                for number, one in view.get("partitions", {}).items()
                if one.get("state") != "warming"
            }
            left = [key for key in left if key in held]
            if not left or clock() >= give_up_at:
                break
            time.sleep(_PAUSE_SECONDS)
        return left


@contextlib.contextmanager
def batches_by_queue(batch: DataFrame) -> Iterator[list[tuple[RunningBatch, DataFrame]]]:
    """The batch that `foreachBatch` got, as one batch for each queue of which something was read.

    Several queues are told apart by the column `queue` of `read_queues`. Their rows are kept
    within, because each part is an action of Spark's. Raises Unsupported, SinkError, InvalidRows.
    """
    execution, parts = _parts(batch)
    if len(parts) == 1:
        yield [(RunningBatch._of_source(execution, *parts[0]), batch)]
        return
    names = [end["queue"] for _, end in parts]
    if len(set(names)) < len(names) or dict(batch.dtypes).get("queue") != "string":
        raise Unsupported(
            "the query reads several counterpoise sources, and the partitions of their rows cannot "
            "be told apart: read them with counterpoise.spark.read_queues, and pass its column "
            "queue through; or write each in a query of its own"
        )
    running = [
        RunningBatch._of_source(execution, start, end) for start, end in parts if start != end
    ]
    read = [one.planned.queue for one in running]
    # The source imports this module, and needs none of it.
    from pyspark import StorageLevel
    from pyspark.sql import functions

    # What the program has persisted is its own.
    ours = batch.storageLevel == StorageLevel.NONE
    rows = batch.persist() if ours else batch
    try:
        of_none = rows.where(~functions.coalesce(rows["queue"].isin(read), functions.lit(False)))
        # One job: `head` would begin with one partition.
        (found,) = of_none.agg(
            functions.count(functions.lit(1)), functions.first("queue")
        ).collect()
        if found[0]:
            raise InvalidRows(
                f"there are rows whose queue is {found[1]!r}, and the micro-batch has read "
                f"{', '.join(read)}: pass the column queue of read_queues through unchanged"
            )
        yield [(one, rows.where(rows["queue"] == one.planned.queue)) for one in running]
    finally:
        if ours:
            rows.unpersist()


def reads_several(batch: DataFrame) -> bool:
    """Whether the query of the batch that `foreachBatch` got reads several queues.

    Raises Unsupported.
    """
    refuse_connect(batch, _NEEDS_PLAN)
    return len(queues_in(_execution(batch).analyzedPlan())) > 1


_NEEDS_PLAN = "a sink that needs the plan of its micro-batch"


def _parts(batch: DataFrame) -> tuple[Any, list[tuple[Json | None, Json]]]:
    """Spark's query, and what of each source is in the batch: from where, and up to where."""
    refuse_connect(batch, _NEEDS_PLAN)
    execution = _execution(batch)
    ends = offsets_in(execution.availableOffsets())
    if not ends:
        raise Unsupported("the query reads nothing from a counterpoise source")
    starts = offsets_in(execution.committedOffsets())
    return execution, [(starts.get(source), end) for source, end in ends.items()]


def _execution(batch: DataFrame) -> Any:
    session = batch.sparkSession
    context = session.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    found = None
    if query_id is not None:
        queries = batch._jdf.sparkSession().sharedState().activeStreamingQueries()
        assert context._jvm is not None
        found = queries.get(context._jvm.java.util.UUID.fromString(query_id))
    if found is None:
        raise Unsupported(
            "call the sink from foreachBatch, in the thread that Spark calls: other threads do not "
            "know their query, unless they are pyspark.InheritableThread, or run "
            "pyspark.inheritable_thread_target(function) (give this to a ThreadPoolExecutor)"
        )
    return found


def planned_for(channel: Channel, start: Json | None, end: Json) -> BatchPlan | None:
    """The plan, if it is this batch's. `start` None: of a query's first batch, which may be empty.

    When a query starts again, Spark first asks for a plan from the end to the end.
    """
    document = channel.get("plan")
    if document is None or document["end"] != end:
        return None
    begins = document["start"]
    if start is not None:
        fits = begins == start
    else:
        fits = begins != end or not end["partitions"]
    return planned_of(document) if fits else None
