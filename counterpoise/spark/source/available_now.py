"""Trigger.AvailableNow: how far a query that ends by itself reads, and when that is certainly done.

To Spark, "nothing to read" is the end of such a query, and a success. So the source answers it only
when it is certain. While the flow is binding again, or the lease may be over, or the service has
ended epochs that the view still names, or the log does not answer, or a partition waits at the cut
of an ordered resize, the query waits. Partitions that the flow gets back are read up to the log's
end at the start; partitions that went to others are not awaited. What comes after a partition that
was split or merged is read, too, up to the log's end when it is granted. If certainty does not come
in time, that is an error. The end is logged with its reason and with what was read.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from counterpoise.errors import CounterpoiseError
from counterpoise.flow import Flow
from counterpoise.spark.errors import Unfinished
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.flow import raise_if_over
from counterpoise.spark.source.planning import Answer

logger = logging.getLogger("counterpoise.spark")

T = TypeVar("T")

PAUSE_SECONDS = 0.1
# More partitions than this make no readable line.
_NAMED = 20


class AvailableNow:
    """The targets of the query, and what is known about having read them.

    `settled` waits until the queue has granted its flows their partitions. `log_error`: the present
    error of the log, or the service's refusal of an end. For the thread that Spark calls on.
    """

    def __init__(
        self,
        options: SourceOptions,
        flow: Flow,
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
        self._settled_for: str | None = None
        self._corrected: frozenset[int] = frozenset()
        self._give_up_at = 0.0
        self._ends: Callable[[list[int]], Mapping[int, str]] = lambda _: {}
        # The partitions of a dynamic queue when the service was asked last; None: of a fixed one.
        self._granted: frozenset[int] | None = None
        self._unread: Answer | None = None
        self._told = False
        self.targets: Mapping[int, str] | None = None

    def aim(self, ends: Callable[[list[int]], Mapping[int, str]]) -> None:
        """Stop at the log's present ends, by partition. Raises Unfinished, FlowEnded."""
        if self.targets is None:
            self._ends = ends
            self.targets = ends(self.until_known(self._held))
            if any(one.key is not None for one in self._flow.partitions.values()):
                self._granted = frozenset(self.targets)
            logger.info(
                "counterpoise: queue %s: the query ends by itself when %d partitions are read: %s",
                self._options.queue,
                len(self.targets),
                _listed(self.targets, "{} up to {}"),
            )

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
        return self._is_bound() and self._flow.flow_id == self._settled_for

    def settle(self) -> bool:
        """The same, but waits for the queue if the flow was bound again. Raises FlowEnded."""
        flow = self._flow
        raise_if_over(flow, self._options.queue)
        flow_id = flow.flow_id
        if self._is_bound() and flow_id != self._settled_for:
            self._wait_settled()
            self._settled_for = flow_id
            self._heard()
        return self.is_settled()

    def follow(self) -> None:
        """Aim at the present ends of partitions that a dynamic queue has granted since."""
        targets = self.targets or {}
        if self._granted is None or not (new := sorted(self._flow.partitions.keys() - targets)):
            return
        self.targets = {**targets, **self._ends(new)}

    def is_whole(self) -> bool:
        """Whether nothing has come after partitions that ended; asks the service if any ended."""
        if self._granted is None or self._granted == self._flow.partitions.keys():
            return True
        self._wait_settled()
        self._granted = frozenset(self._flow.partitions)
        self._heard()
        return False

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
        # It names only partitions that are not at their targets: what stops them will end.
        self._unread = answer if answer.begins else None
        return not (answer.ahead or wrong or answer.begins or answer.history.replays)

    def ended(self, why: str, positions: Mapping[int, str | None]) -> None:
        """Log, once, why the query ends. `positions`: how far its partitions are done."""
        if self._told:
            return
        self._told = True
        targets = self.targets or {}
        read = {n: f"{position} of {targets.get(n)}" for n, position in positions.items()}
        logger.info(
            "counterpoise: queue %s: the query ends, because %s. It holds %d partitions: %s",
            self._options.queue,
            why,
            len(read),
            _listed(read, "{} at {}"),
        )

    def _is_bound(self) -> bool:
        return self._flow.status == "bound" and not self._flow.in_doubt

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
            why = str(
                self._log_error() or self._why_unread() or "the log or the service did not answer"
            )
        return Unfinished(
            f"queue {self._options.queue!r}: whether everything is read could not be found out "
            f"within {self._options.start_timeout_seconds:g} s: {why}. Start the query again: it "
            "goes on where it has stopped"
        )

    def _why_unread(self) -> str | None:
        """What stops partitions before their targets, if the log does answer."""
        answer, targets = self._unread, self.targets or {}
        if answer is None:
            return None
        waits = {}
        for number, begin in answer.begins.items():
            held = answer.question.view.get(number)
            waits[number] = f"at {begin} before {targets.get(number)}"
            if held is not None and held.waits_for:
                others = ", ".join(map(str, held.waits_for))
                waits[number] += f", where it waits for partitions {others}"
        return _listed(waits, "partition {} stops {}")


def _listed(parts: Mapping[int, str], form: str) -> str:
    some = [form.format(number, text) for number, text in sorted(parts.items())[:_NAMED]]
    return "; ".join([*some, *(["..."] if len(parts) > _NAMED else [])])
