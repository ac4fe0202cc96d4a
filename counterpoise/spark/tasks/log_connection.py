"""Reaching the queue's log from the query's own process, with credentials that change.

In order of choice: the option logUrl, the environment's COUNTERPOISE_LOG_URL, what the service
gives. What the service gives is renewed before it expires and when the log refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from counterpoise.errors import CounterpoiseError
from counterpoise.logs import Log, open_log
from counterpoise.logs.address import environment_access
from counterpoise.wire import LogAccess, LogView

if TYPE_CHECKING:
    from counterpoise.client import Client

# So short that a log that is away is noticed within a handoff.
CALL_TIMEOUT_SECONDS = 5.0
# A service that is away is asked so rarely: the call takes its time, and reading waits for it.
ASK_AGAIN_SECONDS = 30.0


class GivesAccess(Protocol):
    """The part of a flow that is needed here."""

    @property
    def log(self) -> str | None: ...

    def log_access(self, *, fresh: bool = False) -> LogAccess | None: ...


class QueueAccess:
    """The way to the log of a queue for somebody who is not bound to it."""

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
        """What the service gave; `fresh`: asked for again."""
        if fresh:
            self.view = self._client.log_access(self._queue, "read")
        return self.view.access


OpenLog = Callable[[str, str | None], Log]


def open_bounded(log: str, access: str | None) -> Log:
    """The log, with calls bounded as the query's process needs it."""
    return open_log(log, access, timeout_seconds=CALL_TIMEOUT_SECONDS)


class LogConnection:
    """Opens the log of a bound flow, and opens it anew when the credentials have changed."""

    def __init__(
        self,
        flow: GivesAccess,
        url: str | None,
        opener: OpenLog = open_bounded,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow
        self._fixed = url or None
        self._opener = opener
        self._log: Log | None = None
        self._name: str | None = None
        self._access: str | None = None
        self._clock = clock
        self._ask_again_at = clock()

    @property
    def name(self) -> str:
        """The log's public name."""
        name = self._flow.log or self._name
        assert name is not None, "asked before the flow was bound"
        return name

    @property
    def access(self) -> str | None:
        """The URL in use, for executors; a secret. Nothing is asked of anybody."""
        return self._access

    def open(self, *, fresh: bool = False) -> Log:
        """The log. `fresh`: the credentials were refused. Raises LogError if there is no way in."""
        name, access = self.name, self._current_access(fresh)
        if self._log is None or (name, access) != (self._name, self._access):
            opened = self._opener(name, access)
            self.close()
            self._log, self._name, self._access = opened, name, access
        return self._log

    def close(self) -> None:
        """Let go of the connection."""
        if self._log is not None:
            self._log.close()

    def _current_access(self, fresh: bool) -> str | None:
        own = self._fixed or environment_access(self.name)
        if own is not None:
            return own
        if self._access is not None and not fresh and self._clock() < self._ask_again_at:
            return self._access
        try:
            given = self._flow.log_access(fresh=fresh)
        except CounterpoiseError:
            # The service is away; what we have may last.
            self._ask_again_at = self._clock() + ASK_AGAIN_SECONDS
            return self._access
        return given.url if given is not None else None
