"""A queue on a real service, and its publisher."""

import threading
import uuid
from collections import defaultdict

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher

_OTHER = (pytest.mark.long, pytest.mark.matrix(of="consumers on other logs"))
_BROKER = pytest.param("kafka", marks=[*_OTHER, pytest.mark.xdist_group("kafka")])
_REDIS = pytest.param("redis", marks=_OTHER)
on_each_log = pytest.mark.parametrize("log_of", ["builtin", _REDIS, _BROKER], indirect=True)
"""The queues of the test are in logs of each kind, one after another; Kafka is the real broker."""


@pytest.fixture
def log_of(request):
    """`log_of(partitions)`: the arguments of `create_queue` for a log (by default built in)."""
    kind = getattr(request, "param", "builtin")

    def settings(partitions):
        name = uuid.uuid4().hex
        if kind == "kafka":
            cluster = request.getfixturevalue("apache_kafka")
            cluster.create_topic(name, partitions)
            return {"log": cluster.log(name)}
        if kind == "redis":
            log = request.getfixturevalue("redis_server").log(name)
            return {"partition_count": partitions, "log": log}
        return {"partition_count": partitions}

    return settings


@pytest.fixture
def client(service, log_of):
    with Client(service.url) as client:
        client.create_queue("flights", rebalance_delay=0, max_handoff_time=600, **log_of(4))
        yield client


@pytest.fixture
def publish(service, client):
    """`publish(numbers)`: one message each, the number as its value, number % 7 in its key."""

    def publish_numbers(numbers, queue="flights"):
        with Publisher(queue, url=service.url) as publisher:
            for number in numbers:
                publisher.publish(str(number).encode(), f"k{number % 7}", {"number": str(number)})

    return publish_numbers


@pytest.fixture
def postgres_of(migrated_url):
    """`postgres_of(statement)`: executed in the service's database."""

    def execute(statement):
        with psycopg.connect(migrated_url, autocommit=True) as connection:
            connection.execute(statement)

    return execute


class InThread:
    """A consumer in a thread; `stop` raises its error."""

    consumer: Consumer

    def __init__(self):
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            self.consumer.run()
        except BaseException as error:
            self.error = error

    @property
    def partitions(self):
        return set(self.consumer.flow.partitions)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop(now=True)

    def stop(self, now=False):
        self.consumer.stop(now=now)
        self.join()
        if self.error is not None:
            raise self.error

    def join(self):
        self.thread.join(240)
        assert not self.thread.is_alive()


class Running(InThread):
    """The messages it has handled, in order.

    `act(message)` is called before a message counts as handled; it may raise or wait.
    """

    def __init__(self, url, act=lambda message: None, queue="flights", **options):
        super().__init__()
        self.seen: list = []
        self.act = act
        self.consumer = Consumer(queue, each=self.each, url=url, **options)

    def each(self, message):
        self.act(message)
        self.seen.append(message)

    @property
    def numbers(self):
        return [int(message.value) for message in self.seen]


@pytest.fixture
def running(service):
    """`running(act, …)` makes a `Running` of the queue; all end with the test."""
    made = []

    def make(*arguments, **options):
        made.append(Running(service.url, *arguments, **options))
        return made[-1]

    yield make
    for one in made:
        if one.thread.is_alive():
            one.consumer.stop(now=True)
            one.join()


def in_order(*many):
    """Whether each consumer saw the numbers of each key in order."""
    for one in many:
        by_key = defaultdict(list)
        for message in one.seen:
            by_key[message.key].append(int(message.value))
        if any(numbers != sorted(numbers) for numbers in by_key.values()):
            return False
    return True


def positions(client, queue="flights"):
    """The committed position of each partition."""
    return {one.partition: one.position for one in client.partitions(queue)}
