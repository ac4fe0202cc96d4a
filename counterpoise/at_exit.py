"""What a process does before it ends, however Python ends it: `at_exit`.

`atexit` alone is not enough. A child of `multiprocessing` that was forked (by itself, for a pool or
by a fork server) ends without it before Python 3.14. It runs the finalizers of `multiprocessing`
instead. And each forked process inherits what its parent has registered, and would do it in its
parent's place.

Nothing runs in a process that is killed, or that calls `os._exit`.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


def at_exit(act: Callable[[], object]) -> None:
    """Call `act` once when this process ends, and in no process that it forks."""
    process: int | None = os.getpid()

    def once() -> None:
        nonlocal process
        if process == os.getpid():
            process = None
            act()

    atexit.register(once)
    # A child of multiprocessing has it; others need not load it.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, once, exitpriority=0)
