"""What all applications of the demo share: the scenario's cues, and the work on a batch.

The scenario controls an application by simple means: the application prints a line when it is
ready to join, waits for a line on standard input, and stops in order on SIGTERM. It also stops when
standard input ends, which happens when the scenario has died.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from counterpoise.demo.work.sabotage import ALL_SABOTAGES, Damage, Impatient, Repeater, Zombie
from counterpoise.demo.work.sink import Sink, Slice

READY = "ready"


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
            print(READY, flush=True)
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

    def __call__(self, batch: int, slices: Sequence[Slice]) -> None:
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

    def __call__(self, slices: Sequence[Slice]) -> list[Slice]:
        return []


_MORE: dict[str | None, Callable[[str, str], Callable[[Sequence[Slice]], list[Slice]]]] = {
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
    parser.add_argument("--rate", type=Path, required=True, help="file with flights a second")
    parser.add_argument("--sabotage", choices=ALL_SABOTAGES)
    return parser
