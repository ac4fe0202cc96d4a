"""Consumers and publishers of earlier releases keep working after any migration of the log's
tables.

They run in other people's processes and are not replaced together with the service. So migrations
of the log may only add to what they use (CONTRIBUTING.md, *Write a migration*). The statements of a
release's clients are written down here once and never changed. A client with new statements gets a
new entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.log_support import migrate_log

READER, PUBLISHER = "counterpoise_log_reader", "counterpoise_log_publisher"


class Asked(NamedTuple):
    """A statement of clients, its parameters and its results, with types and values."""

    role: str
    statement: str
    parameters: list[Any]
    answer: list[tuple[Any, ...]]


# By the revision that came with the clients' release. Order matters.
CLIENTS = {
    "log_0001": [
        Asked(PUBLISHER, "SELECT counterpoise_log.next_sequence(%b, %b)", ["flights", "p"], [(0,)]),
        Asked(
            PUBLISHER,
            "SELECT counterpoise_log.append(%b, %b, %b, %b,"
            " %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])",
            ["flights", 2, "p", 0, [1, 1], [b"a", b"b"], ["k", None], ['{"h": "1"}', None], None],
            [(2,)],
        ),
        Asked(PUBLISHER, "SELECT counterpoise_log.next_sequence(%b, %b)", ["flights", "p"], [(2,)]),
        Asked(
            READER,
            """SELECT position, key, value, headers FROM (
                SELECT position, published_at, key, value, headers,
                    sum(octet_length(value)) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING)
                        - octet_length(value) AS before
                FROM counterpoise_log.messages
                WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
                    AND partition = %b AND position >= %b AND position < %b
                ORDER BY position LIMIT %b
            ) AS chunk WHERE before < %b ORDER BY position""",
            ["flights", 1, 0, 9, 8192, 1000],
            [(0, "k", b"a", {"h": "1"}), (1, None, b"b", None)],
        ),
        Asked(
            READER,
            """SELECT l.partition_count, length(l.incarnation::text), p.partition,
                    p.first_position, p.next_position
                FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
                    ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
                WHERE l.name = %b""",
            [[1], "flights"],
            [(2, 36, 1, 0, 2)],
        ),
        Asked(
            READER,
            """SELECT p.first_position, p.next_position, p.discarded_position
                FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
                    ON p.log_id = l.log_id AND p.partition = %b
                WHERE l.name = %b""",
            [1, "flights"],
            [(0, 2, 0)],
        ),
    ],
    "log_0004": [
        Asked(
            PUBLISHER,
            "SELECT first_hash, last_hash, partition FROM counterpoise_log.ranges(%b)",
            ["split"],
            [(0, 2147483647, 1), (2147483648, 4294967295, 2)],
        ),
        Asked(
            PUBLISHER,
            "SELECT counterpoise_log.append_by_range(%b, %b, %b,"
            " %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])",
            ["split", "p", 0, [1, 1], [b"a", b"b"], ["b", None], ['{"h": "1"}', None], None],
            [(2,)],
        ),
        Asked(
            READER,
            """SELECT p.partition, p.next_position, p.first_hash, p.last_hash, p.successors
                FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
                    ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
                WHERE l.name = %b ORDER BY 1""",
            [[0, 1], "split"],
            [(0, 0, 0, 4294967295, []), (1, 2, 0, 2147483647, None)],
        ),
    ],
}
# As replicas of that release create a log; such replicas keep serving.
MAKE = """
INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('flights', 2);
INSERT INTO counterpoise_log.partitions (log_id, partition)
    SELECT log_id, n FROM counterpoise_log.logs, generate_series(0, 1) AS n;
"""
MAKE_SPLIT = """
INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('split', 3);
INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash, successors)
    SELECT log_id, n, first, last, after FROM counterpoise_log.logs, (VALUES
        (0, 0, 4294967295, '[]'::jsonb),
        (1, 0, 2147483647, NULL),
        (2, 2147483648, 4294967295, NULL)
    ) AS ranges (n, first, last, after) WHERE name = 'split';
"""


TAKEN_AWAY = {
    "log_0001": [
        "ALTER TABLE counterpoise_log.messages RENAME COLUMN headers TO properties",
        "ALTER TABLE counterpoise_log.messages ALTER COLUMN key TYPE bytea USING key::bytea",
        "ALTER TABLE counterpoise_log.messages ADD COLUMN origin text NOT NULL",
        "DROP FUNCTION counterpoise_log.next_sequence",
        f"REVOKE SELECT ON counterpoise_log.partitions FROM {READER}",
    ],
    "log_0004": [
        "DROP FUNCTION counterpoise_log.append_by_range",
        f"REVOKE EXECUTE ON FUNCTION counterpoise_log.ranges FROM {PUBLISHER}",
        "ALTER TABLE counterpoise_log.partitions ALTER COLUMN first_hash TYPE numeric",
    ],
}
ADDED = [
    "ALTER TABLE counterpoise_log.messages ADD COLUMN origin text",
    "ALTER TABLE counterpoise_log.messages ADD COLUMN colour text NOT NULL DEFAULT 'grey'",
    "CREATE TABLE counterpoise_log.origins (name text PRIMARY KEY)",
]


def ask_all(url: str, clients: list[Asked], change: str = "SELECT") -> None:
    """Runs all statements of these clients, each in its login role, after a change of the tables;
    then everything is restored."""
    with psycopg.connect(url) as connection:
        connection.execute(change)
        connection.execute(MAKE)
        connection.execute(MAKE_SPLIT)
        for asked in clients:
            connection.execute(f"SET LOCAL ROLE {asked.role}")
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
def test_clients_of_an_earlier_release_keep_working(log_url: str, revision: str) -> None:
    ask_all(log_url, CLIENTS[revision])


@pytest.mark.parametrize("revision", CLIENTS)
def test_removals_would_break_clients_of_an_earlier_release(log_url: str, revision: str) -> None:
    for change in ADDED:
        ask_all(log_url, CLIENTS[revision], change)
    for change in TAKEN_AWAY[revision]:
        with pytest.raises((psycopg.Error, AssertionError)):
            ask_all(log_url, CLIENTS[revision], change)
