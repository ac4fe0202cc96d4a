"""The examples of docs/consumer.md and docs/aligned.md run unchanged.

A reader of some has a handler already, and queues with messages.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from counterpoise import Client, Publisher

DOCS = Path(__file__).parents[3] / "docs"
# Before and after programs that are parts of one: a handler, and what it has handled.
BAGS = """
from counterpoise import Consumer

loaded: dict[str, list[int]] = {}


def load(message):
    loaded.setdefault(message.key, []).append(int(message.value))


"""
BAGS_LOADED = """
print(len(loaded), "keys, each in order:", all(of == sorted(of) for of in loaded.values()))
"""
GATES_OPENED = """
print(len(opened), "gates, each once:", sorted(opened) == list(range(40)))
"""
SEATS = """
from counterpoise import Consumer, DeadLetter, Retry

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


def _filled(url: str, queue: str, partitions: int, messages: int, keys: int) -> None:
    """A queue with the messages `0`, `1`, … of the keys `N0`, `N1`, …, in turn."""
    with Client(url) as client:
        client.create_queue(queue, partitions, rebalance_delay=0)
    with Publisher(queue, url=url) as publisher:
        for number in range(messages):
            publisher.publish(str(number).encode(), key=f"N{number % keys}")


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
    for queue in ("orders", "payments"):
        _filled(service.url, queue, 4, 100, 100)
    with Client(service.url) as client:
        client.create_queue("matching", log="builtin:orders", align_with="payments")
    assert _prints("aligned.md", service.url, 0) == "100 pairs\n"


@pytest.mark.long
def test_a_message_is_tried_again_later_and_its_key_waits(service):
    _filled(service.url, "seats", 2, 12, 3)
    with Client(service.url) as client:
        for queue in ("seats-retry", "seats-dead"):
            client.create_queue(queue, 2, rebalance_delay=0)
    printed = _prints("consumer.md", service.url, 3, SEATS, SEATS_HANDLED)
    assert printed == "N1 was tried 3 times: [1, 4, 7, 10]\n"


@pytest.mark.long
def test_an_event_loop_handles_each_message_once(service):
    _filled(service.url, "gates", 4, 40, 8)
    printed = _prints("consumer.md", service.url, 2, after=GATES_OPENED)
    assert printed == "40 gates, each once: True\n"


@pytest.mark.long
def test_keys_of_a_partition_go_on_side_by_side(service):
    _filled(service.url, "bags", 1, 120, 12)
    printed = _prints("consumer.md", service.url, 1, BAGS, BAGS_LOADED)
    assert printed == "12 keys, each in order: True\n"
