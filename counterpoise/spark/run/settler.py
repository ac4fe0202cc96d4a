"""Telling the service what is done, beside the thread that Spark waits for.

What there is to tell is worked out anew each time from the progress and the view (level-triggered):
a call that failed, or whose answer was lost, is simply made again with what is true by then. So it
is with what fails in a way that nobody has foreseen: were the thread to end, nothing would be
committed or released any more while the query goes on as if all were well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.ledger import Todo
from counterpoise.spark.errors import Unforeseen
from counterpoise.spark.flows.bound import Tells
from counterpoise.spark.run.books import Books
from counterpoise.wire import CommitItem, ReleaseItem

logger = logging.getLogger("counterpoise.spark")

_CALL_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 1.0
_BACKOFF = Backoff(0.1, 2.0)


class Settler:
    """One thread that commits and releases whatever is due.

    `beside` is what else there is to tell; it may raise CounterpoiseError.
    """

    def __init__(
        self, flow: Tells, books: Books, beside: Callable[[], None] = lambda: None
    ) -> None:
        self._flow = flow
        self._books = books
        self._beside = beside
        self._hand_over_all = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counterpoise-settler", daemon=True)
        self.last_error: CounterpoiseError | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def hand_over_all(self) -> None:
        """From now on release whatever is not in flight; the flow must be draining."""
        self._hand_over_all = True
        self._books.wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop the thread and tell what is still due, once, in about `timeout_seconds`."""
        self._closed.set()
        self._books.wake.set()
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
            self._books.wake.wait(_LOOK_AGAIN_SECONDS)
            self._books.wake.clear()
            try:
                if self._closed.is_set() or not self._may_tell():
                    continue
                self._settle(self._hand_over_all, _CALL_SECONDS)
                self._beside()
                self.last_error = None
                pauses.succeeded()
                continue
            except CounterpoiseError as error:
                self.last_error = error
            except Exception as error:
                if not isinstance(self.last_error, Unforeseen):
                    logger.exception("counterpoise: telling the service failed; it is tried again")
                self.last_error = Unforeseen(f"telling the service failed: {error!r}")
            self._closed.wait(pauses.failed())
            self._books.wake.set()

    def _may_tell(self) -> bool:
        """Whether anybody is bound. Of several flows, those that are need not wait for the others:
        what is held is only what they hold, and somebody may wait for it with a deadline."""
        status = self._flow.status
        return status == "bound" or (status != "gone" and bool(self._flow.partitions))

    def _settle(self, parting: bool, timeout_seconds: float) -> None:
        with self._books.locked() as progress:
            view, draining = self._flow.partitions, self._flow.draining
            todo = progress.todo(view, parting=parting and draining)
        self._tell(todo, timeout_seconds)

    def _tell(self, todo: Todo, timeout_seconds: float) -> None:
        """Releases first: somebody waits for them."""
        if todo.releases:
            outcomes = self._flow.release_many(todo.releases, timeout_seconds=timeout_seconds)
            self._answered(todo.releases, outcomes)
        if todo.commits:
            outcomes = self._flow.commit(
                [(item.partition, item.epoch, item.position) for item in todo.commits],
                timeout_seconds=timeout_seconds,
            )
            self._answered(todo.commits, outcomes)

    def _answered(
        self, items: Iterable[CommitItem | ReleaseItem], outcomes: Mapping[int, str]
    ) -> None:
        for item in items:
            outcome = outcomes.get(item.partition, FLOW_GONE)
            if outcome == FLOW_GONE:
                continue  # the flow is being bound again: under new epochs, if at all
            with self._books.locked() as progress:
                progress.answered(item, outcome)
            if outcome == "ok" and isinstance(item, ReleaseItem):
                self._books.handoffs.released(item)
            if outcome not in ("ok", "not_revoking"):
                logger.info("counterpoise: %s was answered %s", item, outcome)
                self._books.handoffs.taken_over(item.partition, item.epoch, item.position)
