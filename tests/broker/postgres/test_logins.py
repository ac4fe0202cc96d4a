"""Unfinished logins are bounded, and the service has connections of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import structlog

from broker.logs.roles import _CAPACITY
from broker.postgres import logins
from broker.postgres.embedded import BESIDE_POOL, CLIENTS, EmbeddedPostgres
from broker.postgres.keeper import PostgresKeeper
from broker.postgres.logins import MOST_LOGINS
from tests.attacks.strangers import FIRST, Strangers
from tests.databases import FAST
from tests.processes import running
from tests.service import eventually

SLOW = {**FAST, "authentication_timeout": "600s"}
SURPLUS = 20


class Kept:
    """A server with its keeper."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.postgres = EmbeddedPostgres(directory, settings=SLOW)
        self.url = stack.enter_context(self.postgres)
        self.keeper = stack.enter_context(PostgresKeeper(self.postgres, self.url))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr("broker.postgres.keeper.PAUSE_SECONDS", 0.1)
        yield Kept(tmp_path_factory.mktemp("kept"), stack)


def programs(postgres: EmbeddedPostgres) -> list[int]:
    """The process numbers of the programs that bound its logins."""
    command = f"{logins.__file__}\0{postgres.pid}\0".encode()
    found = []
    for process in running():
        try:
            if Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(command):
                found.append(process.pid)
        except OSError:
            continue
    return found


def is_bounded(url: str) -> None:
    """The first ones are ended, and no other."""
    with Strangers(url, FIRST["nothing"]) as strangers:
        strangers.open(SURPLUS + MOST_LOGINS)
        eventually(lambda: sum(strangers.ended()) >= SURPLUS)
        assert strangers.ended() == [True] * SURPLUS + [False] * MOST_LOGINS


@pytest.mark.long
def test_those_that_began_first_are_ended(kept: Kept) -> None:
    with structlog.testing.capture_logs() as logs:
        is_bounded(kept.url)
        said = "too many logins to Postgres were not finished; the oldest were ended"
        eventually(lambda: [line["logins"] for line in logs if line["event"] == said])


@pytest.mark.long
def test_sessions_do_not_count(kept: Kept) -> None:
    """However many there are, and whether they are older or younger."""
    with ExitStack() as stack:
        many: list[psycopg.Connection[Any]] = []

        def open_sessions() -> None:
            for _ in range(MOST_LOGINS // 2 + SURPLUS):
                one = psycopg.connect(kept.url, autocommit=True)
                many.append(stack.enter_context(closing(one)))

        open_sessions()
        strangers = stack.enter_context(Strangers(kept.url, FIRST["nothing"]))
        # A session counts until its login is finished.
        strangers.open(MOST_LOGINS - SURPLUS)
        open_sessions()
        strangers.open(2 * SURPLUS)
        eventually(lambda: sum(strangers.ended()) >= SURPLUS)
        assert strangers.ended() == [True] * SURPLUS + [False] * MOST_LOGINS
        assert {one.execute("SELECT 1").fetchone() for one in many} == {(1,)}


def end_program(postgres: EmbeddedPostgres) -> None:
    [program] = programs(postgres)
    os.kill(program, signal.SIGKILL)


def end_server(postgres: EmbeddedPostgres) -> None:
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)


def lets_in(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=60).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.long
@pytest.mark.matrix("ends")
@pytest.mark.parametrize("ends", [end_program, end_server])
def test_it_goes_on_after(kept: Kept, ends: Callable[[EmbeddedPostgres], None]) -> None:
    eventually(lambda: programs(kept.postgres))
    before = programs(kept.postgres)
    ends(kept.postgres)
    eventually(lambda: kept.postgres.pid and programs(kept.postgres) not in ([], before))
    eventually(lambda: lets_in(kept.url))
    is_bounded(kept.url)


@pytest.mark.long
def test_the_program_ends_with_its_keeper(kept: Kept) -> None:
    eventually(lambda: len(programs(kept.postgres)) == 1)
    with PostgresKeeper(kept.postgres, kept.url):
        eventually(lambda: len(programs(kept.postgres)) == 2)
    assert len(programs(kept.postgres)) == 1


@pytest.mark.long
def test_clients_cannot_take_the_connections_of_the_service(tmp_path: Path) -> None:
    pool_size = 3
    reserved = pool_size + BESIDE_POOL
    few = {**FAST, "max_connections": f"{reserved + 10}"}
    with (
        EmbeddedPostgres(tmp_path, pool_size=pool_size, settings=few) as url,
        ExitStack() as stack,
    ):

        def sessions(url: str, count: int) -> list[psycopg.Connection[Any]]:
            return [stack.enter_context(closing(psycopg.connect(url))) for _ in range(count)]

        [owner] = sessions(url, 1)
        owner.execute("CREATE ROLE client LOGIN PASSWORD 'own'")
        owner.commit()
        parts = urlsplit(url)
        theirs = parts._replace(netloc=f"client:own@{parts.hostname}:{parts.port}").geturl()
        with pytest.raises(psycopg.OperationalError, match="reserved"):
            sessions(theirs, 11)
        sessions(url, reserved - 1)


def test_the_server_says_what_clients_may_have(postgres_url: str) -> None:
    """`broker.logs.roles` shares it out, and not what logins or the service may have."""
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(_CAPACITY.encode()).fetchone()
    assert row == (CLIENTS,)
