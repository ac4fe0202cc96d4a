"""`counterpoise dead-letters`: letters are listed and shown, and go back to their queues."""

import asyncio
import json
import signal
import uuid
from contextlib import ExitStack
from zlib import crc32

import pytest

from broker.service import Broker
from counterpoise.consumer import Consumer, DeadLetter, poison, reading
from counterpoise.consumer.letters import HEADER, NAMES, RETRY_HEADER
from counterpoise.consumer.poison import Policy
from counterpoise.flow import Flow
from counterpoise.logs.rows import TOMBSTONE
from counterpoise.publisher import Publisher


@pytest.fixture
def letters(run, service):
    """Two of four messages of `orders` are in `dead`."""
    for name in ("orders", "dead", "mended"):
        run("queues", "create", name, "-p", "1", "--rebalance-delay", "0")
    with Publisher("orders", url=service.url) as publisher:
        for number in range(4):
            publisher.publish(f"order {number}".encode(), f"c{number}", {"trace": f"t-{number}"})
    consume(service, "orders", 4, odd)


def odd(message):
    if int(message.value.split()[1]) % 2:
        raise ValueError("an odd\norder")


def consume(service, queue, count, handle=lambda message: None):
    """Handle so many messages of a queue; poison goes to `dead`. Returns them."""
    seen = []

    def each(message):
        seen.append(message)
        handle(message)

    letter: Policy = DeadLetter("dead") if queue != "dead" else "halt"
    Consumer(queue, each=each, url=service.url, limit=count, on_poison=letter).run()
    return seen


def claiming(queue, position="1", partition="0", at="2026-11-20T10:00:00+00:00"):
    """The headers of a letter, as any publisher can write them."""
    said = {"queue": queue, "partition": partition, "position": position, "published-at": at}
    return {HEADER + name: text for name, text in said.items()}


def listed(run, *options):
    return json.loads(run("dead-letters", "list", "dead", "--json", *options).stdout)


@pytest.mark.long
def test_letters_are_listed_and_shown_with_their_origin(run, letters):
    first, second = listed(run)
    assert (first["value"], first["key"], first["position"]) == ("order 1", "c1", "0")
    assert (second["dead_letter"]["queue"], second["dead_letter"]["position"]) == ("orders", "3")
    assert listed(run, "-n", "1") == [first]
    text = run("dead-letters", "list", "dead").stdout
    assert "orders:0:1" in text
    assert "ValueError: an odd" in text
    said = run("dead-letters", "list", "dead", "-n", "1")
    assert "more than 1 letter;" in said.stderr
    shown = run("dead-letters", "show", "dead", "-p", "0", "--position", "1").stdout
    assert "order 3" in shown
    assert "attempts: 1" in shown
    said = run("dead-letters", "show", "dead", "-p", "0", "--position", "7", code=1).stderr
    assert "PositionAhead" not in said
    assert said.count("\n") == 1


def test_letters_go_back_once_and_as_they_were(run, service, letters):
    assert "2 letters of dead would be sent to orders" in (
        run("dead-letters", "redrive", "dead", "--dry-run").stderr
    )
    assert len(listed(run)) == 2
    assert "2 letters of dead sent to orders" in run("dead-letters", "redrive", "dead").stderr
    assert listed(run) == []
    assert "no letter waits in dead" in run("dead-letters", "redrive", "dead").stderr
    # As after a crash: sent, and not passed.
    run("positions", "set", "--yes", "dead", "--to", "earliest")
    run("dead-letters", "redrive", "dead")
    back = consume(service, "orders", 2)
    assert [(one.value, one.key, dict(one.headers)) for one in back] == [
        (f"order {number}".encode(), f"c{number}", {"trace": f"t-{number}"}) for number in (1, 3)
    ]
    assert service_lag(run, "orders") == 0


def test_a_letter_that_is_done_above_the_position_does_not_wait(run, service, letters):
    def handle(message):
        if message.key == "c1":
            raise ValueError("not yet")

    options = {"order": "key", "on_poison": "quarantine", "url": service.url}
    consumer = Consumer("dead", each=handle, **options)
    consumer.run(lambda: consumer.handled == 1)
    assert [one["key"] for one in listed(run)] == ["c1"]
    assert "1 letter of dead sent to orders" in run("dead-letters", "redrive", "dead").stderr
    assert listed(run) == []
    assert [one.key for one in consume(service, "orders", 1)] == ["c1"]


def service_lag(run, queue):
    return json.loads(run("lag", queue, "--json").stdout)["lag"]


@pytest.mark.long
def test_what_fails_again_waits_for_the_next_redrive(run, service, letters):
    run("dead-letters", "redrive", "dead")
    consume(service, "orders", 2, odd)
    assert [one["position"] for one in listed(run)] == ["2", "3"]


@pytest.mark.long
def test_only_the_letters_that_were_counted_go(run, service, monkeypatch):
    """In each partition it ends behind the last of them, whatever comes meanwhile."""
    for name, count in (("dead", "4"), ("a", "1"), ("b", "1")):
        run("queues", "create", name, "-p", count)
    # Partition 0 has letters of `a`, the others of a queue that cannot take any.
    with Publisher("dead", url=service.url) as publisher:
        for number in range(24):
            target = "a" if crc32(f"k{number}".encode()) % 4 == 0 else "gone"
            publisher.publish(b"x", f"k{number}", claiming(target))
    waiting = listed(run, "-n", "99")
    of_a = [one for one in waiting if one["partition"] == 0]
    assert {one["dead_letter"]["queue"] for one in of_a} == {"a"}
    most = len(of_a) - 1
    # Each new partition gets a message before one gets more.
    monkeypatch.setattr(reading, "FIRST_MESSAGES", 1)
    real = poison.publish_once

    def publish_once(*arguments, **options):
        with Publisher("dead", url=service.url) as publisher:
            publisher.publish(b"new", of_a[0]["key"], claiming("a"))
        real(*arguments, **options)

    monkeypatch.setattr(poison, "publish_once", publish_once)
    options = ("-n", str(most), "--trust", "a", "--json")
    said = run("dead-letters", "redrive", "dead", *options).stdout
    assert json.loads(said)["sent"] == {"a": most}
    left = listed(run, "-n", "99")
    # Its last, those that came meanwhile, and all of the others.
    assert len([one for one in left if one["partition"] == 0]) == 1 + most
    assert [one for one in left if one["partition"]] == waiting[len(of_a) :]


@pytest.mark.long
def test_letters_that_another_consumer_takes_are_refused_and_missed(
    run, service, letters, monkeypatch
):
    with Flow("dead", url=service.url, client_name="another"):
        said = run("dead-letters", "redrive", "dead", code=1).stderr
        assert "dead is consumed by 'another'" in said
        assert "2 letters" in run("dead-letters", "redrive", "dead", "--dry-run").stderr
    real = poison.publish_once

    def stopped(*arguments, **options):
        real(*arguments, **options)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(poison, "publish_once", stopped)
    said = run("dead-letters", "redrive", "dead", code=130).stderr
    assert "1 letter of dead sent to orders\n" in said
    assert "1 of 2 letters of dead sent;" in said
    assert len(listed(run)) == 1


def test_letters_of_a_paused_partition_are_refused(run, letters):
    run("queues", "pause", "dead", "-p", "0", "--reason", "wait for it")
    said = run("dead-letters", "redrive", "dead", code=1).stderr
    assert "partition 0 of dead is paused (wait for it), so its letters" in said
    assert "2 letters" in run("dead-letters", "redrive", "dead", "--dry-run").stderr
    assert len(listed(run)) == 2
    run("queues", "resume", "dead", "-p", "0")
    assert "2 letters of dead sent" in run("dead-letters", "redrive", "dead").stderr


def meanwhile(monkeypatch, act):
    """Call it when the letters are counted, and before the consumer is bound."""
    real = Consumer.run

    def begin(self, until):
        act()
        real(self, until)

    monkeypatch.setattr(Consumer, "run", begin)


def test_a_redrive_ends_when_what_is_left_is_paused_meanwhile(run, service, letters, monkeypatch):
    meanwhile(monkeypatch, lambda: run("queues", "pause", "dead"))
    said = run("dead-letters", "redrive", "dead", code=1).stderr
    assert "partition 0 of dead is paused\n" in said
    assert "0 of 2 letters of dead sent;" in said


def test_a_redrive_ends_when_another_consumer_is_bound_meanwhile(
    run, service, letters, monkeypatch
):
    with ExitStack() as held:
        another = Flow("dead", url=service.url, client_name="another")
        meanwhile(monkeypatch, lambda: held.enter_context(another))
        said = run("dead-letters", "redrive", "dead", code=1).stderr
    assert "dead is consumed by 'another' as well" in said
    assert "0 of 2 letters of dead sent;" in said


@pytest.mark.long
def test_letters_go_elsewhere_and_in_parts(run, letters):
    said = run("dead-letters", "redrive", "dead", "--to", "mended", "-n", "1", "--json").stdout
    assert json.loads(said) == {"queue": "dead", "sent": {"mended": 1}}
    assert len(listed(run)) == 1
    assert (
        "name another queue"
        in run("dead-letters", "redrive", "dead", "--to", "dead", code=1).stderr
    )


def put(service, queue, value, key, headers):
    with Publisher(queue, url=service.url) as publisher:
        publisher.publish(value, key, headers)


@pytest.mark.long
def test_letters_that_would_wait_for_others_are_refused(run, service):
    """A resize of their queue is ordered, and not settled while letters from before it wait."""
    run("queues", "create", "dead", "-p", "2", "--rebalance-delay", "0")
    run("queues", "create", "mended", "-p", "1")

    def put_in(count, *numbers):
        for number in numbers:
            keys = (f"k{n}" for n in range(99))
            key = next(one for one in keys if crc32(one.encode()) % count == number)
            put(service, "dead", b"x", key, claiming("mended"))

    put_in(2, 0, 1)
    run("queues", "resize", "dead", "3")
    put_in(3, 0)
    redrive = ("dead-letters", "redrive", "dead", "--trust", "mended", "-n")
    said = run(*redrive, "2", code=1).stderr
    assert "dead was resized, and letters of partition 0 wait for others of partition 1" in said
    assert "1 letter of dead sent" in run(*redrive, "1").stderr
    assert "2 letters of dead sent" in run(*redrive, "2").stderr


@pytest.fixture
def genuine(run, letters):
    """What the letter of order 1 says; the queue of letters is empty then."""
    said = listed(run)[0]["dead_letter"]
    run("positions", "set", "--yes", "dead", "--to", "latest")
    return {HEADER + name: text for name, text in said.items()} | {"trace": "t-1"}


FORGED = [
    ({}, b"order 2", "c1", "another message is there"),
    ({}, b"order 1", "c2", "another message is there"),
    ({"trace": "t-2"}, b"order 1", "c1", "another message is there"),
    (claiming("orders"), b"order 1", "c1", "another message is there"),
    ({HEADER + "position": "2"}, b"order 1", "c1", "another message is there"),
    ({HEADER + "position": "4"}, b"order 1", "c1", "there is no such message"),
    ({HEADER + "position": "99"}, b"order 1", "c1", "cannot be seen there"),
    ({HEADER + "position": "x"}, b"order 1", "c1", "cannot be seen there"),
    ({HEADER + "partition": "7"}, b"order 1", "c1", "cannot be seen there"),
    ({HEADER + "queue": "mended"}, b"order 1", "c1", "cannot be seen there"),
    ({HEADER + "queue": "gone"}, b"order 1", "c1", "cannot be seen there"),
]


@pytest.mark.long
def test_no_stranger_sends_a_message_with_the_rights_of_who_redrives(run, service, genuine):
    """The log of the queue that a letter names has to have the message there."""
    for change, value, key, why in FORGED:
        run("positions", "set", "--yes", "dead", "--to", "latest")
        put(service, "dead", value, key, {**genuine, **change})
        queue = {**genuine, **change}[HEADER + "queue"]
        for more in ((), ("--dry-run",)):
            said = run("dead-letters", "redrive", "dead", *more, code=1).stderr
            assert f" of {queue}, but " in said
            assert why in said, change
            assert f"--trust {queue} " in said
            assert said.count("\n") == 1
    assert service_lag(run, "orders") == 0
    run("dead-letters", "redrive", "dead", "--to", "mended")
    (sent,) = consume(service, "mended", 1)
    assert (sent.value, sent.key, dict(sent.headers)) == (value, key, {"trace": "t-1"})


@pytest.mark.long
def test_a_letter_is_confirmed_by_what_it_has_of_its_message(run, service, genuine):
    """Not by what else is put aside with a message: any publisher can write such headers."""
    put(
        service, "dead", b"order 1", "c1", {**genuine, f"{HEADER}x": "y", RETRY_HEADER + "due": "0"}
    )
    run("dead-letters", "redrive", "dead")
    (back,) = consume(service, "orders", 1)
    assert (back.value, dict(back.headers)) == (b"order 1", {"trace": "t-1"})


@pytest.mark.long
def test_letters_of_other_logs_are_confirmed_too(run, service, kafka, redis_server):
    topic = uuid.uuid4().hex
    kafka.create_topic(topic, 1)
    run("queues", "create", "dead", "-p", "1", "--rebalance-delay", "0")
    for queue, log in (("a", redis_server.log(uuid.uuid4().hex)), ("b", kafka.log(topic))):
        run("queues", "create", queue, "-p", "1", "--rebalance-delay", "0", "--log", log)
        for value, headers in ((b"order 1", {"n": "base64:AA=="}), (b"", {TOMBSTONE: "true"})):
            put(service, queue, value, "base64:/w==", headers)
        consume(service, queue, 2, fail)
        said = run("dead-letters", "redrive", "dead").stderr
        assert f"2 letters of dead sent to {queue}\n" in said
        assert [one.value for one in consume(service, queue, 2)] == [b"order 1", b""]


def fail(message):
    raise ValueError(message.value)


@pytest.mark.long
def test_who_trims_the_origin_meanwhile_has_to_trust_its_letters(run, service, letters):
    run("queues", "change", "orders", "--retention-seconds", "0")
    upkeep(service)
    said = run("dead-letters", "redrive", "dead", code=1).stderr
    assert "from position 1 of partition 0 of orders, but the log has that message no more" in said
    assert len(listed(run)) == 2
    said = run("dead-letters", "redrive", "dead", "--trust", "orders").stderr
    assert "2 letters of dead sent to orders" in said
    assert len(consume(service, "orders", 2)) == 2


def upkeep(service):
    async def maintain():
        broker = Broker(service.settings)
        await broker.start()
        try:
            await broker.log_upkeep.maintain()
        finally:
            await broker.stop()

    asyncio.run(maintain())


@pytest.mark.long
def test_queues_that_share_a_log_are_named_and_get_no_letter_twice(run, service, letters):
    run("queues", "create", "copy", "--log", "builtin:orders", "--start", "latest")
    run("queues", "create", "other-dead", "--log", "builtin:dead")
    # By no spelling of its log do letters come back to where they wait.
    said = run("dead-letters", "redrive", "dead", "--to", "other-dead", code=1).stderr
    assert "dead would get its letters again: name another queue with --to" in said
    said = run("dead-letters", "redrive", "dead", "--dry-run").stderr
    assert "orders shares its log with copy: they get the letters, too" in said
    run("dead-letters", "redrive", "dead")
    run("dead-letters", "redrive", "other-dead")
    assert service_lag(run, "orders") == service_lag(run, "copy") == 2


@pytest.mark.long
def test_what_only_looks_like_a_letter_is_listed_and_shown(run, service, letters):
    """No text of it begins a line, and none is longer than that of a letter."""
    for said in (
        {"error": "x"},
        {"queue": "orders"},
        {"queue": "no/queue", "partition": "0", "position": "0", "published-at": "2026-11-20"},
        {"queue": "a\nforged", "attempts": "1\nforged", "error": "no\nforged"},
        dict.fromkeys(NAMES, "9" * 5000),
    ):
        run("positions", "set", "--yes", "dead", "--to", "latest")
        put(service, "dead", b"a\nforged", "k\nforged", {HEADER + n: t for n, t in said.items()})
        (found,) = listed(run)
        assert found["dead_letter"] == {name: text[:1000] for name, text in said.items()}
        shown = run("dead-letters", "list", "dead").stdout
        place = ("-p", "0", "--position", found["position"])
        shown += run("dead-letters", "show", "dead", *place).stdout
        assert "forged" in shown
        assert not [line for line in shown.splitlines() if line.strip().startswith("forged")]
        said = run("dead-letters", "redrive", "dead", code=1).stderr
        assert f"position {found['position']} of partition 0 of dead is no dead letter" in said


@pytest.mark.long
def test_the_messages_of_another_queue_are_not_listed_as_letters(run, service, letters):
    run("queues", "create", "plain", "-p", "1")
    run("publish", "plain", stdin="x\n")
    for options in ((), ("--json",)):
        refused = run("dead-letters", "list", "plain", *options, code=1)
        assert "plain is no queue of dead letters" in refused.output
        assert "counterpoise peek plain" in refused.output


@pytest.mark.long
def test_a_message_that_is_no_letter_is_refused_before_anything_is_sent(run, service, letters):
    with Publisher("dead", url=service.url) as publisher:
        publisher.publish(b"stray")
    said = run("dead-letters", "redrive", "dead", code=1).stderr
    assert "position 2 of partition 0 of dead is no dead letter" in said
    assert "Give --to" in said
    assert len(listed(run)) == 3
    run("queues", "delete", "orders", "--force")
    assert "orders" in run("dead-letters", "redrive", "dead", "-n", "2", code=1).stderr
    assert len(listed(run)) == 3
