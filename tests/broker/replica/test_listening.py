"""A replica whose LISTEN is lost makes it anew and misses nothing, with or without a notice of the
loss.

Two services on one database; the first listens through a proxy. No service sweeps. So a decision at
the other service reaches a flow at the first only by LISTEN; without it, its poll would end a
minute later.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from broker.replica.alarms import SchedulerAlarms
from broker.service import Broker
from broker.store.postgres import PostgresStore
from counterpoise.client import Client
from counterpoise.flow import Flow
from tests.faults.proxy import Proxy
from tests.service import eventually, running, settings_for

# Polls are held for half of this.
LEASE_SECONDS = 600.0
HEARING_SECONDS = 60.0
NEVER_SECONDS = 600.0
PARTITIONS = 4


class NoSweep(SchedulerAlarms):
    """No regular sweep."""

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Does nothing."""


class Pair:
    """A flow that waits at one replica, an administrator at the other."""

    def __init__(self, url: str, heartbeat_seconds: float, stack: ExitStack) -> None:
        self._url = url
        self.way = stack.enter_context(Proxy(url))
        settings = settings_for(url)
        stores = (
            PostgresStore(url, listen_url=self.way.url, heartbeat_seconds=heartbeat_seconds),
            PostgresStore(url, heartbeat_seconds=NEVER_SECONDS),
        )
        first, second = (
            stack.enter_context(running(Broker(settings, store, NoSweep()), settings))
            for store in stores
        )
        self._client = stack.enter_context(Client(second.url, timeout_seconds=60))
        self._client.create_queue("orders", PARTITIONS, rebalance_delay=0)
        self.count = PARTITIONS
        self.flow = stack.enter_context(Flow("orders", url=first.url, lease_seconds=LEASE_SECONDS))
        self.heard()
        # The first replica listens.
        self.decide()
        self.heard()

    def decide(self) -> None:
        """Adds one partition, at the replica where the flow is not."""
        self.count += 1
        self._client.change_queue("orders", partition_count=self.count)

    def heard(self) -> None:
        """Waits until the flow knows of it."""
        eventually(lambda: len(self.flow.partitions) == self.count, HEARING_SECONDS)

    def listeners(self) -> list[int]:
        """The server processes of LISTEN connections."""
        with psycopg.connect(self._url) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            ).fetchall()
        return [pid for (pid,) in rows]

    def end_listeners(self) -> None:
        """As by an administrator, or in a failover."""
        eventually(lambda: len(self.listeners()) == 2, HEARING_SECONDS)
        with psycopg.connect(self._url, autocommit=True) as connection:
            for pid in self.listeners():
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


@pytest.fixture
def pair_of(migrated_url: str) -> Iterator[Callable[[float], Pair]]:
    with ExitStack() as stack:
        yield lambda heartbeat_seconds: Pair(migrated_url, heartbeat_seconds, stack)


@pytest.mark.long
def test_decisions_during_a_lost_connection_arrive_after_it(
    pair_of: Callable[[float], Pair],
) -> None:
    pair = pair_of(NEVER_SECONDS)
    for _ in range(2):
        pair.way.cut()
        pair.decide()
        # The notification is lost for good. (On a busy machine the regular look at all queues may
        # find the decision before the way is mended.)
        eventually(lambda: pair.way.refused > 0, HEARING_SECONDS)
        pair.way.mend()
        pair.heard()
        pair.decide()
        pair.heard()


@pytest.mark.long
def test_decisions_while_listeners_are_ended_arrive(
    pair_of: Callable[[float], Pair],
) -> None:
    pair = pair_of(NEVER_SECONDS)
    for _ in range(5):
        pair.end_listeners()
        pair.decide()
        pair.heard()


@pytest.mark.long
def test_a_connection_that_is_silent_is_noticed_by_the_heartbeat(
    pair_of: Callable[[float], Pair],
) -> None:
    """The server has lost the connection and nobody is told: it ends in a host without power, or in
    a firewall that forgot it."""
    pair = pair_of(0.2)
    pair.way.half_open()
    pair.decide()
    pair.heard()
