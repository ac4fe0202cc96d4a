"""Asynchronous progress tracking: refused by Spark for some sinks, by the source for the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException

from counterpoise.client import Client
from counterpoise.spark.channel import DriverEnd, source_end
from counterpoise.spark.driver import raise_if_refused
from counterpoise.spark.errors import Unsupported
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark 1")


def test_only_the_source_that_was_told_refuses(tmp_path: Path) -> None:
    before = source_end(tmp_path, "me", None)
    raise_if_refused(before)
    DriverEnd(tmp_path, "me").put("refusal", {"why": "leave it out"})
    with pytest.raises(Unsupported, match="leave it out"):
        raise_if_refused(before)
    raise_if_refused(source_end(tmp_path, "me", None))


@pytest.mark.long
def test_a_query_that_tracks_its_progress_asynchronously_fails_and_says_what_to_do(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    publish(service, "flights", 10)

    def start(**options: str) -> StreamingQuery:
        stream = spark.readStream.format("counterpoise").options(url=service.url, queue="flights")
        writer = stream.load().writeStream.format("noop").options(**options)
        return started(writer.option("checkpointLocation", str(tmp_path / str(len(options)))))

    query = start(asyncProgressTrackingEnabled="true")
    until(lambda: not query.isActive, "the query has failed")
    assert "Leave the option asyncProgressTrackingEnabled out" in str(query.exception())
    until(lambda: not client.flows("flights"), "its flow is unbound")
    query = start()
    try:
        until(lambda: query.recentProgress or query.exception(), "without it all is well")
        assert query.exception() is None
    finally:
        query.stop()
    # Spark refuses it for sinks that users can write.
    stream = spark.readStream.format("counterpoise").options(url=service.url, queue="flights")
    writer = stream.load().writeStream.foreachBatch(lambda batch, number: None)
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    with pytest.raises(IllegalArgumentException, match="does not support async"):
        writer.option("checkpointLocation", str(tmp_path / "refused")).start()
