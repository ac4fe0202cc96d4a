"""Which versions of PySpark the source works with, and the refusal of others.

Older ones lack what it is made of, each something else: without the refusal PySpark 3.5 says that a
module is missing.
"""

from counterpoise.spark.errors import Unsupported

OLDEST, BELOW = (4, 0), (5,)
# Since then Spark names the start of a micro-batch and how much it reads.
READ_LIMITS = (4, 2)
# Since then Spark runs queries with state, and only these, without adaptive execution.
TELLS_STATE = (4, 1)
# Since then a processor gets rows, and PySpark has a writer of streams that gets Arrow's batches.
ROWS_AND_BATCHES = (4, 1)
# Since then PySpark has to be told the time zone of an Arrow schema; before, it takes UTC.
TIME_ZONES = (4, 2)
RANGE = "PySpark 4.0 or later, below 5"
HOW = "pip install --upgrade 'counterpoise[spark]'"


def supports(version: str) -> bool:
    """Whether the source works with this version of PySpark (`pyspark.__version__`)."""
    return OLDEST <= _parts(version) < BELOW


def has_read_limits(version: str) -> bool:
    """Whether Spark drives sources as since 4.2 (`source.with_limits`)."""
    return _parts(version) >= READ_LIMITS


def tells_state(version: str) -> bool:
    """Whether a task sees if its query keeps state (`source.without_driver`)."""
    return _parts(version) >= TELLS_STATE


def streams_batches(version: str) -> bool:
    """Whether PySpark has a writer of streams that gets Arrow's batches."""
    return _parts(version) >= ROWS_AND_BATCHES


def names_time_zones(version: str) -> bool:
    """Whether a schema for Arrow is made with a time zone (`sink.batch`)."""
    return _parts(version) >= TIME_ZONES


def require_4_1(what: str, instead: str) -> None:
    """Raises Unsupported on PySpark 4.0, which has no `transformWithState` for rows."""
    from pyspark import __version__ as version

    if _parts(version) < ROWS_AND_BATCHES:
        raise Unsupported(
            f"{what} PySpark 4.1 or later, and PySpark {version} is installed: {HOW}. Or {instead}"
        )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def require_pyspark() -> None:
    """Raises ImportError if PySpark is not installed, or is of a version that does not do."""
    try:
        from pyspark import __version__ as version
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        found = "none"
    else:
        if supports(version):
            return
        found = f"PySpark {version}"
    raise ImportError(f"counterpoise.spark needs {RANGE}, and {found} is installed: {HOW}")
