"""An unavailable service or log never ends a query, and never blocks the other one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.queries import committed, publish, start
from tests.counterpoise.spark.waiting import until
from tests.faults.proxy import Proxy
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="applications")]


class Sink:
    """Collects rows, and lets a test act between the planning of a micro-batch and its tasks."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.before_tasks: Callable[[], None] | None = None

    def __call__(self, batch: Any, _: int) -> None:
        act, self.before_tasks = self.before_tasks, None
        if act is not None:
            act()
        self.values.extend(int(row.value[1:]) for row in batch.select("value").collect())


def shown(query: StreamingQuery) -> str:
    """The error in the query's progress; empty without one."""
    progress = query.lastProgress
    if progress is None:
        return ""
    return str(json.loads(progress.json)["sources"][0]["latestOffset"]["lastError"])


def kinds(client: Client) -> list[str]:
    """Of the conditions that the service shows."""
    return [one.kind for one in client.conditions("flights")]


@pytest.mark.long
def test_neither_the_service_nor_the_log_being_away_ends_a_query(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    publish(service, "flights", 10)
    access = client.log_access("flights", "read").access
    assert access is not None
    to_service, to_log = Proxy(service.url), Proxy(access.url)
    sink = Sink()
    # Otherwise an idle query reports only every ten seconds.
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    query = start(
        spark,
        sink,
        tmp_path / "checkpoint",
        url=to_service.url,
        logUrl=to_log.url,
        queue="flights",
        leaseSeconds=600,
    )

    def come(count: int) -> None:
        until(lambda: len(sink.values) >= count or query.exception(), f"{count} messages")
        assert query.exception() is None

    def done(count: int) -> None:
        until(
            lambda: sum(int(at or 0) for at in committed(client, "flights").values()) == count,
            f"commits of {count}",
        )

    try:
        come(10)
        done(10)
        # The service stops when a micro-batch is planned: its tasks do not need it.
        sink.before_tasks = to_service.cut
        publish(service, "flights", 10, first=10)
        come(20)
        publish(service, "flights", 10, first=20)
        come(30)
        until(lambda: shown(query), "the service's absence is shown")
        assert sum(int(at or 0) for at in committed(client, "flights").values()) == 10
        to_service.mend()
        done(30)
        until(lambda: not shown(query), "all is well")

        # The log stops when nothing is in flight.
        to_log.cut()
        publish(service, "flights", 10, first=30)
        until(lambda: shown(query), "the log's absence is shown")
        until(lambda: kinds(client) == ["log_away"], "the service shows it too")
        assert len(sink.values) == 30
        to_log.mend()
        come(40)
        until(lambda: not shown(query), "all is well")
        until(lambda: kinds(client) == [], "also by the service")

        # The log stops when a micro-batch is planned: its tasks wait for it.
        def cut_for_a_while() -> None:
            to_log.cut()
            seen = to_log.refused

            def mend() -> None:
                until(lambda: to_log.refused > seen, "a task has tried in vain")
                to_log.mend()

            threading.Thread(target=mend, daemon=True).start()

        sink.before_tasks = cut_for_a_while
        publish(service, "flights", 10, first=40)
        come(50)
        done(50)
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        to_service.close()
        to_log.close()
    assert sorted(sink.values) == list(range(50))


@pytest.mark.long
def test_a_micro_batch_in_the_checkpoint_is_never_cut_short_by_a_log_that_ends_before_it(
    spark: SparkSession, service: Service, client: Client, migrated_url: str, tmp_path: Path
) -> None:
    """As a lagging standby shows it, or a failover before it has recovered lost messages."""
    client.create_queue("flights", 1, rebalance_delay=0)
    publish(service, "flights", 20)
    access = client.log_access("flights", "read").access
    assert access is not None
    to_log = Proxy(access.url)
    sink = Sink()
    options: dict[str, str | int] = {
        "url": service.url,
        "logUrl": to_log.url,
        "queue": "flights",
        "leaseSeconds": 600,
    }

    def fail() -> None:
        # A holddown that outlasts the restart: its partitions wait for it.
        client.change_queue("flights", rebalance_delay=600)
        raise RuntimeError("amid the micro-batch")

    sink.before_tasks = fail
    query = start(spark, sink, tmp_path / "checkpoint", **options)
    until(query.exception, "the query fails amid its micro-batch")
    assert not sink.values
    connection = psycopg.connect(migrated_url, autocommit=True)
    connection.execute(
        "CREATE TABLE lost AS SELECT * FROM counterpoise_log.messages WHERE position >= 15"
    )
    connection.execute("DELETE FROM counterpoise_log.messages WHERE position >= 15")
    connection.execute("UPDATE counterpoise_log.ends SET next_position = 15")

    def come_back() -> None:
        before = to_log.passed_on
        # Of several connections, at most one is the first of the task.
        until(lambda: to_log.passed_on > before + 2, "a task has tried in vain")
        connection.execute("INSERT INTO counterpoise_log.messages SELECT * FROM lost")
        connection.execute("UPDATE counterpoise_log.ends SET next_position = 20")

    def lag() -> None:
        threading.Thread(target=come_back, daemon=True).start()

    sink.before_tasks = lag
    query = start(spark, sink, tmp_path / "checkpoint", **options)
    try:
        until(lambda: len(sink.values) >= 20 or query.exception(), "the whole micro-batch")
        assert query.exception() is None
        assert sink.values == list(range(20))
        until(lambda: committed(client, "flights") == {0: "20"}, "it is committed")
    finally:
        query.stop()
        to_log.close()
        connection.close()
