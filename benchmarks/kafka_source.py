"""The source on a Kafka topic beside Spark's own: the same topic, session, sink and run.

    make bench-kafka [ARGS='--rounds 5']     # takes what it needs from Maven; writes RESULTS.md
    python -m benchmarks.kafka_source [--messages 800000] [--rounds 3] [--no-pause]  # only shows

One Apache Kafka (a broker in a process, KRaft), a service on an embedded Postgres, a database for
results on the same server, and one Spark session with both sources share the machine. Spark's
source is `spark-sql-kafka-0-10` 4.2.0 on the installed Spark: there is none for Spark 4.3 yet.
Records of 1 KB with a key are in 16 partitions. Both sources read `read_committed`, with headers,
and in micro-batches of the same size; the queries take partition, offset, key as text, value and
time. They take turns, and ratios are of neighbouring rounds.

* *noop* and *Postgres*: rows a second in steady state (the second half of the messages, but the
  last micro-batch: at the end of a partition Kafka's client in Spark waits for half a second), and
  the CPU time of the application (JVM and Python workers, without broker, service and Postgres).
  Postgres is `FencedSink.to_table` for ours. Rows of theirs have no epoch, so it is what a program
  can do itself: the same COPY from Arrow in `foreachBatch`, in a transaction with the number of the
  micro-batch. It counts each row once as long as one query reads a partition.
  Target: 0.5 of theirs into `noop` with two cores.
* *first row*: a query starts in a session that has run one; from `start()` to the first row in
  `foreachBatch`.
* *pause*: a second application joins, and half of the partitions go to it (`benchmarks.pause`).
  With Spark's source, the first query is stopped, and two start with another `assign` from the next
  offsets. So all partitions pause; with ours those that move.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import needs, pause, results
from benchmarks.figures import Figure, beside, rate, timed
from benchmarks.service import Served, running
from benchmarks.sessions import CHECKPOINTS, session
from benchmarks.sink import results_beside
from benchmarks.source import Run, checkpoint, through
from counterpoise.client import Client
from counterpoise.spark import FencedSink
from counterpoise.spark.sink.insert import Insert
from tests import kafka_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What `make bench-kafka` has installed.
assert needs.KAFKA_SOURCE.path is not None
CONNECTOR = needs.KAFKA_SOURCE.path.parent
TITLE = "Kafka source"
TOPIC = "orders"
PARTITIONS = 16
MESSAGE_BYTES = 1024
BATCH_MESSAGES = 100_000
FIRST_MESSAGES = 1_000
WAIT_SECONDS = 120.0
QUEUE = {"rebalance_delay": 0.0, "max_handoff_time": 60.0}
OURS, THEIRS = "counterpoise", "kafka"
NAMES = {OURS: "counterpoise", THEIRS: "Spark's source"}
SPARKS = NAMES[THEIRS]
TARGET = 0.5
COLUMNS = ("partition", "position", "key", "value")
OURS_ROWS = (*COLUMNS, "published_at")
THEIRS_ROWS = (
    "partition",
    "cast(offset as string) as position",
    "cast(key as string) as key",
    "value",
    "timestamp as published_at",
)


def main() -> None:
    """Parse the arguments, measure, print; with `--write` into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=800_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-pause", action="store_true")
    parser.add_argument("--write", action="store_true", help="into benchmarks/RESULTS.md")
    parser.add_argument("--application", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.application:
        application(json.loads(given.application))
        return
    needs.require(needs.OF["kafka_source"])
    machine = results.machine()
    print("\n".join(machine), flush=True)
    found: list[Figure] = []
    try:
        for figure in measure(given.messages, given.rounds, given.cores, pauses=not given.no_pause):
            print(figure, flush=True)
            found.append(figure)
    finally:
        # Also if a later part fails: the first ones took minutes.
        if given.write and found:
            page = Path(results.__file__).with_name("RESULTS.md")
            more = " ".join(one for one in sys.argv[1:] if one != "--write")
            command = f"make bench-kafka ARGS='{more}'" if more else "make bench-kafka"
            section = results.section_apart(TITLE, command, found, machine)
            page.write_text(results.with_section(page.read_text(), section))


def measure(messages: int, rounds: int, cores: Sequence[int], *, pauses: bool) -> Iterator[Figure]:
    """All figures, as they are found."""
    with (
        tempfile.TemporaryDirectory() as name,
        kafka_server.ApacheKafka(Path(name)) as kafka,
        running(Path(name)) as service,
        Client(service.url) as client,
    ):
        kafka.create_topic(TOPIC, PARTITIONS)
        publish(kafka.bootstrap, messages)
        client.create_queue(TOPIC, PARTITIONS, log=kafka.log(TOPIC), start="earliest", **QUEUE)
        results_url = results_beside(service.database_url)
        with psycopg.connect(results_url) as connection:
            connection.execute(
                "CREATE TABLE batches (query text, number bigint, UNIQUE (query, number))"
            )
        for count in cores:
            directory = Path(name, f"spark-{count}")
            directory.mkdir()
            spark = session("benchmark", count, directory, **settings())
            stage = Stage(spark, client, kafka.bootstrap, service, results_url, directory)
            yield from throughput(stage, messages, rounds, count)
            if count == max(cores):
                yield from first_rows(stage, rounds)
            spark.stop()
        if pauses:
            yield from joins(kafka, service, client, Path(name), rounds)


def settings() -> dict[str, str]:
    """Of a session that has both sources."""
    jars = sorted(CONNECTOR.glob("*.jar"))
    return {
        "spark__jars": ",".join(map(str, jars)),
        "spark__sql__streaming__checkpointFileManagerClass": CHECKPOINTS,
    }


def publish(servers: str, messages: int) -> None:
    """Fill the topic, evenly."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 2**19})
    value = os.urandom(MESSAGE_BYTES)
    for number in range(messages):
        if number % 10_000 == 0:
            producer.flush()
        producer.produce(TOPIC, value, f"key-{number}", number % PARTITIONS)
    producer.flush()


class Stage:
    """Queries of both sources in one session."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        servers: str,
        service: Served,
        results_url: str,
        directory: Path,
    ) -> None:
        self.spark = spark
        self.directory = directory
        self._client = client
        self._servers = servers
        self._url = service.url
        self._results_url = results_url

    def rows(self, source: str, limit: int) -> DataFrame:
        """The topic from its beginning, so many records in a micro-batch."""
        stream = self.spark.readStream.format(source)
        if source == OURS:
            options = {"maxMessagesPerTrigger": str(limit), "maxBytesPerTrigger": "unlimited"}
            return (
                stream.options(url=self._url, queue=TOPIC, **options).load().selectExpr(*OURS_ROWS)
            )
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(limit),
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }
        return stream.options(**options).load().selectExpr(*THEIRS_ROWS)

    def run(self, source: str, sink: str) -> Run:
        """All records into a sink: `noop` or `Postgres`."""
        writer = self.rows(source, BATCH_MESSAGES).writeStream
        if sink == "noop":
            writer = writer.format("noop")
        else:
            writer = writer.foreachBatch(self._into_table(source))
        found = through(self.spark, writer, self.directory, to_the_end=False)
        self.again()
        return found

    def again(self) -> None:
        """The queue and the table are as before the first query."""
        while self._client.flows(TOPIC):
            time.sleep(0.05)
        self._client.set_positions(TOPIC, "earliest")
        with psycopg.connect(self._results_url) as connection:
            connection.execute("TRUNCATE events")

    def _into_table(self, source: str) -> Callable[[DataFrame, int], None]:
        name = uuid.uuid4().hex
        if source == OURS:
            return FencedSink.to_table(self._results_url, "events", columns=COLUMNS, name=name)
        from sqlalchemy import create_engine, text

        engine = create_engine(self._results_url.replace("postgresql://", "postgresql+psycopg://"))
        insert = Insert("events", COLUMNS)
        once = text("INSERT INTO batches VALUES (:query, :number) ON CONFLICT DO NOTHING")

        def write(batch: DataFrame, number: int) -> None:
            rows = batch.select(*COLUMNS).toArrow()
            with engine.begin() as connection:
                if connection.execute(once, {"query": name, "number": number}).rowcount:
                    insert(connection, rows, None)  # type: ignore[arg-type]  # not looked at

        return write


def throughput(stage: Stage, messages: int, rounds: int, cores: int) -> list[Figure]:
    """Rows a second and CPU of both sources, into both sinks."""
    found: dict[tuple[str, str], list[Run]] = {}
    for number in range(rounds + 1):
        for sink in ("noop", "Postgres"):
            for source in (OURS, THEIRS):
                one = stage.run(source, sink)
                assert one.messages == messages, f"{one.messages} of {messages} came"
                if number:  # in the first round the JVM compiles
                    found.setdefault((sink, source), []).append(one)
    figures = []
    for sink in ("noop", "Postgres"):
        ours, theirs = ([one.per_second for one in found[sink, of]] for of in (OURS, THEIRS))
        target = TARGET if sink == "noop" and cores == 2 else None
        where = f"into {sink}, local[{cores}]"
        figures += [
            *beside(OURS, rate(f"rows {where}", ours, SPARKS, theirs, target)),
            *beside(SPARKS, rate(f"rows {where}", theirs)),
            *_cpu(where, *(found[sink, of] for of in (OURS, THEIRS))),
        ]
    return figures


def _cpu(where: str, ours: Sequence[Run], theirs: Sequence[Run]) -> list[Figure]:
    mine, yard = (statistics.median(one.cpu_microseconds for one in of) for of in (ours, theirs))
    name = f"CPU of a row {where}"
    return [
        *beside(OURS, Figure(name, mine, "µs", mine / yard, SPARKS, rounds=len(ours))),
        *beside(SPARKS, Figure(name, yard, "µs", rounds=len(theirs))),
    ]


def first_rows(stage: Stage, rounds: int) -> list[Figure]:
    """Start a query of each source repeatedly: the time to the first row."""
    found: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for _ in range(rounds):
        for source, seconds in found.items():
            arrived = threading.Event()

            def sink(batch: Any, _: int, arrived: threading.Event = arrived) -> None:
                if batch.count():
                    arrived.set()

            writer = stage.rows(source, FIRST_MESSAGES).writeStream.foreachBatch(sink)
            writer = writer.option("checkpointLocation", checkpoint(stage.directory))
            began = time.perf_counter()
            query = writer.start()
            if not arrived.wait(WAIT_SECONDS):
                raise RuntimeError(f"no row came: {query.exception()}")
            seconds.append(time.perf_counter() - began)
            query.stop()
            stage.again()
    yard = statistics.median(found[THEIRS])
    name = "first row, since start()"
    return [
        *beside(OURS, timed(name, found[OURS], SPARKS, yard)),
        *beside(SPARKS, timed(name, found[THEIRS])),
    ]


# ---------------------------------------------------------------------- a join


def joins(
    kafka: kafka_server.ApacheKafka, service: Served, client: Client, directory: Path, rounds: int
) -> Iterator[Figure]:
    """A second application joins: the pauses with both sources."""
    kafka.create_topic(pause.QUEUE, PARTITIONS)
    client.create_queue(
        pause.QUEUE,
        PARTITIONS,
        log=kafka.log(pause.QUEUE),
        **QUEUE,
    )
    for who in NAMES:
        Path(directory, who).mkdir()
    with pause.publishing(service.url):
        with pause.applications(directory / OURS, service.url) as (first, second):
            handed_over, _ = pause.handoffs(first, second, rounds)
        mine = [seconds for one in handed_over[1:] for seconds in one.pauses]
        yield timed("pause of a partition that moves, an application joins", mine)
        with pause.applications(
            directory / THEIRS, service.url, __spec__.name, servers=kafka.bootstrap
        ) as (first, second):
            restarts = [*_restarts(first, second, rounds)]
    moved = [seconds for one in restarts[1:] for seconds in one[0]]
    stayed = [seconds for one in restarts[1:] for seconds in one[1]]
    yield timed(f"{SPARKS}: pause of a partition that moves, restart with another assign", moved)
    yield timed(f"{SPARKS}: pause of a partition that stays, restart with another assign", stayed)


def _restarts(
    first: pause.Application, second: pause.Application, rounds: int
) -> Iterator[tuple[list[float], list[float]]]:
    """The pauses of partitions that move and of those that stay, of each join."""
    numbers = range(PARTITIONS)
    stays, moves = numbers[: PARTITIONS // 2], numbers[PARTITIONS // 2 :]
    _assign(first, dict.fromkeys(numbers, _EARLIEST))
    pause.until_working(first, PARTITIONS)
    for _ in range(rounds + 1):
        following = _stopped(first)
        began = time.time()
        _assign(first, {number: following[number] for number in stays})
        _assign(second, {number: following[number] for number in moves})
        pause.until_working(second, len(moves))
        pause.until_working(first, len(stays))
        before = [one for one in first.batches if one.at < began]
        yield tuple(  # type: ignore[misc]  # of two
            [*pause.pauses_of(before, one.batches, began).values()] for one in (second, first)
        )
        following = {**_stopped(first, stays), **_stopped(second, moves)}
        _assign(first, following)
        pause.until_working(first, PARTITIONS)


_EARLIEST = -2


def _assign(one: pause.Application, offsets: Mapping[int, int]) -> None:
    one.tell(f"start {json.dumps(offsets)}")


def _stopped(one: pause.Application, numbers: Sequence[int] = range(PARTITIONS)) -> dict[int, int]:
    """Stop the query; the offsets that follow."""
    one.tell("stop")
    one.heard("stop")
    last: dict[int, int] = {}
    for batch in one.batches:
        last.update(batch.last)
    return {number: last[number] + 1 for number in numbers}


def application(settings_: Mapping[str, Any]) -> None:
    """A driver with Spark's source: starts its query on partitions as it is told, and stops it."""
    jars = settings()["spark__jars"]
    spark, say, start = pause.begin(settings_, spark__jars=jars)
    say(done="begin")
    query: Any = None
    for line in sys.stdin:
        command, _, offsets = line.strip().partition(" ")
        if command == "start":
            assigned = [int(number) for number in json.loads(offsets)]
            stream = spark.readStream.format(THEIRS).options(
                **{
                    "kafka.bootstrap.servers": settings_["servers"],
                    "assign": json.dumps({pause.QUEUE: assigned}),
                    "startingOffsets": json.dumps({pause.QUEUE: json.loads(offsets)}),
                }
            )
            query = start(stream.load().withColumnRenamed("offset", "position"))
        elif command == "stop":
            query.stop()
        say(done=command)


if __name__ == "__main__":
    main()
