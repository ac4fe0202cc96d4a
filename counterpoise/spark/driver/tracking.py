"""Asynchronous progress tracking (`asyncProgressTrackingEnabled`) is refused.

With it Spark writes offsets and commits later, and not all of them, while the source is told that
its messages are done. Then commits to the service are ahead of the checkpoint, and a restart
repeats messages that were committed before. Spark itself refuses it for `foreachBatch`, files and
stateful queries. With the other sinks (Kafka, console, memory, noop) only the class of its
execution identifies such a query.

The driver sees that class when the query starts, and the source does not. So the driver tells the
source through the channel as soon as it knows the source, and the source fails the query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterpoise.spark.channel.documents import Channel, channels_of
from counterpoise.spark.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("counterpoise.spark")

_LOOK_SECONDS = 0.05
_EXECUTION = "AsyncProgressTracking"
_WHY = (
    "asynchronous progress tracking does not go with this source: what it has committed would be "
    "ahead of the checkpoint. Leave the option asyncProgressTrackingEnabled out"
)


def refuse_asynchronous(spark: SparkSession, query_id: str) -> None:
    """For a query that has just started: fail it if it has a Counterpoise source and tracks so.

    Returns at once, because the query has no offsets yet.
    """
    query = _find(spark, query_id)
    if query is None or _EXECUTION not in query._jsq.streamingQuery().getClass().getName():
        return
    if channels_of(query) == []:
        return
    threading.Thread(
        target=_refuse, args=(query,), name="counterpoise-tracking", daemon=True
    ).start()


def raise_if_refused(channel: Channel) -> None:
    """Raises Unsupported if the driver has told this source so."""
    if channel.stamp("refusal") is not None:
        raise Unsupported((channel.get("refusal") or {}).get("why", _WHY))


def _find(spark: SparkSession, query_id: str) -> Any:
    from pyspark.sql.streaming.query import StreamingQuery

    found: Any = spark.streams._jsqm.get(query_id)
    return None if found is None else StreamingQuery(found)


def _refuse(query: Any) -> None:
    """Repeated until the query is over: a restarted source may speak for the instance since."""
    wait = threading.Event().wait
    try:
        while query.isActive:
            channels: Sequence[Channel] = channels_of(query) or ()
            for channel in channels:
                if channel.stamp("refusal") is None:
                    channel.put("refusal", {"why": _WHY})
            wait(_LOOK_SECONDS)
    except Exception as error:
        # The session may end meanwhile.
        logger.warning("counterpoise: %s (and telling the query so failed: %s)", _WHY, error)
