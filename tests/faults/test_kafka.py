"""A topic of Apache Kafka whose consumers are killed, frozen and drained, its publishers and the
service killed, while it grows and another program writes transactions into it.

Each promise is judged as in the other runs. Offsets have holes, where transactions end and where
one was aborted, so the judge gets the messages of each partition counted from 0.
"""

import contextlib
import itertools
import signal
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from counterpoise.logs import open_log
from tests.eventual import eventually
from tests.faults.stage import (
    HANDOFF_SECONDS,
    HOLDDOWN_SECONDS,
    LEASE_SECONDS,
    QUEUE,
    REACH_SECONDS,
    Stage,
)
from tests.judge.journal import SERVICE, Handled, Line, read
from tests.judge.judge import Stored, Verdict, judge
from tests.kafka_server import ApacheKafka, apache_kafka

__all__ = ["apache_kafka"]

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

BEFORE, AFTER = 6, 9
"""The partitions of the topic, which grows."""
SECONDS = 300.0


class Transactions:
    """A program that writes transactions of ten messages into the topic, and aborts every third.

    It knows the partitions of the beginning only.
    """

    def __init__(self, kafka: ApacheKafka, topic: str) -> None:
        self.committed = 0
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex}
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._producer.init_transactions(60)
        number = 0
        for turn in itertools.count():
            # An aborted message has a number that no other one has.
            name = "gone" if turn % 3 == 2 else "tx"
            self._producer.begin_transaction()
            for _ in range(10):
                key = f"{name}-{number % 10}"
                self._producer.produce(
                    self._topic, f"{name}:{number}", key, zlib.crc32(key.encode()) % BEFORE
                )
                number += 1
            # An abort drops what was not sent.
            self._producer.flush(60)
            if name == "gone":
                self._producer.abort_transaction(60)
            else:
                self._producer.commit_transaction(60)
                self.committed += 10
            if self._ending.wait(0.3):
                return

    def __enter__(self) -> "Transactions":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SECONDS)


def counted(log: Mapping[int, Sequence[Stored]]) -> dict[tuple[int, int], int]:
    """How many messages of its partition are before each one, by partition and offset."""
    return {
        (partition, message.position): number
        for partition, messages in log.items()
        for number, message in enumerate(messages)
    }


def judged(stage: Stage, log: Mapping[int, Sequence[Stored]]) -> Verdict:
    places = counted(log)

    def dense(line: Line) -> Line:
        entry = line.entry
        if not isinstance(entry, Handled):
            return line
        # A message that the log does not have keeps its offset, and the judge says so.
        number = places.get((entry.partition, entry.position), entry.position)
        return Line(line.at, entry._replace(position=number))

    stored = {
        partition: [one._replace(position=number) for number, one in enumerate(messages)]
        for partition, messages in log.items()
    }
    return judge(map(dense, read(stage.journal_file)), stored, REACH_SECONDS)


def messages_of(log: str) -> dict[int, list[Stored]]:
    opened = open_log(log)
    try:
        return {
            partition: [
                Stored(int(row["position"]), row["key"], row["value"].decode())
                for batch in opened.read(partition, "0", None, max_messages=10**9)
                for row in batch.select(["position", "key", "value"]).to_pylist()
            ]
            for partition in range(AFTER)
        }
    finally:
        opened.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


@pytest.mark.matrix(of="handoffs on Kafka")
def test_all_promises_hold_on_a_topic_that_grows_and_has_holes(
    stage: Stage, apache_kafka: ApacheKafka
) -> None:
    topic = uuid.uuid4().hex
    apache_kafka.create_topic(topic, BEFORE)
    log = apache_kafka.log(topic)
    stage.ask(
        lambda client: client.create_queue(
            QUEUE, log=log, rebalance_delay=HOLDDOWN_SECONDS, max_handoff_time=HANDOFF_SECONDS
        )
    )
    workers = [stage.consumers(f"c{number}", 1) for number in range(3)]
    publishers = stage.publishers("p", 2, 30)
    stage.until_each_has_owned(len(workers))
    first, second, third = workers
    with Transactions(apache_kafka, topic) as transactions:
        apache_kafka.grow_topic(topic, AFTER)
        with stage.fault(first.name, "killed"):
            first.end(signal.SIGKILL)
            eventually(lambda: not stage.owners().get("c0-0"), SECONDS, "its lease expires")
        first.start()
        with stage.fault(second.name, "frozen"):
            second.send(signal.SIGSTOP)
            time.sleep(LEASE_SECONDS * 1.5)
            second.send(signal.SIGCONT)
        # It hands over in order, amid all this.
        third.end()
        third.start()
        publishers.end(signal.SIGKILL)
        publishers.start()
        with stage.fault(SERVICE, "killed"):
            for replica in stage.replicas:
                replica.kill()
            for replica in stage.replicas:
                replica.start()
        eventually(
            lambda: stage.ask(lambda client: client.queue(QUEUE)).partition_count == AFTER,
            SECONDS,
            "the queue has grown with the topic",
        )
        stage.until_each_has_owned(len(workers))
        more = stage.handled_by("c0-0") + 200
        eventually(lambda: stage.handled_by("c0-0") > more, SECONDS, "all is read on")
    publishers.end()
    messages = messages_of(log)
    there = {(partition, one.position) for partition in messages for one in messages[partition]}
    with contextlib.suppress(AssertionError):
        eventually(lambda: there <= stage.handled(), SECONDS)
    for worker in workers:
        worker.end()
    verdict = judged(stage, messages)
    print(verdict.table())
    assert verdict.kept, verdict.examples()
    # The run was what it is for.
    values = [one.value for partition in messages for one in messages[partition]]
    assert sum(value.startswith("tx:") for value in values) == transactions.committed > 0
    assert not any(value.startswith("gone:") for value in values)
    assert all(messages[partition] for partition in range(AFTER))
