"""Messages of a partition to look at, of a live service."""

from typing import Any

import httpx
import pytest

from counterpoise.client import Client
from counterpoise.keys import hash_of
from counterpoise.publisher import Publisher
from tests.api.access import bearer, guarded
from tests.api.consumer import create_queue
from tests.api.test_problems import problem
from tests.log_support import write_past
from tests.redis_server import RedisServer, redis_server
from tests.service import Service

__all__ = ["redis_server"]


@pytest.fixture
def published(api: httpx.Client, service: Service) -> str:
    """A queue of one partition with five messages; the path of its messages."""
    create_queue(api, "q", 1)
    with Publisher("q", url=service.url) as publisher:
        publisher.publish(b'{"total": 3}', "c1", {"trace": "t-1"})
        publisher.publish(b"\xff\x00", "c2")
        publisher.publish("ä".encode() * 2000, "c1", {"long": "x" * 2000})
        publisher.publish(b"\x1b[2J", None)
        publisher.publish(b"", "k" * 2000)
    return "/queues/q/partitions/0/messages"


def look(api: httpx.Client, path: str, **query: object) -> Any:
    answer = api.get(path, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_messages_are_shown_whole_or_cut_and_nothing_is_changed(
    api: httpx.Client, published: str
) -> None:
    before = api.get("/queues/q/partitions").json()["items"][0]["position"]
    answer = look(api, published)
    assert {name: answer[name] for name in ("partition", "start", "end", "following")} == {
        "partition": 0,
        "start": "0",
        "end": "5",
        "following": "5",
    }
    first, binary, long, screen, empty = answer["messages"]
    assert first["published_at"].startswith("20")
    assert {**first, "published_at": None} == {
        "position": "0",
        "published_at": None,
        "key": "c1",
        "headers": {"trace": "t-1"},
        "size_bytes": 12,
        "value": '{"total": 3}',
    }
    assert (binary["value_base64"], "value" in binary, binary["headers"]) == ("/wA=", False, {})
    # Cut, and not within a character; headers are shown whole or not at all.
    assert (long["value"], long["size_bytes"], long["headers"]) == ("ä" * 500, 4000, None)
    assert look(api, published, position=2, max_bytes=3)["messages"][0]["value"] == "ä"
    assert (screen["value"], screen["key"]) == ("\x1b[2J", None)
    assert (empty["value"], empty["size_bytes"], empty["key"]) == ("", 0, "k" * 1000)
    assert api.get("/queues/q/partitions").json()["items"][0]["position"] == before
    assert api.get("/queues/q/flows").json()["items"] == []


def test_a_look_begins_at_a_position_and_goes_on_where_it_ended(
    api: httpx.Client, published: str
) -> None:
    def positions(**query: object) -> tuple[list[str], str]:
        answer = look(api, published, **query)
        return [one["position"] for one in answer["messages"]], answer["following"]

    assert positions(limit=2) == (["0", "1"], "2")
    assert positions(limit=2, position=2) == (["2", "3"], "4")
    assert positions(limit=2, position=4) == (["4"], "5")
    assert positions(position=5) == ([], "5")
    assert positions(position=99) == ([], "5")


def test_a_message_is_seen_whole_and_more_of_each_means_fewer_messages(
    api: httpx.Client, published: str, service: Service
) -> None:
    long = b'{"n": [' + b"1, " * 4000 + b"1]}"
    with Publisher("q", url=service.url) as publisher:
        for _ in range(3):
            publisher.publish(long)
    [first] = look(api, published, position=5, limit=1, max_bytes=1_000_000)["messages"]
    assert first["value"].encode() == long
    for most, count in ((333_333, 3), (333_334, 2), (500_001, 1), (1_000_000, 1)):
        answer = look(api, published, position=5, limit=100, max_bytes=most)
        assert (len(answer["messages"]), answer["following"]) == (count, str(5 + count)), most


def test_what_other_programs_wrote_is_shown_too(
    api: httpx.Client, published: str, migrated_url: str
) -> None:
    write_past(migrated_url, "q", [(b"old", "k", '{"n": 1.5}', "0044-03-15 BC")])
    [old] = look(api, published, position=5)["messages"]
    assert (old["published_at"], old["headers"]) == (None, {"n": "1.5"})


def test_what_cannot_be_looked_at_is_refused_with_its_reason(
    api: httpx.Client, published: str
) -> None:
    none = problem(api.get("/queues/q/partitions/7/messages"), 422, "invalid")
    assert "has no partition 7" in none["detail"]
    problem(api.get(published, params={"position": "first"}), 422, "invalid")
    problem(api.get(published, params={"limit": "101"}), 422, "invalid")
    problem(api.get(published, params={"max_bytes": "1000001"}), 422, "invalid")
    problem(api.get("/queues/none/partitions/0/messages"), 404, "queue_not_found")
    create_queue(api, "unknown", 1, log="pulsar://127.0.0.1/flights")
    said = problem(api.get("/queues/unknown/partitions/0/messages"), 422, "invalid")
    assert "does not know this kind of log" in said["detail"]


@pytest.mark.long
def test_a_session_of_a_consumer_may_look_and_one_of_a_viewer_may_not(migrated_url: str) -> None:
    with guarded(migrated_url) as secured, secured.http as http:
        secured.create("team-a.orders")
        path = "/v1/queues/team-a.orders/partitions/0/messages"
        for role, status in (("viewer", 403), ("publisher", 403), ("consumer", 200)):
            assert http.get(path, headers=bearer(secured.keys[role])).status_code == status
            http.post("/v1/session", json={"key": secured.keys[role]})
            assert http.get(path).status_code == status
            http.cookies.clear()


def publish(api: httpx.Client, queue: str, **given: object) -> Any:
    answer = api.post(f"/queues/{queue}/messages", json=given)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_person_publishes_a_message_as_a_publisher_would(
    api: httpx.Client, service: Service
) -> None:
    create_queue(api, "q", 4)
    first = publish(api, "q", value='{"ä": 1}', key="c1", headers={"trace": "t-1"})
    assert first == {"partition": hash_of("c1") % 4, "before": False}
    path = f"/queues/q/partitions/{first['partition']}/messages"
    [message] = look(api, path)["messages"]
    assert (message["value"], message["key"]) == ('{"ä": 1}', "c1")
    assert message["headers"] == {"trace": "t-1"}
    with Publisher("q", url=service.url) as publisher:
        publisher.publish(b"later", "c1")
    assert [one["value"] for one in look(api, path)["messages"]] == ['{"ä": 1}', "later"]
    # Bytes, and no key: to the partition that is named.
    assert publish(api, "q", value_base64="/wA=", partition=3)["partition"] == 3
    last = look(api, "/queues/q/partitions/3/messages")["messages"][-1]
    assert (last["value_base64"], last["key"], last["headers"]) == ("/wA=", None, {})
    # A value may hold any byte, or none.
    for value in ("a\0b", ""):
        assert publish(api, "q", value=value)["partition"] in range(4)
    # The audit says where and how much, and nothing of the message.
    acts = api.get("/audit", params={"queue": "q"}).json()["items"]
    assert [act["call"] for act in acts] == ["publish_message"] * 4 + ["create_queue"]
    assert acts[2]["after"] == {"partition": 3, "size_bytes": 2}


@pytest.mark.parametrize("partitioning", ["fixed", "dynamic"])
def test_a_message_that_is_published_again_under_its_id_is_there_once(
    api: httpx.Client, service: Service, partitioning: str
) -> None:
    create_queue(api, "q", 2, partitioning=partitioning)
    once = {"value": "x", "id": "fix-42"}
    to = publish(api, "q", **once)["partition"]
    assert publish(api, "q", **once) == {"partition": to, "before": True}
    # The repetition comes after the partitions have changed.
    with Client(service.url) as client:
        if partitioning == "fixed":
            client.change_queue("q", partition_count=5)
        else:
            client.split_partition("q", to)
    assert publish(api, "q", **once)["before"]
    assert not publish(api, "q", value="x", id="fix-43", key="k")["before"]
    assert sum(one["lag"] for one in api.get("/queues/q/partitions").json()["items"]) == 2


def test_an_id_is_not_the_publisher_id_of_a_program(api: httpx.Client, service: Service) -> None:
    create_queue(api, "q", 1)
    with Publisher("q", url=service.url, publisher_id="etl") as program:
        program.publish(b"1")
    longest = "e" * 200
    for id in ("etl", longest, "job"):
        assert not publish(api, "q", value="x", id=id)["before"]
    with Publisher("q", url=service.url, publisher_id="job") as program:
        assert program.next_sequence == 0


def test_what_cannot_be_published_is_refused_with_its_reason(
    refusing: httpx.Client,
) -> None:
    for given, said in (
        ({}, "value or value_base64"),
        ({"value": "x", "value_base64": "eA=="}, "value or value_base64"),
        ({"value_base64": "?"}, "no base64"),
        ({"value": "x", "key": "a\0b"}, "NUL"),
        ({"value": "x", "headers": {"a": "b\0"}}, "NUL"),
        ({"value": "x", "headers": {"a": 1}}, "valid string"),
        ({"value": "x", "partition": 1}, "not among the 1"),
        ({"value": "x", "key": "k", "partition": 0}, "the key decides"),
        ({"value": "x", "id": "a b"}, "of the characters"),
    ):
        answer = refusing.post("/queues/q/messages", json=given)
        assert said in str(problem(answer, 422, "invalid")), answer.text
    problem(refusing.post("/queues/none/messages", json={"value": "x"}), 404, "queue_not_found")
    large = refusing.post("/queues/q/messages", json={"value": "x" * 70_000})
    problem(large, 413, "too_large")


def test_a_log_that_takes_no_message_from_the_service_is_named(api: httpx.Client) -> None:
    create_queue(api, "one", 1, partitioning="dynamic")
    answer = api.post("/queues/one/messages", json={"value": "x", "partition": 0})
    assert "ranges of hashes" in problem(answer, 422, "invalid")["detail"]
    create_queue(api, "unknown", 1, log="pulsar://127.0.0.1/flights")
    answer = api.post("/queues/unknown/messages", json={"value": "x"})
    assert "does not know this kind of log" in problem(answer, 422, "invalid")["detail"]
    for name in ("left", "right"):
        create_queue(api, name, 2)
    create_queue(api, "joined", 4, log="builtin:left", align_with="right")
    answer = api.post("/queues/joined/messages", json={"value": "x"})
    assert "publish to those: left" in problem(answer, 422, "invalid")["detail"]


def test_a_log_in_redis_takes_a_message_with_the_access_of_the_service(
    api: httpx.Client, redis_server: RedisServer
) -> None:
    create_queue(api, "away", 2, log=redis_server.log("away"))
    once = {"value": "x", "key": "k", "id": "fix-1"}
    assert publish(api, "away", **once) == {"partition": hash_of("k") % 2, "before": False}
    assert publish(api, "away", **once)["before"]
    redis_server.stop()
    try:
        answer = api.post("/queues/away/messages", json={"value": "x"})
        assert "did not confirm" in problem(answer, 503, "unavailable")["detail"]
        acts = api.get("/audit", params={"queue": "away"}).json()["items"]
        assert [act["call"] for act in acts] == ["publish_message"] * 3 + ["create_queue"]
    finally:
        redis_server.start()


def test_publishing_needs_the_right_on_the_log_behind_the_queue(migrated_url: str) -> None:
    with guarded(migrated_url) as secured, secured.http as http:
        secured.create("team-b.orders")
        secured.create("team-a.copy", log="builtin:team-b.orders")
        headers = bearer(secured.keys["publisher"])
        path = "/v1/queues/team-a.copy/messages"
        assert http.post(path, json={"value": "x"}, headers=headers).status_code == 403
        assert http.post(path, json={"value": "x"}, headers=bearer(secured.root)).status_code == 201
