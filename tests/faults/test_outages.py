"""Whole services and Postgres go away for long, and come back: nobody who lives loses anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow, Owned
from tests.faults.stage import Stage
from tests.service import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

LEASE_SECONDS = 2.0
AWAY_SECONDS = 10 * LEASE_SECONDS


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


class Crew:
    """Flows on one queue by way of one replica, and what they were told."""

    def __init__(
        self, stage: Stage, url: str, queue: str, stack: ExitStack, flows: int = 4
    ) -> None:
        self._stage, self._queue = stage, queue
        self.lost: list[Owned] = []
        stage.ask(lambda client: client.create_queue(queue, 8, rebalance_delay=0.1))
        self.flows = [
            stack.enter_context(
                Flow(
                    queue,
                    url=url,
                    lease_seconds=LEASE_SECONDS,
                    on_lost=self.lost.append,
                )
            )
            for _ in range(flows)
        ]
        eventually(lambda: self.shares() == [8 // flows] * flows, 30)

    def shares(self) -> list[int]:
        return sorted(len(flow.partitions) for flow in self.flows)

    def numbers(self) -> set[int]:
        return {number for flow in self.flows for number in flow.partitions}

    def owned(self) -> dict[int, tuple[str | None, int]]:
        """Owner and epoch of each partition, as the service has it."""
        rows = self._stage.ask(lambda client: client.partitions(self._queue))
        return {each.partition: (each.owner, each.epoch) for each in rows}

    def all_commit(self, position: str) -> bool:
        """Whether everybody may still commit all that he holds."""
        outcomes = [
            flow.commit(
                [(number, owned.epoch, position) for number, owned in flow.partitions.items()],
                timeout_seconds=20,
            )
            for flow in self.flows
        ]
        return [set(each.values()) for each in outcomes] == [{"ok"}] * len(self.flows)


@contextmanager
def everything_is_kept(stage: Stage, queue: str) -> Iterator[Crew]:
    """What flows held before the block, they hold under the same epochs afterwards."""
    with ExitStack() as stack:
        crew = Crew(stage, stage.replicas[0].url, queue, stack)
        before = crew.owned()
        assert crew.all_commit("1")
        yield crew
        assert crew.all_commit("2")
        # What was to expire because of the outage would have done so by then.
        settled = time.monotonic() + 2 * LEASE_SECONDS
        eventually(lambda: crew.lost or time.monotonic() > settled)
        assert crew.lost == []
        assert crew.owned() == before
        assert crew.all_commit("3")


def pause(seconds: float) -> None:
    """An outage has no event that would tell its end."""
    threading.Event().wait(seconds)


def test_a_service_that_is_away_for_ten_leases_costs_nobody_anything(stage: Stage) -> None:
    one, two = stage.replicas
    with everything_is_kept(stage, "away"):
        one.kill()
        two.kill()
        pause(AWAY_SECONDS)
        one.start()
    two.start()


def test_a_network_that_is_away_costs_the_lease_and_no_more(stage: Stage) -> None:
    """The service lives and hears nothing: that is no outage of its own, and leases run out. The
    flows take part again by themselves when the network is back."""
    with ExitStack() as stack:
        crew = Crew(stage, stage.replicas[0].url, "unheard", stack, flows=2)
        flow = stack.enter_context(Flow("unheard", url=stage.door.url, lease_seconds=LEASE_SECONDS))
        eventually(lambda: crew.shares() == [2, 3] or crew.shares() == [3, 3], 30)
        stage.door.stall()
        eventually(lambda: crew.shares() == [4, 4], 30)
        stage.door.mend()
        eventually(lambda: len(flow.partitions) >= 2, 30)
        eventually(lambda: not set(flow.partitions) & crew.numbers(), 10)


def test_postgres_that_is_away_is_said_to_be_and_all_resumes(stage: Stage) -> None:
    processes = [replica.process for replica in stage.replicas]
    with everything_is_kept(stage, "without-postgres") as crew:
        stage.postgres.kill()
        for replica in stage.replicas:
            answer = httpx.get(f"{replica.url}/v1/queues/without-postgres", timeout=15)
            assert answer.status_code == 503
            assert answer.json()["code"] == "unavailable"
            assert int(answer.headers["Retry-After"]) >= 1
            assert httpx.get(f"{replica.url}/readyz", timeout=15).status_code == 503
            assert httpx.get(f"{replica.url}/healthz", timeout=15).status_code == 200
        pause(AWAY_SECONDS)
        stage.postgres.start()
        eventually(lambda: all(_ready(replica.url) for replica in stage.replicas), 30)
        assert crew.lost == []
    assert [replica.process for replica in stage.replicas] == processes


def _owns(flow: Flow, count: int) -> bool:
    return len(flow.partitions) == count


def _ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", timeout=15).status_code == 200


def test_what_is_decided_while_nobody_listens_is_heard(stage: Stage) -> None:
    """The connections that LISTEN are ended, again and again; a flow at one replica hears what
    was decided at the other long before its poll would have ended by itself."""
    one, two = stage.replicas
    with ExitStack() as stack:
        client = stack.enter_context(Client(two.url, timeout_seconds=15))
        client.create_queue("listening", 4, rebalance_delay=0.0)
        # A poll is held for half the lease: without a wake-up an update takes that long.
        flow = stack.enter_context(Flow("listening", url=one.url, lease_seconds=120.0))
        eventually(lambda: len(flow.partitions) == 4, 30)
        for partition_count in (5, 6, 7):
            assert _end_listeners(stage) == len(stage.replicas)
            changed = time.monotonic()
            client.change_queue("listening", partition_count=partition_count)
            eventually(partial(_owns, flow, partition_count), 15)
            assert time.monotonic() - changed < 10
            eventually(lambda: _listeners(stage) == len(stage.replicas), 15)


_LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"


def _end_listeners(stage: Stage) -> int:
    eventually(lambda: _listeners(stage) == len(stage.replicas), 15)
    with psycopg.connect(stage.postgres.url, autocommit=True) as connection:
        found = connection.execute(f"SELECT pg_terminate_backend(pid) {_LISTENERS}")
        return len(found.fetchall())


def _listeners(stage: Stage) -> int:
    with psycopg.connect(stage.postgres.url, autocommit=True) as connection:
        row = connection.execute(f"SELECT count(*) {_LISTENERS}").fetchone()
    assert row is not None
    return int(row[0])
