"""Counts and sums per key in Postgres, exactly once, by applications that join, leave and crash.

    python docs/examples/per_key_counts.py --mock

starts everything on this machine: two applications share a queue of orders, one of them is killed
while it works, and at the end the table must match the published orders. With a service and a
database of your own (with the table `TABLE`, below), in any number of terminals, each under another
name:

    counterpoise queues create orders --partitions 8 --for spark
    echo 'ada:{"amount": 5}' | counterpoise publish orders --key-separator :
    export COUNTERPOISE_SINK_URL=postgresql://writer:…@db/results
    python docs/examples/per_key_counts.py --name first

Why the counts are right
------------------------
A count is changed, not replaced: a message that is counted twice makes it wrong for ever. After a
crash messages do come twice, because the new owner begins at the position that the old owner had
committed, and the old owner had written more. `FencedSink` stores the next position of each
partition in the same transaction as the counts, and passes to `add` only rows that no transaction
has written yet.

So the aggregation belongs *into* `add`. Spark's own `groupBy("key").count()` would make rows of
several messages, and no sink could decide whether such a row was written (docs/sink.md).
"""

import json
from collections import Counter
from typing import Any

import psycopg
from _surroundings import SMALL, Given, Stage, main, verdict
from sqlalchemy import text

from counterpoise.spark import FencedSink, drain_on_sigterm, session

TABLE = "CREATE TABLE totals (customer text PRIMARY KEY, orders bigint, amount bigint)"
ADD = text(
    "INSERT INTO totals VALUES (:customer, :orders, :amount) ON CONFLICT (customer) DO UPDATE "
    "SET orders = totals.orders + excluded.orders, amount = totals.amount + excluded.amount"
)


def add(connection: Any, rows: Any, scope: Any) -> None:
    """On the executors, in the fence's transaction: `rows` (pyarrow) were never added before."""
    sums = rows.group_by("key").aggregate([("amount", "count"), ("amount", "sum")])
    connection.execute(
        ADD,
        [
            {"customer": one["key"], "orders": one["amount_count"], "amount": one["amount_sum"]}
            for one in sums.to_pylist()
        ],
    )


def application(given: Given) -> None:
    """The work of each application."""
    spark = session(given.name, **SMALL)
    drain_on_sigterm(spark)  # on a signal, it hands everything over first
    orders = (
        spark.readStream.format("counterpoise")
        .option("queue", given.queue)
        .option("url", given.service)
        .option("clientName", given.name)
        .option("leaseSeconds", 4)  # how long it keeps its partitions after it dies
        .option("maxMessagesPerTrigger", 500)
        .load()
        # Any work row by row. The sink needs partition and position.
        .selectExpr(
            "partition",
            "position",
            "key",
            "cast(get_json_object(cast(value as string), '$.amount') as bigint) as amount",
        )
    )
    # None: the database's address comes from COUNTERPOISE_SINK_URL.
    sink = FencedSink(None, add, name="totals")
    query = (
        orders.writeStream.foreachBatch(sink).option("checkpointLocation", given.checkpoint).start()
    )
    query.awaitTermination()


def play(stage: Stage) -> None:
    """Two share; one is killed while it works; the other continues alone."""
    stage.open(partition_count=4)
    with psycopg.connect(stage.results, autocommit=True) as database:
        database.execute(TABLE)
        orders: Counter[str] = Counter()
        amounts: Counter[str] = Counter()

        def publish(count: int) -> None:
            for number in range(count):
                customer = f"customer-{number % 40}"
                value = json.dumps({"amount": number})
                stage.publisher.publish(value.encode(), key=customer)
                orders[customer] += 1
                amounts[customer] += number
            stage.publisher.flush()

        publish(1000)
        stage.start("first", "second")
        stage.until_done()
        publish(6000)
        stage.kill("first")  # while it works
        stage.until_done()
        rows = database.execute("SELECT customer, orders, amount FROM totals").fetchall()
    written = sum(row[1] for row in rows)
    verdict(
        {row[0]: row[1:] for row in rows} == {one: (orders[one], amounts[one]) for one in orders},
        f"{orders.total()} orders published, {written} counted, for {len(rows)} customers",
    )


if __name__ == "__main__":
    main(__doc__, application, play, queue="orders")
