"""Messages that keep coming while something is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_SECONDS = 0.05


@contextmanager
def traffic(publish: Callable[[], None]) -> Iterator[None]:
    """Calls `publish` twenty times a second, in a thread of its own."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(EVERY_SECONDS):
            publish()

    thread = threading.Thread(target=run, name="traffic")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
