"""A message that an administrator puts aside: one letter, as a consumer stores it, and passed."""

import threading
from typing import Any

import httpx
import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer, DeadLetter
from counterpoise.consumer.letters import HEADER, NAMES
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from tests.api.access import bearer, guarded
from tests.api.consumer import create_queue
from tests.api.test_messages import look
from tests.api.test_problems import problem
from tests.service import Service, eventually


@pytest.fixture
def orders(api: httpx.Client, service: Service) -> str:
    """The path of a partition with four messages; queues for letters."""
    create_queue(api, "orders", 1, rebalance_delay=0)
    for name in ("dead", "other"):
        create_queue(api, name, 2)
    with Publisher("orders", url=service.url) as publisher:
        for number in range(4):
            publisher.publish(b"order %d" % number, f"c{number}", {"trace": f"t-{number}"})
    return "/queues/orders/partitions/0"


def aside(api: httpx.Client, position: int | str, to: str = "dead", **query: str) -> httpx.Response:
    return api.post(
        "/queues/orders/partitions/0/dead-letter",
        json={"position": str(position), "to": to},
        params=query,
    )


def stored(api: httpx.Client, queue: str = "dead") -> list[Any]:
    """All messages of a queue for letters."""
    paths = (f"/queues/{queue}/partitions/{number}/messages" for number in range(2))
    return [one for path in paths for one in look(api, path, max_bytes=10_000)["messages"]]


def stands(api: httpx.Client) -> tuple[str | None, int]:
    partition = api.get("/queues/orders/partitions").json()["items"][0]
    return partition["position"], partition["epoch"]


class Running:
    """A consumer in a thread that cannot handle these orders."""

    def __init__(self, service: Service, poison: set[int], **options: Any) -> None:
        self.seen: list[int] = []
        self._poison = poison
        self.consumer = Consumer(
            "orders", each=self._handle, url=service.url, idle_seconds=0.05, **options
        )
        self._thread = threading.Thread(target=self.consumer.run)

    def _handle(self, message: Any) -> None:
        number = int(message.value.split()[1])
        self.seen.append(number)
        if number in self._poison:
            raise ValueError(f"{number} is poison")

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self._thread.join()


def reported(api: httpx.Client) -> list[str]:
    held = api.get("/queues/orders/conditions").json()["items"]
    return [one["text"] for one in held if one["kind"] == "quarantined"]


def test_a_quarantined_message_is_put_aside_as_its_consumer_would_and_once(
    api: httpx.Client, service: Service, orders: str
) -> None:
    quarantine: dict[str, Any] = {"on_poison": "quarantine", "attempts": 2, "backoff_seconds": 0.01}
    with Running(service, {1}, **quarantine) as one:
        eventually(lambda: reported(api) and stands(api)[0] == "1")
        before = stands(api)
        would = aside(api, 1, dry_run="true").json()
        assert (would["next_position"], would["letter_partition"], would["before"]) == (
            "2",
            None,
            None,
        )
        assert (stored(api), stands(api)) == ([], before)
        assert [act["call"] for act in api.get("/audit?limit=1").json()["items"]] == [
            "create_queue"
        ]
        done = aside(api, 1).json()
        assert (done["next_position"], done["epoch"], done["before"]) == ("2", before[1] + 1, False)
        # Its owner goes on behind it, and no condition is left.
        eventually(lambda: stands(api)[0] == "4")
        assert (one.seen, reported(api)) == ([0, 1, 1, 2, 3], [])
    assert done["headers"] == would["headers"]
    [letter] = stored(api)
    assert (letter["value"], letter["key"]) == ("order 1", "c1")
    assert letter["headers"] == done["headers"]
    acts = api.get("/audit?limit=2").json()["items"]
    assert [(act["call"], act["queue"]) for act in acts] == [
        ("publish_message", "dead"),
        ("dead_letter", "orders"),
    ]
    assert acts[1]["after"] == {"partition": 0, "position": "1", "to": "dead"}
    # The same, as a consumer stores it: to another queue, and then to this one.
    for to in ("other", "dead"):
        api.post("/queues/orders/positions", json={"positions": {"0": "1"}})
        policy = {**quarantine, "on_poison": DeadLetter(to)}
        with Running(service, {1}, **policy):
            eventually(lambda: stands(api)[0] == "4")
    [theirs] = stored(api, "other")
    changing = HEADER + "epoch"
    assert {**theirs["headers"], changing: ""} == {**letter["headers"], changing: ""}
    assert len(stored(api)) == 1


def test_a_letter_that_is_there_already_is_not_stored_again(
    api: httpx.Client, service: Service, orders: str
) -> None:
    """As after a crash between the letter and the position."""
    with Running(service, {0}, on_poison=DeadLetter("dead"), attempts=1):
        eventually(lambda: stands(api)[0] == "4")
    api.post("/queues/orders/positions", json={"positions": {"0": None}})
    assert aside(api, 0).json()["before"] is True
    assert (stands(api)[0], len(stored(api))) == ("1", 1)


def test_of_a_message_that_nobody_has_reported_the_letter_says_so(
    api: httpx.Client, orders: str
) -> None:
    """A consumer has halted at it, or none has come so far."""
    done = aside(api, 0).json()
    said = {name: done["headers"][HEADER + name] for name in NAMES}
    assert (said["queue"], said["partition"], said["position"]) == ("orders", "0", "0")
    assert (said["attempts"], done["next_position"]) == ("0", "1")
    assert "an administrator has put it aside" in said["error"]


def test_only_the_one_message_is_passed_whatever_waits_before_it(
    api: httpx.Client, service: Service, orders: str
) -> None:
    with Running(service, {0, 2}, on_poison="quarantine", attempts=1, order="key") as one:
        eventually(lambda: {0, 1, 2, 3} <= {*one.seen} and reported(api))
        done = aside(api, 2).json()
        assert done["next_position"] in (None, "0")
        eventually(lambda: any("at 0" in text for text in reported(api)))
        assert stands(api)[0] in (None, "0")
        # The next owner is told that it is done.
        eventually(lambda: one.seen.count(0) == 2)
        assert one.seen.count(2) == 1
        aside(api, 0)
        eventually(lambda: stands(api)[0] == "4")
    assert one.seen.count(2) == 1
    assert sorted(letter["value"] for letter in stored(api)) == ["order 0", "order 2"]


def test_a_message_in_front_is_passed_and_those_before_it_stay(
    api: httpx.Client, service: Service, orders: str
) -> None:
    """By a consumer that knows of no work above its position, they are all read."""
    assert aside(api, 2).json()["next_position"] is None
    assert "is processed already" in problem(aside(api, 2), 422, "invalid")["detail"]
    assert aside(api, 0).json()["next_position"] == "1"
    assert aside(api, 1).json()["next_position"] == "3"
    assert stands(api)[0] == "3"
    assert len(stored(api)) == 3


def test_what_waits_for_a_cut_goes_on_when_the_message_before_it_is_passed(
    api: httpx.Client, service: Service, orders: str
) -> None:
    with Running(service, {3}, on_poison="quarantine", attempts=1) as one:
        eventually(lambda: stands(api)[0] == "3" and reported(api))
        api.patch("/queues/orders", json={"partition_count": 2})
        with Publisher("orders", url=service.url) as publisher:
            for number in range(4, 12):
                publisher.publish(b"order %d" % number, f"c{number}")
        eventually(lambda: api.get("/queues/orders/rebalance").json()["resize"] is not None)
        assert {*one.seen} == {0, 1, 2, 3}
        aside(api, 3)
        eventually(lambda: {*one.seen} == {*range(12)})
    assert one.seen.count(3) == 1


def test_what_cannot_be_put_aside_is_refused_and_nothing_is_stored(
    api: httpx.Client, service: Service, orders: str
) -> None:
    create_queue(api, "copy", 1, log="builtin:orders")
    for answer, said in (
        (aside(api, 9), "no message at position 9"),
        (aside(api, "x"), "not a position"),
        (aside(api, 0, to="orders"), "would come back"),
        (aside(api, 0, to="copy"), "would come back"),
        (api.post("/queues/orders/partitions/7/dead-letter", json={"position": "0", "to": "dead"}),
         "no partition 7"),
        (api.post("/queues/orders/partitions/0/dead-letter", json={"position": "0"}), "to"),
    ):  # fmt: skip
        assert said in str(problem(answer, 422, "invalid")), answer.text
    assert "'none'" in problem(aside(api, 0, to="none"), 404, "queue_not_found")["detail"]
    api.post("/queues/orders/positions", json={"to": "latest"})
    assert "continues at 4" in problem(aside(api, 3), 422, "invalid")["detail"]
    assert (stored(api), stands(api)[0]) == ([], "4")


def send_back(api: httpx.Client, queue: str = "dead", **given: Any) -> httpx.Response:
    query = {"dry_run": "true"} if given.pop("dry_run", False) else {}
    return api.post(f"/queues/{queue}/redrive", json=given, params=query)


def lag(api: httpx.Client, queue: str) -> int:
    items = api.get(f"/queues/{queue}/partitions").json()["items"]
    return sum(one["lag"] for one in items)


def test_letters_go_back_once_and_as_they_were(
    api: httpx.Client, service: Service, orders: str
) -> None:
    for position in (0, 1, 2):
        aside(api, position)
    would = {"letters": {"orders": 3}, "more": False}
    assert send_back(api, dry_run=True).json() == would
    assert (lag(api, "dead"), lag(api, "orders")) == (3, 1)
    assert send_back(api, max_messages=2).json() == {"letters": {"orders": 2}, "more": True}
    assert (lag(api, "dead"), lag(api, "orders")) == (1, 3)
    acts = api.get("/audit?limit=2").json()["items"]
    assert {(act["call"], act["queue"], str(act["after"])) for act in acts} == {
        ("redrive", "dead", "{'orders': 2}"),
        ("redrive", "orders", "{'from': 'dead', 'letters': 2}"),
    }
    # As after a crash: sent, and not passed.
    api.post("/queues/dead/positions", json={"to": "earliest"})
    assert send_back(api).json() == would
    assert (lag(api, "dead"), lag(api, "orders")) == (0, 4)
    assert send_back(api).json() == {"letters": {}, "more": False}
    back = look(api, orders + "/messages", position=4)["messages"]
    assert sorted((one["value"], one["key"], one["headers"]["trace"]) for one in back) == [
        (f"order {number}", f"c{number}", f"t-{number}") for number in range(3)
    ]
    assert all(len(one["headers"]) == 1 for one in back)


def test_what_no_log_confirms_is_not_sent(api: httpx.Client, service: Service, orders: str) -> None:
    aside(api, 0)
    [letter] = stored(api)
    forged = {**letter["headers"], HEADER + "position": "1"}
    with Publisher("other", url=service.url) as publisher:
        publisher.publish(b"order 0", "c0", letter["headers"])
        publisher.publish(b"order 0", "c0", forged)
    said = problem(send_back(api, "other"), 422, "invalid")["detail"]
    assert "another message is there" in said
    assert (lag(api, "other"), lag(api, "orders")) == (2, 3)
    # A person names a queue.
    assert send_back(api, "other", to="dead").json()["letters"] == {"dead": 2}
    assert "again from 'dead'" in problem(send_back(api, to="dead"), 422, "invalid")["detail"]
    said = problem(send_back(api, "orders"), 422, "invalid")["detail"]
    assert "is no dead letter" in said
    with Flow("dead", url=service.url, client_name="first"):
        problem(send_back(api), 409, "queue_in_use")
    assert lag(api, "orders") == 3


def test_what_a_stranger_writes_into_a_letter_is_only_looked_up(
    api: httpx.Client, service: Service, orders: str
) -> None:
    at = "2026-11-20T10:00:00+00:00"
    for queue, partition, position, said in (
        ("none", "0", "0", "no such queue"),
        ("orders", "9223372036854775807", "0", "no such partition"),
        ("orders", "0", "first", "does not show"),
        ("orders", "0", "9" * 40, "does not show"),
        ("orders", "0", "99", "does not show"),
        ("orders", "0", "0", "another message"),
    ):
        names = ("queue", "partition", "position", "published-at")
        claimed = zip(names, (queue, partition, position, at), strict=True)
        with Publisher("other", url=service.url) as publisher:
            publisher.publish(b"order 0", "c0", {HEADER + name: text for name, text in claimed})
        answer = send_back(api, "other")
        assert said in problem(answer, 422, "invalid")["detail"], answer.text
        api.post("/queues/other/positions", json={"to": "latest"})
    assert lag(api, "orders") == 4


@pytest.mark.long
def test_it_takes_the_right_to_publish_to_the_queue_of_letters(migrated_url: str) -> None:
    with guarded(migrated_url) as secured, secured.http as http:
        for name in ("team-a.orders", "team-a.dead", "team-b.dead"):
            secured.create(name)
        with Client(secured.service.url, token=secured.root) as client:
            with Publisher("team-a.orders", url=secured.service.url, token=secured.root) as one:
                one.publish(b"x", "k")
            [partition] = [p.partition for p in client.partitions("team-a.orders") if p.lag]
        path = f"/v1/queues/team-a.orders/partitions/{partition}/dead-letter"

        def call(role: str, to: str) -> int:
            body = {"position": "0", "to": to}
            return http.post(path, json=body, headers=bearer(secured.keys[role])).status_code

        for role in ("viewer", "publisher", "consumer"):
            assert call(role, "team-a.dead") == 403
        # Whether that queue is there is not said.
        assert call("admin", "team-b.dead") == call("admin", "team-b.none") == 403
        assert call("admin", "team-a.dead") == 200
        # Letters go only where their sender may publish.
        again = "/v1/queues/team-a.dead/redrive"
        for role, to, status in (
            ("consumer", None, 403),
            ("admin", "team-b.dead", 403),
            ("admin", None, 200),
        ):
            answer = http.post(again, json={"to": to}, headers=bearer(secured.keys[role]))
            assert answer.status_code == status, answer.text
