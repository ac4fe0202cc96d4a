"""An archive of Kafka's classes: with it the brokers and tools of the tests start with less work.

The idea is that of `tests/counterpoise/spark/archive.py`. `make kafka` runs this module once; where
Java cannot use the archive, it silently goes without.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.kafka_server import ARCHIVE, ApacheKafka


def make() -> None:
    """Let a broker that has served a client note its classes when it ends."""
    from confluent_kafka import Consumer, Producer

    ARCHIVE.unlink(missing_ok=True)
    unfinished = ARCHIVE.with_suffix(".new")
    with tempfile.TemporaryDirectory() as directory, ApacheKafka(Path(directory)) as kafka:
        (node,) = kafka.nodes
        node.kill()
        node.start(f"-XX:ArchiveClassesAtExit={unfinished}")
        kafka.until_complete()
        kafka.create_topic("classes", 1)
        client = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        producer = Producer({**client, "transactional.id": "classes"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("classes", b"value")
        producer.commit_transaction()
        consumer = Consumer({**client, "group.id": "classes", "auto.offset.reset": "earliest"})
        consumer.subscribe(["classes"])
        assert consumer.poll(60) is not None
        consumer.close()
        node.stop()
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    make()
