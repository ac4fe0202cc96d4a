"""The program of an application that writes through both sinks, with tasks that are slow once.

One query reads the queue `flights`, another one all queues `orders-*`.

A task with a message `slow read` waits in its first attempt, before it writes, until a second
attempt reads. One with a message `slow write` waits within the transaction of the fence, until the
second attempt waits for the fence. Each attempt leaves a file when it reads, and the second one of
a `slow write` when it is seen to wait. So does one that the fence lets write at the same time.
"""

from __future__ import annotations

PROGRAM = '''\
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions

from counterpoise.spark import FencedSink, QueueSink, drain_on_sigterm, read_queues, session
from tests.counterpoise.spark.starting import started

home, url = Path(sys.argv[1]), sys.argv[2]
database = (home / "database").read_text()


# Sessions that wait for the end of this transaction.
WAITING = (
    "SELECT count(*) FROM pg_locks"
    " WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
)


def mine():
    """The running task, and its attempt."""
    task = TaskContext.get()
    return f"{task.stageId()}-{task.partitionId()}", task.attemptNumber()


def wait_until(condition):
    end = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < end, "no second attempt"
        time.sleep(0.05)


def read(value):
    if value.startswith("slow"):
        name, attempt = mine()
        (home / f"{value.replace(' ', '-')} {name}-{attempt}").touch()
        if value == "slow read" and not attempt:
            wait_until(lambda: list(home.glob(f"slow-read {name}-[1-9]")))
    return value


def write(connection, rows, scope):
    values = rows.column("value").to_pylist()
    with connection.connection.driver_connection.cursor() as cursor:
        cursor.executemany("INSERT INTO events VALUES (%s)", [(value,) for value in values])
    if "slow write" in values:
        name, attempt = mine()
        twice = home / f"twice {name}"
        if attempt:
            twice.touch()
        else:
            wait_until(lambda: twice.exists() or connection.exec_driver_sql(WAITING).scalar())
            # It is there, though it may be killed before it has read: this one commits now.
            (home / f"slow-write {name}-1").touch()


fenced = FencedSink(database, write, name="events", idle_seconds=600)
chained = QueueSink("out", url=url)


def both(batch, batch_id):
    fenced(batch, batch_id)
    chained(batch, batch_id)


spark = session("speculating")
drain_on_sigterm(spark, timeout_seconds=150, end_seconds=150)
options = {"url": url, "maxInputPartitions": 4}
flights = spark.readStream.format("counterpoise").options(queue="flights", **options).load()
value = functions.udf(read)(functions.col("value").cast("string"))
for rows in (flights, read_queues(spark, "orders-*", **options)):
    writer = rows.withColumn("value", value).writeStream.foreachBatch(both)
    started(writer.option("checkpointLocation", str(home / f"checkpoint-{len(rows.columns)}")))
spark.streams.awaitAnyTermination()
'''
