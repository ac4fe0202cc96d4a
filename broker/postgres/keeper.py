"""Restarts the service's own Postgres if it ends while the service runs.

Postgres recovers by itself when one of its backends crashes. But it ends when it cannot write the
data for its recovery (a full disk), or when it is killed. An operator could start it again only by
restarting the service. So the keeper starts it until that succeeds: on the same port and with the
same password, so that clients need no change. Meanwhile the service answers 503, and leases do not
run.
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
    """Keeps a started Postgres running as long as the block lasts.

        url = postgres.start()
        with PostgresKeeper(postgres, url):
            ...

    Its thread starts Postgres again, and Postgres ends when that thread does. Each failed attempt
    is in the log with its reason.
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
        # A running start finishes; the owner of the keeper stops the Postgres that it started.
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
