"""Leases that end when a test says so, however fast the machine is.

A short lease ends by itself on a machine where its renewals come late. So tests bind with a long
one, let the flow renew no more, and end the lease in the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.service import eventually

# No test takes so long.
LONG_SECONDS = 600


def expire(database_url: str, flow_id: str | None) -> None:
    """End the lease of a flow that is bound, and wait until the service has expired the flow."""
    assert flow_id is not None
    who = [flow_id]
    with psycopg.connect(database_url, autocommit=True) as connection:

        def reason() -> str | None:
            # Again and again: a renewal may have been under way.
            connection.execute(
                "UPDATE counterpoise.flows SET lease_expires_at = 0"
                " WHERE id = %s AND reason IS NULL",
                who,
            )
            row = connection.execute(
                "SELECT reason FROM counterpoise.flows WHERE id = %s", who
            ).fetchone()
            assert row is not None
            return row[0]

        eventually(reason, what="the flow is expired")
        assert reason() == "lease_expired"


def sleeping(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets the machine have slept for so many seconds.

    `time.monotonic` and all timers stand still in a sleep; only the clock of leases goes on.
    """
    slept, clock = 0.0, time.clock_gettime

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + slept)
    return sleep


class Health:
    """`renew_while` of a flow: it is well until `end_lease`, and again after `recover`."""

    def __init__(self) -> None:
        self._is_well = True
        self.refused = 0
        """How often the flow was kept from a poll."""

    def __call__(self) -> bool:
        self.refused += not self._is_well
        return self._is_well

    def end_lease(self, database_url: str, flow_id: str | None) -> None:
        """The flow renews no more, and is expired; no poll of it is on its way any more."""
        self._is_well = False
        expire(database_url, flow_id)
        self.rest()

    def rest(self) -> None:
        """The flow renews no more, and no poll of it is on its way any more."""
        self._is_well = False
        before = self.refused
        eventually(lambda: self.refused > before, what="its poll has returned")

    def recover(self) -> None:
        self._is_well = True
