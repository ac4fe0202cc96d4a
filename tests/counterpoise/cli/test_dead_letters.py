"""`counterpoise dead-letters`: letters are listed and shown, and go back to their queues."""

import json
import signal
from zlib import crc32

import pytest

from counterpoise.consumer import Consumer, DeadLetter, poison, reading
from counterpoise.consumer.poison import Policy
from counterpoise.flow import Flow
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


def listed(run, *options):
    return json.loads(run("dead-letters", "list", "dead", "--json", *options).stdout)


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
    run("positions", "set", "dead", "--to", "earliest")
    run("dead-letters", "redrive", "dead")
    back = consume(service, "orders", 2)
    assert [(one.value, one.key, dict(one.headers)) for one in back] == [
        (f"order {number}".encode(), f"c{number}", {"trace": f"t-{number}"}) for number in (1, 3)
    ]
    assert service_lag(run, "orders") == 0


def service_lag(run, queue):
    return json.loads(run("lag", queue, "--json").stdout)["lag"]


def test_what_fails_again_waits_for_the_next_redrive(run, service, letters):
    run("dead-letters", "redrive", "dead")
    consume(service, "orders", 2, odd)
    assert [one["position"] for one in listed(run)] == ["2", "3"]


def test_only_the_letters_that_were_counted_go(run, service, monkeypatch):
    """In each partition it ends behind the last of them, whatever comes meanwhile."""
    for name, count in (("dead", "4"), ("a", "1"), ("b", "1")):
        run("queues", "create", name, "-p", count)
    # Partition 0 has letters of `a`, the others of a queue that cannot take any.
    with Publisher("dead", url=service.url) as publisher:
        for number in range(24):
            target = "a" if crc32(f"k{number}".encode()) % 4 == 0 else "gone"
            publisher.publish(b"x", f"k{number}", {f"{poison.HEADER}queue": target})
    waiting = listed(run, "-n", "99")
    of_a = [one for one in waiting if one["partition"] == 0]
    assert {one["dead_letter"]["queue"] for one in of_a} == {"a"}
    most = len(of_a) - 1
    # Each new partition gets a message before one gets more.
    monkeypatch.setattr(reading, "FIRST_MESSAGES", 1)
    real = poison.publish_once

    def publish_once(*arguments, **options):
        with Publisher("dead", url=service.url) as publisher:
            publisher.publish(b"new", of_a[0]["key"], {f"{poison.HEADER}queue": "a"})
        real(*arguments, **options)

    monkeypatch.setattr(poison, "publish_once", publish_once)
    said = run("dead-letters", "redrive", "dead", "-n", str(most), "--json").stdout
    assert json.loads(said)["sent"] == {"a": most}
    left = listed(run, "-n", "99")
    # Its last, those that came meanwhile, and all of the others.
    assert len([one for one in left if one["partition"] == 0]) == 1 + most
    assert [one for one in left if one["partition"]] == waiting[len(of_a) :]


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


def test_letters_go_elsewhere_and_in_parts(run, letters):
    said = run("dead-letters", "redrive", "dead", "--to", "mended", "-n", "1", "--json").stdout
    assert json.loads(said) == {"queue": "dead", "sent": {"mended": 1}}
    assert len(listed(run)) == 1
    assert (
        "name another queue"
        in run("dead-letters", "redrive", "dead", "--to", "dead", code=1).stderr
    )


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
