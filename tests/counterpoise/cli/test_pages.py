"""What the pages say to type works as it stands there, if it changes data.

Each block of README.md and docs/ with such a command (`CHANGES`) is typed into a shell, in the
order of its page; so a new one is, too. A reader replaces words in capitals and the addresses of
examples (`replacements`). `BEFORE` makes what a block takes for granted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from markdown_it import MarkdownIt

from broker.postgres import schema
from broker.postgres.binaries import installed_wheel
from broker.postgres.embedded import EmbeddedPostgres, url_of_running
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.errors import QueueNotFound
from counterpoise.publisher import Publisher
from tests.architecture.test_repository import ROOT
from tests.forked import Forked
from tests.kafka_server import ApacheKafka
from tests.redis_server import RedisServer
from tests.service import ServeProcess, eventually, running, settings_for
from tests.terminal import Terminal, commands_on_path

CHANGES = re.compile(
    r"^(?:.*\| )?(?:counterpoise (?:queues (?:create|change|resize|delete)|publish|consume\b"
    r"|rebalance|consumers (?:drain|unbind)|positions (?:set|export)|partitions (?:split|merge)"
    r"|dead-letters redrive|keys (?:create|revoke)|migrate|backup|restore)|psql|pg_restore|GRANT)"
)
# By tests/architecture/test_newcomer.py and test_commands_page.py, with what they print.
PLAYED_ELSEWHERE = {"README.md", "docs/commands.md"}
MESSAGES = 10


def blocks(page: str) -> list[list[str]]:
    """The commands of each block of a page that changes data."""
    found = []
    for token in MarkdownIt().disable("inline").parse((ROOT / page).read_text("utf-8")):
        if token.type not in ("code_block", "fence") or token.info not in ("", "sh", "console"):
            continue
        lines = token.content.splitlines()
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
        if any(map(CHANGES.match, typed)):
            found.append(typed)
    return found


PAGES = {
    page: found
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if (found := blocks(page := path.relative_to(ROOT).as_posix())) and page not in PLAYED_ELSEWHERE
}


@dataclass
class Scene:
    """A page's reader. `replacements`: what the page has, and what the reader types for it."""

    terminal: Terminal
    client: Client
    url: str
    database_url: str
    replacements: dict[str, str] = field(default_factory=dict)

    def type(self, line: str) -> None:
        for found, replacement in self.replacements.items():
            line = line.replace(found, replacement)
        if line.startswith("GRANT"):
            line = f'psql --set=ON_ERROR_STOP=1 {self.database_url} -c "{line}"'
        said = self.terminal.type(line)
        if key := re.search(r"\bcp_([0-9a-f]{12})_", said):
            self.replacements["3f9a0c51d7e2"] = key[1]

    def forget(self, queue: str) -> None:
        """Another block of the page, or an earlier line, may have made it."""
        with contextlib.suppress(QueueNotFound):
            self.client.delete_queue(queue, force=True)

    def publish(self, queue: str) -> None:
        with Publisher(queue, url=self.url) as publisher:
            for number in range(MESSAGES):
                publisher.publish(b"an order", key=f"customer-{number}")


@contextlib.contextmanager
def billing_consumes(scene: Scene) -> Iterator[None]:
    scene.client.create_queue("orders", 4)
    consume = ["consume", "orders", "--client-name", "billing", "--url", scene.url]
    with open(os.devnull, "w") as nowhere:
        with Forked("counterpoise.cli", consume, stdout=nowhere, stderr=nowhere) as consuming:
            eventually(lambda: [one.client_name for one in scene.client.flows("orders")])
            yield
    assert consuming.returncode == 0


@contextlib.contextmanager
def flights_are_there(scene: Scene) -> Iterator[None]:
    scene.client.create_queue("flights", 8)
    yield


@contextlib.contextmanager
def analyst_is_there(scene: Scene) -> Iterator[None]:
    with psycopg.connect(scene.database_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE analyst")
        yield
        connection.execute("DROP OWNED BY analyst")
        connection.execute("DROP ROLE analyst")


@contextlib.contextmanager
def group_has_offsets(scene: Scene) -> Iterator[None]:
    servers = scene.replacements["broker1:9092"]
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(MESSAGES):
        producer.produce("orders", b"an order", partition=0)
    assert producer.flush(60) == 0
    group = Consumer({"bootstrap.servers": servers, "group.id": "etl"})
    group.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    group.close()
    yield


BEFORE: dict[str, Callable[[Scene], AbstractContextManager[None]]] = {
    "counterpoise consumers drain orders billing": billing_consumes,
    "counterpoise queues create flights-history": flights_are_there,
    "TO analyst": analyst_is_there,
    "--from-group etl": group_has_offsets,
}


def play(scene: Scene, block: list[str]) -> None:
    for queue in re.findall(r"queues create (\S+)", "\n".join(block)):
        scene.forget(queue)
    with contextlib.ExitStack() as stack:
        for phrase, before in BEFORE.items():
            if any(phrase in line for line in block):
                stack.enter_context(before(scene))
        for line in block:
            scene.type(line)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    with commands_on_path(tmp_path, installed_wheel() / "bin") as path:
        yield path


@pytest.fixture(scope="module")
def kafka_with_orders(apache_kafka: ApacheKafka) -> str:
    """The address of a Kafka with a topic, which all pages use."""
    apache_kafka.create_topic("orders", 4)
    return apache_kafka.bootstrap


def of_kafka(page: str) -> bool:
    return any("kafka://" in line for block in PAGES[page] for line in block)


KAFKA = [pytest.mark.long, pytest.mark.xdist_group("kafka")]


@pytest.mark.matrix("page")
@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=KAFKA if of_kafka(page) else [])
        for page in PAGES
        if page != "docs/operations.md"
    ],
)
def test_a_page_can_be_typed_as_it_stands(
    page: str,
    path: str,
    migrated_url: str,
    redis_server: RedisServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    redis = redis_server.client()
    for user in ("service", "app"):
        redis.execute_command("ACL", "SETUSER", user, "on", ">password", "~*", "&*", "+@all")
    replacements = {
        "FILE": str(tmp_path / "backup"),
        "redis.internal:6379": redis_server.address,
    }
    logs = [f"redis://service:password@{redis_server.address}"]
    if of_kafka(page):
        servers = request.getfixturevalue("kafka_with_orders")
        replacements |= dict.fromkeys(("broker1:9092,broker2:9092", "broker1:9092"), servers)
        logs.append(f"kafka://{servers}")
    settings = settings_for(migrated_url, log_urls=" ".join(logs))
    with running(Broker(settings), settings) as service, Client(service.url) as client:
        environment = {
            "PATH": path,
            "COUNTERPOISE_URL": service.url,
            "COUNTERPOISE_DATABASE_URL": migrated_url,
        }
        with Terminal(tmp_path, environment) as terminal:
            scene = Scene(terminal, client, service.url, migrated_url, replacements)
            for block in PAGES[page]:
                play(scene, block)


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_the_page_of_operators_can_be_typed_as_it_stands(path: str, tmp_path: Path) -> None:
    """Keys and a backup while the service runs; then each way to restore, after it has stopped."""
    data = tmp_path / "data"
    keys, backup, restore, again, own, copy = PAGES["docs/operations.md"]
    served = ServeProcess(tmp_path / "serve.log", ["--data-dir", str(data)])
    environment = {"PATH": path, "COUNTERPOISE_URL": served.url, "COUNTERPOISE_DATA_DIR": str(data)}
    replacements = {"FILE": str(tmp_path / "backup"), "DIR": str(data)}
    with Terminal(tmp_path, environment) as terminal, EmbeddedPostgres(tmp_path / "own") as own_url:
        replacements["DATABASE_URL"] = own_url
        with served, Client(served.url) as client:
            scene = Scene(terminal, client, served.url, "", replacements)
            client.create_queue("orders", 4)
            scene.publish("orders")
            play(scene, keys)
            play(scene, backup)
            served.end()
        shutil.rmtree(data)
        for block in (restore, again, own, copy):
            play(scene, block)
        schema.check(own_url)
        messages = "SELECT count(*) FROM counterpoise_log.messages"
        with psycopg.connect(own_url) as connection:
            assert connection.execute(messages).fetchone() == (MESSAGES,)
    with served:
        restored = url_of_running(data)
        assert restored is not None
        with psycopg.connect(restored) as connection:
            assert connection.execute(messages).fetchone() == (MESSAGES,)
            revoked = "SELECT count(*) FROM counterpoise.keys WHERE revoked_at IS NOT NULL"
            assert connection.execute(revoked).fetchone() == (1,)
