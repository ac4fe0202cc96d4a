"""Finds, within `foreachBatch`, the running query and what the source has planned for it.

`foreachBatch` gets a session of its own, which does not list the query. The state that all sessions
of an application share does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterpoise.spark.channel.documents import Channel, NoChannel, channel_to
from counterpoise.spark.channel.planned import Planned, planned_of
from counterpoise.spark.plan.offsets import VERSION_FIELD, Json
from counterpoise.spark.sink.errors import PlanMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class RunningBatch:
    """The running micro-batch: Spark's query, its run, and the source's plan."""

    execution: Any
    run_id: str
    planned: Planned
    channel: Channel

    @classmethod
    def of(cls, batch: DataFrame) -> RunningBatch:
        """The batch that `foreachBatch` got. Raises NoChannel, PlanMissing."""
        execution = _execution(batch)
        instance, start, end = _offsets(execution)
        channel = channel_to(instance)
        if start == end:
            # Spark runs such a batch for timeouts or watermarks, without asking the source.
            planned: Planned | None = Planned(end, end, "", "", (), ())
        else:
            planned = planned_for(channel, start, end)
        if planned is None:
            # A precaution: every known version of Spark builds the RDD, and so asks for the plan,
            # earlier.
            execution.lastExecution().toRdd().getNumPartitions()
            planned = planned_for(channel, start, end)
        if planned is None:
            raise PlanMissing(
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
        raise NoChannel("call the sink from foreachBatch, in the thread that Spark calls")
    return found


def _offsets(execution: Any) -> tuple[str, Json | None, Json]:
    """The instance of the running batch, and the batch's start and end."""
    ends = _documents(execution.availableOffsets())
    if len(ends) != 1:
        raise NoChannel(
            "the query reads nothing from a counterpoise source"
            if not ends
            else "the query reads several counterpoise sources, and the partitions of their rows "
            "cannot be told apart: write each in a query of its own"
        )
    ((source, end),) = ends.items()
    instance = end.get("instance")
    if instance is None:
        raise NoChannel("the source has not bound its flow yet")
    return str(instance), _documents(execution.committedOffsets()).get(source), end


def _documents(progress: Any) -> dict[int, Json]:
    """Counterpoise's offsets in a StreamProgress, by source."""
    found: dict[int, Json] = {}
    entries = progress.iterator()
    while entries.hasNext():
        entry = entries.next()
        offset = entry._2()
        document = None if offset is None else _json(offset.json())
        if document is not None:
            found[entry._1().hashCode()] = document
    return found


def _json(text: str) -> Json | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and VERSION_FIELD in document else None


def planned_for(channel: Channel, start: Json | None, end: Json) -> Planned | None:
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
