"""The queue's log as the query's own process reaches it, with credentials that change.

Credentials come from the option logUrl, else from the environment's COUNTERPOISE_LOG_URL, else from
the service. Those of the service are renewed before they expire and when the log refuses them.

A running query survives an unavailable service or log. Before a query or a read starts, calls to
both are tried only for `startTimeoutSeconds` (`retry_until`), because a wrong address looks the
same as a service that is down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs import Log, LogNotFound, LogUnavailable, open_log
from counterpoise.logs.address import environment_access
from counterpoise.spark.errors import CannotStart, SourceError
from counterpoise.spark.options import SourceOptions
from counterpoise.wire import LogAccess, LogView

if TYPE_CHECKING:
    from counterpoise.client import Client


# Short enough to notice an unavailable log within a handoff.
CALL_TIMEOUT_SECONDS = 5.0
# An unavailable service is asked this rarely, because each call takes time that reading waits for.
ASK_AGAIN_SECONDS = 30.0


class AccessSource(Protocol):
    """The part of a flow that provides access to the log."""

    @property
    def log(self) -> str | None: ...

    def log_access(self, *, fresh: bool = False) -> LogAccess | None: ...


class ReadAccess:
    """Access to the log of a queue without a flow."""

    def __init__(self, client: Client, queue: str) -> None:
        """Raises CounterpoiseError: QueueNotFound, ServiceUnavailable, ..."""
        self._client = client
        self._queue = queue
        self.view: LogView = client.log_access(queue, "read")

    @property
    def log(self) -> str | None:
        """The log's public name."""
        return self.view.log

    def log_access(self, *, fresh: bool = False) -> LogAccess | None:
        """The access that the service gave; `fresh`: the log refused it, ask for another."""
        if fresh:
            self.view = self._client.log_access(self._queue, "read", refused=True)
        return self.view.access


# The user's own access, or one that the service has given (`counterpoise.logs.postgres.guarded`).
Access = str | LogAccess | None
OpenLog = Callable[[str, Access], Log]


def open_bounded(log: str, access: Access) -> Log:
    """The log, with the call timeout that the query's process needs."""
    return open_log(log, access, timeout_seconds=CALL_TIMEOUT_SECONDS)


class QueueLog:
    """Opens the log of a queue, and opens it again when the credentials have changed."""

    def __init__(
        self,
        giver: AccessSource,
        url: str | None,
        opener: OpenLog = open_bounded,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._giver = giver
        self._fixed = url or None
        self._opener = opener
        self._log: Log | None = None
        self._name: str | None = None
        self._access: Access = None
        self._clock = clock
        self._ask_again_at = clock()

    def follow(self, giver: AccessSource) -> None:
        """Take the way to the log from this one from now on: the flow, once it is bound."""
        self._giver = giver

    @property
    def name(self) -> str:
        """The log's public name."""
        name = self._giver.log or self._name
        assert name is not None, "asked before the flow was bound"
        return name

    @property
    def access(self) -> Access:
        """The access in use, for executors; a secret. Makes no call."""
        return self._access

    def open(self, *, fresh: bool = False) -> Log:
        """The log. `fresh`: the credentials were refused. Raises LogError if it does not open."""
        name, access = self.name, self._current_access(fresh)
        if self._log is None or (name, access) != (self._name, self._access):
            opened = self._opener(name, access)
            self.close()
            self._log, self._name, self._access = opened, name, access
        return self._log

    def close(self) -> None:
        """Close the log, if it is open."""
        if self._log is not None:
            self._log.close()

    def _current_access(self, fresh: bool) -> Access:
        own = self._fixed or environment_access(self.name)
        if own is not None:
            return own
        if self._access is not None and not fresh and self._clock() < self._ask_again_at:
            return self._access
        try:
            given = self._giver.log_access(fresh=fresh)
        except CounterpoiseError:
            # The service is unavailable. The present credentials may still work.
            self._ask_again_at = self._clock() + ASK_AGAIN_SECONDS
            return self._access
        return LogAccess(given.url) if given is not None else None


T = TypeVar("T")

PAUSE_SECONDS = 0.25


def retry_until(act: Callable[[], T], options: SourceOptions, give_up_at: float) -> T:
    """The result of `act`, once service and log are available.

    Raises CannotStart if that is not so by `give_up_at` (monotonic), and for permanent errors; a
    SourceError of `act` is raised unchanged.
    """
    where = f"queue {options.queue!r}"
    while True:
        try:
            return act()
        except (ServiceUnavailable, LogUnavailable, LogNotFound) as error:
            # Not found may pass: the service creates a queue's log just after the queue.
            if time.monotonic() + PAUSE_SECONDS > give_up_at:
                what = "service" if isinstance(error, ServiceUnavailable) else "log"
                raise CannotStart(
                    f"{where}: no {what} within {options.start_timeout_seconds:g} s: {error}. "
                    "Check the options 'url' and 'logUrl' (or COUNTERPOISE_URL and "
                    "COUNTERPOISE_LOG_URL), and that this machine reaches both"
                ) from None
        except SourceError:
            raise
        except CounterpoiseError as error:
            raise CannotStart(f"{where}: {error}") from None
        time.sleep(PAUSE_SECONDS)
