"""How PySpark 4.0 and 4.1 ask for the next offset: without saying after which one.

The start of a question is the offset given last: Spark runs the micro-batch up to it before it asks
again, or the query ends. A query that starts again first asks for `partitions(end, end)`, with the
last offset of its checkpoint (Spark's `AcceptsLatestSeenOffset`). If that micro-batch was not
finished, Spark plans it again before it asks for the next. So a process that is asked for an offset
before anything else is one of a new query, and the start is the initial offset.

Spark does not say that a query is to end by itself, or that it has one micro-batch
(`driver.refusals` refuses both).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from counterpoise.spark.offsets import Json
from counterpoise.spark.source.reader import CounterpoiseStreamReader


class StreamReaderWithoutLimits(CounterpoiseStreamReader):
    """Spark does not name the start of a micro-batch before it plans it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._given: Json | None = None

    def latestOffset(self) -> Json:  # type: ignore[override]  # noqa: N802
        start = self.initialOffset() if self._given is None else self._given
        self._given = self.next_offset(start, self._options.max_messages_per_trigger)
        return self._given

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self._given = end
        return super().partitions(start, end)
