"""What the service forgets now and then, and what it keeps."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from broker.calls.conditions import ReportedCondition
from broker.core.commands import CommitItem
from broker.core.errors import Unavailable
from broker.service import Broker
from broker.settings import Settings
from broker.store.mirrors import Mirrored
from broker.testing.database import MemoryDatabase
from broker.testing.loop import running, virtual
from broker.testing.process import Process
from broker.testing.service import MemoryBroker
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.memory import MemoryLogs
from counterpoise.wire import QueueCreate
from tests.log_support import append
from tests.redis_server import RedisServer
from tests.rows import rows
from tests.service import settings_for


@pytest.mark.long
@pytest.mark.parametrize(
    ("days", "history_days", "kept"),
    [(3.0, 7.0, True), (8.0, 7.0, False), (0.9, 0.5, True), (1.1, 0.5, False)],
)
async def test_flows_that_left_are_known_as_long_as_the_history_and_a_day(
    migrated_url: str, days: float, history_days: float, kept: bool
) -> None:
    """Then their calls get 410 with the reason, and the history names them."""
    broker = Broker(settings_for(migrated_url, history_days=history_days))
    await broker.start()
    try:
        await broker.queues.create(QueueCreate(name="flights", partition_count=1))
        await broker.flows.bind("flights", "etl-1", None, 10.0, False)
        with psycopg.connect(migrated_url) as connection:
            connection.execute(
                "UPDATE counterpoise.flows SET reason = 'unbound', "
                "left_at = extract(epoch FROM clock_timestamp()) - %s * 86400",
                (days,),
            )
        await broker.upkeep()
        with psycopg.connect(migrated_url) as connection:
            names = connection.execute("SELECT client_name FROM counterpoise.flows").fetchall()
    finally:
        await broker.stop()
    assert names == ([("etl-1",)] if kept else [])


@pytest.mark.parametrize("error", [RuntimeError(), Unavailable("away")])
@virtual
async def test_a_step_of_the_upkeep_that_fails_ends_no_later_one(error: Exception) -> None:
    loop, began = running(), itertools.count()
    database = MemoryDatabase(lambda: loop.now)
    broker = MemoryBroker(Settings(), database, Process(loop), MemoryLogs())
    await broker.replica.start()

    async def fails(*_: object) -> None:
        next(began)
        raise error

    broker.log_upkeep.maintain = fails  # type: ignore[method-assign]
    broker.logs.end_credentials = fails  # type: ignore[method-assign]
    broker._logs_by_kind.forget = fails  # type: ignore[assignment, method-assign]
    broker.replica.store.purge = fails  # type: ignore[assignment, method-assign]
    broker.replica.store.keys.purge = fails  # type: ignore[assignment, method-assign]
    await broker.upkeep()
    await broker.stop()
    assert next(began) == 5


# What may stay for a while. An outage is none of a queue: the machine was too slow.
ENDING = {
    *("counterpoise.measurements", "counterpoise.commit_ages"),
    *("counterpoise.outages", "counterpoise_log.clients"),
}
# One that is cut short by a database that is slow is repeated a minute later.
MOST_UPKEEPS = 10


def grown(before: dict[str, int], after: dict[str, int]) -> set[str]:
    """The tables that have more rows."""
    return {table for table, count in after.items() if count > before[table]}


@pytest.mark.long
async def test_a_deleted_queue_leaves_only_rows_that_have_an_end(migrated_url: str) -> None:
    """Its measurements are kept for an hour, its credentials until they have expired."""
    broker = Broker(settings_for(migrated_url))
    await broker.start()
    try:
        before = rows(migrated_url)
        made = await broker.queues.create(
            QueueCreate("flights", 8, rebalance_delay=0.0, ordered_resize=False)
        )
        await broker.queues.create(
            QueueCreate("audit", log="builtin:flights", ordered_resize=False)
        )
        await broker.queues.create(QueueCreate("keys", 1, partitioning="dynamic"))
        with closing(PostgresLog("flights", migrated_url)) as log:
            await asyncio.to_thread(append, log, "one", "two", partition_count=8)
        flows = []
        for name in ("flights", "flights", "audit", "keys"):
            bound = await broker.flows.bind(name, "etl", None, 3600.0, False)
            flows.append(await broker.bound_flows.of(name, bound.flow_id))
        await broker.commits.commit(flows[0], 1, [CommitItem(0, 1, "1")])
        await broker.conditions.report(flows[0], 1, [ReportedCondition("stuck", "a word")])
        await broker.replica.store.mirrors.report(Mirrored(made.id, made.log, "etl"), "refused")
        await broker.lineage.split("keys", 0, "middle")
        for count in (4, 8, 2):
            await broker.queues.change("flights", {"partition_count": count}, True)
        await broker.queues.rebalance("flights")
        await broker.flows.unbind("flights", flows[1].flow_id)
        await broker.measurements.take()
        between = rows(migrated_url)
        for name in ("audit", "flights", "keys"):
            await broker.queues.delete(name, force=True)
        for _ in range(MOST_UPKEEPS):
            await broker.upkeep()
            if (left := grown(before, rows(migrated_url))) <= ENDING:
                break
    finally:
        await broker.stop()
    assert grown(before, between) >= {
        "counterpoise.conditions",
        "counterpoise.flows",
        "counterpoise.lineage",
        "counterpoise.mirror_failures",
        "counterpoise.partitions",
        "counterpoise.queues",
        "counterpoise.records",
        "counterpoise.trims",
        "counterpoise_log.clients",
        "counterpoise_log.logs",
        "counterpoise_log.messages",
        "counterpoise_log.ends",
        "counterpoise_log.partition_rows",
        "counterpoise_log.publishers",
        "counterpoise_log.sequences",
    }
    assert left <= ENDING, left


@pytest.mark.long
async def test_a_stream_that_is_away_when_its_queue_is_deleted_goes_later(
    migrated_url: str, tmp_path: Path
) -> None:
    """Unless its address is not listed any more: then it is given up."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        settings = settings_for(migrated_url, log_urls=f"redis://{server.address}")
        broker = Broker(settings)
        await broker.start()
        try:
            for name in ("flights", "orders"):
                await broker.queues.create(QueueCreate(name, 2, log=server.log(name)))
            server.kill()
            await broker.queues.delete("flights", force=True)
            await broker.queues.delete("orders", force=True)
            await broker.upkeep()
            with psycopg.connect(migrated_url) as connection:
                connection.execute(
                    "UPDATE counterpoise.trims SET log = replace(log, %s, %s) WHERE log LIKE %s",
                    (server.address, "127.0.0.1:1", "%orders"),
                )
            server.start()
            assert await asyncio.to_thread(streams, server) == {"flights", "orders"}
            for _ in range(MOST_UPKEEPS):
                await broker.upkeep()
                if await asyncio.to_thread(streams, server) == {"orders"}:
                    break
            assert await asyncio.to_thread(streams, server) == {"orders"}
            assert rows(migrated_url)["counterpoise.trims"] == 0
        finally:
            await broker.stop()


def streams(server: RedisServer) -> set[str]:
    """The names of the logs that are there."""
    with server.client() as client:
        return {key.decode().split(":")[1].strip("{}") for key in client.keys("*")}
