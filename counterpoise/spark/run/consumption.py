"""One running query's side of the queue: its flow, its log, what is done. Lives in the query's own
process, a child of the JVM, from the first offset on (docs, *Spark*).

The thread that Spark calls on decides what to read; it waits for nobody for long and what fails in
passing it answers with the offset it was given: there is nothing to read just now. Beside it run
the flow's threads, the probe (asks the log) and the settler (tells the service what is done).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from counterpoise.errors import CounterpoiseError
from counterpoise.spark.channel.correspondence import Correspondent
from counterpoise.spark.channel.documents import Channel
from counterpoise.spark.channel.handoffs import Handoffs
from counterpoise.spark.channel.planned import Plans
from counterpoise.spark.channel.report import Standing
from counterpoise.spark.driver.tracking import raise_if_refused
from counterpoise.spark.flows.bound import BoundFlow, in_doubt, raise_if_over
from counterpoise.spark.plan.offsets import Json, Offset, Slice, offset_of, replay_slices, slices
from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.plan.planning import (
    Question,
    View,
    check_place,
    pack,
    sort_out,
)
from counterpoise.spark.plan.progress import Progress
from counterpoise.spark.run.available_now import AvailableNow
from counterpoise.spark.run.learner import Learner
from counterpoise.spark.run.leaving import Leaving
from counterpoise.spark.run.pace import Pace
from counterpoise.spark.run.probe import LogProbe
from counterpoise.spark.run.settler import Settler
from counterpoise.spark.tasks.door import LogDoor
from counterpoise.spark.tasks.executor import LogPartition, log_partition
from counterpoise.wire import CommitItem, ReleaseItem

logger = logging.getLogger("counterpoise.spark")

# How old what the log said may be, and how long to wait for something younger.
MAX_AGE_SECONDS = 0.05
PATIENCE_SECONDS = 0.5
# How long a micro-batch waits to know what the flow still holds, when that is not known.
SETTLE_SECONDS = 2.0
_STOP_SECONDS = 3.0
# How long a query that is stopped with a micro-batch in flight waits to hear what became of it.
_ENDED_SECONDS = 1.0


class Consumption:
    """What runs from the first offset of a query to its end.

    `flow` is bound, and sets `wake` whenever its view changes. `incarnation` is the log's, and
    `queue_id` the queue's. `cores`: how many tasks read at most. `max_handoff_seconds`: the
    queue's, None if not known. `settled` waits until the queue has given its flows what they get
    (for `available_now`). `channel`: to the driver. `plans`: what each micro-batch reads, told to
    it. `handoffs` is told by the flow what comes and goes. `nobody_else` asks the service whether a
    draining flow keeps what it has, because nobody can take it; it may raise.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: BoundFlow,
        door: LogDoor,
        incarnation: str,
        *,
        queue_id: str | None = None,
        wake: threading.Event,
        cores: int,
        max_handoff_seconds: float | None = None,
        settled: Callable[[], None] = lambda: None,
        channel: Channel | None = None,
        plans: Plans | None = None,
        handoffs: Handoffs | None = None,
        nobody_else: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._flow = flow
        self._door = door
        self._incarnation = incarnation
        self._queue_id = queue_id
        self._cores = cores
        self._max_handoff_seconds = max_handoff_seconds
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._progress = Progress()
        self._pace = Pace()
        self._probe = LogProbe(door, clock, options.warmup_from)
        self._learner = Learner(options, flow, self._progress, clock)
        self._plans = plans
        self._handoffs = handoffs or Handoffs()
        self._nobody_else = nobody_else
        self._settler = Settler(
            *(flow, self._progress, self._lock, wake, self._refused, self._handoffs.released),
            beside=self._learner.tell,
        )
        self._channel = channel
        self._correspondent = Correspondent(channel, self) if channel is not None else None
        self._available_now = AvailableNow(
            *(options, flow, lambda: self._probe.last_error, settled, clock)
        )
        self._parsed: tuple[Json, Offset] | None = None
        self._sorted: tuple[Json, Json, list[LogPartition]] | None = None
        self._planned: Json | None = None
        self._leaving: Leaving | None = None
        self._closing = False
        self._unbinding = False
        self._left = False
        self._stopped = False

    def start(self) -> None:
        """Begin to ask the log and to tell the service."""
        self._probe.start()
        self._settler.start()
        if self._correspondent is not None:
            self._correspondent.start()

    # ------------------------------------------------------------------ what to read next

    def next_offset(self, start: Json, max_messages: int | None) -> Json:
        """The offset after `start`, or `start` itself when there is nothing to read now.

        Raises what ends the query: FlowEnded, AheadOfLog, InvalidPosition, InvalidOffset,
        Unfinished, Unsupported.
        """
        if self._channel is not None:
            raise_if_refused(self._channel)
        if self._unbinding:
            return start
        raise_if_over(self._flow, self._options.queue)
        self._measure()
        self._finished(self._parse(start))
        if self._available_now.targets is None:
            return self._planned_after(start, max_messages) or start
        # "Nothing to read" would be the end of the query.
        return self._available_now.until_known(lambda: self._surely_after(start, max_messages))

    def _finished(self, offset: Offset) -> None:
        lost: Sequence[Slice] = ()
        with self._lock:
            bound, view = self._flow.status == "bound", self._flow.partitions
            if offset is not self._progress.start or self._progress.in_flight:
                lost = self._progress.finished(offset, view)
                self._wake.set()
        if bound:
            self._report_lost(lost)

    def _surely_after(self, start: Json, max_messages: int | None) -> Json | None:
        """The same as the other; `start` only if it is certain that there is nothing to read."""
        if self._unbinding:
            return start
        if not self._available_now.settle():
            return None
        found = self._planned_after(start, max_messages)
        certain = found is not start or self._closing or self._available_now.is_settled()
        return found if certain else None

    def _planned_after(self, start: Json, max_messages: int | None) -> Json | None:
        """The offset after `start`, `start` when there is nothing to read, None: not known now."""
        with self._lock:
            asked = self._flow.partitions
            positions = {} if self._closing else self._progress.wanted(asked)
            restores = () if self._closing else self._learner.restores(asked)
        if not (positions or restores):
            return start
        if in_doubt(self._flow, self._clock()):
            return None
        question = Question(
            positions,
            self._flow.start == "latest",
            max_messages,
            self._available_now.targets,
            self._options.max_bytes_per_trigger,
            restores,
        )
        answer = self._probe.ask(question, MAX_AGE_SECONDS, PATIENCE_SECONDS)
        if answer is None:
            return None
        with self._lock:
            if self._closing:
                return start
            view = self._flow.partitions
            coming = self._learner.coming()
            planned = self._progress.plan(answer, asked, view, self._flow.instance_id, coming)
            if planned is not None:
                self._planned = replace(planned, queue_id=self._queue_id).to_json()
            due = self._progress.due(view)
        self._learner.warn()
        if due or self._learner.has_news():
            self._wake.set()
        if planned is None or self._planned is None:
            return start if self._available_now.is_done(answer) else None
        self._pace.planned(self._clock())
        return self._planned

    def available_now(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Read what is there now of what the flow gets now, and no more (Trigger.AvailableNow)."""
        if not self._unbinding:
            self._available_now.aim(ends)

    # ------------------------------------------------------------------ what a batch reads

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        """What the micro-batch from `start` to `end` reads. Superseded slices are left out."""
        if self._sorted is not None and self._sorted[:2] == (start, end):
            return self._sorted[2]
        before, after = self._parse(start), offset_of(end, self._options.queue)
        check_place(after, self._incarnation, self._queue_id)
        planned = slices(before, after)
        view = self._known_view() if planned else None
        sorted_out = sort_out(planned, view)
        with self._lock:
            self._progress.replaying(before, after)
            self._planned = end
            self._progress.skip(sorted_out.skipped)
        self._handoffs.skipped(sorted_out.skipped)
        # History is read whoever owns the partition now: the next offset builds on it.
        read = [*sorted_out.read, *replay_slices(before, after)]
        groups = [
            log_partition(self._door, self._options, group) for group in pack(read, self._cores)
        ]
        if self._plans is not None:
            self._plans.say(start, end, [one.slices for one in groups], sorted_out.skipped)
        self._sorted = (start, end, groups)
        return groups

    def _known_view(self) -> View | None:
        """What the flow holds, once that is certain; None if it does not become so for a while."""
        give_up_at = self._clock() + SETTLE_SECONDS
        while self._flow.status == "binding" or in_doubt(self._flow, self._clock()):
            left = give_up_at - self._clock()
            if left <= 0:
                return None
            with contextlib.suppress(CounterpoiseError):
                self._flow.wait(min(left, 0.1))
        return self._flow.partitions if self._flow.status == "bound" else None

    # ------------------------------------------------------------------ what the driver says

    def batch_done(self, end: Json) -> bool:
        """The micro-batch up to `end` is in Spark's commit log. Any thread; may come late.

        It counts only for the micro-batch planned last: what Spark has said itself since is newer.
        """
        with self._lock:
            if not self._progress.in_flight or end != self._planned:
                return False
            view = self._flow.partitions
            lost = self._progress.finished(offset_of(end, self._options.queue), view)
            self._pace.done(self._clock())
        if self._flow.status == "bound":
            self._report_lost(lost)
        self._wake.set()
        return True

    def restored(self, document: Json) -> None:
        """The driver says whose state it has restored."""
        if self._learner.heard(document):
            self._wake.set()

    def leave(self, timeout_seconds: float) -> None:
        """Begin to hand over everything in order, and then unbind; see `Leaving`."""
        if self._leaving is None:
            self._leaving = Leaving(self, self._flow, self._nobody_else, timeout_seconds)
            self._leaving.start()

    def take_nothing_new(self) -> None:
        """No micro-batch from now on; release what is not in flight, the rest when it is done."""
        with self._lock:
            self._closing = True
        self._settler.hand_over_all()

    def left(self) -> None:
        """Everything is handed over: unbind. The query goes on and finds nothing to read."""
        self._unbinding = True
        self._flow.close(timeout_seconds=_STOP_SECONDS)
        self._left = True

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Commit what the sink has, hand over what may be, unbind. Never raises."""
        if self._stopped:
            return
        self._stopped = True
        if self._correspondent is not None:
            if self._progress.in_flight:
                self._correspondent.wait_ended(_ENDED_SECONDS)
            self._correspondent.close()
        if self._leaving is not None:
            self._leaving.close()
        self._settler.close(_STOP_SECONDS)
        self._probe.close()
        self._flow.close(timeout_seconds=_STOP_SECONDS)

    # ------------------------------------------------------------------ what people see

    def held(self) -> tuple[object, ...]:
        """Objects that are others as soon as what is held has changed."""
        flow = self._flow
        state = (self._left, flow.status, flow.draining)
        return (flow.partitions, flow.warming, self._progress.in_flight, *state)

    def standing(self) -> Standing:
        """How things are now."""
        flow, progress = self._flow, self._progress
        with self._lock:
            view = flow.partitions
            return Standing(
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
                handoffs=self._handoffs,
                last_error=flow.last_error or self._settler.last_error or self._probe.last_error,
                in_flight=progress.in_flight & view.keys(),
            )

    def report(self) -> Json:
        """For the query's progress: where the log ends, what is held, what went wrong."""
        return self.standing().report()

    def _report_lost(self, lost: Sequence[Slice]) -> None:
        for one in lost:
            self._handoffs.taken_over(one.partition, one.epoch, one.end)

    def _refused(self, item: CommitItem | ReleaseItem, outcome: str) -> None:
        logger.info("counterpoise: %s was answered %s", item, outcome)
        self._handoffs.taken_over(item.partition, item.epoch, item.position)

    def _measure(self) -> None:
        self._pace.asked(self._clock())
        warning = self._pace.warning(self._max_handoff_seconds)
        if warning is not None:
            logger.warning("counterpoise: queue %s: %s", self._options.queue, warning)

    def _parse(self, document: Json) -> Offset:
        """The offset; parsed once for the many times that an idle query asks."""
        if self._parsed is None or self._parsed[0] != document:
            offset = offset_of(document, self._options.queue)
            check_place(offset, self._incarnation, self._queue_id)
            self._parsed = (document, offset)
        return self._parsed[1]
