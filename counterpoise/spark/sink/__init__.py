"""Exactly-once into a database, for all applications that share a queue: docs, *The fenced sink*.

Start reading at `fence`: the rule. `writer` applies it on the executors. Users create a `sink`.
"""

from counterpoise.spark.sink.sink import FencedSink, Report
from counterpoise.spark.sink.writer import Scope

__all__ = ["FencedSink", "Report", "Scope"]
