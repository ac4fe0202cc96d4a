"""One running query's side of the queue: its flow, its log, its progress.

It lives in the query's own process, a child of the JVM, from the first offset on (docs, *Spark*).
In addition to Spark's and the flow's threads there are three: the probe asks the log, the settler
commits and releases, and the correspondent talks with the driver. A fourth leaves the queue in
order when the driver says so. What they share is the progress (`SharedProgress`).

`Batches` has the slices that a micro-batch reads, once Spark has written its offsets down. The
offsets alone determine them. Slices that were superseded since they were planned are left out.
`conditions_of`, and the ends that the service refuses, are what the query reports to the service,
so that people see it where they see the queue.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

from counterpoise.conditions import (
    end_refused,
    invalid_position,
    log_away,
    rows_dropped,
)
from counterpoise.errors import CounterpoiseError
from counterpoise.flow import Flow
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.channel.running_batch import PlanWriter
from counterpoise.spark.channel.running_driver import Driver
from counterpoise.spark.channel.source_channel import Correspondent
from counterpoise.spark.channel.status import Handoffs, QueryStatus
from counterpoise.spark.errors import DRAINED_FROM_OUTSIDE, FlowEnded
from counterpoise.spark.offsets import Json, Place, replay_slices, slices
from counterpoise.spark.options import DEFAULT_MESSAGES_PER_TRIGGER, SourceOptions
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.cycles import BatchLimit, Cycles
from counterpoise.spark.source.flow import raise_if_over
from counterpoise.spark.source.leaving import Leaving
from counterpoise.spark.source.log_partition import LogPartition, log_partition
from counterpoise.spark.source.offset_planner import OffsetPlanner
from counterpoise.spark.source.planning import View, sort_out, tasks_of
from counterpoise.spark.source.probe import LogProbe
from counterpoise.spark.source.progress import Progress, SharedProgress
from counterpoise.spark.source.query_state import KeptState
from counterpoise.spark.source.settler import QuerySettler
from counterpoise.spark.source.warmup_tracker import WarmupTracker
from counterpoise.wire import Condition

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
    still runs. `warm`: the query has run a micro-batch. `keeps_state`: in Spark.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: Flow,
        connection: QueueLog,
        place: Place,
        *,
        wake: threading.Event,
        cores: int,
        queue: QueueState | None = None,
        channel: Channel | None = None,
        handoffs: Handoffs | None = None,
        driver: Driver | None = None,
        warm: bool = False,
        keeps_state: bool = False,
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
                bytes_follow=not options.names_its_bytes,
            )
        self._cycles = Cycles(limit)
        whole = keeps_state and options.state_on_handoff != "lose"
        progress = Progress(keeps_state=whole)
        self._shared = SharedProgress(flow, place, wake, handoffs or Handoffs(), progress)
        self._state = KeptState(options, flow, self._shared) if keeps_state else None
        self._probe = LogProbe(connection, clock, options.warmup_from)
        self._warmup = WarmupTracker(options, flow, self._shared, clock) if options.warmup else None
        self._settler = QuerySettler(flow, self._shared, also=self._tell_more)
        self._planner = OffsetPlanner(
            options,
            flow,
            self._shared,
            self._probe,
            self._warmup,
            self._cycles,
            limit=limit,
            max_handoff_seconds=self._queue.max_handoff_seconds,
            settled=self._queue.settled,
            warm=warm,
            state=self._state,
            clock=clock,
        )
        plans = (
            None
            if channel is None
            else PlanWriter(channel, place.queue_id or "", place.incarnation, options.url)
        )
        state = self._state if whole else None
        self._batches = Batches(options, flow, self._shared, connection, cores, plans, state, clock)
        self._correspondent = None if channel is None else Correspondent(channel, self)
        self._leaving: Leaving | None = None
        self._drained_from_outside = False
        # The driver and the settler may begin to leave at once.
        self._beginning = threading.Lock()
        self._left = False
        self._stopped_by = math.inf
        self._stopped = False
        # Spark and the driver may end it at once; none of them goes on before it has left.
        self._stopping = threading.Lock()
        self._spark_has_stopped = False

    def start(self) -> None:
        """Start the threads."""
        self._probe.start()
        self._settler.start()
        if self._correspondent is not None:
            self._correspondent.start()

    # ------------------------------------------------------------------ questions of Spark

    def next_offset(self, start: Json, max_messages: int | None) -> Json:
        """The offset after `start`, or `start` itself when there is nothing to read now.

        Errors that end the query: FlowEnded, InvalidOffset, InvalidPosition, StateLost,
        Unfinished.
        """
        found = start
        if self._spark_has_stopped:
            raise FlowEnded(f"queue {self._options.queue!r}: Spark's context has stopped")
        if not self._planner.over:
            raise_if_over(self._flow, self._options.queue)
            found = self._planner.next_offset(start, max_messages)
        # The driver stops the query. If it ends by itself, nothing to read would be taken for
        # success, and there may be more.
        ends = self._planner.ends_by_itself or self._clock() >= self._stopped_by
        if found is start and ends and self._drained_from_outside:
            raise FlowEnded(f"queue {self._options.queue!r}: {DRAINED_FROM_OUTSIDE}")
        return found

    def begins_at(self, start: Json) -> None:
        """Before this offset there are no messages. So what is granted can be released, even before
        Spark asks.
        """
        self._shared.asked_from(start)

    def available_now(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Read the messages that exist now in the partitions of the flow, and no more.

        For Trigger.AvailableNow.
        """
        self._planner.available_now(ends)

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        """The slices of the micro-batch from `start` to `end`, without superseded ones."""
        return self._batches.partitions(start, end)

    # ------------------------------------------------------------------ messages of the driver

    def batch_done(self, end: Json) -> bool:
        """The micro-batch up to `end` is in Spark's commit log. Any thread; may come late."""
        if not self._shared.batch_done(end):
            return False
        self._cycles.done(self._clock())
        return True

    def rows_dropped(self, total: int) -> None:
        """Spark's watermark has dropped so many rows of this query as late."""
        self._shared.handoffs.dropped_rows(total)

    def restored(self, document: Json) -> None:
        """The driver has restored the states of these partitions."""
        if self._warmup is not None and self._warmup.heard(document):
            self._shared.wake.set()

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
        if self._warmup is not None:
            self._warmup.tell()
        self._leave_if_drained()
        # Last, because it may fail, and is no reason to stop the work.
        found = (
            *conditions_of(self._flow, self._probe),
            *rows_dropped(self._shared.handoffs.rows_dropped),
            *end_refused(self._shared.refused()),
            *(() if self._state is None else self._state.conditions()),
        )
        self._flow.report(found, timeout_seconds=_REPORT_SECONDS)

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

    def spark_has_stopped(self) -> None:
        """Leave at once: nothing is read any more, though Spark may go on asking."""
        self._spark_has_stopped = True
        threading.Thread(target=self.stop, name="counterpoise-stop", daemon=True).start()

    def take_nothing_new(self) -> None:
        """Begin no micro-batch from now on; release idle partitions, and the others when they are
        done.
        """
        self._shared.take_nothing_new()
        self._settler.hand_over_all()

    def left(self) -> None:
        """Everything is handed over: unbind. The query continues and finds nothing to read, until
        the driver stops it. If an administrator drained it, the driver is told; if it does not stop
        the query in time, the query ends by an error.
        """
        self._planner.over = True
        self._flow.close(timeout_seconds=_STOP_SECONDS)
        self._left = True
        if self._drained_from_outside:
            now = self._clock()
            self._stopped_by = now + (DRIVER_SECONDS if self._tell_driver() else 0.0)

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
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                self._stop()

    def _stop(self) -> None:
        if self._correspondent is not None:
            if self._shared.in_flight:
                self._correspondent.wait_ended(_ENDED_SECONDS)
            self._correspondent.close()
        if self._leaving is not None:
            self._leaving.close()
        self._settler.close(_STOP_SECONDS)
        self._probe.close()
        reason = "driver_lost" if self._driver.is_lost() else None
        self._flow.close(timeout_seconds=_STOP_SECONDS, reason=reason)
        self._driver.clear_after()

    # ------------------------------------------------------------------ status

    def held(self) -> tuple[object, ...]:
        """Objects that are replaced whenever the view changes, to be compared by identity."""
        flow = self._flow
        state = (self._left, flow.status, flow.draining)
        return (flow.partitions, flow.warming, self._shared.in_flight, *state)

    def status(self) -> QueryStatus:
        """The present status."""
        flow = self._flow
        with self._shared.locked() as progress:
            view = flow.partitions
            return QueryStatus(
                queue=self._options.queue,
                url=self._options.url or "",
                instance=flow.instance_id,
                status="left" if self._left else flow.status,
                draining=flow.draining,
                partitions=view,
                warming=flow.warming,
                positions=progress.positions(view),
                bounds=progress.bounds,
                handoffs=self._shared.handoffs,
                last_error=flow.last_error or self._settler.last_error or self._probe.last_error,
                in_flight=progress.in_flight & view.keys(),
            )

    def report(self) -> Json:
        """For the query's progress: ends of the log, held partitions, errors."""
        return self.status().report()


# How long a micro-batch waits for a certain view of the flow.
SETTLE_SECONDS = 2.0
# How often it is told that one waits for partitions, and how many of them are named.
WARN_SECONDS, MOST_NAMED = 60.0, 10


class Batches:
    """`cores`: the limit of reading tasks. `plans`: tells the driver the plan of each batch.
    `state`: of a query that keeps some in Spark, and accepts no loss of it.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: Flow,
        shared: SharedProgress,
        connection: QueueLog,
        cores: int,
        plans: PlanWriter | None,
        state: KeptState | None,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._flow = flow
        self._shared = shared
        self._connection = connection
        self._cores = cores
        self._plans = plans
        self._state = state
        self._clock = clock
        self._last: tuple[Json, Json, list[LogPartition]] | None = None

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        """The slices of the micro-batch from `start` to `end`, without superseded ones.

        Raises StateLost if the state would lack these, and FlowEnded.
        """
        if self._last is not None and self._last[:2] == (start, end):
            return self._last[2]
        place = self._shared.place
        before, after = place.offset(start), place.offset(end)
        planned = slices(before, after)
        view: View | None = None
        if planned and self._state is not None:
            view = self._until_granted({one.partition for one in planned})
        elif planned:
            view = self._known_view()
        sorted_out = sort_out(planned, view, keeps_state=self._state is not None)
        if self._state is not None:
            self._state.refuse_to_skip(sorted_out.skipped)
        # A query that starts again is first asked from the end to the end, which may not be done.
        if start != end:
            with self._shared.locked() as progress:
                progress.replaying(before, after)
                progress.skip(sorted_out.skipped)
                self._shared.planned = end
        self._shared.handoffs.skipped(sorted_out.skipped)
        # History is read under any owner, because the next offset builds on it.
        read = [*sorted_out.read, *replay_slices(before, after)]
        groups = [
            log_partition(self._connection, self._options, group)
            for group in tasks_of(read, self._cores, self._options)
        ]
        if not groups and after.prepared != before.prepared:
            # Each task warms up a worker.
            groups = [log_partition(self._connection, self._options, ())] * self._cores
        if self._plans is not None:
            self._plans.say(start, end, [one.slices for one in groups], sorted_out.skipped)
        self._last = (start, end, groups)
        return groups

    def _until_granted(self, partitions: Set[int]) -> View:
        """The view with these partitions: after a crash they come back when the holddown ends, and
        after the end of a lease when the flow is bound again. Raises FlowEnded.
        """
        flow = self._flow
        warn_at = self._clock() + WARN_SECONDS
        while True:
            view = flow.partitions
            if flow.status == "bound" and not flow.in_doubt and partitions <= view.keys():
                return view
            raise_if_over(flow, self._options.queue)
            if flow.draining:
                raise FlowEnded(f"queue {self._options.queue!r}: {DRAINED_FROM_OUTSIDE}")
            if self._clock() >= warn_at:
                warn_at = self._clock() + WARN_SECONDS
                logger.warning(
                    "counterpoise: queue %s: the query has to repeat a micro-batch, and waits for "
                    "its partitions %s: another consumer has them, or nobody does yet (see "
                    "'counterpoise status %s')",
                    self._options.queue,
                    sorted(partitions - view.keys())[:MOST_NAMED],
                    self._options.queue,
                )
            with contextlib.suppress(CounterpoiseError):
                flow.wait(0.5)

    def _known_view(self) -> View | None:
        """The flow's view, once it is certain; None if it stays uncertain for a while."""
        give_up_at = self._clock() + SETTLE_SECONDS
        while self._flow.status == "binding" or self._flow.in_doubt:
            left = give_up_at - self._clock()
            if left <= 0:
                return None
            with contextlib.suppress(CounterpoiseError):
                self._flow.wait(min(left, 0.1))
        return self._flow.partitions if self._flow.status == "bound" else None


def conditions_of(flow: Flow, probe: LogProbe) -> Iterator[Condition]:
    """The conditions of the query: its log first, then its partitions by number."""
    yield from log_away(probe.away_for)
    owned = flow.partitions
    for number, position in sorted(probe.invalid.items()):
        if number in owned:
            yield invalid_position(number, owned[number].epoch, position)
