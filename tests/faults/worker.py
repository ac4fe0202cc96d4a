"""A process of plain consumers, of a PySpark application, or of publishers, for the fault runs.

    python -m tests.faults.worker consume URL QUEUE JOURNAL NAME COUNT LEASE_SECONDS
    python -m tests.faults.worker spark URL QUEUE JOURNAL NAME 1 LEASE_SECONDS
    python -m tests.faults.worker publish URL QUEUE JOURNAL NAME COUNT MESSAGES_PER_SECOND

SIGTERM: consumers hand over their partitions and leave, publishers deliver the accepted messages.
An error that ends one of them is in the journal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise import Consumer, Publisher
from counterpoise.consumer import Message
from counterpoise.flow.view import Owned
from tests.judge.journal import UNTOLD, Acknowledged, Failed, Granted, Handled, Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = 40
# Longer than any fault of these runs.
PATIENCE_SECONDS = 300.0


def consume(url: str, queue: str, journal: Journal, name: str, lease: str) -> Consumer:
    who = f"{name}/{os.getpid()}"

    def handle(message: Message) -> None:
        journal.write(
            Handled(
                who,
                message.partition,
                message.epoch,
                int(message.position),
                message.key or "",
                message.value.decode(),
                message.owned.handed_over or "unknown",
            )
        )

    def granted(owned: Owned) -> None:
        journal.write(Granted(who, owned.partition, owned.epoch, owned.handed_over or "unknown"))

    return Consumer(
        queue,
        each=handle,
        url=url,
        client_name=name,
        instance_id=name,
        lease_seconds=float(lease),
        on_granted=granted,
        log_appears_seconds=PATIENCE_SECONDS,
    )


def patiently(consumer: Consumer) -> None:
    """Run it, and wait long for the service at first."""
    consumer.flow.open(PATIENCE_SECONDS)
    consumer.run()


def publish(
    url: str, queue: str, journal: Journal, name: str, rate: str, stopping: threading.Event
) -> None:
    """Numbered messages, each once, even if an earlier process of this name was killed."""
    pause = 1 / float(rate)
    with Publisher(
        queue, url=url, publisher_id=name, timeout_seconds=PATIENCE_SECONDS
    ) as publisher:
        number = publisher.next_sequence
        flushed = time.monotonic()
        while not stopping.wait(pause):
            publisher.publish(f"{name}:{number}".encode(), key=f"{name}-{number % KEYS}")
            number += 1
            if time.monotonic() > flushed + 0.5:
                publisher.flush()
                journal.write(Acknowledged(name, number))
                flushed = time.monotonic()
        publisher.flush()
        journal.write(Acknowledged(name, number))


def consume_with_spark(
    url: str, queue: str, journal: Journal, name: str, lease: str, home: Path
) -> None:
    """A PySpark application whose micro-batches go to the journal. SIGTERM stops its query."""
    # The other roles start sooner without it.
    from broker.demo.work.application import session, warm_up
    from tests.counterpoise.spark.starting import started

    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    home.mkdir()
    spark = session(name, home)
    warm_up(spark, home)
    who = f"{name}/{os.getpid()}"

    def handle(batch: DataFrame, _: int) -> None:
        columns = ("partition", "epoch", "position", "key", "value")
        for row in batch.select(*columns).toArrow().to_pylist():
            journal.write(
                Handled(
                    who,
                    row["partition"],
                    row["epoch"],
                    int(row["position"]),
                    row["key"] or "",
                    row["value"].decode(),
                    UNTOLD,
                )
            )

    options = {"url": url, "queue": queue, "clientName": name, "leaseSeconds": lease}
    messages = spark.readStream.format("counterpoise").options(**options).load()
    query = started(
        messages.writeStream.foreachBatch(handle).option(
            "checkpointLocation", str(home / "checkpoint")
        )
    )
    while query.isActive and not stopping.wait(0.2):
        pass
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        raise failure


def main(arguments: list[str]) -> None:
    role, url, queue, path, name, count, figure = arguments
    journal = Journal(Path(path))
    stopping = threading.Event()
    names = [f"{name}-{number}" for number in range(int(count))]
    if role == "spark":
        try:
            consume_with_spark(url, queue, journal, names[0], figure, Path(path).parent / name)
        except Exception as error:
            journal.write(Failed(names[0], f"{type(error).__name__}: {error}"))
        return
    runs: list[Callable[[], None]] = []
    if role == "consume":
        consumers = [consume(url, queue, journal, one, figure) for one in names]
        runs = [partial(patiently, one) for one in consumers]
    else:
        consumers = []
        runs = [partial(publish, url, queue, journal, one, figure, stopping) for one in names]

    def stop(*_: object) -> None:
        stopping.set()
        for consumer in consumers:
            consumer.stop()

    signal.signal(signal.SIGTERM, stop)

    def guarded(one: str, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            journal.write(Failed(one, f"{type(error).__name__}: {error}"))

    threads = [
        threading.Thread(target=guarded, args=pair) for pair in zip(names, runs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
