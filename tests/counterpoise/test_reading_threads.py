"""Two consumers in one process read their first answers at the same moment."""

import subprocess
import sys

# The class that is nested is examined in two turns: between them the other thread reads, too.
PROGRAM = """
import threading

from msgspec import Struct

from counterpoise.reading import reader

begun, reading = threading.Event(), threading.Event()


def amid_examination():
    begun.set()
    reading.wait()
    other.join(0.2)
    return int


class Inner(Struct):
    number: "amid_examination()"


class Outer(Struct):
    inner: Inner


def read():
    assert reader(Outer)({"inner": {"number": 1}}).inner.number == 1


def read_too():
    begun.wait()
    reading.set()
    read()


other = threading.Thread(target=read_too)
other.start()
read()
other.join()
"""


def test_the_first_of_a_kind_may_be_read_by_two_threads_at_once() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
