"""How long a single message takes to a plain consumer, beside the time until it is durable.

    python -m benchmarks latency                      # all three logs; Kafka if there is a broker
    python -m benchmarks.latency [--messages 200] [--logs builtin redis] [--idle 100]

Each message is published alone, with a pause of 50 to 150 ms before the next one. *Durable* is the
time until `flush` returns, *arrival* that from `publish` until a handler has the message. The
consumers are in a process of their own, those of a figure in one: one consumer or sixteen, of a
queue with one partition or 64. *Kafka's consumer* is confluent-kafka's with its defaults, on a
topic of the same broker, in the same run.

*After a grant*: a consumer leaves, another one that waits is granted its partition, and at that
moment the message is published.
*Unflushed*: a message is published without `flush`, with the publisher's default linger; the time
is that of its arrival.

*Idle*: so many readers wait, each for 64 partitions, over connections of their own; what they ask
of the log in 30 s, and the CPU time of its server.

The built-in log is that of a service on an embedded Postgres, with `fsync`. Redis writes each
append to the disk before it answers (`appendfsync always`). Kafka has one broker, which leaves the
writing to the operating system, as by default.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg

from benchmarks import needs
from benchmarks.calls import cpu_seconds
from benchmarks.figures import Figure, spread
from benchmarks.service import UNLIMITED, running
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.logs import Log, open_log
from counterpoise.publisher import Publisher
from tests.kafka_server import ApacheKafka
from tests.redis_server import RedisServer

SHAPES = ((1, 1), (64, 1), (64, 16))
"""(partitions, consumers)"""
GRANTS = 30
SETTINGS = {**UNLIMITED, "COUNTERPOISE_LOG_CONNECTIONS": "1000"}
GRANT_SECONDS = 1.0
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 30.0
IDLE_PARTITIONS = 64
# What has to be reached: the median by the ratio to the durable append, and the 99th percentile in
# milliseconds, or by the same ratio if that is more.
MEDIAN, P99_MS, P99 = 3.0, 25.0, 8.0


@dataclass
class Server:
    """The server of a kind of logs."""

    kind: str
    settings: Callable[[str, int], dict[str, Any]]
    """The arguments of `create_queue` for a new log with so many partitions."""
    access: str | None
    processes: Callable[[], list[int]]
    requests: Callable[[], int] | None
    """How many it has had, if it tells that."""
    bootstrap: str | None = None


@contextmanager
def consuming(url: str, queue: str, count: int) -> Iterator[Connection]:
    """So many consumers in a process of their own; it sends the value and the time of each
    message, and "granted" and the time of each grant."""
    with _process(_consume, url, queue, count) as there:
        yield there


@contextmanager
def _process(run: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=run, args=(*arguments, there), daemon=True)
    process.start()
    try:
        yield here
    finally:
        here.send(None)
        process.join(30)
        if process.is_alive():
            process.kill()


def _consume(url: str, queue: str, count: int, there: Connection) -> None:
    lock = threading.Lock()
    consumers = [_consumer(url, queue, there, lock) for _ in range(count)]
    threads = [threading.Thread(target=one.run) for one in consumers]
    for one in threads:
        one.start()
    there.recv()
    for consumer in consumers:
        consumer.stop(now=True)
    for one in threads:
        one.join()


def _hand_over(url: str, queue: str, there: Connection) -> None:
    """One consumer has the partition. Told to, another one comes and waits for it; told again, the
    first one leaves.
    """
    lock = threading.Lock()

    def started() -> tuple[Consumer, threading.Thread]:
        consumer = _consumer(url, queue, there, lock)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        return consumer, thread

    owner, its_thread = started()
    while there.recv():
        following = started()
        there.recv()
        owner.stop()
        its_thread.join()
        owner, its_thread = following
    owner.stop(now=True)
    its_thread.join()


def _consumer(url: str, queue: str, there: Connection, lock: threading.Lock) -> Consumer:
    def send(what: bytes | str) -> None:
        at = time.perf_counter()
        with lock:
            there.send((what, at))

    return Consumer(
        queue,
        each=lambda message: send(message.value),
        url=url,
        lease_seconds=60,
        on_granted=lambda owned: send("granted"),
    )


def _consume_kafka(bootstrap: str, topic: str, there: Connection) -> None:
    def tell(_: object, partitions: Sequence[object]) -> None:
        for _one in partitions:
            there.send(("granted", 0.0))

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic], on_assign=tell)
    while not there.poll():
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            there.send((message.value(), time.perf_counter()))
    consumer.close()


def granted(there: Connection, count: int) -> None:
    """Wait until so many partitions are granted."""
    for _ in range(count):
        what, _ = there.recv()
        assert what == "granted"


def each_alone(
    publisher: Publisher, there: Connection, messages: int, *, flush: bool = True
) -> tuple[list[float], list[float]]:
    """Publish messages one by one; the seconds until each was durable, and until it arrived."""
    durable, arrived = [], []
    chance = random.Random(1)
    for number in range(messages + 5):
        time.sleep(chance.uniform(0.05, 0.15))
        value = b"%d" % number
        began = time.perf_counter()
        publisher.publish(value, f"key-{number}")
        if flush:
            publisher.flush()
        ended = time.perf_counter()
        what, at = there.recv()
        while what != value:
            what, at = there.recv()
        if number >= 5:  # the first ones connect
            durable.append(ended - began)
            arrived.append(at - began)
    return durable, arrived


def measure(server: Server, url: str, messages: int) -> Iterator[Figure]:
    """The figures of one kind of log."""
    appends: list[float] = []
    with Client(url) as client:
        for partitions, consumers in SHAPES:
            queue = f"latency-{uuid.uuid4().hex[:8]}"
            client.create_queue(queue, rebalance_delay=0, **server.settings(queue, partitions))
            with consuming(url, queue, consumers) as there, Publisher(queue, url=url) as publisher:
                time.sleep(SETTLE_SECONDS)
                durable, arrived = each_alone(publisher, there, messages)
                appends += durable
                name = f"{partitions} partitions, {consumers} consumers"
                yield from _compared(f"{server.kind}, {name}", durable, arrived)
                if consumers == 1 and partitions == 1:
                    _, arrived = each_alone(publisher, there, messages // 2, flush=False)
                    what = f"{server.kind}, {name}, unflushed"
                    yield from _compared(what, durable, arrived, targets=False)
            client.delete_queue(queue, force=True)
        yield from _compared(
            f"{server.kind}, after a grant", appends, _after_grants(server, url, client)
        )
    if server.bootstrap is not None:
        yield from _kafka_itself(server, url, messages)


def _after_grants(server: Server, url: str, client: Client) -> list[float]:
    queue, arrived = f"grant-{uuid.uuid4().hex[:8]}", list[float]()
    client.create_queue(queue, rebalance_delay=0, **server.settings(queue, 1))
    with Publisher(queue, url=url) as publisher, _process(_hand_over, url, queue) as there:
        granted(there, 1)
        for number in range(GRANTS):
            there.send(True)
            time.sleep(GRANT_SECONDS)
            there.send(True)
            granted(there, 1)
            began = time.perf_counter()
            publisher.publish(b"%d" % number)
            publisher.flush()
            _, at = there.recv()
            arrived.append(at - began)
    client.delete_queue(queue, force=True)
    return arrived[1:]


def _kafka_itself(server: Server, url: str, messages: int) -> Iterator[Figure]:
    assert server.bootstrap is not None
    queue = f"latency-{uuid.uuid4().hex[:8]}"
    with Client(url) as client:
        client.create_queue(queue, **server.settings(queue, 64))
    with (
        _process(_consume_kafka, server.bootstrap, queue) as there,
        Publisher(queue, url=url) as publisher,
    ):
        granted(there, 64)
        durable, arrived = each_alone(publisher, there, messages)
    yield from _compared("Kafka's consumer, 64 partitions", durable, arrived, targets=False)


def _compared(
    name: str, durable: Sequence[float], arrived: Sequence[float], *, targets: bool = True
) -> Iterator[Figure]:
    append = statistics.median(durable)
    median, last = statistics.median(arrived), _percentile(arrived, 0.99)
    aim = max(P99, P99_MS / 1e3 / append)
    yield Figure(f"{name}: durable", append * 1e3, "ms", spread=_ms(durable), rounds=len(durable))
    yield Figure(
        f"{name}: arrival",
        median * 1e3,
        "ms",
        median / append,
        "Y12",
        MEDIAN if targets else None,
        spread=_ms(arrived),
        rounds=len(arrived),
    )
    yield Figure(
        f"{name}: arrival, 99 %",
        last * 1e3,
        "ms",
        last / append,
        "Y12",
        round(aim, 1) if targets else None,
        rounds=len(arrived),
    )


def _ms(seconds: Sequence[float]) -> tuple[float, float] | None:
    return spread([one * 1e3 for one in seconds])


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def idle(server: Server, url: str, readers: int) -> Iterator[Figure]:
    """What readers that wait ask of their log, and what that costs its server."""
    queue = f"idle-{uuid.uuid4().hex[:8]}"
    with Client(url) as client, ExitStack() as stack:
        client.create_queue(queue, **server.settings(queue, IDLE_PARTITIONS))
        access = server.access or client.log_access(queue, "read").access
        name = client.queue(queue).log
        own, own_cpu = _without(server)
        logs: list[Log] = []
        for _ in range(readers):
            logs.append(open_log(name, access))
            stack.callback(logs[-1].close)
        ends = logs[0].bounds(range(IDLE_PARTITIONS)).ends
        _watch_all(logs, ends, SETTLE_SECONDS)
        before = server.requests and server.requests()
        cpu, began = _cpu(server), time.perf_counter()
        _watch_all(logs, ends, IDLE_SECONDS)
        seconds = time.perf_counter() - began
        cpu = max(0.0, _cpu(server) - cpu - own_cpu * seconds)
        if server.requests is not None and before is not None:
            asked = max(0.0, (server.requests() - before) / seconds - own) / readers
            yield Figure(f"{server.kind}, idle: asked by a reader", asked, "/s", target=1)
        share = 100 * cpu / seconds * 1000 / readers
        yield Figure(f"{server.kind}, idle: of a core for 1,000 readers", share, "%", target=2)


def _without(server: Server) -> tuple[float, float]:
    """What others ask of the server in a second, and its CPU time in a second."""
    if server.requests is None:
        return 0.0, 0.0
    before, cpu, began = server.requests(), _cpu(server), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    seconds = time.perf_counter() - began
    return (server.requests() - before) / seconds, (_cpu(server) - cpu) / seconds


def _cpu(server: Server) -> float:
    return sum(map(cpu_seconds, server.processes()))


def _watch_all(logs: Sequence[Log], ends: Mapping[int, str], seconds: float) -> None:
    """As readers do, in turns."""
    until, due = time.monotonic() + seconds, [0.0] * len(logs)
    while (now := time.monotonic()) < until:
        for number, log in enumerate(logs):
            if due[number] <= now:
                rest = log.watch(ends)
                if rest is not None and rest.seconds <= 0:
                    log.bounds([*ends])
                    rest = log.watch(ends)
                due[number] = now + (0.2 if rest is None else rest.seconds)
        time.sleep(max(0.0, min(min(due), until) - time.monotonic()))


@contextmanager
def servers(kinds: Sequence[str]) -> Iterator[tuple[str, list[Server]]]:
    """The URL of a service, and the servers of these kinds of logs."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        service = stack.enter_context(running(Path(name), SETTINGS))
        found = []
        if "builtin" in kinds:
            database = stack.enter_context(psycopg.connect(service.database_url, autocommit=True))

            def ask(statement: str) -> list[int]:
                return [int(row[0]) for row in database.execute(statement.encode())]

            found.append(
                Server(
                    "built-in log",
                    lambda queue, partitions: {"partition_count": partitions},
                    None,
                    lambda: ask(
                        "SELECT pid FROM pg_stat_activity"
                        " WHERE application_name = 'counterpoise-log'"
                    ),
                    lambda: ask(
                        "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
                        " WHERE datname = current_database()"
                    )[0],
                )
            )
        if "redis" in kinds:
            directory = Path(name, "redis")
            directory.mkdir()
            redis = stack.enter_context(
                RedisServer(directory, appendonly="yes", appendfsync="always")
            )
            information = redis.client()
            stack.callback(information.close)
            found.append(
                Server(
                    "Redis",
                    lambda queue, partitions: {
                        "partition_count": partitions,
                        "log": redis.log(queue),
                    },
                    None,
                    lambda: [information.info()["process_id"]],
                    lambda: int(information.info()["total_commands_processed"]),
                )
            )
        if "kafka" in kinds:
            directory = Path(name, "kafka")
            directory.mkdir()
            kafka = stack.enter_context(ApacheKafka(directory))

            def topic(queue: str, partitions: int) -> dict[str, Any]:
                kafka.create_topic(queue, partitions)
                return {"log": kafka.log(queue)}

            found.append(Server("Kafka", topic, None, list, None, kafka.bootstrap))
        yield service.url, found


def figures(quick: bool = False) -> list[Figure]:
    """Arrival in the three logs, and what waiting costs."""
    kinds = ["builtin", "redis"] + ["kafka"] * (not needs.APACHE_KAFKA.is_missing())
    return [*_all(kinds, 40 if quick else 200, 20 if quick else 100)]


def _all(kinds: Sequence[str], messages: int, readers: int) -> Iterator[Figure]:
    with servers(kinds) as (url, found):
        for server in found:
            yield from measure(server, url, messages)
            if server.requests is not None:
                yield from idle(server, url, readers)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--idle", type=int, default=100, help="readers that wait")
    parser.add_argument("--logs", nargs="+", default=None, choices=["builtin", "redis", "kafka"])
    given = parser.parse_args()
    kinds = given.logs or [
        "builtin",
        "redis",
        *["kafka"] * (not needs.APACHE_KAFKA.is_missing()),
    ]
    for figure in _all(kinds, given.messages, given.idle):
        print(figure, flush=True)


if __name__ == "__main__":
    main()
