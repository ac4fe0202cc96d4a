"""PySpark as a consumer: several applications share one queue.

    from counterpoise.spark import register

    register(spark)
    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", "flights")
        .load()
    )

Start reading at `plan.planning`, then `plan.progress`: what is read and what is done, without
Spark.

Each name is loaded when it is first used. For a query Spark starts a chain of Python processes.
Each of them imports this package to unpickle one object and loads only what that object needs: a
task loads neither an HTTP client nor the sink.
"""

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily

if TYPE_CHECKING:
    from counterpoise.spark.driver.draining import DrainTimedOut, drain, drain_on_sigterm
    from counterpoise.spark.driver.listener import QueueListener
    from counterpoise.spark.sink import FencedSink
    from counterpoise.spark.source.data_source import CounterpoiseDataSource, register, session
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

_WHERE = {
    "CounterpoiseDataSource": "counterpoise.spark.source.data_source",
    "DrainTimedOut": "counterpoise.spark.driver.draining",
    "FencedSink": "counterpoise.spark.sink",
    "Output": "counterpoise.spark.warmup.handler",
    "PartitionState": "counterpoise.spark.warmup.state",
    "QueueListener": "counterpoise.spark.driver.listener",
    "Snapshots": "counterpoise.spark.warmup.snapshots",
    "StatefulForeachBatch": "counterpoise.spark.warmup.handler",
    "TenuredProcessor": "counterpoise.spark.warmup.processor",
    "drain": "counterpoise.spark.driver.draining",
    "drain_on_sigterm": "counterpoise.spark.driver.draining",
    "fresh": "counterpoise.spark.warmup.processor",
    "register": "counterpoise.spark.source.data_source",
    "session": "counterpoise.spark.source.data_source",
}

if not TYPE_CHECKING:  # which would make every name an attribute of this package
    __getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
