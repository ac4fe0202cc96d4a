"""A Kafka topic shared by Spark applications that join and leave.

    python docs/examples/kafka_shared.py --mock

starts everything on this machine, with a mock of Kafka: two applications share a topic, one of them
leaves, and at the end each message must have come once, in the order of its partition. With a
service (its COUNTERPOISE_LOG_URLS lists kafka://broker:9092) and a topic of your own, in two
terminals:

    counterpoise queues create orders --log kafka://broker:9092/orders --for spark
    python docs/examples/kafka_shared.py --name first
    python docs/examples/kafka_shared.py --name second

The difference to two Spark queries on one topic
------------------------------------------------
Two queries with Spark's own Kafka source would each read the whole topic, because this source joins
no consumer group. Here each partition has one owner. When an application joins or leaves (Ctrl-C or
SIGTERM), the owner finishes its micro-batch and hands partitions over at exactly the position that
it has reached. So without a crash no message comes twice, for any sink. Kafka is not involved: no
group, no committed offsets. Positions are Kafka's offsets, stored by the service (docs/logs.md).

After a crash the micro-batch that was in flight comes again. per_key_counts.py shows a sink that
counts each message once even then.
"""

import signal
from collections import Counter
from typing import TYPE_CHECKING

from _surroundings import SMALL, Given, Stage, main, verdict

from counterpoise.spark import drain_on_sigterm, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def application(given: Given) -> None:
    """The work of each application: it writes its messages to a file."""
    spark = session(given.name, **SMALL)
    # On a signal it finishes its micro-batch, hands everything over, and leaves.
    drain_on_sigterm(spark, signals=(signal.SIGTERM, signal.SIGINT))
    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", given.queue)
        .option("url", given.service)
        .option("clientName", given.name)
        .option("maxMessagesPerTrigger", 500)
        .load()
    )

    def take(batch: "DataFrame", number: int) -> None:
        rows = batch.select("partition", "position").collect()
        with (given.directory / f"{given.name}.seen").open("a") as seen:
            seen.writelines(f"{row.partition} {row.position}\n" for row in rows)
        by_partition = dict(sorted(Counter(row.partition for row in rows).items()))
        print(f"{given.name}: micro-batch {number}, by partition: {by_partition}", flush=True)

    query = (
        messages.writeStream.foreachBatch(take)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()


def play(stage: Stage) -> None:
    """Two share; one leaves; the other continues alone."""
    from broker.demo.mock_kafka import MockKafka

    with MockKafka() as kafka:
        kafka.create_topic("orders", 4)
        stage.open(log=kafka.log("orders"))
        published = 0

        def publish(count: int) -> None:
            nonlocal published
            for number in range(count):
                stage.publisher.publish(b"an order", key=f"customer-{number % 50}")
            stage.publisher.flush()
            published += count

        publish(400)
        stage.start("first", "second")
        publish(1000)
        stage.until_done()  # by both
        publish(400)
        stage.leave("first")  # amid its work
        stage.until_done()
        check(stage, published)


def check(stage: Stage, published: int) -> None:
    """Whether each message came once, in the order of its partition with each owner."""
    came: Counter[tuple[int, int]] = Counter()
    shares: Counter[str] = Counter()
    disorder = 0
    for path in sorted(stage.directory.glob("*.seen")):
        last: dict[int, int] = {}
        for line in path.read_text().splitlines():
            partition, position = map(int, line.split())
            came[partition, position] += 1
            disorder += position <= last.get(partition, -1)
            last[partition] = position
            shares[path.stem] += 1
    twice = came.total() - len(came)
    verdict(
        (len(came), twice, disorder, len(shares)) == (published, 0, 0, 2),
        f"{published} messages published, {len(came)} seen, {twice} twice, {disorder} out of "
        f"order; by application: {dict(shares)}",
    )


if __name__ == "__main__":
    main(__doc__, application, play, queue="orders")
