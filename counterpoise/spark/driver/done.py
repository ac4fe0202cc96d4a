"""Tells a query's source at once when a micro-batch is in Spark's commit log.

Spark posts the progress of a micro-batch after it has written the entry of the commit log, and
never for a failed one (traced on PySpark 4.3). So its end offset is done, also in the sink. The
event may come late or, from an overloaded driver, never: then the source learns the same when Spark
asks for the next offset, or the next owner repeats those messages. It never comes too early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from counterpoise.spark.channel.documents import DriverEnd
from counterpoise.spark.driver.departures import Departures
from counterpoise.spark.driver.events import EventListener, ours
from counterpoise.spark.driver.tracking import refuse_asynchronous
from counterpoise.spark.plan.offsets import Json

logger = logging.getLogger("counterpoise.spark")


class DoneListener(EventListener):
    """Writes the document `done` of every Counterpoise source. `on_start` gets each query's id."""

    def __init__(
        self, home: str | Path, on_start: Callable[[str], None] = lambda query_id: None
    ) -> None:
        self._home = home
        self._on_start = on_start
        self._said: dict[str, dict[str, Json]] = {}

    def started(self, query_id: str) -> None:
        self._on_start(query_id)

    def progressed(self, progress: Json) -> None:
        said = self._said.setdefault(str(progress["runId"]), {})
        for source in ours(progress):
            end = source["endOffset"]
            document = {"offset": end, "batch": progress["batchId"], "ended": False}
            said[end["instance"]] = document
            DriverEnd(self._home, end["instance"]).put("done", document)

    def terminated(self, run_id: str) -> None:
        for instance, document in self._said.pop(run_id, {}).items():
            DriverEnd(self._home, instance).put("done", {**document, "ended": True})


def listen(spark: SparkSession, home: str | Path) -> None:
    """Add the listener to the session, once, and look for queries that are drained from outside.

    Without it, positions trail by a trigger, and a drained query ends with an error.
    """
    if getattr(spark, "_counterpoise_listener", None) is not None:
        return
    listener = DoneListener(home, lambda query_id: refuse_asynchronous(spark, query_id))
    try:
        spark.streams.addListener(listener)
    except Exception as error:
        logger.warning("counterpoise: Spark's events cannot be listened to (%s)", error)
        return
    vars(spark)["_counterpoise_listener"] = listener
    Departures(spark, home).start()
