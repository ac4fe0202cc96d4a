"""A consumer joins others: our protocol beside those of Kafka, between real clients.

    python -m benchmarks.protocols [--rounds 3] [--only ours range cooperative-sticky consumer]

One consumer after the other joins a queue (a topic) of 64 partitions, to which 20 messages a second
and partition are published. The consumers are threads of this process. Ours are
`counterpoise.consumer.Consumer` with a service on an embedded Postgres (durable) and no holddown.
Kafka's are those of confluent-kafka, with librdkafka's mock cluster as the broker, in memory:

* *range*: the classic protocol, eager; the default of librdkafka.
* *cooperative-sticky*: the classic protocol, in two generations.
* *consumer*: KIP-848. The mock plans it as a range, where brokers have a sticky plan ("uniform").

Measured, by the callbacks of the clients and the messages that they get:

* *join to balanced*: from the start of the client that joins until the last consumer has its final
  partitions.
* *revoked although they stay*: partitions that were taken from their owner, which has them
  afterwards, too.
* *pause of a partition that stays*: the longest time between two of its messages from the start of
  the client until a moment after the balance; the median of those partitions.

The mock and the clients wait as shortly as they can: the members hear of a join within 20 ms, by
their heartbeats. Kafka's defaults are 3 s, and with KIP-848 5 s, which is also the least that a
broker allows by default. Two waits cannot be avoided. The mock waits `JOIN_MILLISECONDS` before
each generation of the classic protocol, also when all members have joined again; a broker goes on
then. And librdkafka joins at most once a second. The second generation of a cooperative rebalance
has to wait for that, with a broker too.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.figures import Figure, beside, counted, timed
from benchmarks.handoffs import until
from benchmarks.joins import Join, Journal, is_balanced, join_of, owners
from benchmarks.service import running
from benchmarks.traffic import traffic
from broker.demo.mock_kafka import MockKafka
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher

PARTITIONS = 64
# Consumers before the join.
SIZES = (1, 4, 8)
# Without a change for so long, a group is settled; also the time to compare with, before a join. A
# client of librdkafka sends at most one JoinGroup a second.
QUIET_SECONDS = 0.6
CLASSIC_QUIET_SECONDS = 1.1
AFTER_SECONDS = 0.3
SETTLE_SECONDS = 20.0
TRIES = 4

OURS = "ours"
HEARTBEAT_MILLISECONDS = 20
JOIN_MILLISECONDS = 300
# The members before the join come in one generation.
FIRST_MILLISECONDS = 600
CLASSIC = {
    "heartbeat.interval.ms": HEARTBEAT_MILLISECONDS,
    "session.timeout.ms": 1000 + JOIN_MILLISECONDS,
    # librdkafka looks whether a heartbeat is due when a timer wakes it, and this is one; otherwise
    # it would be so once a second.
    "auto.commit.interval.ms": HEARTBEAT_MILLISECONDS,
}
FETCH_MILLISECONDS = 50
FETCH = {"fetch.wait.max.ms": FETCH_MILLISECONDS, "auto.offset.reset": "earliest"}
# The group's options, by protocol.
KAFKA: Mapping[str, Mapping[str, str | int]] = {
    "range": {**CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative-sticky": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[OURS, *KAFKA], choices=[OURS, *KAFKA])
    given = parser.parse_args()
    for figure in shown(measure(given.rounds, given.only)):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Joins by each protocol. A quick run leaves them out."""
    return [] if quick else shown(measure(3, [OURS, *KAFKA]))


LABELS = {
    "range": "Kafka's range",
    "cooperative-sticky": "Kafka's cooperative-sticky",
    "consumer": "Kafka's KIP-848",
}

# The joins of each round, by the number of consumers before and the protocol.
Found = dict[int, dict[str, list[Join]]]


# ---------------------------------------------------------------------- consumers


class Member(Protocol):
    """A consumer that runs until it is stopped."""

    def stop(self) -> None:
        """Leave; returns at once."""

    def join(self) -> None:
        """Wait until it has left."""


class OurMember:
    """A consumer of ours, in threads of its own."""

    def __init__(self, url: str, queue: str, name: str, journal: Journal) -> None:
        self._consumer = Consumer(
            queue,
            each=lambda message: journal.arrived(message.partition),
            url=url,
            client_name=name,
            idle_seconds=FETCH_MILLISECONDS / 1000,
            on_granted=lambda owned: journal.changed(name, [owned.partition], gained=True),
            on_revoking=lambda owned, _: journal.changed(name, [owned.partition], gained=False),
        )
        self._thread = threading.Thread(target=self._consumer.run, name=name)
        self._thread.start()

    def stop(self) -> None:
        self._consumer.stop(now=True)

    def join(self) -> None:
        self._thread.join()


class KafkaMember:
    """A consumer of confluent-kafka, in a thread of its own."""

    def __init__(self, options: Mapping[str, Any], topic: str, name: str, journal: Journal) -> None:
        self._options, self._topic, self._name, self._journal = options, topic, name, journal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        from confluent_kafka import Consumer as KafkaConsumer

        def told(gained: bool) -> Callable[[Any, Any], None]:
            def call(_: Any, partitions: Any) -> None:
                numbers = [one.partition for one in partitions]
                self._journal.changed(self._name, numbers, gained=gained)

            return call

        consumer = KafkaConsumer({**self._options, "client.id": self._name})
        consumer.subscribe(
            [self._topic], on_assign=told(True), on_revoke=told(False), on_lost=told(False)
        )
        while not self._over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._journal.arrived(message.partition())
        consumer.close()


# ---------------------------------------------------------------------- measuring


def joined(start: Callable[[str, Journal], Member], size: int, quiet_seconds: float) -> Join:
    """So many members share the partitions; then one more joins."""
    journal, members = Journal(PARTITIONS), list[Member]()

    def settled(seconds: float) -> bool:
        changes = journal.changes[:]
        quiet = bool(changes) and changes[-1].at < time.perf_counter() - seconds
        balanced = is_balanced(owners(changes), PARTITIONS, len(members))
        return quiet and balanced and all(journal.arrivals)

    what = f"{size} members share the partitions"
    try:
        members += [start(f"member-{number}", journal) for number in range(size)]
        until(lambda: settled(quiet_seconds), what, SETTLE_SECONDS)
        began, before = time.perf_counter(), len(journal.changes)
        members.append(start(f"member-{size}", journal))
        until(lambda: settled(AFTER_SECONDS), f"{what}, and one more", SETTLE_SECONDS)
        ended, changes = time.perf_counter(), journal.changes[:]
        return join_of(
            changes[:before], changes[before:], journal.arrivals, began, ended, quiet_seconds
        )
    finally:
        for one in members:
            one.stop()
        for one in members:
            one.join()


def measure(rounds: int, protocols: Sequence[str]) -> Found:
    """The joins of each round; the protocols take turns."""
    found: Found = {size: {name: [] for name in protocols} for size in SIZES}
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory)) as service,
        MockKafka(1) as kafka,
    ):
        kafka.set_group_times(FIRST_MILLISECONDS, HEARTBEAT_MILLISECONDS)
        for number, size, name in itertools.product(range(rounds), SIZES, protocols):
            topic = f"{name}-{size}-{number}"
            if name == OURS:
                found[size][name].append(ours(service.url, topic, size))
            else:
                found[size][name].append(patiently(kafka, topic, KAFKA[name], size))
    return found


def patiently(kafka: MockKafka, topic: str, options: Mapping[str, str | int], size: int) -> Join:
    """Tries again with another group. With the mock's fixed wait the members of a classic group
    can miss each other again and again.
    """
    for attempt in range(TRIES - 1):
        try:
            return theirs(kafka, f"{topic}-{attempt}", options, size)
        except RuntimeError as error:
            print(f"{topic}: {error}; once more")
    return theirs(kafka, f"{topic}-{TRIES}", options, size)


def ours(url: str, queue: str, size: int) -> Join:
    """A join of our consumers."""
    with Client(url) as client, Publisher(queue, url=url, linger_seconds=0) as publisher:
        client.create_queue(queue, PARTITIONS, rebalance_delay=0, max_handoff_time=30)

        def publish() -> None:
            for _ in range(PARTITIONS):
                publisher.publish(b"x" * 100)
            publisher.flush()

        with traffic(publish):
            return joined(
                lambda name, journal: OurMember(url, queue, name, journal), size, QUIET_SECONDS
            )


def theirs(kafka: MockKafka, topic: str, options: Mapping[str, str | int], size: int) -> Join:
    """A join of Kafka's consumers."""
    from confluent_kafka import Producer

    kafka.create_topic(topic, PARTITIONS)
    servers = {"bootstrap.servers": kafka.bootstrap}
    producer = Producer({**servers, "linger.ms": 0})

    def publish() -> None:
        for number in range(PARTITIONS):
            producer.produce(topic, b"x" * 100, partition=number)
        producer.flush()

    group = {**servers, **FETCH, **options, "group.id": topic}
    quiet = QUIET_SECONDS if "group.protocol" in options else CLASSIC_QUIET_SECONDS
    with traffic(publish):
        return joined(lambda name, journal: KafkaMember(group, topic, name, journal), size, quiet)


def shown(found: Found) -> list[Figure]:
    """Figures, by size; the yardstick of a protocol of Kafka is ours."""
    figures: list[Figure] = []
    for size, of in found.items():
        who = f"{PARTITIONS} partitions, {size} → {size + 1} consumers"
        yard = statistics.median(one.seconds for one in of[OURS]) if OURS in of else None
        for name, joins in of.items():
            peer = name != OURS and yard is not None
            counts = {
                "revoked although they stay": [one.revoked for one in joins],
                "partitions that move": [one.moved for one in joins],
            }
            figures += beside(
                _label(name),
                timed(
                    f"join to balanced, {who}",
                    [one.seconds for one in joins],
                    OURS if peer else None,
                    yard if peer else None,
                ),
                timed(
                    f"pause of a partition that stays, {who}", [one.pause_seconds for one in joins]
                ),
                timed(f"its usual pause, {who}", [one.usual_seconds for one in joins]),
                *(counted(f"{what}, {who}", count) for what, count in counts.items()),
            )
    return figures


def _label(name: str) -> str:
    waits = f" (the mock waits {JOIN_MILLISECONDS} ms a generation)" if _is_classic(name) else ""
    return f"{LABELS.get(name, name)}{waits}"


def _is_classic(name: str) -> bool:
    return "session.timeout.ms" in KAFKA.get(name, {})


if __name__ == "__main__":
    main()
