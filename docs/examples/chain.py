"""From one queue to another, each message once, by applications that join, leave and crash.

    python docs/examples/chain.py --mock

starts everything on this machine: two applications share a queue of orders and write a message for
each item of an order into the queue `items`. One of them is killed while it works, and at the end
each item must be there once, in the order of its customer's orders. With a service of your own, in
any number of terminals, each under another name:

    counterpoise queues create orders --partitions 8 --for spark
    counterpoise queues create items --partitions 4
    echo 'ada:{"items": ["3 screws", "1 hammer"]}' | counterpoise publish orders --key-separator :
    python docs/examples/chain.py --name first

Why each item is there once
---------------------------
The rows carry the partition and the position of the order that they were made of. The log of
`items` knows up to which position it has the rows of each partition of `orders`. When another
application reads an order again, its rows are dropped, whatever partition of `items` they are
routed to (docs/writing.md).
"""

import json

from _surroundings import SMALL, Given, Stage, main, verdict

from counterpoise.logs import open_log
from counterpoise.spark import drain_on_sigterm, session

ITEMS = "from_json(cast(value as string), 'items array<string>').items"


def application(given: Given) -> None:
    """The work of each application."""
    spark = session(given.name, **SMALL)
    drain_on_sigterm(spark)  # on a signal, it hands everything over first
    items = (
        spark.readStream.format("counterpoise")
        .option("queue", given.queue)
        .option("url", given.service)
        .option("clientName", given.name)
        .option("leaseSeconds", 4)  # how long it keeps its partitions after it dies
        .option("maxMessagesPerTrigger", 500)
        .load()
        # Any work row by row. Pass partition and position through.
        .selectExpr("partition", "position", "key", f"explode({ITEMS}) as value")
    )
    query = (
        items.writeStream.format("counterpoise")
        .option("queue", "items")
        .option("url", given.service)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()


def play(stage: Stage) -> None:
    """Two share; one is killed while it works; the other continues alone."""
    stage.open(partition_count=4)
    stage.client.create_queue("items", 3)
    expected: dict[str, list[str]] = {}

    def publish(count: int) -> None:
        for number in range(count):
            customer = f"customer-{number % 40}"
            items = expected.setdefault(customer, [])
            # Some orders have no item, most have several.
            made = [f"{len(items)}-{n}" for n in range(number % 7)]
            stage.publisher.publish(json.dumps({"items": made}).encode(), key=customer)
            items += made
        stage.publisher.flush()

    publish(1000)
    stage.start("first", "second")
    stage.until_done()
    publish(6000)
    stage.kill("first")  # while it works
    stage.until_done()

    view = stage.client.log_access("items", "read")
    log = open_log(view.log, view.access)
    found: dict[str, list[str]] = {}
    for partition, end in log.bounds(range(view.partition_count)).ends.items():
        for batch in log.read(partition, "0", end, max_messages=10**9):
            for row in batch.to_pylist():
                found.setdefault(row["key"], []).append(row["value"].decode())
    log.close()
    verdict(
        found == expected,
        f"7000 orders published, {sum(map(len, expected.values()))} items expected, "
        f"{sum(map(len, found.values()))} written, each customer's in order",
    )


if __name__ == "__main__":
    main(__doc__, application, play, queue="orders")
