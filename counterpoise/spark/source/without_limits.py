"""How PySpark 4.0 and 4.1 ask for the next offset: without saying after which one.

**Where the query is.** The offset given last is the start of the next question: Spark runs the
micro-batch up to it before it asks again, or the query ends. Only at the first question of a
process nothing was given. A new query could be told from one that starts again by Spark's question
for the initial offset, but that comes later. So the first answer is an offset of its own, `began`:
nothing is read up to it. Spark keeps it in the checkpoint, and then plans the micro-batch from
where the query is to this offset. That is when the start is known.

**Nothing is lost or read twice by it.** An offset with `began` has no partitions, so whoever starts
from it knows nothing of what was read before. Therefore its micro-batch ends only when the service
has the positions of everything before it. In this process, the ranges of the start stay known, as
empty ones (`_read`). The next offset has them again. They matter if a partition comes back later.

The first micro-batch of a new query is also the one that makes it ready before it binds
(`opening.prepare`).

**What is missing.** Spark does not say that a query is to end by itself, or that it has one
micro-batch (`driver.refusals` refuses both). `began` has no history that was read for a state, so
`warmup` is refused. If an application is killed after this offset and before the next one, it comes
back under another instance, and its partitions wait for the end of the former lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from counterpoise.lease_time import lease_time
from counterpoise.spark.offsets import Json, Offset, offset_of
from counterpoise.spark.source.reader import CounterpoiseStreamReader


class StreamReaderWithoutLimits(CounterpoiseStreamReader):
    """Spark does not name the start of a micro-batch before it plans it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._given: Json | None = None
        # What `began` stands for, once it is known.
        self._known: Json | None = None

    def latestOffset(self) -> Json:  # type: ignore[override]  # noqa: N802
        options = self._options
        if self._given is None:
            instance = options.instance_id or self._fresh_instance
            return Offset(options.queue, instance=instance, began=self._fresh_instance).to_json()
        start = self._given if self._known is None else self._known
        found = self.next_offset(start, options.max_messages_per_trigger)
        if found is not start:
            self._given, self._known = found, None
        return self._given

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self._given = end
        offset = offset_of(end, self._options.queue)
        if offset.began is None:
            return super().partitions(start, end)
        if start == end:
            return []  # a query that starts again asks so first
        self._asked_at = lease_time()
        before = offset_of(start, self._options.queue)
        self._known = _read(before, offset.instance).to_json()
        if (prepared := self._prepare(start, end)) is not None:
            return prepared.groups
        consumption = self._open(start, offset.instance).consumption
        groups = consumption.partitions(start, end)
        consumption.until_committed(self._options.start_timeout_seconds)
        return groups


def _read(before: Offset, instance: str | None) -> Offset:
    """The same offset with all of its ranges read, and nothing else that has begun."""
    read = {number: replace(one, start=one.end) for number, one in before.ranges.items()}
    instance = before.instance or instance
    return replace(before, ranges=read, replays={}, prepared=0, began=None, instance=instance)
