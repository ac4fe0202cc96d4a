"""Trigger.AvailableNow: how far a query that ends by itself reads, and when that is certainly done.

To Spark, "nothing to read" is the end of such a query, and a success. So the source answers it only
when it is certain. While the flow is binding again, or the lease may be over, or the log does not
answer, the query waits. Partitions that the flow gets back are read up to the log's end at the
start; partitions that went to others are not awaited. If certainty does not come in time, that is
an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from counterpoise.errors import CounterpoiseError
from counterpoise.spark.errors import Unfinished
from counterpoise.spark.flows.bound import BoundFlow, in_doubt, raise_if_over
from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.plan.planning import Answer

T = TypeVar("T")

PAUSE_SECONDS = 0.1


class AvailableNow:
    """The targets of the query, and what is known about having read them.

    `settled` waits until the queue has granted its flows their partitions. `log_error`: the present
    error of the log. For the thread that Spark calls on.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: BoundFlow,
        log_error: Callable[[], CounterpoiseError | None],
        settled: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._flow = flow
        self._log_error = log_error
        self._wait_settled = settled
        self._clock = clock
        # A flow that is bound again has another id, and gets its partitions some time later.
        self._settled_for: tuple[str, ...] | None = None
        self._corrected: frozenset[int] = frozenset()
        self._give_up_at = 0.0
        self.targets: Mapping[int, str] | None = None

    def aim(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Stop at the log's present ends, by partition. Raises Unfinished, FlowEnded."""
        if self.targets is None:
            self.targets = ends(self.until_known(self._held))

    def until_known(self, look: Callable[[], T | None]) -> T:
        """The result of `look`. None means unknown for now.

        Raises Unfinished if it stays unknown for `startTimeoutSeconds` after the last news.
        """
        self._heard()
        while (found := look()) is None:
            if self._clock() >= self._give_up_at:
                raise self._unfinished()
            with contextlib.suppress(CounterpoiseError):
                self._flow.wait(PAUSE_SECONDS)
        return found

    def is_settled(self) -> bool:
        """Whether the flow has all its partitions; makes no call."""
        return self._is_bound() and tuple(self._flow.flow_ids) == self._settled_for

    def settle(self) -> bool:
        """The same, but waits for the queue if the flow was bound again. Raises FlowEnded."""
        flow = self._flow
        raise_if_over(flow, self._options.queue)
        flow_ids = tuple(flow.flow_ids)
        if self._is_bound() and flow_ids != self._settled_for:
            self._wait_settled()
            self._settled_for = flow_ids
            self._heard()
        return self.is_settled()

    def is_done(self, answer: Answer) -> bool:
        """Whether the log says that nothing is left to read."""
        if answer.ahead:
            self._heard()  # The probe ensures that this ends.
        # The target came from a log that ended early for a moment.
        wrong = answer.beyond - answer.ahead.keys() - self._corrected
        if wrong:
            ends = {number: answer.bounds.ends[number] for number in wrong}
            self.targets = {**(self.targets or {}), **ends}
            self._corrected |= wrong
        unread = any(begin != answer.ends[number] for number, begin in answer.begins.items())
        return not (answer.ahead or wrong or unread or answer.history.replays)

    def _is_bound(self) -> bool:
        return self._flow.status == "bound" and not in_doubt(self._flow, self._clock())

    def _held(self) -> list[int] | None:
        if not self.settle():
            return None
        held = sorted(self._flow.partitions)
        return held if self.is_settled() else None

    def _heard(self) -> None:
        self._give_up_at = self._clock() + self._options.start_timeout_seconds

    def _unfinished(self) -> Unfinished:
        if self._flow.status == "binding":
            why = f"the flow is being bound again ({self._flow.last_error or 'no answer yet'})"
        elif not self.is_settled():
            why = "it is not known whether the lease still lasts"
        else:
            why = str(self._log_error() or "the log did not answer")
        return Unfinished(
            f"queue {self._options.queue!r}: whether everything is read could not be found out "
            f"within {self._options.start_timeout_seconds:g} s: {why}. Start the query again: it "
            "goes on where it has stopped"
        )
