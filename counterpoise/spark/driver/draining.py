"""Leaving a queue in order: `drain`, and the same when the process is told to end.

    from counterpoise.spark import drain, drain_on_sigterm

    drain_on_sigterm(spark, timeout_seconds=60)   # now or at any time before the signal
    query.awaitTermination()

To drain is to finish the micro-batch, hand every partition over with its position, unbind and stop
the query: nobody gets anything twice. What is done when is the source's business (`leaving`); this
is the driver's side, which tells it through the channel and waits.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from counterpoise.spark.channel.documents import Channel, NoChannel, channels_of
from counterpoise.spark.driver.shutdown import before_spark_stops
from counterpoise.spark.errors import SourceError
from counterpoise.spark.plan.offsets import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("counterpoise.spark")

DEFAULT_TIMEOUT_SECONDS = 60.0
_LOOK_SECONDS = 0.02
# How long a query may take to stop before it is left to that.
_STOP_SECONDS = 5.0
_STOP_AT_ONCE_SECONDS = 1.0
# How long the program has to end by itself, once its queries have.
_END_SECONDS = 5.0
_SPARE_SECONDS = 5.0

Held = Mapping[str, Mapping[int, str]]


class DrainTimedOut(SourceError):
    """Time was up before everything was handed over; the queries are stopped all the same.

    `held`: by queue, the partitions that were left and their states. What of them is in the sink
    and in Spark's commit log is committed; the rest of a micro-batch comes again to the next owner.
    """

    code = "drain_timed_out"

    def __init__(self, message: str, held: Held) -> None:
        super().__init__(message)
        self.held = held


def drain(
    queries: StreamingQuery | Iterable[StreamingQuery],
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> None:
    """Hand over all that these queries own, in order, and stop them. Blocks until that is done.

    A query goes on working until others take its partitions. If nobody can, or when half of the
    time is over (or ten seconds are left), it begins no new micro-batch, and what nobody takes is
    left without an owner at its position. Trigger intervals are not waited for.

    Raises DrainTimedOut if a micro-batch takes longer than that, or the service is not reached; the
    queries are stopped then as by `query.stop()`, which is waited for some seconds. Raises
    NoChannel for a query that reads nothing of ours, and what a query failed with meanwhile.
    Queries that are over already are no error.
    """
    several = _several(queries)
    try:
        _wait(several, timeout_seconds)
    finally:
        _stop(several)


def drain_on_sigterm(
    what: SparkSession | StreamingQuery | Iterable[StreamingQuery],
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
) -> None:
    """Drain when the process or its JVM is told to end, and end the process with exit code 0.

    `what`: queries, or the session: then those that run when the signal comes (others than ours are
    stopped plainly). `signals`: add `signal.SIGINT` for Ctrl-C. The program goes on when its
    queries have stopped (`awaitTermination` returns); what has not ended by itself within five
    seconds is ended by SystemExit(0) in the main thread, so that `finally` and atexit run.

    A drain that times out is logged and ends with exit code 1. A second signal stops the queries at
    once, as `query.stop()` does, with exit code 128 + signal. Call it in the main thread (else
    ValueError), with the session made before.

    The signal may reach the Python process, the JVM (as under spark-submit), or both. A JVM that is
    told to end waits for the drain, then stops Spark and ends with its own exit code (143).
    """
    departure = _Departure(what, timeout_seconds, signals[0])
    for number in signals:
        signal.signal(number, departure.on_signal)
    before_spark_stops(
        departure.on_end_of_jvm, timeout_seconds + _STOP_SECONDS + _END_SECONDS + _SPARE_SECONDS
    )


class _Departure:
    """What a signal sets in motion."""

    def __init__(
        self,
        what: SparkSession | StreamingQuery | Iterable[StreamingQuery],
        timeout_seconds: float,
        number: int,
    ) -> None:
        """`number`: the signal by which the main thread is interrupted."""
        self._what = what
        self._timeout_seconds = timeout_seconds
        self._number = number
        self._begun = threading.Lock()  # taken once and for all; a signal handler may try it
        self._over = threading.Event()
        self._signals = 0
        self._at_once = threading.Event()
        self._exit_code: int | None = None

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """In the main thread, between any two of its steps: so all work is done in another."""
        if self._exit_code is not None:
            raise SystemExit(self._exit_code)
        self._signals += 1
        # The first one may come while the JVM, which got it too, waits for the drain already.
        if not self._begin(number) and self._signals > 1:
            self._at_once.set()

    def on_end_of_jvm(self) -> None:
        """On a thread that the JVM waits for."""
        self._begin(self._number)
        self._over.wait()

    def _begin(self, number: int) -> bool:
        """False if that was done before."""
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
            # Before the queries stop: the program would go on then, and end as if all were well.
            self._end(code, number)
            _stop(queries, _STOP_AT_ONCE_SECONDS if self._at_once.is_set() else _STOP_SECONDS)
        else:
            _stop(queries)
            threading.main_thread().join(_END_SECONDS)
            self._end(code, number)

    def _drained(self, queries: Sequence[StreamingQuery]) -> int:
        """0 if so."""
        try:
            _wait(queries, self._timeout_seconds, self._at_once.is_set, lenient=True)
        except DrainTimedOut as error:
            if self._at_once.is_set():
                logger.warning("counterpoise: told again: the queries are stopped at once")
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

    def _queries(self) -> list[StreamingQuery]:
        streams = getattr(self._what, "streams", None)
        return list(streams.active) if streams is not None else _several(self._what)


def _signal_main_thread(number: int) -> None:
    """So that it is interrupted wherever it waits."""
    main = threading.main_thread()
    if main.is_alive() and main.ident is not None:
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main.ident, number)
        else:
            signal.raise_signal(number)


def _several(queries: object) -> list[StreamingQuery]:
    return list(queries) if isinstance(queries, Iterable) else [queries]  # type: ignore[list-item]


def _stop(queries: Iterable[StreamingQuery], timeout_seconds: float = _STOP_SECONDS) -> None:
    """Stop them all, and wait for that in bounds: Spark waits for a sink for ever."""
    stopping = [threading.Thread(target=query.stop, daemon=True) for query in queries]
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
    """Tell them to leave and wait until they have, or `at_once` says not to.

    `lenient`: a query that is not ours needs no waiting for. Raises like `drain`.
    """
    give_up_at = time.monotonic() + timeout_seconds
    left = [_Leaver(query, give_up_at, lenient) for query in queries]
    while left := [one for one in left if not one.is_over()]:
        if at_once() or time.monotonic() >= give_up_at:
            raise _timed_out([view for one in left for view in one.views()], timeout_seconds)
        time.sleep(_LOOK_SECONDS)


class _Leaver:
    """One query on its way out."""

    def __init__(self, query: StreamingQuery, give_up_at: float, lenient: bool) -> None:
        self._query = query
        self._give_up_at = give_up_at
        self._lenient = lenient
        self._channels: list[Channel] | None = None

    def is_over(self) -> bool:
        """Whether its flows have left, or the query is over anyway. Tells them until they have."""
        if not self._query.isActive:
            if (failure := self._query.exception()) is not None:
                raise failure
            return True
        if self._channels is None:
            self._channels = channels_of(self._query)
        if self._channels is None:
            return False  # it begins just now
        if not self._channels and not self._lenient:
            raise NoChannel("the query reads from no counterpoise source: use query.stop()")
        left = [self._has_left(channel) for channel in self._channels]  # all of them are told
        return all(left)

    def _has_left(self, channel: Channel) -> bool:
        view = channel.get("view")
        if view is None:
            return False  # it binds just now, and would forget what it was told
        if channel.stamp("drain") is None:
            seconds = max(0.0, self._give_up_at - time.monotonic())
            channel.put("drain", {"timeout_seconds": seconds})
        return view["status"] in ("left", "gone")

    def views(self) -> list[Json]:
        """What it still has."""
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
