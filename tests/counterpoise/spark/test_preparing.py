"""A query that waits for its first partitions gets ready, in a real Spark on a real service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from tests.counterpoise.spark.queries import Collected, committed, publish, start
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark")]


def test_a_query_that_joins_runs_a_micro_batch_before_it_has_partitions(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    sink = Collected()
    with Flow("flights", url=service.url) as owner:
        until(lambda: len(owner.partitions) == 2, "the owner has all")
        query = start(spark, sink, tmp_path / "checkpoint", url=service.url, queue="flights")
        try:
            # A task for each core, and no row. Nothing has moved: the owner has not released yet.
            until(lambda: sink.partitions_read, "a micro-batch")
            assert sink.partitions_read == [spark.sparkContext.defaultParallelism]
            assert sink.rows == []
            assert len(owner.partitions) == 2
            owner.drain()
            owner.release_many([(number, None, False) for number in (0, 1)])
            until(lambda: len(sink.rows) == 20, "all messages")
            until(lambda: {*committed(client, "flights").values()} - {None, "0"}, "a commit")
        finally:
            query.stop()
