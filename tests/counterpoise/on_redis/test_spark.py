"""A real Spark reads a queue whose log is in Redis, and shows no credentials anywhere."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from counterpoise.logs import open_log
from counterpoise.publisher import Publisher
from tests.counterpoise.on_redis.conftest import SECRET, World
from tests.counterpoise.spark.cluster.application import WithFile, check_executors
from tests.counterpoise.spark.cluster.environments import bare_python, zipped_package
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import Stage
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.test_applications import check_joining_and_leaving
from tests.counterpoise.spark.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def publish(world: World, first: int, count: int) -> None:
    with Publisher("flights", url=world.service.url) as publisher:
        for number in range(first, first + count):
            publisher.publish(f"v{number}".encode(), key=f"k{number % 17}")


@pytest.mark.matrix(of="queries on Redis")
@pytest.mark.long
def test_a_query_reads_everything_once_across_a_restart_and_shows_no_secret(
    spark: SparkSession, world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world.client.create_queue("flights", 3, log=world.log, rebalance_delay=0)
    publish(world, 0, 300)
    rows: list[Any] = []
    shown: list[str] = []

    def run(expected: int) -> None:
        stream = spark.readStream.format("counterpoise").options(
            url=world.service.url,
            queue="flights",
            logUrl=world.access,
            maxMessagesPerTrigger=40,
            instanceId="app",
        )
        writer = stream.load().writeStream.foreachBatch(
            lambda batch, _: rows.extend(batch.collect())
        )
        query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        try:
            until(lambda: len(rows) >= expected or query.exception(), "all messages")
            assert query.exception() is None
            until(lambda: world.lag("flights") == 0, "the commits")
            query.explain(True)
            shown.extend(progress.json for progress in query.recentProgress)
        finally:
            query.stop()

    run(300)
    publish(world, 300, 100)
    run(400)
    assert sorted(row.value.decode() for row in rows) == sorted(f"v{n}" for n in range(400))
    for partition in range(3):
        positions = [int(row.position) for row in rows if row.partition == partition]
        assert positions == list(range(len(positions)))
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert shown
    out, err = capfd.readouterr()
    for text in (*shown, out, err, *(path.read_text("utf-8", "replace") for path in files)):
        assert SECRET not in text


@pytest.mark.matrix(of="queries on Redis")
@pytest.mark.long
def test_a_chain_writes_each_message_once_and_shows_no_secret(
    spark: SparkSession, world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world.client.create_queue("flights", 3, log=world.log, rebalance_delay=0)
    world.client.create_queue("out", 2, log=world.redis.log("out"))
    publish(world, 0, 100)
    shown: list[str] = []
    for checkpoint in ("one", "other"):
        stream = spark.readStream.format("counterpoise").options(
            url=world.service.url, queue="flights", logUrl=world.access
        )
        rows = stream.load().selectExpr("partition", "position", "key", "value")
        writer = rows.writeStream.format("counterpoise").options(
            url=world.service.url, queue="out", logUrl=world.access
        )
        path = str(tmp_path / checkpoint)
        query = started(writer.option("checkpointLocation", path).trigger(availableNow=True))
        assert query.awaitTermination(240)
        query.explain(True)
        shown.extend(progress.json for progress in query.recentProgress)
        until(lambda: not world.client.flows("flights"), "the flow unbinds")
        # Another application reads them all again.
        world.client.set_positions("flights", "earliest")
    log = open_log(world.redis.log("out"), world.access, timeout_seconds=150)
    with contextlib.closing(log):
        ends = log.bounds(range(2)).ends
        written = [
            value
            for number, end in ends.items()
            for batch in log.read(number, "0", end, max_messages=1000)
            for value in batch["value"].to_pylist()
        ]
    assert sorted(written) == sorted(f"v{n}".encode() for n in range(100))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert shown
    out, err = capfd.readouterr()
    for text in (*shown, out, err, *(path.read_text("utf-8", "replace") for path in files)):
        assert SECRET not in text


@pytest.mark.matrix(of="clusters")
@pytest.mark.long
def test_an_application_on_a_cluster_shares_it_and_leaves_in_order_when_told_to_end(
    world: World, drivers: Drivers, tmp_path: Path
) -> None:
    """Its executors get the log's address and the password from the tasks alone, and the package
    as a file for Python (`cluster/test_cluster.py` ships it as an archive).
    """
    with contextlib.ExitStack() as ending:
        stage = Stage(world.service, world.client, tmp_path, drivers)
        ending.callback(stage.end)
        stage.queue(4, log=world.log, rebalance_delay=0.2, max_handoff_time=600)
        access: dict[str, Any] = {"logUrl": world.access, "maxMessagesPerTrigger": 50}
        first = WithFile(
            "first",
            tmp_path,
            world.service.url,
            "flights",
            drivers,
            file=zipped_package(tmp_path / "package"),
            python=bare_python(tmp_path / "bare"),
            drain_seconds=300,
            **access,
        )
        stage.add(first)
        second = stage.application("second", **access)

        def leave() -> None:
            first.hold("after")
            stage.publish(200)  # it may have processed everything before
            until(first.held, "a micro-batch in flight")
            first.terminate()
            until(lambda: any(one.draining for one in world.client.flows("flights")), "it drains")
            first.go_on()
            assert first.ended() == 0
            assert "StreamingQueryListenerBus" not in first.said()

        check_joining_and_leaving(stage, first, second, leave)
        check_executors(first, "counterpoise.zip")
        assert SECRET not in first.said() + second.said()
