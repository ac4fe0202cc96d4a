"""Delivers one batch into a queue's log, also through outages of the service or the log.

A batch never changes its messages and sequences; only their partitions are chosen anew in each
attempt. So an attempt with an unknown outcome is simply repeated, also with another partition
count or other ranges: if it did succeed, the log drops the repetition. The service is asked for the
log's address at the start and after each failure; while it is away, its last answer is used.

How messages are routed, the log decides: by its partition count, or, if it is a dynamic log, by its
hash ranges (`counterpoise.logs.ranges`). It checks this in each append, and a refusal says the
present count or the present ranges. So a split or merge costs a publisher one refused append, and
only if it has messages for the partitions that were sealed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError, ServiceUnavailable, as_passing
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    Log,
    LogAccessRefused,
    LogNotFound,
    LogUnavailable,
    StaleRouting,
)
from counterpoise.logs.address import environment_access
from counterpoise.publisher.buffer import Batch, Routing
from counterpoise.wire import LogAccess, LogView

T = TypeVar("T")

_BACKOFF = Backoff(0.05, 2.0)


class PublisherIdInUse(CounterpoiseError):
    """The log has other messages under this publisher's sequences: its id is used twice.

    The messages of this publisher with those sequences are not in the log.
    """

    code = "publisher_id_in_use"


class OpenLog(Protocol):
    """`counterpoise.logs.open_log`, or a stand-in for it."""

    def __call__(
        self, log: str, access: str | LogAccess | None, *, timeout_seconds: float
    ) -> Log: ...


class Delivery:
    """Delivers batches over one connection to the log, one at a time. Thread-safe."""

    def __init__(
        self,
        view: Callable[[bool], LogView],
        open_log: OpenLog,
        *,
        log_url: str | None,
        timeout_seconds: float,
        pause: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`view` asks the service for the log's address; True: its credentials were refused.

        `log_url`, or a matching URL of the environment, replaces the access that the service gives.
        """
        self._ask = view
        self._open_log = open_log
        self._log_url = log_url
        self._timeout_seconds = timeout_seconds
        self._pause = pause
        self._monotonic = monotonic
        self._jitter = jitter
        self._lock = threading.RLock()
        self._view: LogView | None = None
        self._access: str | LogAccess | None = None
        self._doubtful = True
        self._refused = False
        self._log: Log | None = None
        self.routing: Routing | None = None
        """The log's partitions, as it last said; None before it was asked."""

    def another(self) -> Delivery:
        """One over another connection, which knows of the log what this one knows."""
        other = Delivery(
            self._ask,
            self._open_log,
            log_url=self._log_url,
            timeout_seconds=self._timeout_seconds,
            pause=self._pause,
            monotonic=self._monotonic,
            jitter=self._jitter,
        )
        if self._view is not None:
            other._follow(self._view)
            other.routing, other._doubtful = self.routing, False
        return other

    @property
    def takes_several(self) -> bool:
        """Whether the log appends over several connections at the same time."""
        log = self._log
        return log is not None and log.appends_in_parallel

    def deliver(
        self, batch: Batch, *, once: bool = False, timeout_seconds: float | None = None
    ) -> AppendResult:
        """Append the batch exactly once. Returns what the last attempt did.

        Raises the last ServiceUnavailable or LogUnavailable after `timeout_seconds` of trying
        (None: those of the constructor; `once`: after the first attempt), and permanent errors at
        once (Refused, InvalidMessage, PublisherIdInUse, ...). The same batch can be given again
        afterwards, also to another delivery.
        """
        with self._lock:
            return self._persist(lambda log: self._append(log, batch), once, timeout_seconds)

    def next_sequence(self, publisher: str) -> int:
        """The first sequence of this publisher that the log lacks. Raises like `deliver`."""
        with self._lock:
            return self._persist(lambda log: log.next_sequence(publisher))

    def close(self) -> None:
        """Close the connection to the log."""
        with self._lock:
            if self._log is not None:
                self._log.close()

    def _append(self, log: Log, batch: Batch) -> AppendResult:
        assert self.routing is not None
        assert batch.first_sequence is not None
        try:
            result = log.append(
                AppendBatch(
                    batch.publisher,
                    batch.first_sequence,
                    self.routing.partition_count,
                    list(map(self.routing.partition, batch.messages, batch.numbers)),
                    batch.messages,
                    by_range=self.routing.ranges is not None,
                    sequences=batch.sequences,
                )
            )
        except LogUnavailable:
            batch.uncertain = True
            raise
        if result.duplicates and not batch.uncertain:
            raise PublisherIdInUse(
                f"the log already has messages {batch.first_sequence} and following of publisher "
                f"{batch.publisher!r}: use an id in one place at a time, and go on from "
                "next_sequence"
            )
        return result

    def _persist(
        self, act: Callable[[Log], T], once: bool = False, timeout_seconds: float | None = None
    ) -> T:
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = self._monotonic() + seconds
        pauses = Pauses(_BACKOFF)
        while True:
            try:
                return act(self._current_log())
            except StaleRouting as stale:
                # The log itself checks them, so its answer is as good as the service's.
                self.routing = Routing(stale.partition_count, stale.ranges)
                if self._monotonic() >= deadline:
                    raise
                continue
            except (LogUnavailable, LogNotFound, ServiceUnavailable) as error:
                self._doubtful = True
                self._refused = isinstance(error, LogAccessRefused)
                pause = pauses.failed(self._jitter())
                if once or self._monotonic() + pause >= deadline:
                    raise
                if isinstance(error, ServiceUnavailable) and error.retry_after:
                    pause = min(max(pause, error.retry_after), _BACKOFF.longest_seconds)
            self._pause(pause)

    def _current_log(self) -> Log:
        if self._doubtful or self._log is None or self._view is None:
            try:
                self._follow(self._ask(self._refused))
            except CounterpoiseError as error:
                # Once the log is known, a proxy's answer in place of the service's ends nothing.
                if self._log is None or not isinstance(as_passing(error), ServiceUnavailable):
                    raise
            self._doubtful = False
        assert self._log is not None
        return self._log

    def _follow(self, view: LogView) -> None:
        if self.routing is None or self.routing.ranges is None:
            self.routing = Routing(view.partition_count)
        access = self._log_url or environment_access(view.log) or view.access
        if self._log is not None and self._view is not None:
            if (view.log, access) == (self._view.log, self._access):
                self._view = view
                return
            self._log.close()
        # A call on the log must leave time for another attempt.
        seconds = max(1.0, min(30.0, self._timeout_seconds / 2))
        self._log = self._open_log(view.log, access, timeout_seconds=seconds)
        self._view, self._access = view, access
