"""Decides what to read next, on Spark's own thread, without waiting for anything for long.

On a transient failure the answer is the given offset: there is nothing to read just now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from counterpoise.errors import CounterpoiseError
from counterpoise.flow import Flow
from counterpoise.flow.refusals import error_of
from counterpoise.flow.view import Warming
from counterpoise.spark.offsets import Json, Offset
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.available_now import AvailableNow
from counterpoise.spark.source.cycles import BatchLimit, Cycles, LeastMessages, ReadBudget
from counterpoise.spark.source.planning import Answer, Question, View
from counterpoise.spark.source.probe import LogProbe
from counterpoise.spark.source.progress import SharedProgress
from counterpoise.spark.source.query_state import KeptState
from counterpoise.spark.source.warmup_tracker import WarmupTracker

logger = logging.getLogger("counterpoise.spark")

# The maximum age of the log's answer, and how long to wait for a newer one.
MAX_AGE_SECONDS = 0.05
WAIT_SECONDS = 0.5
# How often the log is asked while messages wait for more (minOffsetsPerTrigger).
HELD_BACK_SECONDS = 0.5


class OffsetPlanner:
    """Answers Spark's question for the next offset.

    `warmup`: None without the option. `limit`: of a micro-batch, instead of Spark's. `settled`: see
    `AvailableNow`. `state`: the watch over what the query keeps in Spark.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: Flow,
        shared: SharedProgress,
        probe: LogProbe,
        warmup: WarmupTracker | None,
        cycles: Cycles,
        *,
        limit: BatchLimit | None,
        max_handoff_seconds: float | None,
        settled: Callable[[], None],
        warm: bool,
        state: KeptState | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._flow = flow
        self._shared = shared
        self._probe = probe
        self._warmup = warmup
        self._cycles = cycles
        self._limit = limit
        least = options.min_offsets_per_trigger
        self._least = (
            None if least is None else LeastMessages(least, options.max_trigger_delay_seconds)
        )
        # Until when nothing new is looked for, and the flow's view of that time.
        self._held_back: tuple[float, View] | None = None
        self._max_handoff_seconds = max_handoff_seconds
        self._clock = clock
        self._available_now = AvailableNow(options, flow, self._why_not, settled, clock)
        self._expected: tuple[Question, View] | None = None
        # The answer at whose ends the probe waits, and the flow's views that it is of.
        self._idle: tuple[Answer, View, Mapping[int, Warming]] | None = None
        # The query has run a micro-batch.
        self._warm = warm
        self._state = state
        # The flow unbinds: nothing more is planned.
        self.over = False

    @property
    def ends_by_itself(self) -> bool:
        """Whether Spark takes "nothing to read" for the end of the query."""
        return self._available_now.targets is not None

    def next_offset(self, start: Json, max_messages: int | None) -> Json:
        """The offset after `start`, or `start` itself when there is nothing to read now.

        Raises InvalidOffset, InvalidPosition, StateLost, Unfinished.
        """
        self._measure()
        most = ReadBudget(max_messages, self._options.max_bytes_per_trigger)
        if self._limit is not None and max_messages == self._options.max_messages_per_trigger:
            most = self._limit.most
        parsed = self._shared.asked_from(start)
        if self._state is not None:
            self._state.check()
        if not self.ends_by_itself:
            found = self._planned_after(start, most) or start
            return self._prepared_after(start, parsed) if found is start else found
        # "Nothing to read" would be the end of the query.
        return self._available_now.until_known(lambda: self._surely_after(start, most))

    def available_now(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Read the messages that exist now in the partitions of the flow, and no more.

        For Trigger.AvailableNow.
        """
        if not self.over:
            self._available_now.aim(ends)

    def _surely_after(self, start: Json, most: ReadBudget) -> Json | None:
        """Like `_planned_after`, but `start` only if there is certainly nothing to read."""
        if self.over:
            return self._ended(start, "it has left the queue")
        if not self._available_now.settle():
            return None
        self._available_now.follow()
        found = self._planned_after(start, most)
        if found is not start:
            return found
        if self._shared.is_closing():
            return self._ended(start, "it was told to leave")
        with self._shared.locked() as progress:
            known = not progress.awaits_view(self._flow.partitions)
        if not (known and self._available_now.is_whole() and self._available_now.is_settled()):
            return None
        return self._ended(start, "everything is read")

    def _why_not(self) -> CounterpoiseError | None:
        """What keeps the query from finding out that everything is read."""
        if self._probe.last_error is not None:
            return self._probe.last_error
        refused = self._shared.refused()
        return error_of(self._options.queue, refused) if refused else None

    def _ended(self, start: Json, why: str) -> Json:
        with self._shared.locked() as progress:
            self._available_now.ended(why, progress.positions(self._flow.partitions))
        return start

    def _planned_after(self, start: Json, most: ReadBudget) -> Json | None:
        """The offset after `start`; `start`: nothing to read; None: unknown for now."""
        if self._is_idle() or self._is_held_back():
            return start
        with self._shared.locked() as progress:
            if self._shared.is_closing():
                return start
            asked = self._flow.partitions
            positions = progress.wanted(asked)
            restores = () if self._warmup is None else self._warmup.restores(progress, asked)
        if not (positions or restores):
            return start
        if self._flow.in_doubt:
            return None
        question = Question(
            positions,
            most.messages,
            self._available_now.targets,
            most.bytes,
            restores,
            {n: held for n, held in asked.items() if held.resize is not None},
        )
        answer = self._probe.ask(question, MAX_AGE_SECONDS, WAIT_SECONDS)
        if answer is None:
            return None
        if self._expected is not None and answer.question is self._expected[0]:
            # What the log says of a partition's end is of the epochs of that time.
            asked = self._expected[1]
        held_back = self._must_wait(answer)
        if held_back:
            answer = replace(answer, ends=answer.begins)
        with self._shared.locked() as progress:
            if self._shared.is_closing():
                return start
            view, instance = self._flow.partitions, self._flow.instance_id
            warms = self._warmup is not None
            planned = progress.plan(answer, asked, view, instance, self._flow.warming, renews=warms)
            document = None if planned is None else self._shared.plan(planned)
            due = bool(progress.due(view))
        if self._warmup is not None:
            self._warmup.warn()
            due = due or self._warmup.has_news()
        if due:
            self._shared.wake.set()
        if document is None:
            if held_back:
                self._held_back = self._clock() + HELD_BACK_SECONDS, view
            elif asked is view:
                self._wait_at(answer, view)
            return start if self._available_now.is_done(answer) else None
        self._warm = True
        if self._least is not None and not held_back:
            self._least.planned(self._clock())
        more = answer.leaves_messages
        self._cycles.planned(self._clock(), messages=answer.question.max_messages, left_behind=more)
        if more:
            self._look_ahead(answer, view, most)
        return document

    def _is_idle(self) -> bool:
        """Whether the log has nothing new, and the flow neither, since there was nothing to read.

        An idle query asks eighty times a second.
        """
        if self._idle is None:
            return False
        answer, view, warming = self._idle
        flow = self._flow
        if self._probe.watches(answer) and flow.partitions is view and flow.warming is warming:
            return True
        self._idle = None
        return False

    def _must_wait(self, answer: Answer) -> bool:
        """Whether the messages of the answer are to wait for more of them."""
        if self._least is None or self.ends_by_itself or answer.somebody_waits:
            return False
        return self._least.waits(answer.begins, answer.bounds.ends, self._clock())

    def _is_held_back(self) -> bool:
        """Whether messages wait for more, and the log was asked a moment ago."""
        if self._held_back is None:
            return False
        until, view = self._held_back
        if self._clock() < until and self._flow.partitions is view:
            return True
        self._held_back = None
        return False

    def _wait_at(self, answer: Answer, view: View) -> None:
        """Let the probe wait until there is something to read.

        That a retiring partition has ended may be no news of the log: it is asked.
        """
        if answer.at_ends and all(held.state != "retiring" for held in view.values()):
            self._expected = answer.question, view
            self._idle = answer, view, self._flow.warming
            self._probe.watch(answer)

    def _prepared_after(self, start: Json, parsed: Offset) -> Json:
        """While the query waits for its first partitions: once, an offset with nothing to read.

        Its micro-batch starts Python workers, loads what they import, connects them to the log and
        compiles the query's plan. So the owners of the partitions still work meanwhile, and the
        first messages do not wait for it. A warm-up does the same by reading history.
        """
        flow = self._flow
        waits = flow.status == "bound" and not flow.partitions and not flow.draining
        if self._warm or not waits or self._options.warmup:
            return start
        self._warm = True
        with self._shared.locked():
            if self._shared.is_closing():
                return start
            return self._shared.plan(
                replace(
                    parsed,
                    instance=flow.instance_id,
                    log=self._shared.place.incarnation,
                    prepared=parsed.prepared + 1,
                )
            )

    def _look_ahead(self, answer: Answer, view: View, most: ReadBudget) -> None:
        """Let the log find the end of the next micro-batch while Spark runs this one.

        With the present limit: that of the answer may be older, as the answer was looked up ahead.
        """
        expected = answer.next_question()
        if expected is not None and expected.positions.keys() <= view.keys():
            expected = replace(expected, max_messages=most.messages, max_bytes=most.bytes)
            self._expected = expected, view
            self._probe.look_ahead(expected)

    def _measure(self) -> None:
        self._cycles.done(self._clock())
        warning = self._cycles.warning(self._options.queue, self._max_handoff_seconds)
        if warning is not None:
            logger.warning("counterpoise: queue %s: %s", self._options.queue, warning)
