"""A publisher with real credentials who wants to stop the consumers of a queue by one message."""

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer, DeadLetter, Message
from counterpoise.logs import MAX_MESSAGE_BYTES
from counterpoise.logs.rows import UNREADABLE
from counterpoise.publisher import Publisher
from tests.log_support import write_past
from tests.service import Service

APPEND = """SELECT counterpoise_log.append(%(log)s, 1, 'attacker', 0, ARRAY[0], ARRAY[''::bytea],
    %(keys)s::text[], %(headers)s::text[], %(times)s::timestamptz[])"""
NOTHING = {"keys": None, "headers": None, "times": None}


@pytest.fixture
def client(target: Service) -> Iterator[Client]:
    with Client(target.url) as client:
        yield client


@pytest.fixture
def queue(client: Client, name_of_a_queue: Callable[[], str]) -> str:
    name = name_of_a_queue()
    client.create_queue(name, 1, rebalance_delay=0)
    return name


@pytest.mark.parametrize(
    "message",
    [
        {"times": ["10000-01-01T00:00:00Z"]},
        {"times": ["4713-01-01 00:00:00+00 BC"]},
        {"headers": ['{"a": 1}']},
        {"headers": ['{"a": ' + "[" * 3000 + "]" * 3000 + "}"]},
        {"keys": ["k" * (MAX_MESSAGE_BYTES + 1)]},
    ],
    ids=["future", "past", "number", "nested", "large"],
)
def test_the_log_does_not_take_it(
    target: Service, client: Client, queue: str, message: dict[str, list[str]]
) -> None:
    access = client.log_access(queue, "publish").access
    assert access is not None
    with closing(psycopg.connect(access.url, autocommit=True)) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(APPEND, {**NOTHING, "log": queue, **message})
        connection.execute(APPEND, {**NOTHING, "log": queue})
    Consumer(queue, lambda owned, batch: None, url=target.url, limit=1).run()


def test_what_is_there_from_before_is_read_and_can_be_put_aside(
    target: Service, client: Client, queue: str, name_of_a_queue: Callable[[], str]
) -> None:
    """As poison, if the handler does not want it."""
    aside = name_of_a_queue()
    client.create_queue(aside, 1, rebalance_delay=0)
    row = (b"v", "k", '{"a": {"b": 1}}', "10000-01-01T00:00:00Z")
    database = target.settings.database_url
    assert database is not None
    write_past(database.get_secret_value(), queue, [row])
    with Publisher(queue, url=target.url) as publisher:
        publisher.publish(b"behind it")
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if UNREADABLE in message.headers:
            raise ValueError("not for me")
        handled.append(message.value)

    Consumer(queue, each=handle, url=target.url, limit=2, on_poison=DeadLetter(aside)).run()
    assert handled == [b"behind it"]
    letters: list[Message] = []
    Consumer(aside, each=letters.append, url=target.url, limit=1).run()
    assert [letter.key for letter in letters] == ["k"]
    assert letters[0].headers[UNREADABLE] == "headers,published_at"
