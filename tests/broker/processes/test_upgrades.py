"""A release with migrations replaces the one before, replica by replica, while consumers work."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest

from broker.store.levels import LEVEL
from counterpoise.client import Client
from counterpoise.flow import Flow, Owned
from tests.next_release import NextRelease
from tests.service import ServeProcess, eventually

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.matrix(of="crowds")]

REPLICAS = 2
# Longer than the replacement of a replica takes, even on a busy machine.
LEASE_SECONDS = 90.0


class Worker:
    """A consumer that commits one position after another in all its partitions."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.lost: list[Owned] = []
        self.committed = 0
        self.refused: list[object] = []
        self._stop = threading.Event()
        flow = Flow("orders", url=url, lease_seconds=LEASE_SECONDS, on_lost=self.lost.append)
        self.flow = stack.enter_context(flow)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        stack.callback(self.stop)

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            positions = [
                (number, owned.epoch, str(int(owned.position or 0) + 1))
                for number, owned in self.flow.partitions.items()
            ]
            if not positions:
                continue
            outcomes = self.flow.commit(positions, timeout_seconds=LEASE_SECONDS)
            self.refused += [each for each in outcomes.items() if each[1] != "ok"]
            self.committed += 1

    @property
    def settled(self) -> bool:
        states = [owned.state for owned in self.flow.partitions.values()]
        return states == ["owned"] * 2

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def goes_on(self) -> Callable[[], bool]:
        before = self.committed
        return lambda: self.committed > before + 1


READY = 200, None


def readiness(replica: ServeProcess) -> tuple[int, str | None]:
    """The status, and what is wrong."""
    answer = httpx.get(f"{replica.url}/readyz", timeout=60)
    return answer.status_code, answer.json().get("detail")


def only_the_new_one_serves_what_it_alone_knows(
    database_url: str, new: ServeProcess, old: ServeProcess
) -> None:
    """A queue begins to use a feature of the next release, while both have it in memory."""
    queue = "v1/queues/colourful"
    for replica in (old, new):
        change = httpx.patch(f"{replica.url}/{queue}", json={"rebalance_delay": 1}, timeout=60)
        assert change.status_code == 200, change.text
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE counterpoise.queues SET level = %s, colour = 'red' WHERE name = 'colourful'",
            [LEVEL + 1],
        )
    for delay in (2, 3):
        refused = httpx.patch(f"{old.url}/{queue}", json={"rebalance_delay": delay}, timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert "'colourful' uses what only a newer release knows" in refused.json()["detail"]
        change = httpx.patch(f"{new.url}/{queue}", json={"rebalance_delay": delay}, timeout=60)
        assert change.json()["rebalance_delay"] == delay
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT colour FROM counterpoise.queues ORDER BY name")
        assert found.fetchall() == [("red",), ("grey",)]


@pytest.mark.long
def test_no_flow_loses_a_partition(migrated_url: str, tmp_path: Path) -> None:
    release = NextRelease(tmp_path / "next")
    arguments = ["--database-url", migrated_url]
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(ServeProcess(tmp_path / f"{number}.log", arguments))
            for number in range(REPLICAS)
        ]
        client = stack.enter_context(Client(replicas[0].url, timeout_seconds=60))
        client.create_queue("orders", 8, rebalance_delay=0.2)
        client.create_queue("colourful", 1)
        workers = [Worker(replica.url, stack) for replica in replicas for _ in range(2)]
        eventually(
            lambda: (
                client.rebalance_status("orders").status == "Ready"
                and all(worker.settled for worker in workers)
            )
        )
        # A commit of the time before may still be under way.
        for going_on in [worker.goes_on() for worker in workers]:
            eventually(going_on)
        for worker in workers:
            worker.lost.clear()
            worker.refused.clear()
        before = {p.partition: (p.owner, p.epoch) for p in client.partitions("orders")}
        assert None not in {owner for owner, _ in before.values()}

        for replica in replicas:
            # The first replica of the new release migrates at its start, while the other is still
            # old.
            replica.end()
            replica.program = release.program
            replica.start()
            eventually(lambda: all(readiness(each) == READY for each in replicas))
            for going_on in [worker.goes_on() for worker in workers]:
                eventually(going_on)
            if replica is replicas[0]:
                only_the_new_one_serves_what_it_alone_knows(migrated_url, *replicas)
        with psycopg.connect(migrated_url) as connection:
            found = connection.execute("SELECT version_num FROM counterpoise.alembic_version")
            assert found.fetchone() == ("control_next",)

        # A replica of the old release may come back until the tables are contracted; then not any
        # more.
        old = ServeProcess(tmp_path / "old.log", [*arguments, "--no-migrate"])
        with old:
            assert readiness(old) == READY
            with psycopg.connect(migrated_url) as connection:
                connection.execute(
                    "UPDATE counterpoise.alembic_version"
                    " SET version_num = 'control_after', serves = '{control_next,control_after}'"
                )
            eventually(lambda: readiness(old)[0] == 503)
            assert "newer version" in str(readiness(old)[1])
            assert [readiness(replica) for replica in replicas] == [READY] * REPLICAS
        with pytest.raises(AssertionError, match="newer version"):
            old.start()
        old.end()

        for worker in workers:
            worker.stop()
            # Of a handoff before, a program may learn late.
            lost = [one for one in worker.lost if one.epoch >= before[one.partition][1]]
            assert (lost, worker.refused) == ([], [])
        assert before == {p.partition: (p.owner, p.epoch) for p in client.partitions("orders")}
