"""Replicas of the release before log_0003 and of this one give roles to the same built-in log.

docs/security-background.md, *Upgrade*. Those replicas hand out two roles that all readers,
or all publishers, share. What they and their clients send is written down here once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, LiteralString
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from broker.service import Broker
from counterpoise.publisher import Publisher
from tests.service import Service

pytestmark = pytest.mark.long

GROUPS = {"read": "counterpoise_log_reader", "publish": "counterpoise_log_publisher"}
# As broker/log_credentials.py of that release, in one transaction.
ITS_ROLE: tuple[LiteralString, ...] = (
    "SELECT pg_advisory_xact_lock(7165074649429406321)",
    "SELECT counterpoise_log.grant_access()",
    """INSERT INTO counterpoise_log.credentials (role, kind, password, created_at, valid_until)
    VALUES ({role}, {purpose}, 'secret', now(), now() + make_interval(secs => {valid}))""",
    """CREATE ROLE {name} LOGIN NOCREATEDB NOCREATEROLE INHERIT PASSWORD 'secret'
    VALID UNTIL 'infinity' IN ROLE {group}""",
)
ITS_CLIENT_READS = """SELECT convert_from(value, 'UTF8') FROM counterpoise_log.messages
    WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
        AND partition = %b AND position >= %b AND position < %b ORDER BY position LIMIT %b"""
ITS_CLIENT_APPENDS = """SELECT counterpoise_log.append(%b, %b, %b, %b,
    %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])"""


def connected(url: str) -> closing[psycopg.Connection[Any]]:
    return closing(psycopg.connect(url, autocommit=True))


@dataclass
class Older:
    """A replica of that release on the same database, as far as the log sees it."""

    url: str

    def role(self, purpose: str, name: str, valid_seconds: float = 7200.0) -> str:
        """Makes a shared role, as it does every half hour; the URL that its clients get."""
        given = {
            "role": sql.Literal(name),
            "purpose": sql.Literal(purpose),
            "valid": sql.Literal(valid_seconds),
            "name": sql.Identifier(name),
            "group": sql.Identifier(GROUPS[purpose]),
        }
        with psycopg.connect(self.url) as connection:
            for statement in ITS_ROLE:
                connection.execute(sql.SQL(statement).format(**given))
        parts = urlsplit(self.url)
        netloc = f"{name}:secret@{parts.hostname}:{parts.port}"
        return parts._replace(netloc=netloc).geturl()

    def is_there(self, name: str) -> bool:
        with connected(self.url) as connection:
            found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name])
            return found.fetchone() is not None

    def drop(self, *names: str) -> None:
        with connected(self.url) as connection:
            for name in names:
                connection.execute(
                    "DELETE FROM counterpoise_log.credentials WHERE role = %s", [name]
                )
                connection.execute(f'DROP ROLE IF EXISTS "{name}"'.encode())


@pytest.fixture
def older(target: Service) -> Iterator[Older]:
    url = target.settings.database_url
    assert url is not None
    older = Older(url.get_secret_value())
    yield older
    older.drop("older_reader", "older_publisher", "older_expired")


@pytest.fixture
def queue(target: Service, name_of_a_queue: Callable[[], str]) -> str:
    name = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": name, "partition_count": 1}).raise_for_status()
    return name


def access(target: Service, queue: str, purpose: str) -> str:
    """From the replica of this release."""
    answer = httpx.post(f"{target.url}/v1/queues/{queue}/log-access", json={"purpose": purpose})
    answer.raise_for_status()
    url: str = answer.json()["access"]["url"]
    return url


def test_clients_of_both_read_what_clients_of_both_append(
    target: Service, older: Older, queue: str
) -> None:
    newer = {purpose: access(target, queue, purpose) for purpose in GROUPS}
    shared = {
        "read": older.role("read", "older_reader"),
        "publish": older.role("publish", "older_publisher"),
    }
    for url, publisher_id, value in (
        (shared["publish"], "old client", b"1"),
        (newer["publish"], "old client at the newer replica", b"2"),
    ):
        with connected(url) as client:
            row = [queue, 1, publisher_id, 0, [0], [value], None, None, None]
            assert client.execute(ITS_CLIENT_APPENDS, row).fetchone() == (1,)
    with Publisher(queue, url=target.url) as publisher:
        publisher.publish(b"3")
    for url in (shared["read"], newer["read"]):
        with connected(url) as client:
            read = client.execute(ITS_CLIENT_READS, [queue, 0, 0, 10, 10], binary=True).fetchall()
            assert read == [("1",), ("2",), ("3",)]


def test_what_the_older_replica_grants_opens_nothing_to_roles_of_the_newer(
    target: Service, older: Older, queue: str, name_of_a_queue: Callable[[], str]
) -> None:
    theirs = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": theirs, "partition_count": 1}).raise_for_status()
    with Publisher(theirs, url=target.url) as publisher:
        publisher.publish(b"secret")
    reader = access(target, queue, "read")
    older.role("read", "older_reader")
    with connected(reader) as client:
        assert client.execute("SELECT value FROM counterpoise_log.messages").fetchall() == []
        for statement in (
            b"SELECT password FROM counterpoise_log.credentials",
            b"SET ROLE older_reader",
            b"SET ROLE counterpoise_log_reader",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(statement)
    # A shared role reaches all queues, as the documentation says, but for its purpose alone.
    with connected(older.role("publish", "older_publisher")) as client:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("SELECT value FROM counterpoise_log.messages")


async def test_shared_roles_stay_until_they_have_expired(target: Service, older: Older) -> None:
    kept = older.role("read", "older_reader")
    older.role("read", "older_expired", valid_seconds=-1)
    replica = Broker(target.settings)
    await replica.start()
    try:
        await replica.upkeep()
    finally:
        await replica.stop()
    assert not older.is_there("older_expired")
    with connected(kept) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
