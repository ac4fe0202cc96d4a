"""The steps for topics of Kafka (docs/kafka.md), step by step, on Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from counterpoise.client import Client
from tests.counterpoise.cli.conftest import run_at
from tests.counterpoise.spark.small import with_small_java
from tests.counterpoise.spark.waiting import until
from tests.kafka_server import ApacheKafka
from tests.processes import kill_family
from tests.service import ServeProcess

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "kafka_shared.py"
PARTITIONS = 4
# Where an application with Spark's own source had stopped: its checkpoint has them.
OFFSETS = {0: 3, 1: 0, 2: 5, 3: 1}


@pytest.fixture
def url(migrated_url: str, apache_kafka: ApacheKafka, tmp_path: Path) -> Iterator[str]:
    """The service, to which the cluster is listed by its first server only."""
    listed = {"COUNTERPOISE_LOG_URLS": f"kafka://{apache_kafka.bootstrap}"}
    arguments = ["--database-url", migrated_url]
    with ServeProcess(tmp_path / "serve.log", arguments, listed) as served:
        yield served.url


@pytest.fixture
def application(url: str, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """`application(name)` starts the example under this name, as a user would."""
    started = []

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLE), "--service", url, "--name", name]
        with (tmp_path / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [*command, "--directory", str(tmp_path)],
                    env=with_small_java(),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield start
    for process in started:
        kill_family(process.pid)
        process.wait()


@pytest.mark.matrix(of="handoffs on Kafka")
def test_two_applications_go_on_from_given_offsets_and_one_leaves(
    url: str,
    apache_kafka: ApacheKafka,
    tmp_path: Path,
    application: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    topic = uuid.uuid4().hex
    apache_kafka.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap})
    published = 0

    def publish(count: int) -> None:
        nonlocal published
        for number in range(count):
            producer.produce(topic, b"an order", f"customer-{number % 50}")
        assert producer.flush(60) == 0
        published += count

    publish(400)
    run_at(url, "queues", "create", "orders", "--log", apache_kafka.log(topic), "--for", "spark")
    assert "400 messages behind" in run_at(url, "lag", "orders").output
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps({str(one): str(at) for one, at in OFFSETS.items()}))
    for last in (["--dry-run"], ["--yes"]):
        run_at(url, "positions", "set", "orders", "--file", str(offsets), *last)
    skipped = sum(OFFSETS.values())
    assert f"{400 - skipped} messages behind" in run_at(url, "lag", "orders").output

    with Client(url) as client:

        def owned() -> Counter[str | None]:
            names = {one.flow_id: one.client_name for one in client.flows("orders")}
            return Counter(names.get(one.owner or "") for one in client.partitions("orders"))

        def until_done() -> None:
            until(
                lambda: all(one.lag == 0 for one in client.partitions("orders")),
                "all messages are processed",
            )

        first, second = application("first"), application("second")
        until(lambda: owned() == {"first": 2, "second": 2}, "they share")
        publish(1000)
        until_done()
        publish(400)
        first.terminate()
        until(lambda: owned() == {"second": 4}, "the first has handed over")
        assert first.wait(240) == 0, (tmp_path / "first.log").read_text()[-4000:]
        publish(200)
        until_done()
        second.terminate()
        assert second.wait(240) == 0, (tmp_path / "second.log").read_text()[-4000:]
    seen = {
        name: [
            (int(partition), int(position))
            for partition, position in map(
                str.split, (tmp_path / f"{name}.seen").read_text().splitlines()
            )
        ]
        for name in ("first", "second")
    }
    came = seen["first"] + seen["second"]
    assert len(came) == len(set(came)) == published - skipped
    for partition, at in OFFSETS.items():
        assert min(position for number, position in came if number == partition) == at
        for rows in seen.values():
            own = [position for number, position in rows if number == partition]
            assert own == sorted(own)
