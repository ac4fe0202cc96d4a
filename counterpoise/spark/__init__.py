"""PySpark as a consumer: several applications share one queue.

    from counterpoise.spark import register

    register(spark)
    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", "flights")
        .load()
    )

Start reading at `planning`, then `progress`: what is read, committed and released, without Spark.
"""

from counterpoise.spark.draining import DrainTimedOut, drain, drain_on_sigterm
from counterpoise.spark.listener import QueueListener
from counterpoise.spark.sink import FencedSink
from counterpoise.spark.source import CounterpoiseDataSource, register, session
from counterpoise.spark.warmup.handler import Output, StatefulForeachBatch
from counterpoise.spark.warmup.processor import TenuredProcessor, fresh
from counterpoise.spark.warmup.snapshots import Snapshots
from counterpoise.spark.warmup.state import PartitionState

__all__ = [
    "CounterpoiseDataSource",
    "DrainTimedOut",
    "FencedSink",
    "Output",
    "PartitionState",
    "QueueListener",
    "Snapshots",
    "StatefulForeachBatch",
    "TenuredProcessor",
    "drain",
    "drain_on_sigterm",
    "fresh",
    "register",
    "session",
]
