"""The built-in log beside pgmq and procrastinate, on one Postgres, in one run.

    python -m benchmarks postgres-queues                         # two hours
    python -m benchmarks.postgres_queues [--seconds 60] [--queues counterpoise pgmq]
                                         [--scenarios held] [--write]

The shape is that of a public comparison of queues in Postgres (May 2026). Of each queue there are a
publisher and two consumers, in processes of their own. The publisher is always a little ahead: it
may publish a batch for each one that was consumed. A message of some 256 bytes is handled, which
takes no time, and acknowledged:

* *counterpoise*: the built-in log with its service, `Publisher` and `Consumer(each=…)` as they are;
* *pgmq*: its SQL as its package for Python installs it, `send_batch`, `read` and `delete`;
* *procrastinate*: `batch_defer`, and workers with 16 jobs at once.

A scenario begins with a queue of its own on a vacuumed database, and some time without any trouble,
*steady*. Then:

* *held*: a transaction that has an id and a snapshot stays open, for `--seconds`. So no vacuum and
  no page can be rid of a dead row meanwhile;
* *off*: no autovacuum, for as long;
* *killed*: one of the consumers is killed (SIGKILL) and started again, ten times, in turns.

The figure is the throughput of that time by that of *steady* just before. *At its end*: the same
of the last tenth, where most dead rows are. *Afterwards*: when the trouble is over, for as long as
*steady*. The *CPU* is that of all of Postgres, vacuum included, for each message: it tells more
than the throughput where other programs use the machine. *Dead rows* are those of all tables that
are no system tables. At last the queue is emptied: what was not handled then is *lost*, what was
handled twice is *doubled* (at least once is what all promise).

pgmq makes a message visible again 15 s after it was given out, procrastinate takes a worker without
a heartbeat for dead after as long. A consumer of ours that starts again replaces the old one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks import peers, results
from benchmarks.figures import Figure, counted
from benchmarks.queue_workers import BATCH, VISIBILITY_SECONDS
from benchmarks.service import Served, running
from counterpoise.client import Client

WORKERS = Path(__file__).with_name("queue_workers.py")
PARTITIONS = 16
AHEAD = {"counterpoise": 20, "pgmq": 20, "procrastinate": 10}
"""How many batches the publisher is ahead."""
CONSUMERS = 2
KILLS = 10
TARGET = 0.9
SCENARIOS = ("held", "off", "killed")


@dataclass(frozen=True)
class Times:
    """Seconds of the parts of a scenario."""

    stress: float
    steady: float = 60.0
    warm: float = 10.0
    kill: float = 20.0


@dataclass(frozen=True)
class Part:
    """Messages a second, and microseconds of Postgres for each."""

    rate: float
    cpu: float


@dataclass(frozen=True)
class Found:
    """What one scenario did to a queue."""

    steady: Part
    stressed: Part
    at_its_end: Part
    afterwards: Part
    dead_rows: int
    lost: int
    doubled: int


class Look(NamedTuple):
    """A time, the messages handled until then, and the CPU seconds of Postgres."""

    at: float
    handled: int
    cpu: float


class Numbers:
    """How often each message was handled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = bytearray()
        self.count = 0
        """Of all, also of the doubled ones."""
        self.arrived = time.monotonic()

    def add(self, numbers: array[int]) -> None:
        with self._lock:
            handled = self._handled
            for number in numbers:
                if number >= len(handled):
                    handled.extend(bytes(number + 100_000 - len(handled)))
                handled[number] = min(255, handled[number] + 1)
            self.count += len(numbers)
            self.arrived = time.monotonic()

    def lost(self, published: int) -> int:
        with self._lock:
            seen = len(self._handled[:published]) - self._handled[:published].count(0)
        return published - seen

    def doubled(self) -> int:
        with self._lock:
            return self.count - (len(self._handled) - self._handled.count(0))


class Traffic:
    """A publisher and its consumers, in processes of their own."""

    def __init__(self, python: Path | str, kind: str, url: str, name: str) -> None:
        self._command = [str(python), str(WORKERS), kind]
        self._url, self._name = url, name
        self._batch = BATCH[kind]
        self.numbers = Numbers()
        self._allowed = 0
        self._open = True
        self._credit = threading.Lock()
        self._publisher = self._start("publish", stdin=subprocess.PIPE)
        self._consumers: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        for number in range(CONSUMERS):
            self._consumers.append(self._consumer(number))
        self._ahead = AHEAD[kind]
        self._allow()

    @property
    def published(self) -> int:
        """How many messages the publisher was allowed, or has published when it has ended."""
        return self._allowed * self._batch

    def until_handled(self, count: int) -> None:
        """Wait until more messages than these are handled. Raises RuntimeError as `check`."""
        while self.numbers.count <= count:
            self.check()
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        """Kill a consumer, and start it again."""
        self._consumers[number].kill()
        self._consumers[number].wait()
        self._consumers[number] = self._consumer(number)

    def drain(self, seconds: float) -> None:
        """Publish no more, and wait until all is handled, or nothing has come for so long."""
        with self._credit:
            self._open = False
        stdin = self._publisher.stdin
        assert stdin is not None
        stdin.close()
        if self._publisher.wait(120):
            raise RuntimeError("the publisher has failed")
        while self.numbers.lost(self.published):
            if time.monotonic() - self.numbers.arrived > seconds:
                return
            time.sleep(0.2)

    def close(self) -> None:
        with self._credit:
            self._open = False
        for process in (self._publisher, *self._consumers):
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        if self._publisher.stdin is not None:
            with suppress(BrokenPipeError):
                self._publisher.stdin.close()

    def check(self) -> None:
        """Raise RuntimeError if a process has ended by itself."""
        for process in (self._publisher, *self._consumers):
            if process.poll() is not None:
                raise RuntimeError(f"{self._command[-1]}: a process has ended")

    def _start(self, role: str, *more: str, **pipes: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, role, self._url, self._name, *more], **pipes)

    def _consumer(self, number: int) -> subprocess.Popen[bytes]:
        process = self._start("consume", f"consumer-{number}", stdout=subprocess.PIPE)
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        rest = b""
        with process.stdout:
            while got := os.read(process.stdout.fileno(), 65_536):
                rest += got
                whole = len(rest) // 8 * 8
                self.numbers.add(array("q", rest[:whole]))
                rest = rest[whole:]
                self._allow()

    def _allow(self) -> None:
        with self._credit:
            due = self.numbers.count // self._batch + self._ahead - self._allowed
            if due > 0 and self._open:
                stdin = self._publisher.stdin
                assert stdin is not None
                stdin.write(bytes(due))
                stdin.flush()
                self._allowed += due


class Stage:
    """The Postgres of a service, with the queues on it."""

    def __init__(self, service: Served, python: Path) -> None:
        self._service = service
        self._python = python
        for kind in ("pgmq", "procrastinate"):
            command = [str(python), str(WORKERS), kind, "install", service.database_url]
            subprocess.run(command, check=True)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._service.database_url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def traffic(self, kind: str) -> Iterator[Traffic]:
        """On a new queue, which is dropped afterwards."""
        name = f"bench_{uuid.uuid4().hex[:8]}"
        self.sql("VACUUM")
        python: Path | str = self._python
        url = self._service.database_url
        if kind == "counterpoise":
            python, url = sys.executable, self._service.url
            with Client(url) as client:
                client.create_queue(name, PARTITIONS, rebalance_delay=0)
        elif kind == "pgmq":
            self.sql(f"SELECT pgmq.create('{name}')")
        traffic = Traffic(python, kind, url, name)
        try:
            yield traffic
        finally:
            traffic.close()
            if kind == "counterpoise":
                with Client(url, timeout_seconds=300) as client:
                    client.delete_queue(name, force=True)
            elif kind == "pgmq":
                self.sql(f"SELECT pgmq.drop_queue('{name}')")
            else:
                self.sql("TRUNCATE procrastinate_jobs, procrastinate_workers CASCADE")

    @contextmanager
    def held(self) -> Iterator[None]:
        """A transaction with an id and a snapshot stays open."""
        with psycopg.connect(self._service.database_url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT pg_current_xact_id()")
            yield

    @contextmanager
    def off(self) -> Iterator[None]:
        """No autovacuum."""
        self.sql("ALTER SYSTEM SET autovacuum = off")
        self.sql("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self.sql("ALTER SYSTEM RESET autovacuum")
            self.sql("SELECT pg_reload_conf()")

    def look(self, traffic: Traffic) -> Look:
        """How far it is."""
        return Look(time.monotonic(), traffic.numbers.count, self._cpu_seconds())

    def part(self, traffic: Traffic, since: Look) -> Part:
        """What was handled since, and what it has cost."""
        traffic.check()
        now = self.look(traffic)
        messages = now.handled - since.handled
        cpu = (now.cpu - since.cpu) / max(1, messages)
        return Part(messages / (now.at - since.at), cpu * 1e6)

    def _cpu_seconds(self) -> float:
        """Of all of Postgres so far, also of sessions that have ended (Linux)."""
        with psycopg.connect(self._service.database_url) as connection:
            status = Path(f"/proc/{connection.info.backend_pid}/status").read_text()
        pid = status.partition("PPid:")[2].split()[0]
        total = 0
        for one in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11 : 15 if one == pid else 13]))
        return total / os.sysconf("SC_CLK_TCK")

    def dead_rows(self) -> int:
        """As the statistics have them, which are some seconds late."""
        ((count,),) = self.sql("SELECT sum(n_dead_tup) FROM pg_stat_user_tables")
        return int(count)


def scenario(stage: Stage, kind: str, name: str, times: Times) -> Found:
    """Steady, then the trouble of that name, then all that is left."""
    with stage.traffic(kind) as traffic:
        traffic.until_handled(0)
        time.sleep(times.warm)
        look = stage.look(traffic)
        time.sleep(times.steady)
        traffic.until_handled(look.handled)
        steady = stage.part(traffic, look)
        look = stage.look(traffic)
        if name == "killed":
            for number in range(KILLS):
                last = stage.look(traffic)
                traffic.kill(number % CONSUMERS)
                time.sleep(times.kill)
            stressed, at_its_end = stage.part(traffic, look), stage.part(traffic, last)
            dead = stage.dead_rows()
        else:
            with stage.held() if name == "held" else stage.off():
                time.sleep(times.stress * 0.9)
                last = stage.look(traffic)
                time.sleep(times.stress * 0.1)
                stressed, at_its_end = stage.part(traffic, look), stage.part(traffic, last)
                dead = stage.dead_rows()
        look = stage.look(traffic)
        time.sleep(times.steady)
        afterwards = stage.part(traffic, look)
        traffic.drain(3 * VISIBILITY_SECONDS)
        lost, doubled = traffic.numbers.lost(traffic.published), traffic.numbers.doubled()
    return Found(steady, stressed, at_its_end, afterwards, dead, lost, doubled)


def measure(
    kinds: Sequence[str], scenarios: Sequence[str], times: Times, tell: Callable[[str], None]
) -> dict[tuple[str, str], Found]:
    """Each scenario of each queue, the queues in turns."""
    python = peers.environment()
    found = {}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        stage = Stage(stack.enter_context(running(Path(directory))), python)
        for name in scenarios:
            for kind in kinds:
                found[kind, name] = scenario(stage, kind, name, times)
                for figure in figures_of(kind, name, found[kind, name]):
                    tell(str(figure))
    return found


def figures_of(kind: str, name: str, found: Found) -> list[Figure]:
    """The throughput by that of the steady time, and what was counted."""

    def compared(what: str, part: Part, target: float | None) -> list[Figure]:
        wanted = target if kind == "counterpoise" else None
        return [
            Figure(
                f"{kind}, {what}",
                part.rate,
                "/s",
                part.rate / found.steady.rate,
                "steady",
                wanted,
                at_least=True,
            ),
            Figure(f"{kind}, {what}: CPU", part.cpu, "µs", part.cpu / found.steady.cpu, "steady"),
        ]

    return [
        Figure(f"{kind}, before {name}: steady", found.steady.rate, "/s"),
        Figure(f"{kind}, before {name}: steady: CPU", found.steady.cpu, "µs"),
        *compared(name, found.stressed, TARGET),
        *compared(f"{name}, at its end", found.at_its_end, None),
        *compared(f"{name}, afterwards", found.afterwards, TARGET),
        counted(f"{kind}, {name}: dead rows", [found.dead_rows]),
        counted(f"{kind}, {name}: lost", [found.lost], 0),
        counted(f"{kind}, {name}: doubled", [found.doubled]),
    ]


def main() -> None:
    """Parse the arguments, measure, print; perhaps write the section of the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="of `held` and of `off`")
    parser.add_argument("--steady", type=float, default=60.0, help="seconds before each of them")
    parser.add_argument("--kill", type=float, default=20.0, help="seconds after each kill")
    parser.add_argument("--queues", nargs="+", choices=[*BATCH], default=[*BATCH])
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=[*SCENARIOS])
    parser.add_argument("--write", action="store_true", help="write its section of RESULTS.md")
    given = parser.parse_args()
    times = Times(given.seconds, given.steady, kill=given.kill)
    machine = results.machine()
    found = measure(given.queues, given.scenarios, times, lambda line: print(line, flush=True))
    if given.write:
        figures = [one for (kind, name), of in found.items() for one in figures_of(kind, name, of)]
        command = "python -m benchmarks.postgres_queues --write"
        file = Path(__file__).with_name("RESULTS.md")
        section = results.section_apart("Queues in Postgres", command, figures, machine)
        file.write_text(results.with_section(file.read_text(), section))


if __name__ == "__main__":
    main()
