"""The query's connection to its log: credentials are renewed while the service is available."""

from __future__ import annotations

from typing import cast

import pytest

from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.logs import Log
from counterpoise.spark.queue_log import ASK_AGAIN_SECONDS, QueueLog, ReadAccess
from counterpoise.wire import LogAccess, LogView
from tests.counterpoise.spark.doubles import NumberLog


class Giver:
    """Gives new credentials each time, unless it is unavailable."""

    log = "builtin:flights"

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    def log_access(self, *, fresh: bool = False) -> LogAccess | None:
        self.asked += 1
        if self.away:
            raise ServiceUnavailable("away")
        return LogAccess(f"postgresql://u{self.asked}@h/d")


@pytest.fixture
def giver() -> Giver:
    return Giver()


class Opened(NumberLog):
    def close(self) -> None:
        pass


def test_a_service_that_is_away_is_not_asked_at_every_question_to_the_log(giver: Giver) -> None:
    """A call to an unavailable service takes its full timeout, while the log is available."""
    now = [0.0]
    connection = QueueLog(giver, None, lambda name, access: cast(Log, Opened(1)), lambda: now[0])
    connection.open()
    giver.away = True
    for _ in range(5):
        connection.open()
    assert giver.asked == 2
    assert connection.access == LogAccess("postgresql://u1@h/d")
    # Refused credentials are of no use any more.
    connection.open(fresh=True)
    assert giver.asked == 3
    giver.away = False
    now[0] += ASK_AGAIN_SECONDS
    connection.open()
    assert connection.access == LogAccess("postgresql://u4@h/d")


def test_without_a_flow_refused_credentials_are_replaced() -> None:
    asked: list[bool] = []

    class Service:
        def log_access(self, queue: str, purpose: str, *, refused: bool = False) -> LogView:
            asked.append(refused)
            access = LogAccess(f"postgresql://u{len(asked)}@h/d")
            return LogView("builtin:flights", 1, access, "flights")

    access = ReadAccess(cast(Client, Service()), "flights")
    connection = QueueLog(access, None, lambda name, access: cast(Log, Opened(1)))
    connection.open()
    connection.open(fresh=True)
    assert asked == [False, True]
    assert connection.access == LogAccess("postgresql://u2@h/d")
