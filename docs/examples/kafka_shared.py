"""A topic of Kafka shared by Spark applications that come and go.

Run it in two terminals, with the service and the topic there:

    counterpoise queues create orders --log kafka://broker:9092/orders
    python docs/examples/kafka_shared.py --service http://127.0.0.1:8640 --name first
    python docs/examples/kafka_shared.py --service http://127.0.0.1:8640 --name second

Or let it start everything by itself on this machine, with a mock of Kafka, two applications that
share and one that leaves, and see at the end whether each message came once and in order:

    python docs/examples/kafka_shared.py --mock

Each application counts the messages of each partition that it owns, and says so after each
micro-batch. Ctrl-C (or SIGTERM) makes it hand over what it owns and leave. Without Counterpoise two
Spark queries on one topic would each read all of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# ------------------------------------------------------------------ the application


def application(service: str, queue: str, name: str, directory: Path) -> None:
    """Count what this application gets of the queue until it is told to leave."""
    from counterpoise.spark import drain_on_sigterm, session

    spark = session(
        name,
        # Small enough for several on one machine.
        spark__master="local[2]",
        spark__driver__memory="512m",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions="2",
        spark__log__level="ERROR",
        spark__local__dir=str(directory / "spark"),
    )
    # Told to end, it finishes its micro-batch, hands everything over, and leaves.
    drain_on_sigterm(spark, timeout_seconds=60)
    signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    messages = (
        spark.readStream.format("counterpoise")
        .option("queue", queue)
        .option("url", service)
        .option("clientName", name)
        .option("maxMessagesPerTrigger", 500)
        .load()
    )
    counts: Counter[int] = Counter()

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.select("partition", "position", "epoch", "key").collect()
        counts.update(row.partition for row in rows)
        with (directory / f"{name}.seen").open("a") as seen:
            seen.writelines(
                f"{row.partition} {row.epoch} {row.position} {row.key}\n" for row in rows
            )
        print(
            f"{name}: micro-batch {number} has {len(rows)} messages; by partition so far:",
            dict(sorted(counts.items())),
            flush=True,
        )

    query = (
        messages.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / f"checkpoint-{name}"))
        .start()
    )
    query.awaitTermination()


# ------------------------------------------------------------------ everything on one machine

TOPIC = "orders"
PARTITIONS = 6
MESSAGES_A_ROUND = 600


def on_a_mock(directory: Path) -> None:
    """Kafka, the service, a publisher, and two applications of which the first one leaves."""
    from counterpoise.client import Client
    from counterpoise.demo.mock_kafka import MockKafka
    from counterpoise.publisher import Publisher

    with ExitStack() as ending:
        kafka = ending.enter_context(MockKafka())
        kafka.create_topic(TOPIC, PARTITIONS)
        service = start_service(directory, ending)
        client = ending.enter_context(Client(service))
        until(lambda: answers(client), "the service is up")
        queue = client.create_queue(
            TOPIC, log=kafka.log(TOPIC), rebalance_delay=1, max_handoff_time=60
        )
        print(f"The queue {queue.name!r} reads {queue.log} with {queue.partition_count} partitions")
        publisher = ending.enter_context(Publisher(TOPIC, url=service))
        published = 0

        def publish() -> None:
            nonlocal published
            for number in range(published, published + MESSAGES_A_ROUND):
                publisher.publish(f"order {number}".encode(), key=f"customer-{number % 50}")
            publisher.flush()
            published += MESSAGES_A_ROUND

        def owned(name: str) -> int:
            flows = {flow.flow_id for flow in client.flows(TOPIC) if flow.client_name == name}
            return sum(one.owner in flows for one in client.partitions(TOPIC))

        def all_done() -> bool:
            positions = [int(one.position or 0) for one in client.partitions(TOPIC)]
            return sum(positions) == published

        publish()
        first = start(directory, service, "first", ending)
        until(lambda: owned("first") == PARTITIONS, "the first application owns all partitions")
        publish()
        start(directory, service, "second", ending)
        until(lambda: owned("second") == PARTITIONS // 2, "the second one has got its half")
        publish()
        until(all_done, "both have worked it off")
        publish()
        first.terminate()
        until(lambda: owned("second") == PARTITIONS, "the first has left; the second owns all")
        publish()
        until(all_done, "the second has worked off the rest")
        check(directory, published)


def check(directory: Path, published: int) -> None:
    """Whether each message came once, in the order of its partition over all owners."""
    seen: dict[tuple[int, int], str] = {}
    twice = disorder = 0
    for path in sorted(directory.glob("*.seen")):
        last: dict[int, int] = {}
        for line in path.read_text().splitlines():
            partition, _, position = map(int, line.split()[:3])
            twice += (partition, position) in seen
            disorder += position < last.get(partition, -1)
            seen[partition, position] = path.stem
            last[partition] = position
    shares = dict(Counter(seen.values()))
    print(f"{published} messages published, {len(seen)} seen, {twice} twice, {disorder} out of")
    print(f"order. By application: {shares}")
    if (len(seen), twice, disorder) != (published, 0, 0) or len(shares) < 2:
        raise SystemExit("That is not as it should be.")


def start_service(directory: Path, ending: ExitStack) -> str:
    """`counterpoise serve` on a free port, with a Postgres of its own; its address."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["-m", "counterpoise.demo.service", "serve", "--port", str(port)]
    command += ["--data-dir", str(directory / "data"), "--log-level", "warning"]
    spawn(command, directory / "service.log", ending)
    return f"http://127.0.0.1:{port}"


def start(directory: Path, service: str, name: str, ending: ExitStack) -> subprocess.Popen[bytes]:
    """This program again, as an application."""
    command = [__file__, "--service", service, "--name", name, "--directory", str(directory)]
    return spawn(command, None, ending)


def spawn(arguments: list[str], log: Path | None, ending: ExitStack) -> subprocess.Popen[bytes]:
    output = None if log is None else ending.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
    )

    def end() -> None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()

    ending.callback(end)
    return process


def answers(client: Any) -> bool:
    from counterpoise.errors import ServiceUnavailable

    try:
        client.queues()
    except ServiceUnavailable:
        return False
    return True


def until(condition: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Not within {seconds:g} s: {what}.")
        time.sleep(0.2)
    print(f"-- {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--service", default="http://127.0.0.1:8640", help="the service's address")
    parser.add_argument("--queue", default=TOPIC)
    parser.add_argument("--log", help="make the queue, with this log, if it is not there")
    parser.add_argument("--name", default="first", help="of this application")
    parser.add_argument("--directory", type=Path, help="for checkpoints and what was seen")
    parser.add_argument("--mock", action="store_true", help="start everything on this machine")
    given = parser.parse_args()
    with ExitStack() as ending:
        directory: Path = given.directory or Path(
            ending.enter_context(tempfile.TemporaryDirectory(prefix="kafka-shared-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        if given.mock:
            on_a_mock(directory)
            return
        if given.log:
            make_queue(given.service, given.queue, given.log)
        application(given.service, given.queue, given.name, directory)


def make_queue(service: str, queue: str, log: str) -> None:
    """The queue reads the topic; it has as many partitions as that."""
    from counterpoise.client import Client
    from counterpoise.errors import QueueExists

    with Client(service) as client:
        with suppress(QueueExists):
            client.create_queue(queue, log=log, max_handoff_time=60)


if __name__ == "__main__":
    main()
