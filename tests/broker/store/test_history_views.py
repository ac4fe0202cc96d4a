"""The history in SQL, read by a role that may do nothing else (docs/monitoring.md)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from broker.core import commands as c
from tests.broker.store.support import PostgresGround, Replica

VIEWS = ("history_flows", "history_moves", "history_rebalances")
READER = "history_reader"


@pytest.fixture
def reader(migrated_url: str) -> Iterator[psycopg.Connection]:
    """A connection with the rights that the documentation grants, and no others."""
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {READER} NOLOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA counterpoise TO {READER}")
        for view in VIEWS:
            connection.execute(f"GRANT SELECT ON counterpoise.{view} TO {READER}")
        connection.execute(f"SET ROLE {READER}")
        yield connection
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {READER}")
        connection.execute(f"DROP ROLE {READER}")


async def test_the_views_tell_what_happened(
    reader: psycopg.Connection, postgres: PostgresGround
) -> None:
    replica = Replica(await postgres.store())
    await replica.create(4, rebalance_delay=5.0)
    await replica.bind("A", "B")
    replica.now += 10
    await replica.do(c.Advance())
    await replica.do(c.Unbind("A", "driver_lost"))
    replica.now += 10
    await replica.do(c.Advance())
    ours = (replica.queue.name,)
    rebalances = reader.execute(
        "SELECT trigger, handoffs, forced, granted, finished_at >= started_at "
        "FROM counterpoise.history_rebalances WHERE queue = %s ORDER BY rebalance_id",
        ours,
    ).fetchall()
    assert rebalances == [("bind", 0, 0, 4, True), ("driver_lost", 0, 0, 2, True)]
    moves = reader.execute(
        "SELECT from_flow, to_flow, outcome, count(*), max(paused_seconds) "
        "FROM counterpoise.history_moves WHERE queue = %s GROUP BY 1, 2, 3 "
        "ORDER BY 1 NULLS FIRST, 2",
        ours,
    ).fetchall()
    assert moves == [
        (None, "A", "initial", 2, None),
        (None, "B", "initial", 2, None),
        ("A", "B", "orphaned", 2, 10.0),
    ]
    left = "SELECT flow_id, reason FROM counterpoise.history_flows WHERE queue = %s"
    assert reader.execute(f"{left} AND left_at IS NOT NULL", ours).fetchall() == [
        ("A", "driver_lost")
    ]


@pytest.mark.parametrize("table", ["flows", "keys", "records", "sessions", "partitions"])
def test_the_reader_of_the_history_reads_nothing_else(
    reader: psycopg.Connection, table: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(f"SELECT * FROM counterpoise.{table}")


async def test_a_pause_has_the_part_in_which_its_owner_was_silent(
    reader: psycopg.Connection, postgres: PostgresGround
) -> None:
    """As much as `paused_seconds` has before the flow left; by the two clocks of this test, which
    gives the times of decisions itself, that is none or all of it."""
    replica = Replica(await postgres.store())
    await replica.create(2, rebalance_delay=5.0)
    await replica.bind("A", "B")
    replica.now += 10
    await replica.do(c.Advance())
    await replica.do(c.Unbind("A", "lease_expired", replica.now - 8.0))
    replica.now += 5
    await replica.do(c.Advance())
    asked = "SELECT from_flow, paused_seconds, silent_seconds FROM counterpoise.history_moves"
    moves = reader.execute(f"{asked} WHERE queue = %s", (replica.queue.name,)).fetchall()
    assert sorted(moves, key=str) == [("A", 13.0, 13.0), (None, None, None), (None, None, None)]
