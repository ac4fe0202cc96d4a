"""Starts the service's own Postgres again when that ends and the service does not.

Postgres mends itself when one of its backends crashes, but ends when it cannot write what recovery
needs (a full disk), or when somebody kills it. Whoever runs a service with a database of its own
has no other means to start that again than to restart the service. So this does, until it succeeds:
on the same port and with the same password, so that nobody else has to know. Meanwhile the service
answers 503, and leases do not run.
"""

from __future__ import annotations

import threading
from typing import Self

import structlog

from broker.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError

_log = structlog.get_logger("broker.postgres")

LOOK_SECONDS = 0.25
PAUSE_SECONDS = 2.0
STOP_SECONDS = 30.0


class PostgresKeeper:
    """Keeps a Postgres that was started running, for as long as the block lasts.

        url = postgres.start()
        with PostgresKeeper(postgres, url):
            ...

    Its thread starts Postgres again, and Postgres ends when that thread does. What it cannot do
    yet is in the log, each time with the reason.
    """

    def __init__(self, postgres: EmbeddedPostgres, url: str) -> None:
        self._postgres = postgres
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="postgres-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        # A start that is under way comes to its end; whoever made us stops what it started.
        self._thread.join(STOP_SECONDS)

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            if self._postgres.poll() is not None:
                _log.error("Postgres has ended; it is started again", code=self._postgres.poll())
                while not self._started() and not self._stopping.wait(PAUSE_SECONDS):
                    pass

    def _started(self) -> bool:
        try:
            url = self._postgres.restart()
        except EmbeddedPostgresError as error:
            _log.error("Postgres cannot be started yet", error=str(error))
            return False
        if url != self._url:
            _log.error("Postgres cannot be started yet", error="it has another password now")
            self._postgres.stop()
            return False
        _log.info("Postgres runs again")
        return True
