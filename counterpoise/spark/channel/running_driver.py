"""Whether the driver still runs: decides what the source process says when it ends.

It survives its driver for a moment, and unbinds for it. Without this, the history of the queue
would say that the consumer left, although it was killed. A driver is two processes: the Python
program, and the JVM, whose child the source process is.

- *The Python program* holds a lock on a file in the shared directory (`announce`) for as long as it
  lives: the system ends the lock with the process, however that ends. A program that ends by
  itself, also with an exception, removes the directory. So a file without a lock means that the
  program was killed.
- *The JVM* is gone when the source process has another parent than before.

Where locks are not available (Windows, some file systems) there is no file, and only the JVM is
watched. A child that the program forked without `exec` shares its lock: while it lives, a killed
program is not noticed, and the flow is unbound without a reason.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_FILE = "driver"
# The locks of this process by directory; an open file holds its lock.
_held: dict[str, int] = {}


def announce(home: str) -> None:
    """Hold the lock in this directory until this process ends."""
    if sys.platform == "win32":
        return
    new = Path(home) / f".{_FILE}"
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under its name it is locked from the start.
        os.replace(new, Path(home) / _FILE)
    except OSError:
        os.close(handle)
        return
    _held[home] = handle


class Driver:
    """The driver of this source process, which is running now."""

    def __init__(self, home: str | None) -> None:
        """`home`: the directory that it shares, None if it shares none."""
        self._home = home
        self._parent = os.getppid()

    def is_lost(self) -> bool:
        """Whether one of its two processes was killed."""
        if os.getppid() != self._parent:
            return True
        return self._home is not None and was_killed(self._home)

    def clear_after(self) -> None:
        """Remove the shared directory of a killed program, unless another source writes in it."""
        if self._home is None or not was_killed(self._home):
            return
        if not any(Path(self._home).glob("*/view.json")):
            shutil.rmtree(self._home, ignore_errors=True)


def was_killed(home: str | Path) -> bool:
    """Whether the Python program that has made this directory was killed."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(Path(home) / _FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared: the source processes of the driver's queries may look at the same time.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
