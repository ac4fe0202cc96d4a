"""`counterpoise dead-letters`: letters are listed and shown, and go back to their queues."""

import json

import pytest

from counterpoise.consumer import Consumer, DeadLetter
from counterpoise.consumer.poison import Policy
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
