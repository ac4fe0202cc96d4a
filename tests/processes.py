"""The processes of this machine as Linux lists them: to kill a process with its descendants, and to
see which are running.

A zombie counts as ended: it only waits for its parent to collect its exit code. A process named
`fork PID` stands for that one, which counts as its child
(`tests/counterpoise/spark/jobs/pythons.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process that has not ended. `started` is in ticks since boot: a process number may be
    reused.
    """

    pid: int
    started: str
    name: str = field(compare=False)
    parent: int = field(compare=False)

    @property
    def stands_for(self) -> int | None:
        """The number of another process."""
        return int(self.name[5:]) if self.name.startswith("fork ") else None


def find(pid: int) -> Process | None:
    """The process of this number, if there is one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # PID (NAME) STATE PARENT …; the name may contain any character.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    return Process(pid, fields[19], head.partition("(")[2], int(fields[1]))


def running() -> set[Process]:
    """All running processes."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {process for process in map(find, numbers) if process is not None}


def descendants(ancestor: int) -> set[Process]:
    """All direct and indirect children of this process."""
    everything = running()
    found: set[Process] = set()
    pids, stood_for = {ancestor}, {one.stands_for for one in everything if one.pid == ancestor}
    while pids:
        children = {one for one in everything - found if one.parent in pids or one.pid in stood_for}
        found |= children
        pids, stood_for = {one.pid for one in children}, {one.stands_for for one in children}
    return found


def kill_family(pid: int) -> set[Process]:
    """Send SIGKILL to the process and its descendants. Returns all that were running.

    All are stopped before, so none sees the end of another one and acts on it: the source of a
    query whose JVM is gone would leave in order.
    """
    root = find(pid)
    victims = {*([] if root is None else [root]), *descendants(pid)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, number)
    return victims
