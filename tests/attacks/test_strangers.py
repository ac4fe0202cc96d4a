"""A stranger at the Postgres that clients of the log reach, without any key: he opens connections.

In the service's own server he keeps nobody out. In somebody else's, where only its administrator
can bound them, the service goes on with the connections that it has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from broker.postgres import migrations
from broker.postgres.embedded import EmbeddedPostgres
from broker.postgres.keeper import PostgresKeeper
from broker.service import Broker
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.publisher import Publisher
from tests.attacks.bystander import Bystander
from tests.attacks.strangers import FIRST, Siege, Strangers
from tests.databases import FAST, opening_first
from tests.service import ServeProcess, Service, eventually, running, settings_for

pytestmark = pytest.mark.long

QUEUE = "besieged"
# Postgres itself ends no login within a test.
SLOW = {**FAST, "authentication_timeout": "600s"}


@dataclass
class Ground:
    """A service over a server of its own, and clients that were there before the strangers."""

    url: str
    service: str
    http: httpx.Client
    bystander: Bystander
    publisher: Publisher
    reader: str = field(init=False)
    log: PostgresLog = field(init=False)

    def flow(self) -> dict[str, Any]:
        """Bind a flow, with credentials of the log."""
        body = {"client_name": "new", "lease_seconds": 600}
        answer = self.http.post(f"/v1/queues/{QUEUE}/flows", json=body)
        assert answer.status_code in (200, 201), answer.text
        bound: dict[str, Any] = answer.json()
        assert bound["log_access"]["url"]
        return bound

    def is_ready(self) -> bool:
        return self.http.get("/readyz").status_code == 200

    def goes_on(self) -> None:
        """Those who were there bind, publish and read, and the service is ready."""
        eventually(self.is_ready)
        self.flow()
        before = self.end()
        self.publisher.publish(b"v", "k")
        self.publisher.flush()
        assert self.end() == before + 1
        assert self.bystander.faults == []

    def end(self) -> int:
        return sum(map(int, self.log.bounds([0]).ends.values()))

    def lets_in(self) -> bool:
        """Whether a new client of the log is let in."""
        return is_served(self.reader)


@contextlib.contextmanager
def ground(url: str, service: str) -> Iterator[Ground]:
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=service, timeout=240, verify=False))
        settings = {"name": QUEUE, "partition_count": 1, "rebalance_delay": 0}
        http.post("/v1/queues", json=settings).raise_for_status()
        bystander = Bystander(service, "aside")
        publisher = stack.enter_context(Publisher(QUEUE, url=service, timeout_seconds=240))
        publisher.publish(b"first", "k")
        publisher.flush()
        ground = Ground(url, service, http, bystander, publisher)
        ground.reader = ground.flow()["log_access"]["url"]
        ground.log = stack.enter_context(closing(PostgresLog(QUEUE, ground.reader)))
        ground.end()
        yield ground
        bystander.leave()
        assert bystander.faults == []


@contextlib.contextmanager
def served(directory: Path, *, kept: bool, **settings: str) -> Iterator[Ground]:
    """`kept`: as in the service's own server."""
    postgres = EmbeddedPostgres(directory, settings={**SLOW, **settings})
    with ExitStack() as stack:
        url = stack.enter_context(postgres)
        if kept:
            stack.enter_context(PostgresKeeper(postgres, url))
        migrations.upgrade(url)
        given = settings_for(url)
        # Later there may be no slot.
        stack.enter_context(opening_first())
        service: Service = stack.enter_context(running(Broker(given), given))
        yield stack.enter_context(ground(url, service.url))


# The service's own server


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """With fewer slots than usual, so that fewer connections take all of them."""
    few = {"max_connections": "230", "superuser_reserved_connections": "30"}
    with served(tmp_path_factory.mktemp("own"), kept=True, **few) as ground:
        yield ground


@pytest.mark.matrix("kind")
@pytest.mark.parametrize("kind", FIRST)
def test_logins_that_do_not_end_keep_nobody_out(own: Ground, kind: str) -> None:
    with Strangers(own.url, FIRST[kind]) as strangers:
        strangers.open(600)
        own.goes_on()
        eventually(own.lets_in)
        with Publisher(QUEUE, url=own.service, timeout_seconds=240) as newcomer:
            newcomer.publish(b"new", "k")
        own.goes_on()
        # They began first, and most of them are gone.
        assert sum(strangers.ended()) > 300


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """`counterpoise serve` as it is."""
    directory = tmp_path_factory.mktemp("besieged")
    with ServeProcess(directory / "serve.log", ["--data-dir", str(directory / "data")]) as process:
        port = (directory / "data" / "port").read_text().strip()
        with ground(f"postgresql://127.0.0.1:{port}/counterpoise", process.url) as attacked:
            yield attacked
        assert process.end() == 0


@pytest.mark.matrix("kind")
@pytest.mark.parametrize("kind", ["nothing", "a login without its proof", "a storm"])
def test_strangers_that_come_again_and_again_keep_nobody_out(besieged: Ground, kind: str) -> None:
    """700 of them, while clients come one after the other."""
    with Siege(besieged.url, FIRST.get(kind, b""), 700, hold=kind in FIRST):
        for _ in range(3):
            eventually(besieged.lets_in)
            with Publisher(QUEUE, url=besieged.service, timeout_seconds=240) as newcomer:
                newcomer.publish(b"new", "k")
            besieged.goes_on()


# Somebody else's server


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    few = {"max_connections": "30", "superuser_reserved_connections": "3"}
    with served(tmp_path_factory.mktemp("theirs"), kept=False, **few) as ground:
        yield ground


def is_served(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=60).close()
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def all_slots_taken(ground: Ground, kind: str) -> Iterator[None]:
    """By strangers, or by sessions of others who may log in."""
    with ExitStack() as stack:
        strangers = stack.enter_context(Strangers(ground.url, FIRST.get(kind, b"")))

        def is_full() -> bool:
            if kind in FIRST:
                strangers.open(20)
                return not is_served(ground.url)
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(closing(psycopg.connect(ground.url)))
            return True

        eventually(is_full)
        yield
    eventually(lambda: is_served(ground.url))


@pytest.mark.matrix("kind")
@pytest.mark.parametrize("kind", [*FIRST, "sessions"])
def test_without_a_free_slot_the_service_goes_on(
    theirs: Ground, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each probe looks at everything.
    monkeypatch.setattr("broker.service.FIT_SECONDS", 0.0)
    with all_slots_taken(theirs, kind):
        theirs.goes_on()
        many(theirs.flow, 20)
        theirs.goes_on()
    eventually(theirs.lets_in)


def many(work: Callable[[], object], count: int) -> None:
    """At once; fails if one fails."""
    faults: list[BaseException] = []

    def one() -> None:
        try:
            work()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
