"""What all applications of the demo share: the scenario's cues, the work on a batch, sabotage.

The scenario controls an application by simple means: the application prints what it is doing (it is
ready to join, at last), waits for a line on standard input, and stops in order on SIGTERM. It also
stops when standard input ends, which happens when the scenario has died.

A sabotage breaks a promise on purpose, to show that the verdict notices. Each is done in the real
run, by an application with a realistic error:

- `skip`: some messages are left out, and the application commits past them;
- `reorder`: the first micro-batches are put aside, and then processed with the last one first;
- `unfenced`: a zombie. When another application gets one of its partitions, it does not stop: it
  continues to read the partition from the log and writes to the sink under its old epoch, and its
  sink does not check epochs.

And where partitions are split and merged:

- `early`: while a new partition waits for its parents, the application reads it from the log and
  processes its messages;
- `twice`: when one of its partitions has ended, it processes the last batch of it once more.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from broker.demo.work.flights import Flight
from broker.demo.work.sink import FlightMessage, FlightSlice, Sink
from counterpoise.client import Client
from counterpoise.logs import Log, open_log
from counterpoise.wire import Partition

Sabotage = Literal["unfenced", "skip", "reorder"]
SplitSabotage = Literal["early", "twice", "skip"]
SABOTAGES = get_args(Sabotage)
SPLIT_SABOTAGES = get_args(SplitSabotage)
ALL_SABOTAGES = tuple(dict.fromkeys(SABOTAGES + SPLIT_SABOTAGES))

SKIPPED_MESSAGES = 3
# On the first days of the data set few aircraft fly twice within fewer flights.
REORDERED_BATCHES = 6
MORE_MESSAGES = 50

# What a line of an application's standard output begins with, if it says what it is doing.
DOING = "doing: "
READY = "ready, and waits"


def say(doing: str) -> None:
    """Tell the scenario what this application is doing now."""
    print(DOING + doing, flush=True)


class Damage:
    """Changes the micro-batches of an application."""

    def __init__(self, sabotage: str | None) -> None:
        self._sabotage = sabotage
        self._aside: list[Sequence[FlightSlice]] = []

    def __call__(self, batch: int, slices: Sequence[FlightSlice]) -> list[FlightSlice]:
        """The slices to process now, in this order."""
        if self._sabotage == "skip" and batch % 5 == 2:
            return [replace(part, messages=part.messages[SKIPPED_MESSAGES:]) for part in slices]
        if self._sabotage == "reorder" and len(self._aside) < REORDERED_BATCHES:
            self._aside.append(slices)
            if len(self._aside) < REORDERED_BATCHES:
                return []
            return [part for aside in reversed(self._aside) for part in aside]
        return list(slices)


class _Further:
    """Reads messages of partitions that its application does not own."""

    def __init__(self, url: str, queue: str) -> None:
        self._client = Client(url)
        self._queue = queue
        self._log: Log | None = None

    def _partitions(self) -> list[Partition]:
        return self._client.partitions(self._queue)

    def _read(self, partition: int, epoch: int, start: int | None) -> FlightSlice:
        """The next messages of the partition from this position, or from its first one."""
        if self._log is None:
            view = self._client.log_access(self._queue, "read")
            self._log = open_log(view.log, view.access)
        begin = self._log.bounds([partition]).starts[partition] if start is None else str(start)
        messages = [
            FlightMessage(
                int(row["position"]), Flight.of(row["value"]), row["published_at"].timestamp()
            )
            for rows in self._log.rows(partition, begin, None, max_messages=MORE_MESSAGES)
            for row in rows.to_pylist()
        ]
        return FlightSlice(partition, epoch, messages)


class Zombie(_Further):
    """Continues with the partitions that its application has lost."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._held: dict[int, FlightSlice] = {}
        """By partition: its last slice."""

    def __call__(self, slices: Iterable[FlightSlice]) -> list[FlightSlice]:
        """The next messages of the partitions that are no longer its own, under the old epoch."""
        self._held |= {part.partition: part for part in slices if part.messages}
        current = {p.partition: p.epoch for p in self._partitions()}
        lost = [part for part in self._held.values() if part.epoch < current[part.partition]]
        read = [self._read(p.partition, p.epoch, p.messages[-1].position + 1) for p in lost]
        further = [part for part in read if part.messages]
        self._held |= {part.partition: part for part in further}
        return further


class Impatient(_Further):
    """Does not wait for the parents of a partition."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._next: dict[int, int] = {}
        """By waiting partition: the position after the last message processed."""

    def __call__(self, slices: Iterable[FlightSlice]) -> list[FlightSlice]:
        """The next messages of all waiting partitions."""
        waiting = [one for one in self._partitions() if one.state == "waiting"]
        read = [self._read(p.partition, p.epoch, self._next.get(p.partition)) for p in waiting]
        further = [part for part in read if part.messages]
        self._next |= {part.partition: part.messages[-1].position + 1 for part in further}
        return further


class Repeater(_Further):
    """Takes an ended partition for one that it must finish still."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._held: dict[int, FlightSlice] = {}

    def __call__(self, slices: Iterable[FlightSlice]) -> list[FlightSlice]:
        """The last slices of its partitions that have ended since the last call."""
        self._held |= {part.partition: part for part in slices if part.messages}
        going = {one.partition for one in self._partitions() if one.state != "finished"}
        return [self._held.pop(number) for number in sorted(self._held.keys() - going)]


class Cues:
    """What the scenario says to this application. Make it in the main thread, once."""

    def __init__(self) -> None:
        self._go = threading.Event()
        self.stop = threading.Event()
        """Set when the application is to stop in order."""
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self) -> bool:
        """Say that the application is ready, and wait; False if it is not to join at all."""
        if not self.stop.is_set():
            say(READY)
        self._go.wait()
        return not self.stop.is_set()

    def _listen(self) -> None:
        if sys.stdin.readline():
            self._go.set()
            sys.stdin.read()
        self._end()

    def _end(self, *_: object) -> None:
        self.stop.set()
        self._go.set()


class Work:
    """The application's work on a batch: journal and statistics, at a given rate.

    The rate (flights a second; 0 is as fast as can be) is read from a file before each batch, so
    that the scenario decides when there is backlog. A kill while the application waits hits it
    between its write to the sink and its commit at the service.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.sink = Sink(options.sink, options.name, fenced=options.sabotage != "unfenced")
        self._rate: Path = options.rate
        self._damage = Damage(options.sabotage)
        self._more = _MORE[options.sabotage](options.url, options.queue)
        self._last = time.monotonic()

    def __call__(self, batch: int, slices: Sequence[FlightSlice]) -> None:
        damaged = self._damage(batch, slices)
        self.sink.write(batch, damaged)
        if more := self._more(damaged):
            self.sink.write(batch, more)
        self._wait(sum(len(part.messages) for part in slices))

    def _wait(self, messages: int) -> None:
        rate = float(self._rate.read_text() or 0)
        if rate:
            time.sleep(max(0.0, self._last + messages / rate - time.monotonic()))
        self._last = time.monotonic()


class _Nothing:
    """An application without such a sabotage processes only its own messages."""

    def __init__(self, url: str, queue: str) -> None:
        pass

    def __call__(self, slices: Sequence[FlightSlice]) -> list[FlightSlice]:
        return []


_MORE: dict[
    str | None, Callable[[str, str], Callable[[Sequence[FlightSlice]], list[FlightSlice]]]
] = {
    **dict.fromkeys((None, "skip", "reorder"), _Nothing),
    "unfenced": Zombie,
    "early": Impatient,
    "twice": Repeater,
}


def parser(program: str) -> argparse.ArgumentParser:
    """The options with which the scenario starts an application."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True, help="name of the writer in the journal")
    parser.add_argument("--instance", required=True, help="its instance_id at the service")
    parser.add_argument("--lease-seconds", type=float, required=True)
    parser.add_argument("--max-messages", type=int, required=True, help="in a batch")
    parser.add_argument("--directory", type=Path, required=True, help="for its own files")
    parser.add_argument("--checkpoint", required=True, help="Spark's")
    parser.add_argument("--sink", type=Path, required=True)
    parser.add_argument("--lake", type=Path, help="a Delta table of the flights")
    parser.add_argument("--rate", type=Path, required=True, help="file with flights a second")
    parser.add_argument("--sabotage", choices=ALL_SABOTAGES)
    return parser
