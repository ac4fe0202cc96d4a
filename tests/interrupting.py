"""A wait of the main thread is interrupted, as Ctrl-C does it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.eventual import eventually


@contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Once the condition holds, the block is interrupted by a KeyboardInterrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def watch() -> None:
        eventually(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        watching.join()
        signal.signal(signal.SIGUSR1, before)
