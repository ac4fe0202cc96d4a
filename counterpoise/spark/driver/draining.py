"""Leaving a queue in order: `drain`, and the same when the process is told to end.

    from counterpoise.spark import drain, drain_on_sigterm

    drain_on_sigterm(spark, timeout_seconds=60)   # now or at any time before the signal
    query.awaitTermination()

To drain is to finish the micro-batch, hand every partition over with its position, unbind and stop
the query: no message is repeated. The source decides the steps (`leaving`). This is the driver's
side, which orders the drain through the channel and waits.

*A hook runs when the JVM is told to end, before Spark stops* (`before_spark_stops`). Under `spark-
submit`, also on YARN and Kubernetes, the JVM is the parent of the Python program, and SIGTERM
reaches the JVM alone. A JVM that ends starts all its hooks at once. Spark's hook is not one of
them: it is in a list of Hadoop's (`ShutdownHookManager`), whose hooks run one after the other by
priority, each within its time. Spark's hook has priority 40 and stops the context. A hook of a
higher priority runs earlier: until it has returned or its time is up, the context, the queries and
the connections between the JVM and Python work as usual.

*A thread hears of signals as well* (`_hear_of_signals`). Python's handlers run in the main thread,
which waits for the query in a call to the JVM. The kernel may give a signal to any other thread; it
does when the process was stopped as the signal came (Ctrl-Z and `kill %1`, for one), and then the
main thread goes on waiting. But any thread writes the signal's number to the wakeup descriptor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from counterpoise.at_exit import at_exit
from counterpoise.spark.channel.channel import (
    Channel,
    channels_of,
    refuse_connect,
    running_executions,
)
from counterpoise.spark.errors import SourceError, Unsupported
from counterpoise.spark.offsets import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


logger = logging.getLogger("counterpoise.spark")

DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_END_SECONDS = 5.0
_POLL_SECONDS = 0.02
_AGAIN_SECONDS = 1.0
# How long a query may take to stop before it is left behind.
_STOP_SECONDS = 5.0
_STOP_AT_ONCE_SECONDS = 1.0
_SPARE_SECONDS = 5.0

HeldPartitions = Mapping[str, Mapping[int, str]]


class DrainTimedOut(SourceError):
    """Time was up before everything was handed over; the queries are stopped nevertheless.

    `held`: by queue, the remaining partitions and their states. Messages in Spark's commit log are
    committed; the rest of a micro-batch comes again at the next owner.
    """

    code = "drain_timed_out"

    def __init__(self, message: str, held: HeldPartitions) -> None:
        super().__init__(message)
        self.held = held


def drain(
    queries: StreamingQuery | Iterable[StreamingQuery],
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Hand over all partitions of these queries, in order, and stop them (docs, *Draining a
    query*). Blocks until that is done.

    Raises DrainTimedOut if that takes longer than `timeout_seconds`, or the service is not reached;
    then the queries are stopped as by `query.stop()`. Raises Unsupported for a query without a
    Counterpoise source, and stops none then. Raises the error of the first query that has failed,
    once all others have left. Queries that have ended already are no error.
    """
    several = _several(queries)
    for query in several:
        if query.isActive:
            _must_be_ours(channels_of(query))
    try:
        _wait(several, timeout_seconds)
    finally:
        stop_all(several)


def drain_on_sigterm(
    what: SparkSession | StreamingQuery | Iterable[StreamingQuery],
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    end_seconds: float = DEFAULT_END_SECONDS,
) -> None:
    """Drain when the process or its JVM is told to end, and end the process with exit code 0 (docs,
    *Draining a query*).

    `what`: queries, or a session: then those that run when the signal comes, in any session of the
    application (queries of other sources are just stopped). `signals`: add `signal.SIGINT` for
    Ctrl-C. `end_seconds`: how long the program may go on when its queries have stopped, before
    SystemExit(0) is raised in the main thread, so that `finally` and atexit run. The JVM waits for
    the drain, then ends with its own exit code (143).

    Call it in the main thread (otherwise ValueError), after the session was created. Raises
    Unsupported for a session of Spark Connect.
    """
    refuse_connect(what, "drain_on_sigterm")
    departure = _Departure(what, timeout_seconds, end_seconds, signals[0])
    for number in signals:
        signal.signal(number, departure.on_signal)
    _hear_of_signals()
    before_spark_stops(
        departure.on_end_of_jvm, timeout_seconds + _STOP_SECONDS + end_seconds + _SPARE_SECONDS
    )


class _Departure:
    """The drain that a signal starts."""

    def __init__(
        self,
        what: SparkSession | StreamingQuery | Iterable[StreamingQuery],
        timeout_seconds: float,
        end_seconds: float,
        number: int,
    ) -> None:
        """`number`: the signal that interrupts the main thread."""
        self._what = what
        self._timeout_seconds = timeout_seconds
        self._end_seconds = end_seconds
        self._number = number
        self._begun = threading.Lock()  # taken once and never released; a signal handler may try it
        self._over = threading.Event()
        self._signals = 0
        self._at_once = threading.Event()
        self._exit_code: int | None = None
        self._told = False  # the main thread knows the exit code

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Runs in the main thread, between two of its steps, so another thread does the work."""
        if self._exit_code is not None:
            self._told = True
            raise SystemExit(self._exit_code)
        self._signals += 1
        # At the first signal the drain may have begun: another thread, or the JVM, heard of it.
        if not self.begin(number) and self._signals > 1:
            self._at_once.set()

    def on_end_of_jvm(self) -> None:
        """Runs on a thread that the JVM waits for."""
        self.begin(self._number)
        self._over.wait()

    def begin(self, number: int) -> bool:
        """Start the drain. False if it was started before."""
        if not self._begun.acquire(blocking=False):
            return False
        threading.Thread(target=self._run, args=(number,), name="counterpoise-drain").start()
        return True

    def _run(self, number: int) -> None:
        try:
            self._leave(number)
        finally:
            self._over.set()

    def _leave(self, number: int) -> None:
        name = signal.Signals(number).name
        logger.info("counterpoise: %s: draining, within %g s", name, self._timeout_seconds)
        queries = self._queries()
        code = self._drained(queries)
        if self._at_once.is_set():
            code = 128 + number
        if code:
            # Before the queries stop: otherwise the program would continue then, and exit with
            # success.
            self._end(code, number)
            stop_all(queries, _STOP_AT_ONCE_SECONDS if self._at_once.is_set() else _STOP_SECONDS)
        else:
            stop_all(queries)
            threading.main_thread().join(self._end_seconds)
            self._end(code, number)

    def _drained(self, queries: Sequence[StreamingQuery]) -> int:
        """0 if drained, 1 if not."""
        try:
            _wait(queries, self._timeout_seconds, self._at_once.is_set, lenient=True)
        except DrainTimedOut as error:
            if self._at_once.is_set():
                logger.warning("counterpoise: a second signal: the queries are stopped at once")
            else:
                logger.error("counterpoise: %s", error)
            return 1
        except Exception:
            logger.exception("counterpoise: the drain failed")
            return 1
        logger.info("counterpoise: everything is handed over")
        return 0

    def _end(self, code: int, number: int) -> None:
        self._exit_code = code
        _signal_main_thread(number)
        threading.Thread(target=self._insist, args=(number,), daemon=True).start()

    def _insist(self, number: int) -> None:
        """A signal that comes right before the main thread begins to wait does not wake it."""
        main = threading.main_thread()
        main.join(_AGAIN_SECONDS)
        while main.is_alive() and not self._told and _departure_at(number) is self:
            _signal_main_thread(number)
            main.join(_AGAIN_SECONDS)

    def _queries(self) -> list[StreamingQuery]:
        session = getattr(self._what, "_jsparkSession", None)
        return _several(self._what) if session is None else _running_in(session)


_wakeup: int | None = None  # the descriptor, once a thread reads what it is told


def _hear_of_signals() -> None:
    """From now on, drains begin although the main thread does not run their handler.

    The descriptor of an event loop is left alone: it wakes the main thread, which runs the loop.
    """
    global _wakeup
    if _wakeup is None:
        told, _wakeup = os.pipe()
        os.set_blocking(_wakeup, False)
        threading.Thread(
            target=_begin_drains, args=(told,), name="counterpoise-signals", daemon=True
        ).start()
    before = signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    if before not in (-1, _wakeup):
        signal.set_wakeup_fd(before)


def _begin_drains(told: int) -> None:
    while True:
        for number in os.read(told, 64):
            if (departure := _departure_at(number)) is not None:
                departure.begin(number)


def _departure_at(number: int) -> _Departure | None:
    """Whose handler the signal has now; None: it is not ours."""
    owner = getattr(signal.getsignal(number), "__self__", None)
    return owner if isinstance(owner, _Departure) else None


def _hear_no_more() -> None:
    """A forked process has signals of its own, and no thread that reads."""
    global _wakeup
    if _wakeup is not None:
        signal.set_wakeup_fd(-1)
        _wakeup = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hear_no_more)


def _signal_main_thread(number: int) -> None:
    """Interrupt the main thread wherever it waits."""
    main = threading.main_thread()
    if main.is_alive() and main.ident is not None:
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main.ident, number)
        else:
            signal.raise_signal(number)


def _several(queries: object) -> list[StreamingQuery]:
    return list(queries) if isinstance(queries, Iterable) else [queries]  # type: ignore[list-item]


def _running_in(session: Any) -> list[StreamingQuery]:
    from pyspark.sql.streaming.query import StreamingQuery

    # Each session knows its own queries alone.
    found = (one.sparkSession().streams().get(one.id()) for one in running_executions(session))
    return [StreamingQuery(one) for one in found if one is not None]


def stop_all(queries: Iterable[Any], timeout_seconds: float = _STOP_SECONDS) -> None:
    """Stop all queries (or Spark's own objects for them), and wait for a limited time, because
    Spark waits for a sink for ever.
    """

    def stop(query: Any) -> None:
        try:
            query.stop()
        except Exception as error:  # the context has stopped before
            logger.debug("counterpoise: a query could not be stopped: %s", error)

    stopping = [threading.Thread(target=stop, args=(query,), daemon=True) for query in queries]
    for thread in stopping:
        thread.start()
    give_up_at = time.monotonic() + timeout_seconds
    for thread in stopping:
        thread.join(max(0.0, give_up_at - time.monotonic()))
    if any(thread.is_alive() for thread in stopping):
        logger.warning(
            "counterpoise: a query is told to stop, and its sink has not returned for %g s",
            timeout_seconds,
        )


def _wait(
    queries: Iterable[StreamingQuery],
    timeout_seconds: float,
    at_once: Callable[[], bool] = lambda: False,
    *,
    lenient: bool = False,
) -> None:
    """Tell the queries to leave, and wait until they have, or until `at_once` returns True.

    `lenient`: queries of other sources are ignored. Raises like `drain`.
    """
    give_up_at = time.monotonic() + timeout_seconds
    leavers = [_Leaver(query, give_up_at, lenient) for query in queries]
    while left := [one for one in leavers if not one.is_over()]:
        if at_once() or time.monotonic() >= give_up_at:
            raise _timed_out([view for one in left for view in one.views()], timeout_seconds)
        time.sleep(_POLL_SECONDS)
    for one in leavers:
        if one.failure is not None:
            raise one.failure


def _must_be_ours(channels: list[Channel] | None) -> None:
    if channels == []:
        raise Unsupported("the query reads from no counterpoise source: use query.stop()")


class _Leaver:
    """One query that leaves."""

    def __init__(self, query: StreamingQuery, give_up_at: float, lenient: bool) -> None:
        self._query = query
        self._give_up_at = give_up_at
        self._lenient = lenient
        self._channels: list[Channel] | None = None
        self._over = False
        self.failure: Exception | None = None
        """Why it has ended or cannot leave. The others leave all the same."""

    def is_over(self) -> bool:
        """Whether its flows have left, or the query has ended. Gives the order until they have."""
        if not self._over:
            try:
                self._over = self._is_over()
            except Exception as error:
                self.failure, self._over = error, True
        return self._over

    def _is_over(self) -> bool:
        if not self._query.isActive:
            self.failure = self._query.exception()
            return True
        if self._channels is None:
            self._channels = channels_of(self._query)
        if self._channels is None:
            return False  # it is just starting
        if not self._lenient:
            _must_be_ours(self._channels)
        left = [self._has_left(channel) for channel in self._channels]  # each gets the order
        return all(left)

    def _has_left(self, channel: Channel) -> bool:
        view = channel.get("view")
        if view is None:
            return False  # it is just binding, and would lose the order
        if channel.stamp("drain") is None:
            seconds = max(0.0, self._give_up_at - time.monotonic())
            channel.put("drain", {"timeout_seconds": seconds})
        return view["status"] in ("left", "gone")

    def views(self) -> list[Json]:
        """The views of its flows that have not left."""
        found = [channel.get("view") for channel in self._channels or ()]
        return [view for view in found if view is not None and view["status"] != "left"]


def _timed_out(views: Sequence[Json], timeout_seconds: float) -> DrainTimedOut:
    held: dict[str, dict[int, str]] = {}
    said = []
    for view in views:
        of_queue = held.setdefault(view["queue"], {})
        for number, one in view["partitions"].items():
            if one["state"] != "warming":
                of_queue[int(number)] = one["state"]
                where = "in a micro-batch" if int(number) in view["inFlight"] else one["state"]
                said.append(f"partition {number} of {view['queue']!r} ({where})")
        if view["report"]["lastError"]:
            said.append(f"the last error was: {view['report']['lastError']}")
    what = "; ".join(said) or "the query had not begun to read"
    return DrainTimedOut(
        f"not everything was handed over within {timeout_seconds:g} s: {what}. The query is "
        "stopped; give it more time than a micro-batch takes",
        held,
    )


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

    if _withdraw is None:
        at_exit(lambda: _withdraw and _withdraw())
    else:
        _withdraw()
    _withdraw = withdraw


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
