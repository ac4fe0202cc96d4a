"""Leaving in order: everything is handed over with its position before the flow unbinds.

1. *Drain.* The service is told, and names successors. Until a partition is revoked it is processed
   as before: it must not pause only because its owner is leaving.
2. *The last call.* If no other flow can take the remaining partitions (all other bound flows drain
   too), or if the remaining time is just enough to finish, no new micro-batch is planned. Idle
   partitions are released at once, the others when their micro-batch is in Spark's
   commit log. A partition without a successor is then unassigned, and its next grant is graceful.
3. *Left.* The flow owns nothing, so it unbinds. The query still runs, and finds nothing to read.

If time is up before a micro-batch has ended, the driver stops the query, which commits what is done
and unbinds.

An administrator may drain the flow from outside. The same steps follow then, without the first one
and without a time limit: the service bounds the warm-ups of successors. If the driver drains too,
its time limit applies from then on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.flow import Flow
from counterpoise.spark.options import SourceOptions

logger = logging.getLogger("counterpoise.spark")

_ASK_SECONDS = 0.5
_POLL_SECONDS = 0.02
# The time reserved for the last call: a share of the whole, with a limit.
_LAST_SHARE = 0.5
_LAST_SECONDS = 10.0
# The service takes no longer time.
_LONGEST_SECONDS = 86_400.0


class Leaver(Protocol):
    """The part of the consumption that leaving uses."""

    def take_nothing_new(self) -> None: ...

    def left(self) -> None: ...


class Leaving:
    """One thread that performs the steps. `nobody_else` asks the service; it may raise."""

    def __init__(
        self,
        leaver: Leaver,
        flow: Flow,
        nobody_else: Callable[[], bool],
        timeout_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_seconds` None: the flow is drained already, from outside."""
        self._leaver = leaver
        self._flow = flow
        self._nobody_else = nobody_else
        self._clock = clock
        self._last_call_at = math.inf
        self._to_tell = False
        if timeout_seconds is not None:
            self.within(timeout_seconds)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counterpoise-leaving", daemon=True)

    def within(self, timeout_seconds: float) -> None:
        """Leave within this time."""
        reserve = min(_LAST_SECONDS, _LAST_SHARE * timeout_seconds)
        self._last_call_at = self._clock() + timeout_seconds - reserve
        self._to_tell = True

    def start(self) -> None:
        """Begin to leave."""
        self._thread.start()

    def close(self) -> None:
        """The query is being stopped: `stop` does the remaining steps."""
        self._closed.set()
        if self._thread.ident is not None:  # else it is about to be started, and ends at once
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            if self._drain() and self._work_on():
                self._leaver.take_nothing_new()
                while self._owns() and not self._closed.wait(_POLL_SECONDS):
                    pass
                if not self._closed.is_set():
                    self._leaver.left()
        except CounterpoiseError as error:
            logger.warning("counterpoise: the query cannot leave in order: %s", error)
        except Exception:  # a defect of ours: report it instead of hanging silently
            logger.exception("counterpoise: the query cannot leave in order")

    def _drain(self) -> bool:
        """Tell the service, if there is something to tell. False if the flow is gone or the query
        is being stopped.
        """
        if not self._to_tell:
            return True
        while not self._closed.is_set() and self._flow.status != "gone":
            try:
                if self._flow.status == "bound":
                    left = self._last_call_at - self._clock()
                    self._flow.drain(min(max(0.0, left), _LONGEST_SECONDS))
                    self._to_tell = False
                    return True
            except CounterpoiseError as error:
                logger.info("counterpoise: the drain has to be repeated: %s", error)
            self._closed.wait(_ASK_SECONDS)
        return False

    def _work_on(self) -> bool:
        """Until all is taken over, no other flow can take the rest, or the last call.

        False if the flow is gone or the query is being stopped before the service has learned a
        time limit that was set meanwhile.
        """
        ask_at = self._clock()
        while self._owns() and self._clock() < self._last_call_at:
            if self._to_tell and not self._drain():
                return False
            if self._clock() >= ask_at:
                if self._is_alone():
                    return True
                ask_at = self._clock() + _ASK_SECONDS
            if self._closed.wait(_POLL_SECONDS):
                return True
        return True

    def _is_alone(self) -> bool:
        try:
            return self._nobody_else()
        except CounterpoiseError as error:
            logger.debug("counterpoise: who else is bound is not known: %s", error)
            return False

    def _owns(self) -> bool:
        """Whether partitions are left to hand over; none if the lease expired while draining."""
        return bool(self._flow.partitions) and self._flow.status == "bound"


def nobody_else(options: SourceOptions) -> bool:
    """Whether no other flow can take the partitions of a draining one. Raises CounterpoiseError.

    Either all others drain too, or the queue is Ready although this flow owns partitions.
    """
    with Client(options.url, timeout_seconds=2.0) as client:
        if client.rebalance_status(options.queue).status == "Ready":
            return True
        return all(flow.draining for flow in client.flows(options.queue))
