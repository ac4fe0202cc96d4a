"""Exactly-once into a database, over all applications that share a queue: docs, *The fenced sink*.

Start reading at `fence`: the rule. `writer` applies it on the executors, `sink` is what users make.
"""

from counterpoise.spark.sink.sink import FencedSink, Report
from counterpoise.spark.sink.writer import Scope

__all__ = ["FencedSink", "Report", "Scope"]
