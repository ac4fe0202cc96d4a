"""Reading ahead in a task: the log finds the next chunk while Spark takes the present one.

A task waits for the log, makes rows, and writes them to the JVM. One after the other these times
add up. So a thread reads the log, at most two chunks ahead: one is kept, and one waits to be kept.
Nothing else changes: the same batches come in the same order, and an error comes after the batches
before it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class _Closed(Exception):
    """Nothing more is wanted of the thread."""


def ahead(read: Callable[[Callable[[float], None]], Iterator[T]]) -> Iterator[T]:
    """The items of `read`, which runs in a thread of its own, at most two items ahead.

    `read` gets a function to pause with. To close this iterator is to wait for the thread, which
    ends at its next item or pause. So what `read` uses has one user at a time.
    """
    closed = threading.Event()
    found: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)

    def pause(seconds: float) -> None:
        if closed.wait(seconds):
            raise _Closed

    def give(item: T | None, error: BaseException | None = None) -> None:
        if closed.is_set():
            raise _Closed
        found.put((item, error))

    def run() -> None:
        with contextlib.suppress(_Closed):
            try:
                for item in read(pause):
                    give(item)
            except _Closed:
                raise
            except BaseException as error:
                give(None, error)
            else:
                give(None)

    thread = threading.Thread(target=run, name="counterpoise-read", daemon=True)
    thread.start()
    try:
        while True:
            item, error = found.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        closed.set()
        # The thread may wait to give an item; it gives it in vain and then ends.
        with contextlib.suppress(queue.Empty):
            found.get_nowait()
        thread.join()
