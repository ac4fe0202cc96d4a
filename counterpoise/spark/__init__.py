"""PySpark as a consumer: several applications share one queue.

    from counterpoise.spark import register

    register(spark)
    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", "flights")
        .load()
    )

Start reading at `planning`, then `progress`: what is read and what is done, without
Spark.

Each name is loaded when it is first used. For a query Spark starts a chain of Python processes.
Each of them imports this package to unpickle one object and loads only what that object needs: a
task loads neither an HTTP client nor the sink.
"""

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily

if TYPE_CHECKING:
    from counterpoise.spark.data_source import CounterpoiseDataSource, register, session
    from counterpoise.spark.draining import DrainTimedOut, drain, drain_on_sigterm
    from counterpoise.spark.listener import QueueListener
    from counterpoise.spark.sink import FencedSink
    from counterpoise.spark.state.handler import Output, StatefulForeachBatch
    from counterpoise.spark.state.processor import TenuredProcessor, fresh
    from counterpoise.spark.state.snapshots import Snapshots
    from counterpoise.spark.state.states import PartitionState

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
    "CounterpoiseDataSource": "counterpoise.spark.data_source",
    "DrainTimedOut": "counterpoise.spark.draining",
    "FencedSink": "counterpoise.spark.sink",
    "Output": "counterpoise.spark.state.handler",
    "PartitionState": "counterpoise.spark.state.states",
    "QueueListener": "counterpoise.spark.listener",
    "Snapshots": "counterpoise.spark.state.snapshots",
    "StatefulForeachBatch": "counterpoise.spark.state.handler",
    "TenuredProcessor": "counterpoise.spark.state.processor",
    "drain": "counterpoise.spark.draining",
    "drain_on_sigterm": "counterpoise.spark.draining",
    "fresh": "counterpoise.spark.state.processor",
    "register": "counterpoise.spark.data_source",
    "session": "counterpoise.spark.data_source",
}

if not TYPE_CHECKING:  # which would make every name an attribute of this package
    __getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
