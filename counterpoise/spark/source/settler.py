"""Tells the service what is done, on a thread of its own.

What to tell is computed again each time from the progress and the view (level-triggered): a call
that failed, or whose answer was lost, is made again with the values of that moment. The same holds
for an unforeseen error. If the thread ended, nothing would be committed or released any more, while
the query would seem to work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError
from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.ledger import REFUSALS, Item, Todo
from counterpoise.flow.refusals import Refusals
from counterpoise.spark.errors import SourceError
from counterpoise.spark.source.progress import SharedProgress
from counterpoise.wire import ReleaseItem

logger = logging.getLogger("counterpoise.spark")

_CALL_SECONDS = 5.0
_POLL_SECONDS = 1.0
# A child's other parent may be reported later, by another flow.
_PARENT_SECONDS = 0.5
_BACKOFF = Backoff(0.1, 2.0)


class QuerySettler:
    """One thread that commits and releases what is due.

    `also` makes other calls to the service; it may raise CounterpoiseError.
    """

    def __init__(
        self, flow: Flow, shared: SharedProgress, also: Callable[[], None] = lambda: None
    ) -> None:
        self._flow = flow
        self._shared = shared
        self._also = also
        self._refusals = Refusals(logger)
        self._hand_over_all = False
        self._ends_not_before = float("-inf")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counterpoise-settler", daemon=True)
        self.last_error: CounterpoiseError | None = None
        self._unforeseen: type[Exception] | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hand_over_all(self) -> None:
        """From now on release every partition that is not in flight; the flow must be draining."""
        self._hand_over_all = True
        self._shared.wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop the thread and make the remaining calls, once, in about `timeout_seconds`."""
        self._closed.set()
        self._shared.wake.set()
        self._thread.join(timeout_seconds)
        try:
            self._settle(True, timeout_seconds)
        except Exception as error:
            logger.warning(
                "counterpoise: the last positions could not be committed (%s); "
                "what they cover will be read again",
                error,
                exc_info=None if isinstance(error, CounterpoiseError) else error,
            )

    def _run(self) -> None:
        pauses = Pauses(_BACKOFF)
        while not self._closed.is_set():
            self._shared.wake.wait(_POLL_SECONDS)
            self._shared.wake.clear()
            try:
                if self._closed.is_set() or self._flow.status != "bound":
                    continue
                self._settle(self._hand_over_all, _CALL_SECONDS)
                self._also()
                self.last_error = self._unforeseen = None
                pauses.succeeded()
                continue
            except CounterpoiseError as error:
                self.last_error = error
            except Exception as error:
                if type(error) is not self._unforeseen:
                    logger.exception("counterpoise: telling the service failed; it is tried again")
                self._unforeseen = type(error)
                self.last_error = SourceError(f"telling the service failed: {error!r}")
            self._closed.wait(pauses.failed())
            self._shared.wake.set()

    def _settle(self, parting: bool, timeout_seconds: float) -> None:
        with self._shared.locked() as progress:
            view, draining = self._flow.partitions, self._flow.draining
            todo = progress.todo(view, parting=parting and draining)
        self._tell(todo, timeout_seconds)

    def _tell(self, todo: Todo, timeout_seconds: float) -> None:
        """Releases first, because successors wait for them."""
        if todo.releases:
            outcomes = self._flow.release_many(todo.releases, timeout_seconds=timeout_seconds)
            self._answered(todo.releases, outcomes)
        if todo.commits:
            outcomes = self._flow.commit(
                todo.commits,
                timeout_seconds=timeout_seconds,
            )
            self._answered(todo.commits, outcomes)
        if todo.ends and time.monotonic() >= self._ends_not_before:
            outcomes = self._flow.children_many(todo.ends, timeout_seconds=timeout_seconds)
            self._answered(todo.ends, outcomes)
            if not {"unknown_parent", *REFUSALS}.isdisjoint(outcomes.values()):
                self._ends_not_before = time.monotonic() + _PARENT_SECONDS

    def _answered(self, items: Iterable[Item], outcomes: Mapping[int, str]) -> None:
        for item in items:
            outcome = outcomes.get(item.partition, FLOW_GONE)
            if outcome == FLOW_GONE:
                continue  # the flow is binding again: under new epochs, if at all
            with self._shared.locked() as progress:
                progress.answered(item, outcome)
            if outcome == "ok" and isinstance(item, ReleaseItem):
                self._shared.handoffs.released(item)
            if outcome not in ("ok", "not_revoking", "unknown_parent", *REFUSALS):
                logger.info("counterpoise: %s was answered %s", item, outcome)
                self._shared.handoffs.taken_over(item.partition, item.epoch, item.position)
        self._refusals.log(self._shared.place.queue, self._shared.refused())
