"""Programs that stop Spark and go on: their queries own nothing any more.

The lease is an hour, so only a query that leaves frees its partitions. Contexts of one program
share its JVM, which starts once for all cases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.small import with_small_java
from tests.service import Service

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("programs 1"),
    pytest.mark.matrix(of="programs that end"),
]

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """\
import sys
import threading

from counterpoise import Client, Publisher
from counterpoise.spark import session
from tests.counterpoise.spark.small import LOCAL, SMALL
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until

url, checkpoint = sys.argv[1:]
client = Client(url)
rows, holds, go_on = [], threading.Event(), threading.Event()


def sink(batch, number):
    rows.extend(batch.collect())
    if holds.is_set():
        go_on.wait(600)


def begin():
    \"\"\"A query of a context of its own, which has read everything, and committed it if its
    sink returns.
    \"\"\"
    spark = session("stopping", **SMALL, spark__master=LOCAL)
    options = {"queue": "flights", "url": url, "leaseSeconds": 3600}
    stream = spark.readStream.format("counterpoise").options(**options).load()
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query = started(writer)
    publish()
    return spark, query


def publish():
    expected = len(rows) + 20
    with Publisher("flights", url=url) as publisher:
        for number in range(20):
            publisher.publish(str(number).encode())
    until(lambda: len(rows) == expected, "the messages are read, each once")
    if not holds.is_set():
        until(lambda: committed() == expected, "they are committed")


def committed():
    return sum(int(one.position or 0) for one in client.partitions("flights"))


def owns_nothing(query):
    until(lambda: not client.flows("flights"), "the query has left")
    until(lambda: not query.isActive, "the query has ended")


spark, query = begin()
spark.stop()
assert not client.flows("flights"), "stop returns when the query has left"
owns_nothing(query)
assert query.exception() is None

# In a thread, on the context, and with a query of another session.
spark, query = begin()
stopping = threading.Thread(target=spark.newSession().sparkContext.stop)
stopping.start()
stopping.join()
owns_nothing(query)

# Nothing of Python's stops it.
spark, query = begin()
spark.sparkContext._jsc.stop()
owns_nothing(query)
spark.stop()

# A micro-batch is in the sink, and its function does not return.
holds.set()
spark, query = begin()
spark.stop()
until(lambda: not client.flows("flights"), "the query has left")
go_on.set()
owns_nothing(query)
holds.clear()

# What was in that micro-batch comes again, and nothing else.
spark = session("stopping", **SMALL, spark__master=LOCAL)
del rows[-20:]
before = len(rows)
options = {"queue": "flights", "url": url, "leaseSeconds": 3600}
stream = spark.readStream.format("counterpoise").options(**options).load()
writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
query = started(writer)
until(lambda: len(rows) == before + 20, "the messages come again")
query.stop()
spark.stop()
"""


def test_a_query_leaves_when_its_spark_is_stopped(
    service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, service.url, str(tmp_path / "checkpoint")],
        env={**with_small_java(), "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
