"""Unfinished logins: a stranger who connects and sends nothing keeps nobody else out.

Postgres starts a process for each connection, and gives it a slot before it knows who is there. It
then waits for a login until `authentication_timeout`. So a few hundred connections that send
nothing, or half a login, take every slot. They take the reserved ones, too: Postgres counts its
reserves after the login. It has no bound for each address, and on one machine all callers have the
same one.

So the service bounds the logins that are not finished, all together. Beyond MOST_LOGINS it ends
those that began first. An honest login takes milliseconds, so it is finished before its turn comes;
a client whose login was ended connects again. Between two looks more logins begin, so the server
has three times as many slots for them (`broker.postgres.embedded`).

A proxy before Postgres could do it, too. Every message would pass through it: that doubled the time
of a round trip and took a quarter of the throughput.

The kernel lists the children of the server, and Postgres says in their titles how far they are.
Other systems than Linux have no such list: there `authentication_timeout` is the only bound.

It runs as a script, `python -I -S logins.py SERVER`, until the server ends: a thread of the service
would wait for the others of its process at every step, when time matters. For each look that has
ended logins, it writes a line with their number. It may import only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

MOST_LOGINS = 128
# In this time fewer logins begin than the server has room for.
LOOK_SECONDS = 0.1
# While there are too many.
LOOK_AGAIN_SECONDS = 0.02

# The title before the login begins is the server's own command; then it is `postgres: ...`, and
# its last word says what the process does.
_TITLED = b"postgres: "
_AT_LOGIN = (b" initializing", b" authentication")


class Logins:
    """The logins at a server that runs; `server` is its process number."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._children = Path(f"/proc/{server}/task/{server}/children")
        self._finished: set[int] = set()

    def bound(self) -> int:
        """End the oldest beyond MOST_LOGINS. Returns how many."""
        try:
            # The oldest first.
            children = [int(each) for each in self._children.read_bytes().split()]
        except OSError:
            return 0
        self._finished.intersection_update(children)
        unknown = [pid for pid in children if pid not in self._finished]
        # So nothing else is read while there are few.
        if len(unknown) <= MOST_LOGINS:
            return 0
        waiting = [pid for pid in unknown if _is_at_login(pid)]
        self._finished.update(set(unknown).difference(waiting))
        return sum(self._ended(pid) for pid in waiting[: max(0, len(waiting) - MOST_LOGINS)])

    def _ended(self, pid: int) -> bool:
        """Whether this child was still at its login, and was told to end.

        The descriptor stands for one process. If that has got the number of a child that is gone,
        it has another parent; if another process gets the number now, it is not signalled.
        """
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                if _parent(pid) == self._server and _is_at_login(pid):
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    return True
            finally:
                os.close(process)
        return False


def _is_at_login(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
    except OSError:
        return False
    # Names in it are cut to 63 bytes, so it fits into the memory of the command.
    return bool(title) and (not title.startswith(_TITLED) or title.endswith(_AT_LOGIN))


def _parent(pid: int) -> int:
    # PID (NAME) STATE PARENT …; the name may contain any character.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main(server: int) -> None:
    """Bound the logins until the server ends. Raises OSError where that is not possible."""
    ended = select.poll()
    # The number may be that of another process once the server has ended.
    ended.register(os.pidfd_open(server), select.POLLIN)
    logins, pause = Logins(server), LOOK_SECONDS
    while not ended.poll(pause * 1000):
        count = logins.bound()
        if count:
            sys.stdout.write(f"{count}\n")
            sys.stdout.flush()
        pause = LOOK_AGAIN_SECONDS if count else LOOK_SECONDS


if __name__ == "__main__":
    main(int(sys.argv[1]))
