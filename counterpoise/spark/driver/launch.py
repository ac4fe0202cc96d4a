"""Starting a query on a machine that may stall: if its source does not connect, once more.

Spark starts a Python process for each source of a query, and fails the query if the process has not
connected to the JVM within ten seconds (`PythonWorkerFactory.createSimpleWorker`). No setting
changes this limit. Python needs longer on a machine that is overloaded for a moment, for example
because several applications start at once. Until the process is connected nothing of the source has
run: no flow is bound and no offset is planned. So starting the query again is safe.

Spark initialises the sources on the query's own thread, after `start` has returned. So `start` and
`toTable` of a query that reads a queue wait for that here, about a second. Queries that are started
one after the other then load their Pythons one after the other, too, and not all at once.

Other workers have no such limit. Those that read micro-batches and those that plan a query are
forked from Spark's daemon, and a `foreachBatch` function runs in the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from counterpoise.backoff import Backoff
from counterpoise.spark.driver.environment import NOT_CONNECTED

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("counterpoise.spark")

ATTEMPTS = 3
# A machine that is busy with starting programs is not for long.
_PAUSES = Backoff(2.0, 8.0)
_POLL_SECONDS = 0.01


def connected(
    start: Callable[[], StreamingQuery], sleep: Callable[[float], None] = time.sleep
) -> StreamingQuery:
    """The query that `start` starts, once its sources are connected or it has ended.

    If it has ended because one of them never connected, it is started again, with a pause: up to
    `ATTEMPTS` times in all.
    """
    attempt = 1
    while True:
        query = start()
        while _is_undecided(query):
            sleep(_POLL_SECONDS)
        if attempt == ATTEMPTS or not _never_connected(query):
            return query
        pause = _PAUSES.after(attempt)
        logger.warning(
            "counterpoise: query %s: the Python process of its source did not connect within ten "
            "seconds, the limit of Spark; this machine is too busy. Starting it again in %g s "
            "(attempt %d of %d)",
            query.name or query.id,
            pause,
            attempt + 1,
            ATTEMPTS,
        )
        sleep(pause)
        attempt += 1


def _is_undecided(query: StreamingQuery) -> bool:
    """Whether it initialises, or ends: when Spark says that it has failed, it is still active."""
    message: str = query.status["message"]
    return query.isActive and message.startswith(("Initializing", "Terminated"))


def _never_connected(query: StreamingQuery) -> bool:
    """Whether it has ended before its sources were connected; so nothing was bound."""
    error = None if query.isActive else query.exception()
    return error is not None and NOT_CONNECTED in str(error) and not query.recentProgress
