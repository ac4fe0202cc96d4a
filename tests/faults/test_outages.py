"""Postgres or the network is away for long and comes back: all resumes by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from counterpoise.flow import Flow, Owned
from tests.faults.stage import Stage
from tests.service import eventually

# All tests share one stage.
pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("outages"),
]

# Not shorter than a service takes to start on a busy machine.
LEASE_SECONDS = 4.0
AWAY_SECONDS = 5 * LEASE_SECONDS


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


class Crew:
    """Flows on one queue through one address, with the losses that they were told."""

    def __init__(
        self, stage: Stage, url: str, queue: str, stack: ExitStack, flows: int = 4
    ) -> None:
        self._stage, self._queue = stage, queue
        self._told: list[Owned] = []
        # The epochs that must outlast the outage; the first balance may have ended others.
        self.epochs: dict[int, int] = {}
        stage.ask(lambda client: client.create_queue(queue, 8, rebalance_delay=0.1))
        self.flows = [
            stack.enter_context(
                Flow(
                    queue,
                    url=url,
                    lease_seconds=LEASE_SECONDS,
                    on_lost=self._told.append,
                )
            )
            for _ in range(flows)
        ]
        eventually(lambda: self.shares() == [8 // flows] * flows)

    @property
    def lost(self) -> list[Owned]:
        """The losses that flows were told of, among the grants that they should keep."""
        return [each for each in self._told if self.epochs.get(each.partition) == each.epoch]

    def shares(self) -> list[int]:
        return sorted(len(flow.partitions) for flow in self.flows)

    def numbers(self) -> set[int]:
        return {number for flow in self.flows for number in flow.partitions}

    def owned(self) -> dict[int, tuple[str | None, int]]:
        """Owner and epoch of each partition, according to the service."""
        rows = self._stage.ask(lambda client: client.partitions(self._queue))
        return {each.partition: (each.owner, each.epoch) for each in rows}

    def all_commit(self, position: str) -> bool:
        """Whether all flows can still commit all their partitions."""
        outcomes = [
            flow.commit(
                [(number, owned.epoch, position) for number, owned in flow.partitions.items()],
                timeout_seconds=150,
            )
            for flow in self.flows
        ]
        return [set(each.values()) for each in outcomes] == [{"ok"}] * len(self.flows)


@contextmanager
def everything_is_kept(stage: Stage, queue: str, url: str) -> Iterator[Crew]:
    """Flows at `url` hold the same partitions under the same epochs before and after the block."""
    with ExitStack() as stack:
        crew = Crew(stage, url, queue, stack)
        before = crew.owned()
        crew.epochs = {partition: epoch for partition, (_, epoch) in before.items()}
        assert crew.all_commit("1")
        yield crew
        assert crew.all_commit("2")
        # Until all leases that expire because of the outage have expired.
        settled = time.monotonic() + 2 * LEASE_SECONDS
        eventually(lambda: crew.lost or time.monotonic() > settled)
        assert crew.lost == []
        assert crew.owned() == before
        assert crew.all_commit("3")


def pause(seconds: float) -> None:
    """An outage has no event that ends it."""
    threading.Event().wait(seconds)


@pytest.mark.matrix(of="outages")
def test_a_network_outage_costs_the_lease_and_no_more(stage: Stage) -> None:
    """The service runs but gets no calls: for the service this is no outage, so leases run out.

    The flows take part again by themselves when the network is back.
    """
    with ExitStack() as stack:
        crew = Crew(stage, stage.replicas[0].url, "unheard", stack, flows=2)
        flow = stack.enter_context(
            Flow("unheard", url=stage.service_proxy.url, lease_seconds=LEASE_SECONDS)
        )
        eventually(lambda: crew.shares() == [2, 3] or crew.shares() == [3, 3])
        stage.service_proxy.stall()
        eventually(lambda: crew.shares() == [4, 4])
        stage.service_proxy.mend()
        eventually(lambda: len(flow.partitions) >= 2)
        eventually(lambda: not set(flow.partitions) & crew.numbers())


@pytest.mark.matrix(of="outages")
def test_an_outage_of_postgres_is_reported_and_all_resumes(stage: Stage) -> None:
    processes = [replica.process for replica in stage.replicas]
    with everything_is_kept(stage, "without-postgres", stage.replicas[0].url) as crew:
        stage.postgres.kill()
        for replica in stage.replicas:
            answer = httpx.get(f"{replica.url}/v1/queues/without-postgres", timeout=60)
            assert answer.status_code == 503
            assert answer.json()["code"] == "unavailable"
            assert int(answer.headers["Retry-After"]) >= 1
            assert httpx.get(f"{replica.url}/readyz", timeout=60).status_code == 503
            assert httpx.get(f"{replica.url}/healthz", timeout=60).status_code == 200
        pause(AWAY_SECONDS)
        stage.postgres.start()
        eventually(lambda: all(_ready(replica.url) for replica in stage.replicas))
        assert crew.lost == []
    assert [replica.process for replica in stage.replicas] == processes


def _ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", timeout=60).status_code == 200


@pytest.mark.matrix(of="outages")
def test_an_outage_of_the_service_for_five_leases_costs_nothing(stage: Stage) -> None:
    """Flows that reach the serving replica lose nothing, even if the other replica comes back more
    than a lease later. Flows that reach only the late replica lose their partitions as in a network
    failure; this also shows that leases ran in between.
    """
    one, two = stage.replicas
    lost: list[Owned] = []
    with ExitStack() as stack:
        stage.ask(lambda client: client.create_queue("far", 1, rebalance_delay=0.1))
        far = stack.enter_context(
            Flow("far", url=two.url, lease_seconds=LEASE_SECONDS, on_lost=lost.append)
        )
        eventually(lambda: far.partitions)
        with everything_is_kept(stage, "away", stage.service_proxy.url) as crew:
            one.kill()
            two.kill()
            pause(AWAY_SECONDS)
            assert lost == crew.lost == []
            # No flow may survive only because it called just before leases were checked.
            stage.service_proxy.stall()
            one.start()
            pause(LEASE_SECONDS / 4)
            stage.service_proxy.mend()
            eventually(lambda: _owner(stage, "far") is None)
            assert crew.lost == []
            two.start()
            eventually(lambda: lost)
            eventually(lambda: far.partitions)


def _owner(stage: Stage, queue: str) -> str | None:
    [row] = stage.ask(lambda client: client.partitions(queue))
    return row.owner
