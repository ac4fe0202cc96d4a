"""Keeps the service's own Postgres running, its log small, and its connections free.

**It starts Postgres again** if it ends while the service runs. It ends when it is killed, when one
of its processes crashes, and when it cannot write the data for its recovery (a full disk). An
operator could start it again only by restarting the service. So the keeper starts it until that
succeeds: on the same port and with the same password, so that clients need no change. Meanwhile the
service answers 503, and leases do not run.

Postgres could also recover from a crash without ending (`restart_after_crash`). But a recovery that
fails before it replays the log, or just after it has begun to, then leaves a server that neither
ends nor serves (Postgres 18.6 forgets that the process for it is gone). A full disk causes that. So
each recovery is a start: its failure is seen, and its time is bounded.

**It bounds `postgres.log`**: when it has more than LOG_BYTES, the last of them are moved to `.1`.
Clients can have lines written, if only small ones (`broker.logs.credentials`).

**It bounds the logins that are not finished**, by a program that runs beside Postgres (`logins`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from typing import Self

import structlog

from broker.postgres import logins
from broker.postgres.binaries import EmbeddedPostgresError
from broker.postgres.embedded import EmbeddedPostgres

_log = structlog.get_logger("broker.postgres")
LOOK_SECONDS = 0.25
PAUSE_SECONDS = 2.0
STOP_SECONDS = 30.0
# Between two lines of the log on ended logins.
SAY_SECONDS = 10.0


class PostgresKeeper:
    """Keeps a started Postgres running, its log small and its connections free in the block.

        url = postgres.start()
        with PostgresKeeper(postgres, url):
            ...

    One of its threads starts Postgres again, and Postgres ends when that thread does. Each failed
    attempt is in the log with its reason.
    """

    def __init__(self, postgres: EmbeddedPostgres, url: str) -> None:
        self._postgres = postgres
        self._url = url
        self._stopping = threading.Event()
        self._bounding: subprocess.Popen[bytes] | None = None
        self._threads = [
            threading.Thread(target=self._keep, name="postgres-keeper", daemon=True),
            threading.Thread(target=self._bound_logins, name="postgres-logins", daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._bounding is not None:
            self._bounding.terminate()
        # A running start finishes; the owner of the keeper stops the Postgres that it started.
        for thread in self._threads:
            thread.join(STOP_SECONDS)

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):
                self._postgres.bound_log()
            if self._postgres.poll() is not None:
                _log.error(
                    "Postgres has ended; it is started again",
                    code=self._postgres.poll(),
                    # Each start begins another log.
                    reason=self._postgres.why_it_ended() or "it does not say",
                )
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

    def _bound_logins(self) -> None:
        """Run the program for each server: it ends with its server, or when somebody kills it."""
        pause = 0.0
        while sys.platform == "linux" and not self._stopping.wait(pause):
            pause = PAUSE_SECONDS
            server = self._postgres.pid
            if server is None:
                continue
            try:
                bounding = subprocess.Popen(
                    [sys.executable, "-I", "-S", logins.__file__, str(server)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C in a terminal is for the service.
                    start_new_session=True,
                )
            except OSError as error:
                _log.error("logins to Postgres are not bounded yet", error=str(error))
                continue
            with bounding as self._bounding:
                if self._stopping.is_set():
                    bounding.terminate()
                _report(bounding)


def _report(bounding: subprocess.Popen[bytes]) -> None:
    """Say how many logins it ends, as long as it runs."""
    assert bounding.stdout is not None
    ended, say_from = 0, 0.0
    for line in bounding.stdout:
        ended += int(line)
        if time.monotonic() >= say_from:
            _log.warning(
                "too many logins to Postgres were not finished; the oldest were ended",
                logins=ended,
            )
            ended, say_from = 0, time.monotonic() + SAY_SECONDS
