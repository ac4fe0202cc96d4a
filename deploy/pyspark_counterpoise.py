"""Where Spark finds the source by itself: `spark.readStream.format("counterpoise")`.

Spark 4 imports every module on its path whose name begins with `pyspark_`, and takes its
`DefaultSource`. An error here would end all Python sources of the session, so an environment
without the package has no `DefaultSource`. Under PySpark 4.0 there is none either: `register`
could not put a source that talks with the driver in its place.
"""

from contextlib import suppress

with suppress(ImportError):
    from pyspark import __version__ as version

    if not version.startswith("4.0."):
        from counterpoise.spark import CounterpoiseDataSource as DefaultSource

__all__ = ["DefaultSource"]
