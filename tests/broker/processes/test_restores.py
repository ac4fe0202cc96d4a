"""A backup is taken in the middle of a rebalance, and restored after more changes.

With Postgres' own pg_dump and pg_restore, like an administrator.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest

from broker.exits import Exit
from broker.postgres import restoring
from broker.postgres.binaries import installed_wheel
from broker.service import Broker
from counterpoise import calls
from counterpoise.client import Client
from counterpoise.errors import FlowGone, FlowNotFound
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from counterpoise.wire import Bound, CommitItem, ReleaseItem, Update
from tests.api.consumer import bind as bound
from tests.api.test_lineage import tokens
from tests.broker.test_cli import run
from tests.service import Service, eventually, running, settings_for

pytestmark = [pytest.mark.xdist_group("processes")]

# Nobody renews these leases, and on a busy machine a test may take minutes.
LEASE_SECONDS = 3600.0


@contextlib.contextmanager
def serving(url: str) -> Iterator[tuple[Service, Client]]:
    settings = settings_for(url)
    with running(Broker(settings), settings) as service, Client(service.url) as client:
        yield service, client


class Database:
    """A database that tests back up and restore."""

    def __init__(self, url: str, backup: Path) -> None:
        self.url = url
        self.backup = str(backup)
        self._programs = installed_wheel() / "bin"

    def dump(self) -> None:
        self._run("pg_dump", "--format=custom", f"--file={self.backup}", self.url)

    def restore(self) -> None:
        """Replaces the present contents."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA counterpoise, counterpoise_log CASCADE")
        self._run("pg_restore", "--exit-on-error", f"--dbname={self.url}", self.backup)

    def fence(self) -> str:
        done = run(["migrate", "--after-restore", "--database-url", self.url])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def incarnation(self) -> str:
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT incarnation FROM counterpoise_log.logs").fetchone()
            assert row is not None
            return str(row[0])

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def bind(client: Client, name: str) -> Bound:
    return client.send(calls.bind("orders", name, name, LEASE_SECONDS))


def view(client: Client, flow: Bound) -> Update:
    update = client.send(calls.poll("orders", flow.flow_id, flow.flow_token, 0, 0.0))
    assert update is not None
    return update


def release_revoked(client: Client, flow: Bound, position: str) -> None:
    items = [
        ReleaseItem(owned.partition, owned.epoch, position, False)
        for owned in view(client, flow).partitions
        if owned.state == "revoking"
    ]
    assert items
    client.send(calls.release("orders", flow.flow_id, flow.flow_token, items))


def ready(service: Service) -> int:
    return httpx.get(f"{service.url}/readyz", timeout=240).status_code


def epochs(client: Client) -> dict[int, int]:
    return {each.partition: each.epoch for each in client.partitions("orders")}


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_grants_after_the_backup_are_fenced(migrated_url: str, tmp_path: Path) -> None:
    database = Database(migrated_url, tmp_path / "backup")
    with serving(database.url) as (service, client):
        client.create_queue("orders", 4, rebalance_delay=0, max_handoff_time=3600)
        first = bind(client, "first")
        eventually(lambda: len(view(client, first).partitions) == 4)
        second = bind(client, "second")
        eventually(lambda: client.rebalance_status("orders").status == "Rebalancing")
        with Publisher("orders", url=service.url) as publisher:
            publisher.publish(b"before", key="a")
        eventually(lambda: ready(service) == 200)
        database.dump()
        incarnation = database.incarnation()

        with Publisher("orders", url=service.url) as publisher:
            publisher.publish(b"lost", key="a")
        release_revoked(client, first, "1")
        eventually(lambda: client.rebalance_status("orders").status == "Ready")
        third = bind(client, "third")
        eventually(lambda: client.rebalance_status("orders").status == "Rebalancing")
        for flow in (first, second):
            if any(owned.state == "revoking" for owned in view(client, flow).partitions):
                release_revoked(client, flow, "2")
        eventually(lambda: client.rebalance_status("orders").status == "Ready")
        granted = [epochs(client)]
        assert max(granted[0].values()) > 1
        refused = run(["migrate", "--after-restore", "--database-url", database.url])
        assert refused.returncode == Exit.SERVED
        assert "stop every replica" in refused.stderr
        owned = {flow.flow_id: view(client, flow).partitions for flow in (first, second, third)}
        assert all(owned.values())

    incarnations = [incarnation]
    for _ in range(2):
        # The same backup again: grants in between are fenced as well.
        database.restore()
        assert database.incarnation() == incarnation
        refused = run(["serve", "--port", "0", "--database-url", database.url])
        assert refused.returncode == Exit.NOT_FENCED
        assert "migrate --after-restore" in refused.stderr
        with serving(database.url) as (service, _):
            assert ready(service) == 503
        said = database.fence()
        assert "2 flows ended" in said
        assert "logs with a new incarnation: orders" in said
        incarnations.append(database.incarnation())
        with serving(database.url) as (service, client):
            eventually(lambda: ready(service) == 200)
            assert client.rebalance_status("orders").status == "Ready"
            known = {each.partition: each for each in client.partitions("orders")}
            assert all(known[n].epoch > epoch for past in granted for n, epoch in past.items())
            assert {each.owner for each in known.values()} == {None}
            for flow in (first, second, third):
                items = [
                    CommitItem(each.partition, each.epoch, "9") for each in owned[flow.flow_id]
                ]
                call = calls.commit("orders", flow.flow_id, flow.flow_token, items)
                with pytest.raises(FlowGone if flow is not third else FlowNotFound) as caught:
                    client.send(call)
                if isinstance(caught.value, FlowGone):
                    assert caught.value.reason == restoring.REASON
            with Flow("orders", url=service.url, instance_id="first") as again:
                eventually(lambda: len(again.partitions) == 4)
                mine = dict(again.partitions)
                assert {each.handed_over for each in mine.values()} == {"orphaned"}
                old = [(each.partition, each.epoch, "9") for each in owned[first.flow_id]]
                assert set(again.commit(old).values()) == {"stale_epoch"}
                assert set(again.commit(dict.fromkeys(mine, "3")).values()) == {"ok"}
                now = {n: each.epoch for n, each in mine.items()}
                assert all(now[n] > epoch for past in granted for n, epoch in past.items())
                granted.append(now)
                with Publisher("orders", url=service.url) as publisher:
                    publisher.publish(b"another", key="a")
    assert len(set(incarnations)) == 3


def stamped_long_ago(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE counterpoise.service SET stamped_at = stamped_at - 60")


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_a_child_waits_for_its_parents_after_a_restore_too(migrated_url: str) -> None:
    child = {"key": "child", "parents": ["left", "right"]}
    with serving(migrated_url) as (service, _), service.http as http:
        flow = tokens(http, "left", "right", "other")
        assert flow.outcomes("children", flow.item(0, finished=True, children=[child])) == ["ok"]
    stamped_long_ago(migrated_url)
    above = restoring.fence(migrated_url).epochs_above
    with serving(migrated_url) as (service, client), service.http as http:
        known = [*client.partitions("tokens")]
        assert [each.state for each in known] == ["finished", *2 * ["unassigned"], "waiting"]
        assert all(each.epoch > above for each in known)
        flow = bound(http, "tokens")
        flow.until("owned", 1, 2)
        assert flow.outcomes("children", flow.item(1, finished=True, children=[child])) == ["ok"]
        flow.until("owned", 2, 3)
        assert {each["handed_over"] for each in flow.view["partitions"]} == {"orphaned"}
        assert flow.outcomes("release", flow.item(3, finished=True)) == ["ok"]
        assert [each.partition for each in client.partitions("tokens")] == [2]


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_epochs_are_above_the_given_one(migrated_url: str) -> None:
    with serving(migrated_url) as (_, client):
        client.create_queue("orders", 2)
    highest = 2**60
    stamped_long_ago(migrated_url)
    assert restoring.fence(migrated_url, above=highest).epochs_above == highest
    with serving(migrated_url) as (_, client):
        assert set(epochs(client).values()) == {highest + 1}
        incarnation = Database(migrated_url, Path()).incarnation()
    stamped_long_ago(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        connection.execute(
            "UPDATE counterpoise.partitions SET position = '7', done_above = '9+1' WHERE number = 1"
        )
    fenced = restoring.fence(migrated_url, log_restored=False)
    assert (fenced.partitions, fenced.logs, fenced.ahead) == (2, (), (("orders", 1),))
    assert Database(migrated_url, Path()).incarnation() == incarnation
    with serving(migrated_url) as (_, client):
        assert set(epochs(client).values()) == {highest + 2}
        [_, last] = client.partitions("orders")
        assert (last.position, last.done_above) == ("7", None)


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_positions_in_aligned_logs_are_compared_with_each_log(migrated_url: str) -> None:
    """They were all said to be ahead of a log that there is not."""
    with serving(migrated_url) as (_, client):
        for name in ("orders", "payments"):
            client.create_queue(name, 2)
        client.create_queue("both", log="builtin:orders+payments")
    stamped_long_ago(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        for change in ("partition_rows AS p SET first_position", "ends AS p SET next_position"):
            connection.execute(
                f"UPDATE counterpoise_log.{change} = 5 FROM counterpoise_log.logs AS l "
                "WHERE l.log_id = p.log_id AND l.name = 'payments' AND p.partition = 1"
            )
        # Partition 1 of the second log is number 3; that of the first one, number 2, is empty.
        connection.execute("UPDATE counterpoise.partitions SET position = '5' WHERE number > 1")
    assert restoring.fence(migrated_url).ahead == (("both", 1),)


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_pauses_and_pins_of_the_backup_hold_and_pauses_end(
    migrated_url: str, tmp_path: Path
) -> None:
    database = Database(migrated_url, tmp_path / "backup")
    with serving(database.url) as (_, client):
        client.create_queue("orders", 2)
        client.pause_partition("orders", 1, reason="wrong prices")
        client.pin_partition("orders", 1, "etl")
        paused = client.pause_queue("orders", seconds=1.0).paused
        assert paused is not None
        assert paused.until is not None
    database.dump()
    database.restore()
    database.fence()
    with psycopg.connect(database.url) as connection:
        row = connection.execute("SELECT next_deadline FROM counterpoise.queues").fetchone()
        assert row is not None
        assert row[0] == pytest.approx(paused.until.timestamp())
    with serving(database.url) as (_, client):
        eventually(lambda: client.queue("orders").paused is None)
        first, second = client.partitions("orders")
        assert (first.paused, second.paused and second.paused.reason) == (None, "wrong prices")
        assert (first.pinned, second.pinned and second.pinned.client_name) == (None, "etl")


@pytest.mark.long
@pytest.mark.matrix(of="restores")
def test_an_older_log_is_resized_in_order_again(migrated_url: str) -> None:
    """Its resizes have numbers that the queue takes for those of before."""
    with serving(migrated_url) as (_, client):
        client.create_queue("orders", 2)
        client.create_queue("copy", log="builtin:orders")
        for count in (4, 6):
            client.change_queue("orders", partition_count=count)
    stamped_long_ago(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        connection.execute("ALTER TABLE counterpoise_log.logs DISABLE TRIGGER USER")
        connection.execute(
            "UPDATE counterpoise_log.logs SET partition_count = 2, resize = 0, resized_from = NULL,"
            " revision = 0"
        )
        connection.execute("ALTER TABLE counterpoise_log.logs ENABLE TRIGGER USER")
    restoring.fence(migrated_url)
    with serving(migrated_url) as (_, client):
        for count in (6, 8):
            client.change_queue("orders", partition_count=count)
            for name in ("orders", "copy"):
                eventually(partial(settled, client, name, count))


def settled(client: Client, name: str, count: int) -> bool:
    resize = client.rebalance_status(name).resize
    return resize is None and client.queue(name).partition_count == count
