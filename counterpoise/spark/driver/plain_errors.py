"""Errors of Spark that carry one of ours, in our own words; for all sessions that are registered.

The source runs in processes of Spark's. What it raises there reaches the program as an error of
Spark: a heading, a traceback of those processes, our text, and the plan of the query. Our text says
what is wrong and what to do, so it is all that such an error says here. Its class is Spark's own.

If the process of a query's source was killed, Spark only says that a connection was reset, or
nothing. Then the words are ours, too: which process it was, and where its end is recorded.

Spark also logs the error of a query that ends, with a long stack. For the sessions of `session()`
the driver logs one line instead: our text, or Spark's own if the error is another one.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any

from counterpoise.errors import CounterpoiseError
from counterpoise.spark import errors
from counterpoise.spark.driver.wrapping import wrap_once

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

logger = logging.getLogger("counterpoise.spark")

# As Python ends a traceback. Spark adds the SQLSTATE, in the same line or in the next.
_OURS = re.compile(r"^counterpoise(?:\.\w+)*\.(\w+): (.+?)\s*(?:SQLSTATE: \w+)?$", re.MULTILINE)
# Another error that came of it, but for those in which Spark wraps it.
_REPLACED = re.compile(
    r"^(?:During handling of the above exception|The above exception was the direct cause).*\n"
    r"(?:(?:Traceback|[ \t]).*\n|\n)*(?!pyspark\.|py4j\.)[\w.]+(?::|$)",
    re.MULTILINE,
)
QUERIES = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
"""The class that logs errors of queries."""
SOURCES = "org.apache.spark.sql.execution.datasources.DataSourceManager"
"""The class that warns if a source is registered that Spark has found by itself."""


# All that Spark says of a query whose source does not answer any more, before it shows the query.
_SILENT = re.compile(
    r"\A(?=.)(?:\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ?)?"
    r"(?:Connection reset|Broken pipe|null)? ?(?:SQLSTATE: XXKST)? ?(?:\(no cause message\))?\s*$",
    re.MULTILINE,
)
_OF_OUR_QUERY = '{"counterpoise": '
_DIED = (
    "SourceDied: the Python process of the query's source (pyspark.sql.streaming.python_streaming_"
    "source_runner, a child of the driver's JVM) has ended without an error of its own. Most often "
    "the system has killed it for lack of memory: see the kernel's log (dmesg, journalctl -k), or "
    "OOMKilled in 'kubectl describe pod'. It needs memory on the driver's machine beside that of "
    "the JVM (in containers spark.driver.memoryOverhead). Start the query again: it goes on where "
    "it has stopped"
)


def own_words(text: str) -> str | None:
    """What an error of ours within Spark's text says, with its name; None: there is none, or the
    program has failed with another one when it handled it.
    """
    if found := [*_OURS.finditer(text)]:
        last = found[-1]
        return None if _REPLACED.search(text, last.end()) else f"{last[1]}: {last[2]}"
    return _DIED if _OF_OUR_QUERY in text and _SILENT.match(text) else None


def own_error(error: PySparkException) -> CounterpoiseError | None:
    """The error of the source or the sink that a task raised, as Spark's exception tells it."""
    name, _, said = (own_words(_text(error)) or "").partition(": ")
    kind = getattr(errors, name, None)
    return kind(said) if isinstance(kind, type) else None


def use_own_words(*, connect: bool = False) -> None:
    """Let all errors of Spark in this process say so, also those of Spark Connect.

    A PySpark with other classes is left unchanged.
    """
    kinds: tuple[Any, ...]
    try:
        if connect:
            from pyspark.errors.exceptions.connect import SparkConnectGrpcException

            kinds = (SparkConnectGrpcException,)
        else:
            from pyspark.errors.exceptions.captured import CapturedException, PythonException

            kinds = (CapturedException, PythonException)
    except ImportError as error:
        logger.info("counterpoise: Spark's errors are shown as they are (%s)", error)
        return
    for kind in kinds:
        wrap_once(kind, "__str__", _in_own_words)


def silence(spark: SparkSession, name: str) -> bool:
    """Let one class of Spark's log nothing. Returns False if Spark's log is another one."""
    context: Any = spark.sparkContext
    try:
        log4j = context._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    except Exception as error:
        logger.info("counterpoise: Spark logs what %s says (%s)", name, error)
        return False
    return True


def _in_own_words(say: Any) -> Any:
    @functools.wraps(say)
    def words(self: Any) -> str:
        return own_words(_text(self)) or str(say(self))

    return words


def _text(error: Any) -> str:
    """Spark's own, whatever `str` makes of it."""
    text: str = error._desc if hasattr(error, "_desc") else error._message
    return text
