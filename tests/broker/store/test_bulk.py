"""Rows come to the database as they are given, and the files of statements name every column."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from sqlalchemy import Table, text

from broker.store import tables
from broker.store.bulk import PreparedStatement
from broker.store.commit import COMMIT, commit_parameters
from broker.store.connections import Connections
from broker.store.ports import Commit
from broker.store.positions import COMMIT_POSITIONS
from broker.store.rows import common_and_rows
from tests.broker.store.support import Replica

COLUMNS = ("number", "state", "retiring", "deadline")
GIVEN: dict[str, list[tuple[Any, ...]]] = {
    "none": [],
    "one": [(1, "a", False, None)],
    "all the same": [(1, "a", True, 0.0), (1, "a", True, 0.0)],
    "all the same but the first": [(1, "a", True, 0.0), (2, "a", True, 0.0)],
    "all null but the first": [(1, None, None, None), (2, None, None, None)],
    "some null": [(1, "a", None, 1.5), (2, None, True, 1.5), (3, "a", True, None)],
    "the first the same": [(1, "a", True, 1.0), (1, "b", False, 2.0)],
    "empty and false": [(1, "", False, 0.0), (2, "", False, 0.0), (3, "x", False, 0.0)],
    "every bit": [(1, "\x01\\\"'é\U0001f600", True, 0.1 + 0.2), (2, "", True, 1e300)],
}


async def test_rows_arrive_as_given(migrated_url: str) -> None:
    """The rows of `sql/commit.sql`."""
    given_rows = text(
        f"SELECT {', '.join(COLUMNS)} FROM json_populate_recordset("
        "json_populate_record(NULL::counterpoise.partitions, :common), :rows)"
        " ORDER BY number, state"
    )
    connections = Connections(migrated_url, pool_size=1)
    try:
        for name, given in GIVEN.items():
            common, rows = common_and_rows(COLUMNS, given)
            encoded = {"common": common, "rows": rows}
            parameters = {name: orjson.dumps(value).decode() for name, value in encoded.items()}
            found = await connections.fetch(PreparedStatement(given_rows), parameters)
            assert [tuple(row) for row in found] == given, name
    finally:
        await connections.close()


def test_what_all_rows_share_is_sent_once() -> None:
    rows = [(1, "a", True, None), (2, "a", False, None)]
    common = {"state": "a"}
    others = [{"number": 1, "retiring": True}, {"number": 2, "retiring": False}]
    assert common_and_rows(COLUMNS, rows) == (common, others)


def names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",")]


@pytest.mark.parametrize(
    "table",
    [tables.flows, tables.partitions, tables.records, tables.lineage, tables.audit],
    ids=str,
)
def test_the_files_insert_every_column(table: Table) -> None:
    """A column that is missing in a list would be lost without an error."""
    by_database = {column.name for column in table.columns if column.identity is not None}
    columns = {column.name for column in table.columns} - by_database
    statements = COMMIT.text + COMMIT_POSITIONS.text
    inserts = re.findall(rf"INSERT INTO {table.fullname} \(([^)]*)\)", statements)
    assert inserts
    assert [set(names(listed)) for listed in inserts] == [columns] * len(inserts)


def test_the_commit_sets_every_column_that_changes() -> None:
    [(left, right)] = re.findall(
        r"UPDATE counterpoise.queues\s+SET \(([^)]*)\) = \(\s*SELECT([^)]*?)\s+FROM", COMMIT.text
    )
    # The level rises with the first feature that has one (`broker.store.levels`).
    fixed = {"id", "name", "created_at", "level"}
    assert names(left) == names(right)
    assert set(names(left)) == {column.name for column in tables.queues.columns} - fixed
    [updates] = re.findall(
        r"ON CONFLICT \(queue_id, number\) DO UPDATE SET(.*?)RETURNING", COMMIT.text, re.DOTALL
    )
    pairs = [pair.split("=") for pair in updates.split(",")]
    assert all(right.strip() == f"excluded.{left.strip()}" for left, right in pairs)
    key = {column.name for column in tables.partitions.primary_key}
    assert {left.strip() for left, _ in pairs} == set(tables.partitions.columns.keys()) - key


async def test_a_commit_gives_what_the_file_takes(orders: Replica) -> None:
    given = commit_parameters(Commit(orders.queue, 1, "commit", []))
    assert given.keys() == set(COMMIT.names)


async def test_a_parameter_that_is_missing_is_an_error(migrated_url: str) -> None:
    """It must not be taken for null."""
    connections = Connections(migrated_url, pool_size=1)
    with pytest.raises(KeyError):
        await connections.fetch(COMMIT, {"queue": "one"})
