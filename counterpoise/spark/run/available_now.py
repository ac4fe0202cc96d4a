"""Trigger.AvailableNow: how far a query reads that ends by itself, and when that is surely done.

To Spark, "nothing to read" is the end of such a query, and a success. So it is said only when it is
certain. While the flow is being bound again, or the lease may be over, or the log does not answer,
the query waits. What the flow gets back it reads up to where the log ended at the start; what has
gone to others is theirs. What cannot be found out in time is an error.
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
    """What there was when the query began, and what is known of having read it.

    `settled` waits until the queue has given its flows what they get. `log_error`: what is wrong
    with the log just now. For the thread that Spark calls on.
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
        # A flow that is bound again has another id, and is given its partitions some time later.
        self._settled_for: tuple[str, ...] | None = None
        self._corrected: frozenset[int] = frozenset()
        self._give_up_at = 0.0
        self.targets: Mapping[int, str] | None = None

    def aim(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Stop where the log ends now, of what the flow gets now. Raises Unfinished, FlowEnded."""
        if self.targets is None:
            self.targets = ends(self.until_known(self._held))

    def until_known(self, look: Callable[[], T | None]) -> T:
        """What `look` finds out. None: not known just now.

        Raises Unfinished when it is not for `startTimeoutSeconds` after something was heard.
        """
        self._heard()
        while (found := look()) is None:
            if self._clock() >= self._give_up_at:
                raise self._unfinished()
            with contextlib.suppress(CounterpoiseError):
                self._flow.wait(PAUSE_SECONDS)
        return found

    def is_settled(self) -> bool:
        """Whether what the flow holds is all that it gets; asks nobody."""
        return self._is_bound() and tuple(self._flow.flow_ids) == self._settled_for

    def settle(self) -> bool:
        """The same; waits for the queue if the flow was bound anew. Raises FlowEnded."""
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
            self._heard()  # The probe sees to it that this has an end.
        # The end that was taken for the target was one of a log that says less for a moment.
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
