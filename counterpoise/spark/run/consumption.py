"""One running query's side of the queue: its flow, its log, its progress.

It lives in the query's own process, a child of the JVM, from the first offset on (docs, *Spark*).
In addition to Spark's and the flow's threads there are three: the probe asks the log, the settler
commits and releases, and the correspondent talks with the driver. A fourth leaves the queue in
order when the driver says so. Their shared state is in the books.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from counterpoise.spark.channel.correspondence import Correspondent
from counterpoise.spark.channel.documents import Channel
from counterpoise.spark.channel.handoffs import Handoffs
from counterpoise.spark.channel.planned import Plans
from counterpoise.spark.channel.presence import Driver
from counterpoise.spark.channel.status import QueryStatus
from counterpoise.spark.driver.tracking import raise_if_refused
from counterpoise.spark.errors import DRAINED_FROM_OUTSIDE, FlowEnded
from counterpoise.spark.flows.bound import BoundFlow, raise_if_over
from counterpoise.spark.plan.offsets import Json
from counterpoise.spark.plan.options import DEFAULT_MESSAGES_PER_TRIGGER, SourceOptions
from counterpoise.spark.plan.place import Place
from counterpoise.spark.run.asking import Asking
from counterpoise.spark.run.batch_limit import BatchLimit
from counterpoise.spark.run.batches import Batches
from counterpoise.spark.run.books import Books
from counterpoise.spark.run.cycles import Cycles
from counterpoise.spark.run.learner import Learner
from counterpoise.spark.run.leaving import Leaving
from counterpoise.spark.run.probe import LogProbe
from counterpoise.spark.run.reporting import conditions_of
from counterpoise.spark.run.settler import Settler
from counterpoise.spark.tasks.executor import LogPartition
from counterpoise.spark.tasks.log_connection import LogConnection

logger = logging.getLogger("counterpoise.spark")

_STOP_SECONDS = 3.0
_REPORT_SECONDS = 5.0
# How long the driver may take to stop a query that an administrator has drained.
DRIVER_SECONDS = 10.0
# How long a stopping query with a micro-batch in flight waits to learn its outcome.
_ENDED_SECONDS = 1.0


@dataclass(frozen=True)
class QueueState:
    """Facts and questions about the queue that the flow does not answer.

    `max_handoff_seconds`: the queue's, None if unknown. `settled` waits until the queue has granted
    its flows their partitions. `nobody_else` asks whether a draining flow keeps its partitions
    because no other flow can take them. Both may raise CounterpoiseError.
    """

    max_handoff_seconds: float | None = None
    settled: Callable[[], None] = lambda: None
    nobody_else: Callable[[], bool] = lambda: True


class Consumption:
    """A query's consumption, from its first offset to its end.

    `flow` is bound, and sets `wake` whenever its view changes. `cores`: the limit of reading tasks.
    `channel`: to the driver. The flow tells `handoffs` of grants and losses. `driver`: whether it
    still runs. `warm`: the query has run a micro-batch.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: BoundFlow,
        connection: LogConnection,
        place: Place,
        *,
        wake: threading.Event,
        cores: int,
        queue: QueueState | None = None,
        channel: Channel | None = None,
        handoffs: Handoffs | None = None,
        driver: Driver | None = None,
        warm: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._flow = flow
        self._queue = queue or QueueState()
        self._channel = channel
        self._driver = driver or Driver(None)
        self._clock = clock
        limit = None
        if not options.names_its_limit:
            limit = BatchLimit(
                DEFAULT_MESSAGES_PER_TRIGGER,
                options.max_bytes_per_trigger,
                bytes_grow=not options.names_its_bytes,
            )
        self._cycles = Cycles(limit)
        self._books = Books(flow, place, wake, handoffs or Handoffs())
        self._probe = LogProbe(connection, clock, options.warmup_from)
        self._learner = Learner(options, flow, self._books, clock)
        self._settler = Settler(flow, self._books, also=self._tell_more)
        self._asking = Asking(
            *(options, flow, self._books, self._probe, self._learner, self._cycles),
            limit=limit,
            max_handoff_seconds=self._queue.max_handoff_seconds,
            settled=self._queue.settled,
            warm=warm,
            clock=clock,
        )
        plans = None if channel is None else Plans(channel, place.queue_id or "", place.incarnation)
        self._batches = Batches(options, flow, self._books, connection, cores, plans, clock)
        self._correspondent = None if channel is None else Correspondent(channel, self)
        self._leaving: Leaving | None = None
        self._drained_from_outside = False
        # The driver and the settler may begin to leave at once.
        self._beginning = threading.Lock()
        self._left = False
        self._stopped_by = math.inf
        self._stopped = False

    def start(self) -> None:
        """Start the threads."""
        self._probe.start()
        self._settler.start()
        if self._correspondent is not None:
            self._correspondent.start()

    # ------------------------------------------------------------------ questions of Spark

    def next_offset(self, start: Json, max_messages: int | None) -> Json:
        """The offset after `start`, or `start` itself when there is nothing to read now.

        Errors that end the query: FlowEnded, AheadOfLog, InvalidPosition, InvalidOffset,
        Unfinished, Unsupported.
        """
        if self._channel is not None:
            raise_if_refused(self._channel)
        found = start
        if not self._asking.over:
            raise_if_over(self._flow, self._options.queue)
            found = self._asking.next_offset(start, max_messages)
        # The driver stops the query. If it ends by itself, nothing to read would be taken for
        # success, and there may be more.
        ends = self._asking.ends_by_itself or self._clock() >= self._stopped_by
        if found is start and ends and self._drained_from_outside:
            raise FlowEnded(f"queue {self._options.queue!r}: {DRAINED_FROM_OUTSIDE}")
        return found

    def begins_at(self, start: Json) -> None:
        """Before this offset there are no messages. So what is granted can be released, even before
        Spark asks.
        """
        self._books.asked_from(self._books.place.offset(start))

    def available_now(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Read the messages that exist now in the partitions of the flow, and no more.

        For Trigger.AvailableNow.
        """
        self._asking.available_now(ends)

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        """The slices of the micro-batch from `start` to `end`, without superseded ones."""
        return self._batches.partitions(start, end)

    # ------------------------------------------------------------------ messages of the driver

    def batch_done(self, end: Json) -> bool:
        """The micro-batch up to `end` is in Spark's commit log. Any thread; may come late."""
        if not self._books.batch_done(end):
            return False
        self._cycles.done(self._clock())
        return True

    def restored(self, document: Json) -> None:
        """The driver has restored the states of these partitions."""
        if self._learner.heard(document):
            self._books.wake.set()

    def leave(self, timeout_seconds: float) -> None:
        """Begin to hand over everything in order, and then unbind; see `Leaving`."""
        with self._beginning:
            self._drained_from_outside = False
            if self._leaving is None:
                self._begin_to_leave(timeout_seconds)
            else:
                self._leaving.within(timeout_seconds)

    def _begin_to_leave(self, timeout_seconds: float | None) -> None:
        self._leaving = Leaving(self, self._flow, self._queue.nobody_else, timeout_seconds)
        self._leaving.start()

    def _tell_more(self) -> None:
        """What the settler does after each look."""
        self._learner.tell()
        self._leave_if_drained()
        # Last, because it may fail, and is no reason to stop the work.
        self._flow.report(conditions_of(self._flow, self._probe), timeout_seconds=_REPORT_SECONDS)

    def _leave_if_drained(self) -> None:
        """An administrator may have drained the flow."""
        with self._beginning:
            if not self._flow.draining or self._leaving is not None or self._stopped:
                return
            self._drained_from_outside = True
            self._begin_to_leave(None)
        logger.warning(
            "counterpoise: queue %s: drained by an administrator; the query hands its "
            "partitions over, leaves, and ends",
            self._options.queue,
        )

    def take_nothing_new(self) -> None:
        """Begin no micro-batch from now on; release idle partitions, and the others when they are
        done.
        """
        self._books.take_nothing_new()
        self._settler.hand_over_all()

    def left(self) -> None:
        """Everything is handed over: unbind. The query continues and finds nothing to read, until
        the driver stops it. If an administrator drained it, the driver is told; if it does not stop
        the query in time, the query ends by an error.
        """
        self._asking.over = True
        self._flow.close(timeout_seconds=_STOP_SECONDS)
        self._left = True
        if self._drained_from_outside:
            told = self._tell_driver()
            self._stopped_by = self._clock() + (DRIVER_SECONDS if told else 0.0)

    def _tell_driver(self) -> bool:
        """Whether the driver was told that the flow has left."""
        if self._channel is None:
            return False
        try:
            self._channel.put("left", {})
        except OSError as error:
            logger.warning("counterpoise: the driver cannot be told of the drain: %s", error)
            return False
        return True

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Commit what the sink has, release what may be released, unbind. Never raises."""
        if self._stopped:
            return
        self._stopped = True
        if self._correspondent is not None:
            if self._books.in_flight:
                self._correspondent.wait_ended(_ENDED_SECONDS)
            self._correspondent.close()
        if self._leaving is not None:
            self._leaving.close()
        self._settler.close(_STOP_SECONDS)
        self._probe.close()
        reason = "driver_lost" if self._driver.is_lost() else None
        self._flow.close(timeout_seconds=_STOP_SECONDS, reason=reason)

    # ------------------------------------------------------------------ status

    def held(self) -> tuple[object, ...]:
        """Objects that are replaced whenever the view changes, to be compared by identity."""
        flow = self._flow
        state = (self._left, flow.status, flow.draining)
        return (flow.partitions, flow.warming, self._books.in_flight, *state)

    def status(self) -> QueryStatus:
        """The present status."""
        flow = self._flow
        with self._books.locked() as progress:
            view = flow.partitions
            return QueryStatus(
                queue=self._options.queue,
                url=self._options.url or "",
                instance=flow.instance_id,
                flow_ids=tuple(flow.flow_ids),
                status="left" if self._left else flow.status,
                draining=flow.draining,
                partitions=view,
                warming=flow.warming,
                positions=progress.positions(view),
                bounds=progress.bounds,
                handoffs=self._books.handoffs,
                last_error=flow.last_error or self._settler.last_error or self._probe.last_error,
                in_flight=progress.in_flight & view.keys(),
            )

    def report(self) -> Json:
        """For the query's progress: ends of the log, held partitions, errors."""
        return self.status().report()
