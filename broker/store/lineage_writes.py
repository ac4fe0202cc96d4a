"""The keys of a dynamic queue: new ones with a commit, and what is left of removed ones.

Parts of the statement that commits (`broker.store.writing`).
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import CTE, ColumnElement, Select, Text, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.ports import Commit
from broker.store.schema.bulk import Rows, any_of
from broker.store.schema.tables import lineage, partitions

_ROWS = Rows("child", [(key, lineage.c[key].type) for key in ("key", "number", "parents")])
_COLUMNS = ["queue_id", *_ROWS.types]


def _children() -> Select[Any]:
    return select(
        bindparam("queue", type_=Text), *(_ROWS.value(key) for key in _ROWS.types)
    ).select_from(_ROWS.table)


INSERT_CHILDREN = insert(lineage).from_select(_COLUMNS, _children())
LINEAGE = select(lineage.c.number, lineage.c.key, lineage.c.parents).where(
    lineage.c.queue_id == bindparam("queue")
)


def inserted_children(may: ColumnElement[bool]) -> CTE:
    """Remembers new keys, if it `may`."""
    rows = insert(lineage).from_select(_COLUMNS, _children().where(may))
    return rows.returning(lineage.c.key).cte("inserted_children")


def deleted_partitions(may: ColumnElement[bool]) -> CTE:
    """Deletes removed partitions, if it `may`."""
    return (
        delete(partitions)
        .where(
            partitions.c.queue_id == bindparam("queue", type_=Text),
            any_of(partitions.c.number, "removed_numbers"),
            may,
        )
        .returning(partitions.c.number)
        .cte("deleted_partitions")
    )


def forgotten_parents(may: ColumnElement[bool]) -> CTE:
    """Leaves the keys of removed partitions, if it `may`."""
    return (
        update(lineage)
        .where(
            lineage.c.queue_id == bindparam("queue", type_=Text),
            any_of(lineage.c.key, "removed_keys"),
            may,
        )
        .values(parents=None)
        .returning(lineage.c.key)
        .cte("forgotten_parents")
    )


def lineage_parameters(commit: Commit) -> dict[str, Any]:
    """The parameters of all three."""
    return {
        "removed_numbers": sorted(commit.removed),
        "removed_keys": sorted(commit.removed.values()),
        **_ROWS.parameters(_rows(commit)),
    }


async def insert_children(connection: AsyncConnection, commit: Commit) -> None:
    """Remembers the keys of a new queue."""
    if rows := _rows(commit):
        parameters = {"queue": commit.queue.id, **_ROWS.parameters(rows)}
        await connection.execute(INSERT_CHILDREN, parameters)


def _rows(commit: Commit) -> list[tuple[Any, ...]]:
    return [(key, number, _json(parents)) for number, key, parents in commit.children]


def _json(parents: tuple[str, ...]) -> str:
    return orjson.dumps(parents).decode()
