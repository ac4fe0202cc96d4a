"""The facts of a run, in the order in which they happened: the journal.

For processes it is one file. Every process appends a line for each action, and the run itself
appends a line when a fault begins and when it ends. Each line is one `write` to a file that is open
for appending. So lines of several processes do not mix, the order of the lines is the order of the
actions, and a killed process loses nothing that it wrote. The file is not fenced: it shows writes
that a careful sink would refuse.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Handled(NamedTuple):
    """A message was handled by a consumer that had been granted its partition."""

    consumer: str
    partition: int
    epoch: int
    position: int
    key: str
    value: str
    # How the previous owner had given the partition up, as the consumer was told.
    handed_over: str


# `handed_over` of a consumer that is not told: whoever reads the journal asks the service.
UNTOLD = "untold"


class Granted(NamedTuple):
    """A consumer was told of a grant."""

    consumer: str
    partition: int
    epoch: int
    handed_over: str


class Acknowledged(NamedTuple):
    """All messages of a publisher with numbers below `end` are in the log: so the publisher was
    told.
    """

    publisher: str
    end: int


class Failed(NamedTuple):
    """A consumer or a publisher ended with an error."""

    who: str
    error: str


# The target of a fault that hits all: the service, its database, or the network of either.
SERVICE = "service"


class Fault(NamedTuple):
    """A fault began. It hits the process of that name with all its consumers, or the SERVICE."""

    target: str
    kind: str


class Mended(NamedTuple):
    """The fault of this target and kind has ended."""

    target: str
    kind: str


# The machine itself is too slow for the run: a fault that the run did not plan.
OVERLOADED = Fault(SERVICE, "the machine is overloaded")


class Asked(NamedTuple):
    """A call was sent. Calls are numbered."""

    call: int


class Told(NamedTuple):
    """The answer to a call told a consumer its state of a partition; `warming` is not ownership."""

    call: int
    consumer: str
    partition: int
    epoch: int
    state: str
    position: int


class Done(NamedTuple):
    """A commit, a release or a ready of one partition was answered. `position`: if the call named
    one.
    """

    call: int
    what: str
    partition: int
    epoch: int
    position: int | None
    outcome: str


Entry = Handled | Granted | Acknowledged | Failed | Fault | Mended | Asked | Told | Done
_KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind
    for kind in (Handled, Granted, Acknowledged, Failed, Fault, Mended, Asked, Told, Done)
}


class Line(NamedTuple):
    """An entry and its time, in seconds of the monotonic clock that all processes share."""

    at: float
    entry: Entry


class Journal:
    """Writes the journal. Any number of threads and processes may write to the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, entry: Entry, *, at: float | None = None) -> None:
        """`at`: the time of the entry, if it is not now."""
        at = time.monotonic() if at is None else at
        line = json.dumps([type(entry).__name__, round(at, 4), *entry])
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def parsed(lines: Iterable[str]) -> Iterator[Line]:
    """The entries, in the order in which they were written."""
    for line in lines:
        kind, at, *fields = json.loads(line)
        yield Line(at, _KINDS[kind](*fields))


def read(path: Path) -> list[Line]:
    """The journal so far. An entry that is being written is not in it yet."""
    text = path.read_text("utf-8")
    return list(parsed(text[: text.rfind("\n") + 1].splitlines()))
