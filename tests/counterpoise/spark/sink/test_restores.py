"""The service's database was restored and the sink's was not: the sink knows lost messages, and
must not mistake the messages that now have their positions for them.

The source, its plan and the tasks of the sink are real. Only Spark, which would call them in this
order, is missing.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark.channel.channel import channel_to, driver_home
from counterpoise.spark.channel.running_batch import planned_for
from counterpoise.spark.options import read_options
from counterpoise.spark.sink.fence import HighWaterKey
from counterpoise.spark.sink.sink import FencedSink
from counterpoise.spark.sink.target import MicroBatch, RangeResult
from counterpoise.spark.source.tasks import close_kept
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.broker.processes.test_restores import Database, serving
from tests.counterpoise.spark.sink.places import LocalRows
from tests.log_support import until
from tests.service import Service

pytestmark = pytest.mark.long


class Result:
    """The table of results with its high-waters, in a database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sink = FencedSink.to_table(
            url, "result", columns=["partition", "position", "epoch", "value"]
        )
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE result (id bigserial, partition int, position text, epoch bigint,"
                " value bytea)"
            )

    def take(self, service: Service, messages: int) -> list[RangeResult]:
        """What becomes of so many messages, read by a query with a new checkpoint."""
        options = read_options({"queue": "orders", "url": service.url})
        reader = StreamReaderWithLimits(options, cores=2, home=driver_home())
        try:
            start = reader.initialOffset()
            ends: list[Any] = []

            def finds_all() -> bool:
                ends[:] = [reader.latestOffset(start, ReadMaxRows(1000))]
                places = ends[0]["partitions"].values()
                return sum(int(place["to"]) for place in places) == messages

            until(finds_all)
            [end] = ends
            tasks = reader.partitions(start, end)
            planned = planned_for(channel_to(end["instance"]), start, end)
            assert planned is not None
            mark = HighWaterKey(self.sink.name, planned.queue_id, planned.log, planned.queue)
            rows = LocalRows(planned.read, [functools.partial(reader.read, one) for one in tasks])
            return self.sink._target.write(MicroBatch(mark, 0, planned.read, "fail", rows))
        finally:
            reader.stop()
            close_kept()

    def values(self) -> list[str]:
        return [bytes(value).decode() for (value,) in self.query("SELECT value FROM result")]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(f"{statement} ORDER BY 1").fetchall()


def publish(client: Client, service: Service, *values: str) -> None:
    with Publisher("orders", url=service.url) as publisher:
        for value in values:
            publisher.publish(value.encode(), key="a")


def test_messages_at_the_positions_of_lost_ones_are_written(
    migrated_url: str, database_url: str, tmp_path: Path
) -> None:
    database, result = Database(migrated_url, tmp_path / "backup"), Result(database_url)
    lost = [f"lost-{number}" for number in range(5)]
    new = [f"new-{number}" for number in range(3)]
    with serving(database.url) as (service, client):
        client.create_queue("orders", 1, rebalance_delay=0)
        database.dump()
        publish(client, service, *lost)
        assert [said.outcome for said in result.take(service, 5)] == ["written"]
        # A repetition is recognized.
        assert [said.outcome for said in result.take(service, 5)] == ["repeated"]
    assert result.values() == lost

    database.restore()
    database.fence()
    with serving(database.url) as (service, client):
        publish(client, service, *new)
        [said] = result.take(service, 3)
    assert (said.outcome, said.written, said.dropped) == ("written", 3, 0)
    assert result.values() == [*lost, *new]
    # One queue, and two logs of it one after the other.
    high_waters = result.query(
        "SELECT epoch, queue_id, log, next_position FROM counterpoise_high_water"
    )
    assert [row[3] for row in high_waters] == ["5", "3"]
    assert len({row[1] for row in high_waters}) == 1
    assert len({row[2] for row in high_waters}) == 2
