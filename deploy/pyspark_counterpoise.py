"""Where Spark finds the source by itself: `spark.readStream.format("counterpoise")`.

Spark 4 imports every module on its path whose name begins with `pyspark_`, and takes its
`DefaultSource`. An error here would end all Python sources of the session, so an environment
without the package has no `DefaultSource`.
"""

from contextlib import suppress

with suppress(ImportError):
    from counterpoise.spark import CounterpoiseDataSource as DefaultSource

__all__ = ["DefaultSource"]
