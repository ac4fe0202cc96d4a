"""Starting a query on a machine that may stall.

Spark starts a Python process for each query that reads from a source in Python, and fails the query
if the process has not connected to the JVM within ten seconds. The limit is fixed in Spark
(`PythonWorkerFactory.createSimpleWorker`). Until then nothing of the source has run: no flow is
bound, no offset is planned. So starting the query again is safe, and `started` does it.

Other workers have no such limit. Those that read micro-batches and those that plan a query are
forked from Spark's daemon, and a `foreachBatch` function runs in the driver (over Spark Connect in
a process with that limit).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from counterpoise.spark.driver.environment import NOT_CONNECTED
from tests.counterpoise.spark.waiting import until

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ATTEMPTS = 3


def started(writer: DataStreamWriter) -> StreamingQuery:
    """The query, started and initialised, or ended by any other error than that one."""
    for attempt in range(1, ATTEMPTS + 1):
        query = writer.start()
        until(partial(_initialised, query), "the query is initialised")
        if attempt == ATTEMPTS or not _never_connected(query):
            break
        print(f"{NOT_CONNECTED}: start {attempt} of {ATTEMPTS}", flush=True)
    return query


def _initialised(query: StreamingQuery) -> bool:
    return not (query.isActive and query.status["message"].startswith("Initializing"))


def _never_connected(query: StreamingQuery) -> bool:
    """Whether it ended before its source's process was connected; so nothing was bound."""
    error = None if query.isActive else query.exception()
    return error is not None and NOT_CONNECTED in str(error) and not query.recentProgress
