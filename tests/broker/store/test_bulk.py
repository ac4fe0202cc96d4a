"""Rows come to the database as they are given, however their columns are sent."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Boolean, Double, Integer, Text, select
from sqlalchemy.types import TypeEngine

from broker.store.bulk import PreparedStatement, Rows
from broker.store.connections import Connections

COLUMNS: list[tuple[str, TypeEngine[Any]]] = [
    ("number", Integer()),
    ("text", Text()),
    ("flag", Boolean()),
    ("at", Double()),
]
GIVEN: dict[str, list[tuple[Any, ...]]] = {
    "none": [],
    "one": [(1, "a", False, None)],
    "all the same but the first": [(1, "a", True, 0.0), (2, "a", True, 0.0)],
    "all null but the first": [(1, None, None, None), (2, None, None, None)],
    "some null": [(1, "a", None, 1.5), (2, None, True, 1.5), (3, "a", True, None)],
    "the first the same": [(1, "a", True, 1.0), (1, "b", False, 2.0)],
    "empty and false": [(1, "", False, 0.0), (2, "", False, 0.0), (3, "x", False, 0.0)],
}


@pytest.mark.parametrize("alike", [False, True])
async def test_rows_arrive_as_given(migrated_url: str, alike: bool) -> None:
    rows = Rows("row", COLUMNS, alike=alike)
    statement = PreparedStatement(select(*rows.c).order_by(rows.c.number, rows.c.text))
    connections = Connections(migrated_url, pool_size=1)
    try:
        for name, given in GIVEN.items():
            found = await connections.fetch(statement, rows.parameters(given))
            assert [tuple(row) for row in found] == given, name
    finally:
        await connections.close()


def test_what_all_rows_share_is_sent_once() -> None:
    rows = Rows("row", COLUMNS, alike=True)
    sent = rows.parameters([(1, "a", True, None), (2, "a", False, None)])
    assert sent == {
        "row_number": [1, 2],
        "row_text": [],
        "row_text_of_all": "a",
        "row_flag": [True, False],
        "row_flag_of_all": None,
        "row_at": [],
        "row_at_of_all": None,
    }
