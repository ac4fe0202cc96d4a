"""Consumers and publishers of earlier releases keep working after any migration of the log's
tables.

They run in other people's processes and are not replaced together with the service. So migrations
of the log may only add to what they use (CONTRIBUTING.md, *Write a migration*). The statements of a
release's clients are written down here once and never changed. A client with new statements gets a
new entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.log_support import migrate_log

CLIENT = "counterpoise_log_client"


class Asked(NamedTuple):
    """A statement of clients of a log, its parameters and its results, with types and values."""

    log: str
    statement: str
    parameters: Sequence[Any]
    answer: list[tuple[Any, ...]]


_MESSAGES = "%b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])"
_TWO = [[1, 1], [b"a", b"b"], ["b", None], ['{"h": "1"}', None], None]
_BOUNDS = """SELECT l.partition_count, length(l.incarnation::text), l.resize, l.resized_from,
        p.partition, p.first_position, p.next_position, p.discarded_position, p.cut,
        p.first_hash, p.last_hash, p.successors
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
    WHERE l.name = %b"""
_READ = """SELECT position, published_at > '2026-01-01', key, value, headers
    FROM counterpoise_log.messages
    WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
        AND partition = %b AND position >= %b AND position < %b ORDER BY position"""
_TWO_READ = [(0, True, "b", b"a", {"h": "1"}), (1, True, None, b"b", None)]
# By the revision that came with the clients' release. Order matters.
CLIENTS = {
    "log_0001": [
        Asked("flights", "SELECT counterpoise_log.next_sequence(%b, %b)", ["flights", "p"], [(0,)]),
        Asked(
            "flights",
            f"SELECT * FROM counterpoise_log.append(%b, %b, %b, %b, {_MESSAGES}",
            ["flights", 2, "p", 0, *_TWO],
            [(2, None)],
        ),
        Asked(
            "flights",
            f"SELECT * FROM counterpoise_log.append_numbered(%b, %b, %b, %b::bigint[], {_MESSAGES}",
            ["flights", 2, "p", [0, 1], *_TWO],
            [(0, None)],
        ),
        Asked("flights", _READ, ["flights", 1, 0, 9], _TWO_READ),
        Asked(
            "flights",
            _BOUNDS,
            [[1], "flights"],
            [(2, 36, 0, None, 1, 0, 2, 0, None, None, None, None)],
        ),
        Asked(
            "flights",
            "SELECT length(counterpoise_log.watch(%b, %b::integer[], %b::bigint[]))",
            ["flights", [0, 1], [0, 2]],
            [(49,)],
        ),
        Asked(
            "flights",
            "SELECT counterpoise_log.still_waits(%b, %b, %b::integer[], %b::bigint[])",
            ["flights", "another", [0, 1], [0, 2]],
            [("moved",)],
        ),
        Asked(
            "flights", "SELECT counterpoise_log.wake(%b, %b::integer[])", ["flights", [1]], [(b"",)]
        ),
        Asked(
            "split",
            "SELECT first_hash, last_hash, partition FROM counterpoise_log.ranges(%b)",
            ["split"],
            [(0, 2147483647, 1), (2147483648, 4294967295, 2)],
        ),
        Asked(
            "split",
            f"SELECT * FROM counterpoise_log.append_by_range(%b, %b, %b, {_MESSAGES}",
            ["split", "p", 0, *_TWO],
            [(2, None)],
        ),
        Asked(
            "split",
            "SELECT * FROM counterpoise_log.append_numbered_by_range("
            f"%b, %b, %b::bigint[], {_MESSAGES}",
            ["split", "p", [0, 1], *_TWO],
            [(0, None)],
        ),
        Asked("split", _READ, ["split", 1, 0, 9], _TWO_READ),
        Asked(
            "split",
            f"{_BOUNDS} ORDER BY p.partition",
            [[0, 1], "split"],
            [
                (3, 36, 0, None, 0, 0, 0, 0, None, 0, 4294967295, []),
                (3, 36, 0, None, 1, 0, 2, 0, None, 0, 2147483647, None),
            ],
        ),
    ],
}
# As replicas of that release create a log; such replicas keep serving.
MAKE = """
INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('flights', 2), ('split', 3);
INSERT INTO counterpoise_log.partitions (log_id, partition)
    SELECT log_id, n FROM counterpoise_log.logs, generate_series(0, 1) AS n
    WHERE name = 'flights';
INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash, successors)
    SELECT log_id, n, first, last, after FROM counterpoise_log.logs, (VALUES
        (0, 0, 4294967295, '[]'::jsonb),
        (1, 0, 2147483647, NULL),
        (2, 2147483648, 4294967295, NULL)
    ) AS ranges (n, first, last, after) WHERE name = 'split';
INSERT INTO counterpoise_log.clients (role, log, purpose, holder, created_at, expires_at)
    VALUES (session_user, '', 'read', '', now(), 'infinity');
"""


TAKEN_AWAY = {
    "log_0001": [
        "ALTER TABLE counterpoise_log.messages RENAME COLUMN headers TO properties",
        "ALTER TABLE counterpoise_log.messages ALTER COLUMN key TYPE bytea USING key::bytea",
        "ALTER TABLE counterpoise_log.messages ADD COLUMN origin text NOT NULL",
        "DROP FUNCTION counterpoise_log.next_sequence",
        f"REVOKE SELECT (cut) ON counterpoise_log.partitions FROM {CLIENT}",
        "DROP FUNCTION counterpoise_log.append_by_range",
        f"REVOKE EXECUTE ON FUNCTION counterpoise_log.ranges FROM {CLIENT}",
        "DROP FUNCTION counterpoise_log.still_waits",
    ],
}
ADDED = [
    "ALTER TABLE counterpoise_log.messages ADD COLUMN origin text",
    "ALTER TABLE counterpoise_log.messages ADD COLUMN colour text NOT NULL DEFAULT 'grey'",
    "CREATE TABLE counterpoise_log.origins (name text PRIMARY KEY)",
]


def ask_all(url: str, clients: list[Asked], change: str = "SELECT") -> None:
    """Runs all statements of these clients, with their rights, after a change of the tables; then
    everything is restored."""
    with psycopg.connect(url) as connection:
        connection.execute(change)
        connection.execute(MAKE)
        for asked in clients:
            connection.execute("UPDATE counterpoise_log.clients SET log = %s", [asked.log])
            connection.execute(f"SET LOCAL ROLE {CLIENT}")
            rows = connection.execute(asked.statement, asked.parameters, binary=True).fetchall()
            assert rows == asked.answer, asked.statement
            connection.execute("RESET ROLE")
        connection.rollback()


@pytest.fixture(scope="module")
def log_url(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE log_clients")
    url = urlsplit(postgres_url)._replace(path="/log_clients").geturl()
    migrate_log(url)
    yield url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE log_clients WITH (FORCE)")


@pytest.mark.parametrize("revision", CLIENTS)
def test_clients_of_each_release_keep_working(log_url: str, revision: str) -> None:
    ask_all(log_url, CLIENTS[revision])


@pytest.mark.parametrize("revision", CLIENTS)
def test_removals_would_break_clients_of_a_release(log_url: str, revision: str) -> None:
    for change in ADDED:
        ask_all(log_url, CLIENTS[revision], change)
    for change in TAKEN_AWAY[revision]:
        with pytest.raises((psycopg.Error, AssertionError)):
            ask_all(log_url, CLIENTS[revision], change)
