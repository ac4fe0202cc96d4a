"""Spark finds the source by itself where the package is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.queries import committed, publish
from tests.counterpoise.spark.small import with_small_java
from tests.service import Service

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("programs 1"),
    pytest.mark.matrix(of="programs that end"),
]

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "deploy" / "pyspark_counterpoise.py"
PROGRAM = """\
import json
import sys

from counterpoise.spark.driver.environment import ensure_java
from pyspark.sql import SparkSession

from tests.counterpoise.spark.starting import started

url, checkpoint = sys.argv[1:]
ensure_java()
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
settings |= {"spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
options = {"queue": "flights", "url": url}
before = spark.read.format("counterpoise").options(**options).load().count()
stream = spark.readStream.format("counterpoise").options(**options).load()
# Nothing has examined its plan, so its first task does.
counts = stream.groupBy("key").count().writeStream.outputMode("update").format("noop")
query = started(counts.option("checkpointLocation", checkpoint + "-3"))
try:
    query.awaitTermination(240)
    lost = "it runs"
except Exception as error:
    lost = str(error)
query.stop()

rows = []
writer = stream.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
started(writer).awaitTermination()

from counterpoise.spark import drain
from counterpoise.spark.errors import Unsupported

writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint + "-2")
query = started(writer)
try:
    drain(query, 240)
    refused = ""
except Unsupported as error:
    refused = str(error)

# A session may still register it, with all that belongs to it.
from counterpoise.spark import register

register(spark)
after = spark.read.format("counterpoise").options(**options).load().columns
print(json.dumps([before, len(rows), after, refused, lost]))
"""


def test_a_plain_session_reads_a_queue_without_register(
    service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    publish(service, "flights", 20)
    # As the wheel puts it beside the package.
    (tmp_path / MODULE.name).symlink_to(MODULE)
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, service.url, str(tmp_path / "checkpoint")],
        env={
            **with_small_java(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr[-10_000:]
    before, read, after, refused, lost = json.loads(said.stdout.splitlines()[-1])
    assert (before, read) == (20, 20)
    assert after[:2] == ["partition", "position"]
    assert "call counterpoise.spark.register(spark) before the stream is loaded" in refused
    assert "a query that keeps state" in said.stderr
    assert "StateLost: the query on the queue 'flights' keeps state in Spark" in lost
    assert sum(int(at or 0) for at in committed(client, "flights").values()) == 20
