"""The way from a queue's name to its open log, without a flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from counterpoise.client import Client
from counterpoise.logs import Log, LogAccessRefused, open_log
from counterpoise.logs.address import environment_access


class QueueReading:
    """Opens one queue's log for reading, as often as needed. Credentials of the service that the
    log has refused are not used again.
    """

    def __init__(self, queue: str, log_url: str | None, timeout_seconds: float) -> None:
        """`log_url` replaces the access that the service gives; `timeout_seconds` of each call."""
        self._queue = queue
        self._log_url = log_url
        self._timeout_seconds = timeout_seconds
        self._refused = False

    @contextmanager
    def opened(self, service: Client) -> Iterator[Log]:
        """The log, open until the end of the block.

        Raises errors of the service, and LogError; of LogAccessRefused in the block it takes note.
        """
        view = service.log_access(self._queue, "read", refused=self._refused)
        self._refused = False
        own = self._log_url or environment_access(view.log)
        access = own or view.access
        try:
            with closing(open_log(view.log, access, timeout_seconds=self._timeout_seconds)) as log:
                yield log
        except LogAccessRefused:
            self._refused = own is None
            raise
