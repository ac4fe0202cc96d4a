"""Stops a query that an administrator has drained, so that it ends as after `query.stop()`.

The source hands everything over, leaves the queue and says so (the document `left`). It could end
the query only by an error. So the driver stops it: `awaitTermination` returns, and the program
ends as it does after any other stop.

A thread looks at the directory of the driver, without a call into the JVM until there is something
to do. It also sees queries that have no micro-batches, for which Spark posts no events.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.spark.channel.documents import channels_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("counterpoise.spark")

LOOK_SECONDS = 0.25


class Departures:
    """Looks for queries of the session that have left their queue."""

    def __init__(self, spark: SparkSession, home: str | Path) -> None:
        self._spark = spark
        self._home = Path(home)
        self._seen: set[Path] = set()

    def start(self) -> None:
        """Look until the driver ends."""
        threading.Thread(target=self._run, name="counterpoise-departures", daemon=True).start()

    def look(self) -> None:
        """Stop the queries whose sources have left since the last look."""
        left = {path.parent for path in self._home.glob("*/left.json")}
        new, self._seen = left - self._seen, left
        if not new:
            return
        for query, directories in self._queries():
            if directories and directories <= left:
                logger.warning(
                    "counterpoise: query %s was drained by an administrator, and is stopped",
                    query.name or query.id,
                )
                query.stop()

    def _queries(self) -> Iterator[tuple[StreamingQuery, set[Path]]]:
        """The running queries with Counterpoise sources, and the directories of these."""
        for query in self._spark.streams.active:
            channels = channels_of(query) or ()
            yield query, {channel.directory for channel in channels}

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            if not self._home.exists():
                return
            try:
                self.look()
            except Exception as error:
                if not self._home.exists() or self._spark.sparkContext._jsc is None:
                    return
                logger.warning("counterpoise: a drained query could not be stopped (%s)", error)
