"""How Postgres executes the statements for many rows, whatever it knows of the tables.

The generic plans are checked: Postgres makes one for a prepared statement and keeps it, assuming
ten rows in each array. A plan must find each row by its key and must not join the given rows with a
table in any other way: a join that is cheap for ten rows and a small table is quadratic for a
thousand rows and a large table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from sqlalchemy import Integer, Text, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, asyncpg

from broker.store import commit, connections, leases, positions
from broker.store.tables import partitions
from tests.broker.store.support import PostgresGround, Replica

STATEMENTS = {
    "commits": commit.COMMIT.statement,
    "positions": positions.COMMIT_POSITIONS.statement,
    "partitions that are there": positions.THERE.statement,
    "positions of some partitions": positions.POSITIONS.statement,
    "renewals": leases.RENEW.statement,
    "flows that are bound": leases.BOUND.statement,
    "leases of a queue": leases.EXPIRIES.statement,
    "leases after an outage": leases.RENEW_ALIVE,
}
# Tables that may be looked up, with the columns of their keys.
KEYS = {"partitions": ("queue_id", "number"), "flows": ("id",)}


def plan_of(connection: psycopg.Connection[Any], statement: Any) -> dict[str, Any]:
    """The generic plan."""
    compiled = statement.compile(dialect=asyncpg.dialect())
    names = compiled.positiontup or ()
    connection.execute("DEALLOCATE ALL")
    connection.execute(f"PREPARE told AS {compiled}")
    nulls = f"({', '.join(['NULL'] * len(names))})" if names else ""
    row = connection.execute(f"EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE told{nulls}").fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The node and all nodes below it."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def quadratic(plan: dict[str, Any]) -> list[str]:
    """The parts of the plan that would scan many rows for each of many rows."""
    found = []
    for node in nodes(plan):
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in KEYS:
            found.append(f"reads all of {node['Relation Name']}")
        if "Join Filter" in node:
            found.append(f"{node['Node Type']} compares pairs: {node['Join Filter']}")
        if node["Node Type"] == "Nested Loop":
            found += [
                f"for each row, {inner['Node Type']}"
                for part in node["Plans"]
                if part["Parent Relationship"] == "Inner"
                for inner in nodes(part)
                if not (
                    inner["Node Type"] in ("Limit", "LockRows", "Subquery Scan") or looks_up(inner)
                )
            ]
        found += [
            f"for each row, {part['Subplan Name']}"
            for part in node.get("Plans", ())
            if part["Parent Relationship"] == "SubPlan"
            if f"hashed {part['Subplan Name']}" not in str([node["Output"], node.get("Filter")])
        ]
    return found


def looks_up(node: dict[str, Any]) -> bool:
    """Whether the node finds one row by its whole key."""
    return (
        node["Node Type"] in ("Index Scan", "Index Only Scan")
        and node["Relation Name"] in KEYS
        and all(f"{column} =" in node["Index Cond"] for column in KEYS[node["Relation Name"]])
    )


@pytest.fixture(params=["nothing is known", "small", "many small queues", "one large queue"])
async def connection(
    request: pytest.FixtureRequest, postgres: PostgresGround
) -> AsyncIterator[psycopg.Connection[Any]]:
    """A connection with the settings of the store's, to tables with these statistics."""
    store = await postgres.store()
    sizes = {"small": [4], "many small queues": [2] * 100, "one large queue": [4096]}
    for place, size in enumerate(sizes.get(request.param, [])):
        replica = Replica(store)
        await replica.create(size, f"queue-{place}")
        await replica.bind(f"{place}-A", f"{place}-B")
    with psycopg.connect(postgres.url, autocommit=True, prepare_threshold=None) as connection:
        if request.param != "nothing is known":
            connection.execute("ANALYZE counterpoise.partitions, counterpoise.flows")
        settings = connections.Connections(postgres.url, 1)._settings()
        for name in ("jit", "enable_seqscan"):
            connection.execute(f"SET {name} = {settings[name]}")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


@pytest.mark.long
async def test_rows_are_found_by_their_keys(connection: psycopg.Connection[Any]) -> None:
    plans = {name: plan_of(connection, statement) for name, statement in STATEMENTS.items()}
    bad = {name: (found, plan) for name, plan in plans.items() if (found := quadratic(plan))}
    assert not bad


async def test_the_statistics_of_a_large_queue_end_no_vacuum(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres cancels an autovacuum for which somebody waits."""
    monkeypatch.setattr("broker.store.postgres.ANALYZE_FROM", 3)
    store = await postgres.store()
    with psycopg.connect(postgres.url) as connection:

        def counted() -> int:
            row = connection.execute(
                "SELECT reltuples::integer FROM pg_class"
                " WHERE oid = 'counterpoise.partitions'::regclass"
            ).fetchone()
            assert row is not None
            return int(row[0])

        await Replica(store).create(3)
        assert counted() == 3
        # The lock of a VACUUM, which is under way until this transaction ends.
        connection.execute("LOCK TABLE counterpoise.partitions IN SHARE UPDATE EXCLUSIVE MODE")
        await Replica(store).create(3)
        assert counted() == 3


def order_of_locks(
    plan: dict[str, Any], given: Sequence[str] | None = None
) -> Iterator[Sequence[str]]:
    """For each part of the plan that locks rows, by what they are sorted: the `given` rows, for
    each of which it locks one, or else its own rows.
    """
    for part in plan.get("Plans", ()):
        if plan["Node Type"] == "Nested Loop" and part["Parent Relationship"] == "Inner":
            yield from order_of_locks(part, plan["Plans"][0].get("Sort Key", ()))
        elif part["Node Type"] == "LockRows":
            [rows] = part["Plans"]
            by_key = rows.get("Index Name", "").endswith("_pkey")
            own = KEYS.get(rows["Relation Name"], ()) if by_key else rows.get("Sort Key", ())
            yield [column.rpartition(".")[2] for column in (own if given is None else given)]
        else:
            yield from order_of_locks(part, given)


@pytest.mark.long
def test_rows_are_locked_in_the_order_of_their_keys(connection: psycopg.Connection[Any]) -> None:
    """So no two transactions wait for each other."""

    def order(name: str) -> list[Sequence[str]]:
        return list(order_of_locks(plan_of(connection, STATEMENTS[name])))

    one_queue: list[str] = []
    assert order("commits") == [one_queue, ["id"], ["number"]]
    assert order("positions") == [["id"], ["queue_id", "number"]]
    assert order("renewals") == [["id"]]


@pytest.mark.long
@pytest.mark.parametrize("connection", ["many small queues"], indirect=True)
def test_a_join_with_the_given_rows_is_detected(connection: psycopg.Connection[Any]) -> None:
    """The statements must not be like this."""
    rows = (
        func.unnest(
            bindparam("numbers", type_=ARRAY(Integer)), bindparam("positions", type_=ARRAY(Text))
        )
        .table_valued("number", "position", name="row")
        .render_derived()
    )
    locked = (
        select(*rows.c)
        .where(partitions.c.queue_id == bindparam("queue"), partitions.c.number == rows.c.number)
        .with_for_update(of=partitions)
        .cte("locked")
    )
    joined = (
        update(partitions)
        .where(partitions.c.queue_id == bindparam("queue"), partitions.c.number == locked.c.number)
        .values(position=locked.c.position)
    )
    assert quadratic(plan_of(connection, joined))
