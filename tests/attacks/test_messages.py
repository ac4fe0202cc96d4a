"""A publisher with real credentials who wants to stop the consumers of a queue by one message."""

from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer, DeadLetter, Message
from counterpoise.logs import MAX_MESSAGE_BYTES
from counterpoise.logs.rows import UNREADABLE
from counterpoise.publisher import Publisher
from tests.log_support import write_past
from tests.service import Service

pytestmark = pytest.mark.long

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


@pytest.mark.parametrize("position", ["abc", "-5", "9" * 900, "9" * 9000])
def test_no_position_of_a_flow_ends_the_next_owner_or_the_upkeep(
    target: Service, client: Client, queue: str, position: str
) -> None:
    bound = client.bind(queue, "attacker", lease_seconds=60)
    item = {"partition": 0, "epoch": 1, "position": position}
    token = {"Authorization": f"Bearer {bound.flow_token}"}
    with target.http as http:
        for call in ("commit", "release"):
            path = f"/queues/{queue}/flows/{bound.flow_id}/{call}"
            answer = http.post(path, json={"partitions": [item]}, headers=token)
            assert answer.status_code == 422, answer.text
            assert answer.json()["errors"][0]["field"] == "partitions.0.position"
    assert client.partitions(queue)[0].position is None


def test_nobody_is_sent_far_beyond_the_end_of_the_log(
    target: Service, client: Client, queue: str
) -> None:
    """The next owner would fail until the log is so long, and then pass over what came between."""
    bound = client.bind(queue, "attacker", lease_seconds=60)
    with Publisher(queue, url=target.url) as publisher:
        for number in range(3):
            publisher.publish(b"v", f"key-{number}")
    token = {"Authorization": f"Bearer {bound.flow_token}"}

    def call(name: str, position: int, epoch: int = 1) -> httpx.Response:
        item = {"partition": 0, "epoch": epoch, "position": str(position)}
        path = f"/queues/{queue}/flows/{bound.flow_id}/{name}"
        return http.post(path, json={"partitions": [item]}, headers=token)

    with target.http as http:
        for position in (1_763_800_000, 1_763_800_000_000, 2**63 - 1):
            for name in ("commit", "release"):
                answer = call(name, position)
                assert answer.status_code == 422, answer.text
                (error,) = answer.json()["errors"]
                assert error == {
                    "field": "partitions.0.position",
                    "message": "is far beyond 3",
                }
        # Who has lost the partition is told that, and nothing of the log.
        assert call("commit", 2**62, 0).json()["results"][0]["outcome"] == "stale_epoch"
        assert client.partitions(queue)[0].position is None
        assert call("commit", 3).json()["results"][0]["outcome"] == "ok"
    assert client.partitions(queue)[0].lag == 0


def test_no_child_begins_far_beyond_the_end_of_the_log(
    target: Service, client: Client, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    with target.http as http:
        settings = {"name": queue, "partitioning": "dynamic", "rebalance_delay": 0}
        http.post("/queues", json=settings).raise_for_status()
        bound = client.bind(queue, "attacker", lease_seconds=60)
        split = http.post(f"/queues/{queue}/partitions/0/split", json={}).json()
        child = {
            "key": split["children"][0]["key"],
            "parents": split["children"][0]["parents"],
            "partition": split["children"][0]["partition"],
            "position": str(2**62),
        }
        answer = http.post(
            f"/queues/{queue}/flows/{bound.flow_id}/children",
            json={"partitions": [{"partition": 0, "epoch": 1, "children": [child]}]},
            headers={"Authorization": f"Bearer {bound.flow_token}"},
        )
        assert answer.status_code == 422, answer.text
        (error,) = answer.json()["errors"]
        assert error["field"] == "partitions.0.children.0.position"
        http.delete(f"/queues/{queue}?force=true")


def test_a_position_of_before_holds_up_its_own_partition_until_it_is_set(
    target: Service, client: Client, name_of_a_queue: Callable[[], str]
) -> None:
    queue = name_of_a_queue()
    client.create_queue(queue, 2, rebalance_delay=0)
    client.set_positions(queue, {0: "0", 1: "0"})
    database = target.settings.database_url
    assert database is not None
    with closing(psycopg.connect(database.get_secret_value(), autocommit=True)) as owner:
        owner.execute(
            "UPDATE counterpoise.partitions SET position = %s WHERE number = 0 AND queue_id ="
            " (SELECT id FROM counterpoise.queues WHERE name = %s)",
            ["9" * 9000, queue],
        )
    with Publisher(queue, url=target.url) as publisher:
        for number in range(20):
            publisher.publish(b"v", f"key-{number}")
    handled: list[int] = []
    Consumer(
        queue, each=lambda message: handled.append(message.partition), url=target.url, limit=5
    ).run()
    assert set(handled) == {1}
    assert client.partitions(queue)[0].lag is None
    client.set_positions(queue, {0: "0"})
    left = sum(one.lag or 0 for one in client.partitions(queue))
    Consumer(
        queue, each=lambda message: handled.append(message.partition), url=target.url, limit=left
    ).run()
    assert sorted(set(handled)) == [0, 1]
    assert len(handled) == 20
