"""Ready processors for `transformWithState`, whose state follows the partitions of a queue.

    from counterpoise.spark import Count, Windows
    from counterpoise.spark.processors import WindowAggregate

    per_minute = WindowAggregate(
        "readings long", {"readings": Count()}, Windows("measured_at", 60), by=["key"]
    ).over(messages)

`messages` is a source with `warmup=true`. Theory and use: docs, *Processors*. `clock` has the base
of them, for processors of your own: it gives each row the *partition time*.
"""

from counterpoise.spark.processors.clock import PartitionProcessor
from counterpoise.spark.processors.deduplication import DuplicateFilter
from counterpoise.spark.processors.joins import JoinByKey
from counterpoise.spark.processors.windows import WindowAggregate

__all__ = ["DuplicateFilter", "JoinByKey", "PartitionProcessor", "WindowAggregate"]
