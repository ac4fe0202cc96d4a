"""How PySpark 4.2 and later ask for the next offset: after which one, and of how many messages.

They also say that a query is to end by itself (`Trigger.AvailableNow`), and ask where the log ends.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from counterpoise.spark.errors import Unsupported
from counterpoise.spark.offsets import Json
from counterpoise.spark.source.reader import CounterpoiseStreamReader

_UNLIMITED = 2**63 - 1
_ONE_BATCH = (
    "a query of one micro-batch would end before the queue has given it partitions, and read "
    "nothing. Use trigger(availableNow=True) instead of once=True. Spark also runs availableNow as "
    "one micro-batch if another source of the query does not support it, unless "
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled is true"
)


class StreamReaderWithLimits(CounterpoiseStreamReader, SupportsTriggerAvailableNow):
    """Spark names the start of each micro-batch, and how much it may read."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Never `ReadAllAvailable`: that is Spark's word in a query of one micro-batch.
        return ReadMaxRows(self._options.max_messages_per_trigger or _UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # Not bound yet: only later offsets tell the instance.
        self._available_now = True

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        if not isinstance(limit, ReadMaxRows):
            raise Unsupported(_ONE_BATCH)
        return self.next_offset(start, None if limit.max_rows == _UNLIMITED else limit.max_rows)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        return None if self._opened is None else self._opened.consumption.report()
