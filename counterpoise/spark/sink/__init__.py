"""Exactly-once into a database or lake, for all applications that share a queue: docs, *The fenced
sink*.

Start reading at `fence`: the rule. `target` is the port of all targets: `transactions` and `writer`
apply the rule in a database, `lake` in a table of Delta or Iceberg. Users create a `sink`.
"""

from counterpoise.spark.sink.sink import FencedSink, Report
from counterpoise.spark.sink.writer import Scope

__all__ = ["FencedSink", "Report", "Scope"]
