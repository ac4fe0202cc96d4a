"""PySpark as a consumer: several applications share one queue.

    from counterpoise.spark import register

    register(spark)
    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", "flights")
        .load()
    )

Each name is loaded when it is first used.
"""

# Each package below opens with what it does. Start reading at `source`. Spark enters by
# `data_source`, and `channel` lies between the process of a query (`source`) and the `driver`.
#
# For a query Spark starts a chain of Python processes. Each of them imports this package to
# unpickle one object and loads only what that object needs: a task loads neither an HTTP client nor
# the sink.

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily
from counterpoise.spark.version import require_pyspark

if TYPE_CHECKING:
    from counterpoise.spark.aggregates import (
        ApproxDistinct,
        Avg,
        Count,
        FencedAggregate,
        First,
        Last,
        Max,
        Min,
        Sum,
        Windows,
    )
    from counterpoise.spark.aggregates.deduplication import Deduplicate
    from counterpoise.spark.data_source import CounterpoiseDataSource, register, session
    from counterpoise.spark.driver.draining import DrainTimedOut, drain, drain_on_sigterm
    from counterpoise.spark.driver.listener import QueueListener
    from counterpoise.spark.queues import read_queues
    from counterpoise.spark.sink import FencedSink
    from counterpoise.spark.sink.queue import QueueSink
    from counterpoise.spark.state.handler import Output, StatefulForeachBatch
    from counterpoise.spark.state.processor import TenuredProcessor, fresh
    from counterpoise.spark.state.snapshots import Snapshots
    from counterpoise.spark.state.states import PartitionState

__all__ = [
    "ApproxDistinct",
    "Avg",
    "Count",
    "CounterpoiseDataSource",
    "Deduplicate",
    "DrainTimedOut",
    "FencedAggregate",
    "FencedSink",
    "First",
    "Last",
    "Max",
    "Min",
    "Output",
    "PartitionState",
    "QueueListener",
    "QueueSink",
    "Snapshots",
    "StatefulForeachBatch",
    "Sum",
    "TenuredProcessor",
    "Windows",
    "drain",
    "drain_on_sigterm",
    "fresh",
    "read_queues",
    "register",
    "session",
]

_WHERE = {
    "ApproxDistinct": "counterpoise.spark.aggregates",
    "Avg": "counterpoise.spark.aggregates",
    "Count": "counterpoise.spark.aggregates",
    "FencedAggregate": "counterpoise.spark.aggregates",
    "First": "counterpoise.spark.aggregates",
    "Last": "counterpoise.spark.aggregates",
    "Max": "counterpoise.spark.aggregates",
    "Min": "counterpoise.spark.aggregates",
    "Sum": "counterpoise.spark.aggregates",
    "Windows": "counterpoise.spark.aggregates",
    "CounterpoiseDataSource": "counterpoise.spark.data_source",
    "Deduplicate": "counterpoise.spark.aggregates.deduplication",
    "DrainTimedOut": "counterpoise.spark.driver.draining",
    "FencedSink": "counterpoise.spark.sink",
    "Output": "counterpoise.spark.state.handler",
    "PartitionState": "counterpoise.spark.state.states",
    "QueueListener": "counterpoise.spark.driver.listener",
    "QueueSink": "counterpoise.spark.sink.queue",
    "Snapshots": "counterpoise.spark.state.snapshots",
    "StatefulForeachBatch": "counterpoise.spark.state.handler",
    "TenuredProcessor": "counterpoise.spark.state.processor",
    "drain": "counterpoise.spark.driver.draining",
    "drain_on_sigterm": "counterpoise.spark.driver.draining",
    "fresh": "counterpoise.spark.state.processor",
    "read_queues": "counterpoise.spark.queues",
    "register": "counterpoise.spark.data_source",
    "session": "counterpoise.spark.data_source",
}

if not TYPE_CHECKING:  # which would make every name an attribute of this package
    _attribute = lazily(__name__, _WHERE)

    def __getattr__(name):
        if name in _WHERE:
            require_pyspark()
        return _attribute(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
