"""Somebody who listens at a port of this machine and is no log."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Listening:
    """Who has called so far: `called` is released once for each of them."""

    port: int
    called: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


@contextmanager
def listening(says: bytes = b"") -> Iterator[Listening]:
    """Says this to each caller and then nothing more, until the block ends."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, ExitStack() as callers:
        there = Listening(listener.getsockname()[1])

        def serve() -> None:
            with suppress(OSError):
                while True:
                    caller, _ = listener.accept()
                    callers.callback(caller.close)
                    caller.sendall(says)
                    there.called.release()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield there
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
