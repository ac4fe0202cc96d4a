"""The examples of docs/consumer.md and docs/aligned.md run unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
# What the reader has already: the queues, messages in them, and a handler.
BAGS = """
from counterpoise import Client, Consumer, Publisher

with Client() as client:
    client.create_queue("bags", 1, rebalance_delay=0)

with Publisher("bags") as publisher:
    for number in range(120):
        publisher.publish(str(number).encode(), key=f"B{number % 12}")

loaded: dict[str, list[int]] = {}


def load(message):
    loaded.setdefault(message.key, []).append(int(message.value))


"""
BAGS_LOADED = """
print(len(loaded), "keys, each in order:", all(of == sorted(of) for of in loaded.values()))
"""
GATES = """
from counterpoise import Client, Publisher

with Client() as client:
    client.create_queue("gates", 4, rebalance_delay=0)

with Publisher("gates") as publisher:
    for number in range(40):
        publisher.publish(str(number).encode(), key=f"N{number % 8}")

"""
GATES_OPENED = """
print(len(opened), "gates, each once:", sorted(opened) == list(range(40)))
"""
ORDERS = """
from counterpoise import Client, Publisher

with Client() as client:
    client.create_queue("orders", 4)
    client.create_queue("payments", 4)
    client.create_queue("matching", log="builtin:orders", align_with="payments")

for queue in ("orders", "payments"):
    with Publisher(queue) as publisher:
        for number in range(100):
            publisher.publish(f"{queue} {number}".encode(), key=f"customer-{number}")

"""
SEATS = """
from counterpoise import Client, Consumer, DeadLetter, Publisher, Retry

with Client() as client:
    for queue in ("seats", "seats-retry", "seats-dead"):
        client.create_queue(queue, 2, rebalance_delay=0)

with Publisher("seats") as publisher:
    for number in range(12):
        publisher.publish(str(number).encode(), key=f"N{number % 3}")

handled = []
tries = 0


def handle(message):
    global tries
    if message.value == b"1" and (tries := tries + 1) < 3:
        raise ConnectionError("the seats of N1 are away")
    handled.append((message.key, int(message.value)))


"""
SEATS_HANDLED = """
consumer.run(until=lambda: len(handled) == 12)
print(f"N1 was tried {tries} times:", [number for key, number in handled if key == "N1"])
"""


def _prints(page: str, url: str, program: int = -1, before: str = "", after: str = "") -> str:
    """What a program of a page prints, by default the last one, between `before` and `after`."""
    code = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[program]
    done = subprocess.run(
        [sys.executable, "-c", before + code + after],
        env={**os.environ, "COUNTERPOISE_URL": url},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_example_runs(service):
    printed = _prints("consumer.md", service.url)
    assert "1000 departures, 29080 minutes late\n" in printed
    assert "not a number: b'unknown' ValueError: invalid literal for int()" in printed


@pytest.mark.long
def test_orders_meet_their_payments(service):
    assert _prints("aligned.md", service.url, 0, ORDERS) == "100 pairs\n"


@pytest.mark.long
def test_a_message_is_tried_again_later_and_its_key_waits(service):
    printed = _prints("consumer.md", service.url, 3, SEATS, SEATS_HANDLED)
    assert printed == "N1 was tried 3 times: [1, 4, 7, 10]\n"


@pytest.mark.long
def test_an_event_loop_handles_each_message_once(service):
    printed = _prints("consumer.md", service.url, 2, GATES, GATES_OPENED)
    assert printed == "40 gates, each once: True\n"


@pytest.mark.long
def test_keys_of_a_partition_go_on_side_by_side(service):
    printed = _prints("consumer.md", service.url, 1, BAGS, BAGS_LOADED)
    assert printed == "12 keys, each in order: True\n"
