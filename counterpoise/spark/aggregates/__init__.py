"""Aggregates in the sink, exact for all applications that share a queue: docs, *Aggregates*.

Start reading at `windows` and `partials`: the rules, without a database. `tables` says who locks
what, `merging` applies the rules in it. Users create an `aggregate`. `deduplication` passes each id
on once, by a table of its own.
"""

from counterpoise.spark.aggregates.aggregate import FencedAggregate
from counterpoise.spark.aggregates.partials import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from counterpoise.spark.aggregates.windows import Windows

__all__ = [
    "Aggregate",
    "ApproxDistinct",
    "Avg",
    "Count",
    "FencedAggregate",
    "First",
    "Last",
    "Max",
    "Min",
    "Sum",
    "Windows",
]
