"""A program over Spark Connect: a real server, in the JVM of the tests' own session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.counterpoise.spark.queries import QueryStage, publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="programs over Spark Connect"),
]

READS = """\
import json
import sys

from counterpoise.spark import session
from counterpoise.spark.driver.environment import NOT_CONNECTED

url, home = sys.argv[1:]
spark = session()
messages = spark.readStream.format("counterpoise").options(queue="flights", url=url).load()
rows = messages.selectExpr("cast(value as string) as value", "epoch")
writer = rows.writeStream.format("json").option("path", f"{home}/rows")
writer = writer.option("checkpointLocation", f"{home}/of-client")
said = NOT_CONNECTED
while NOT_CONNECTED in said:
    try:
        writer.start().awaitTermination()
        said = "ended"
    except Exception as error:
        said = str(error)
print(json.dumps(said))
"""
"""It works until an administrator drains it."""

STOPS = """\
import sys
import time

from counterpoise import Client
from counterpoise.spark import session

url, home = sys.argv[1:]
spark = session()
messages = spark.readStream.format("counterpoise")
messages = messages.options(queue="flights", url=url, leaseSeconds=3600).load()
writer = messages.writeStream.format("noop").option("checkpointLocation", f"{home}/stops")
with Client(url) as client:
    while not client.flows("flights"):
        if not spark.streams.active:
            writer.start()
        time.sleep(0.1)
spark.stop()
"""
"""Its session ends while its query runs."""

REFUSED = """\
import json
import sys

from pyspark.sql.functions import window
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from counterpoise.spark import FencedSink, QueueListener, drain, drain_on_sigterm, session
from counterpoise.spark.driver.environment import NOT_CONNECTED
from counterpoise.spark.processors import DuplicateFilter

url, home = sys.argv[1:]
said = {}


def attempt(name, call):
    # Again, where a process that Spark started was too late for its fixed limit (starting.py).
    text = NOT_CONNECTED
    while NOT_CONNECTED in text:
        try:
            call()
            text = ""
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    said[name] = text


def load(**options):
    given = {"queue": "flights", "url": url, **options}
    return spark.readStream.format("counterpoise").options(**given).load()


def started(frame, sink=None):
    writer = frame.writeStream.format("noop") if sink is None else frame.writeStream
    writer = writer if sink is None else writer.foreachBatch(sink)
    return writer.option("checkpointLocation", f"{home}/{len(said)}").start()


def only_on_the_server(batch, batch_id):
    FencedSink.to_table("postgresql://localhost/none", "rows")(batch, batch_id)


spark = session()
said["batch"] = spark.read.format("counterpoise").options(queue="flights", url=url).load().count()
attempt("option", lambda: load(maxMesagesPerTrigger=1).columns)
messages, history = load(), load(warmup="true")
late = messages.withWatermark("published_at", "1 minute")
messages.createOrReplaceTempView("messages")
in_sql = spark.sql("select key, count(*) from messages group by key")
other = spark.readStream.format("rate").load().withColumnRenamed("value", "position")
names = spark.createDataFrame([("k1", 1)], "key string, n int")
filtered = DuplicateFilter(["key"], horizon_seconds=60)
attempt("windows", lambda: started(late.groupBy(window("published_at", "1 minute")).count()))
attempt("table", lambda: messages.groupBy("key").count().writeStream.toTable("never"))
attempt("sql", lambda: started(in_sql))
attempt("ids", lambda: started(messages.dropDuplicates(["key"])))
attempt("limit", lambda: started(messages.limit(5)))
attempt("join", lambda: started(messages.join(other, "position")))
attempt("processor", lambda: started(filtered.over(messages)))
attempt("lose", lambda: started(load(stateOnHandoff="lose").dropDuplicates(["key"])).stop())
attempt("table join", lambda: started(messages.join(names, "key")).stop())
attempt("sink", lambda: started(messages, FencedSink.to_table("postgresql://localhost/x", "rows")))
attempt("drain", lambda: drain(started(messages)))
attempt("on sigterm", lambda: drain_on_sigterm(spark))
attempt("listener", lambda: QueueListener(spark))
for query in spark.streams.active:
    query.stop()
letters = load(queue="letters")
attempt("in a function", lambda: started(letters, only_on_the_server).awaitTermination())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[str]:
    """The server's address."""
    context: Any = spark.sparkContext
    port = free_port()
    conf = context._jsc.sc().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", str(port))
    plugin = context._jvm.org.apache.spark.sql.connect.SparkConnectPlugin().driverPlugin()
    plugin.init(context._jsc.sc(), None)
    yield f"sc://127.0.0.1:{port}"
    plugin.shutdown()


@pytest.fixture
def stage(spark: SparkSession, service: Service, tmp_path: Path) -> Iterator[QueryStage]:
    stage = QueryStage(spark, service, tmp_path)
    for queue in ("flights", "letters"):
        stage.client.create_queue(queue, 2, rebalance_delay=0, max_handoff_time=600)
    yield stage
    stage.end()


def program(text: str, remote: str, stage: QueryStage, name: str = ".") -> subprocess.Popen[str]:
    """A client: a process without a JVM. `name`: of its directory."""
    environment = {**os.environ, "SPARK_REMOTE": remote}
    environment.pop("JAVA_HOME", None)
    return subprocess.Popen(
        [sys.executable, "-c", text, stage.service.url, str(stage.home / name)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(client: subprocess.Popen[str]) -> Any:
    output, _ = client.communicate(timeout=500)
    assert client.returncode == 0
    return json.loads(output.splitlines()[-1])


def test_two_clients_share_a_queue_and_are_drained_from_outside(
    remote: str, stage: QueryStage
) -> None:
    """Their sessions are of one server."""

    def written(name: str) -> list[str]:
        files = [*(stage.home / name / "rows").glob("*.json")]
        lines = [line for one in files for line in one.read_text().splitlines(keepends=True)]
        return [json.loads(line)["value"] for line in lines if line.endswith("\n")]

    def all_written() -> bool:
        return len(written("one")) + len(written("two")) == stage.published

    def publish_and_wait(who: str) -> None:
        publish(stage.service, "flights", 30, first=stage.published)
        stage.published += 30
        until(all_written, f"{who} written all")

    def drained(flow_id: str, client: subprocess.Popen[str]) -> None:
        stage.client.drain("flights", flow_id)
        ended = said(client)
        assert ended.startswith("FlowEnded: queue 'flights'")
        assert "drained" in ended

    clients = {"one": program(READS, remote, stage, "one")}
    try:
        until(lambda: sum(stage.shares().values()) == 2, "it owns all")
        (first,) = stage.client.flows("flights")
        publish_and_wait("it has")
        clients["two"] = program(READS, remote, stage, "two")
        until(lambda: sorted(stage.shares().values()) == [1, 1], "they share")
        publish_and_wait("they have")
        assert written("one")[30:]
        drained(first.flow_id, clients["one"])
        until(lambda: [*stage.shares().values()] == [2], "the other one has taken over")
        publish_and_wait("the other one has")
        until(stage.all_committed, "all is committed")
        (second,) = stage.client.flows("flights")
        drained(second.flow_id, clients["two"])
    finally:
        for client in clients.values():
            client.kill()
            if client.stdout is not None and not client.stdout.closed:  # why it does not go on
                print(client.communicate()[0])
    values = Counter(written("one") + written("two"))
    assert values == Counter(f"v{number}" for number in range(stage.published))


def test_a_query_leaves_when_its_client_stops_the_session(remote: str, stage: QueryStage) -> None:
    client = program(STOPS, remote, stage)
    client.communicate(timeout=500)
    assert client.returncode == 0
    until(lambda: not stage.client.flows("flights"), "the query has left")


def test_what_needs_the_driver_or_loses_state_is_refused(remote: str, stage: QueryStage) -> None:
    for queue in ("flights", "letters"):
        publish(stage.service, queue, 10)
    found = said(program(REFUSED, remote, stage))
    assert found.pop("batch") == 10
    assert "did you mean 'maxMessagesPerTrigger'" in found.pop("option")
    assert {found.pop("lose"), found.pop("table join")} == {""}
    for name, words in {
        "windows": "an aggregation (groupBy)",
        "table": "an aggregation (groupBy)",
        "sql": "an aggregation (groupBy)",
        "ids": "dropDuplicates",
        "limit": "limit",
        "join": "a join of two streams",
        "processor": "a source without warm-up",
    }.items():
        text = found.pop(name)
        assert text.startswith("StateLost: the query keeps state in Spark"), name
        assert words in text
        assert ".option('stateOnHandoff', 'lose')" in text
    for name in ("sink", "drain", "on sigterm", "listener"):
        assert found.pop(name).startswith("Unsupported: "), name
    words = "Unsupported: a sink that needs the plan of its micro-batch does not work over"
    assert words in found.pop("in a function")
    assert found == {}
