"""A hook that runs when the JVM is told to end, before Spark stops.

Under `spark-submit`, also on YARN and Kubernetes, the JVM is the parent of the Python program, and
SIGTERM reaches the JVM alone. A JVM that ends starts all its hooks at once. Spark's hook is not one
of them: it is in a list of Hadoop's (`ShutdownHookManager`), whose hooks run one after the other by
priority, each within its time. Spark's hook has priority 40 and stops the context. A hook of a
higher priority runs earlier: until it has returned or its time is up, the context, the queries and
the connections between the JVM and Python work as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("counterpoise.spark")

# Spark's priority is that of Hadoop's file systems (10) plus 30
# (org.apache.spark.util.ShutdownHookManager).
_PRIORITY = 100

_withdraw: Callable[[], None] | None = None


def before_spark_stops(act: Callable[[], None], timeout_seconds: float) -> None:
    """Call `act`, on a thread of its own, when the JVM is told to end. The JVM waits at most this
    long.

    Replaces an earlier hook. Nothing is called after the Python program has ended by itself.
    """
    global _withdraw
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    if gateway is None:
        logger.info("counterpoise: there is no JVM of Spark yet, so its end is not handled")
        return
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    # A thread only for its identity: to compare Runnables, the JVM would have to ask Python.
    hook = jvm.java.lang.Thread(_Runnable(act))
    unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    manager.addShutdownHook(hook, _PRIORITY, int(timeout_seconds * 1000), unit)

    def withdraw() -> None:
        # The JVM may be gone, or ending.
        with contextlib.suppress(Exception):
            manager.removeShutdownHook(hook)

    if _withdraw is not None:
        _withdraw()
        atexit.unregister(_withdraw)
    _withdraw = withdraw
    atexit.register(withdraw)


class _Runnable:
    """The object that the JVM calls."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def run(self) -> None:
        try:
            self._act()
        except Exception:
            logger.exception("counterpoise: the hook before Spark's stop failed")

    class Java:
        implements = ("java.lang.Runnable",)
