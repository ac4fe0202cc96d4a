"""The stage of the fault runs: real processes on loopback, each of which can be broken.

    consumers, publishers ──service_proxy──► two replicas ──database_proxy──► Postgres
                          └──────────────── the log ───────────database_proxy──►

Postgres is a process of its own with `fsync` on. All consumers and publishers reach whichever
replica the service proxy gives them.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from broker.postgres.embedded import EmbeddedPostgres
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import open_log
from tests.faults.proxy import Proxy
from tests.forked import Forked
from tests.judge.causes import Faults
from tests.judge.journal import (
    OVERLOADED,
    UNTOLD,
    Entry,
    Fault,
    Handled,
    Journal,
    Line,
    Mended,
    read,
)
from tests.judge.judge import Stored, Verdict, judge
from tests.processes import kill_family
from tests.service import ServeProcess, eventually

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
QUEUE = "orders"
# A queue that never commits, so that the log is not trimmed before the judge has read it.
AUDIT = "audit"
LEASE_SECONDS, HOLDDOWN_SECONDS, HANDOFF_SECONDS = 4.0, 0.5, 2.0
# Of a PySpark application, which none of the faults hits.
SPARK_LEASE_SECONDS = 60.0
# For how long after a fault its possible effects are attributed to it; a lease may end a second
# late.
REACH_SECONDS = LEASE_SECONDS + HOLDDOWN_SECONDS + HANDOFF_SECONDS + 1.0
# How long a poll waits for its answer: a replica that hangs longer may cost leases.
HANG_SECONDS = LEASE_SECONDS * 7 / 12
SETTLE_SECONDS = 900.0
# Until all consumers of a stage own partitions, on a machine that does other things too.
START_SECONDS = 900.0


class Postgres:
    """A Postgres with `fsync` on; the main thread starts, ends and kills it."""

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedPostgres(directory)
        self.url = self._server.start()

    def start(self) -> None:
        """Start it again, on the same port."""
        assert self._server.start() == self.url, "another port, or password"

    def end(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """Kill the postmaster and all its children, so that nothing more is written."""
        process = self._server._process
        assert process is not None
        kill_family(process.pid)
        process.wait()
        self._server.stop()


class Worker:
    """A process of `tests.faults.worker`; it can be killed and started again."""

    def __init__(self, log_file: Path, name: str, role: str, *arguments: object) -> None:
        self._log_file = log_file
        self.name = name
        self._arguments = [role, *map(str, arguments)]
        self.process: Forked | None = None

    def start(self) -> Worker:
        with self._log_file.open("a") as log:
            self.process = Forked(
                "tests.faults.worker", self._arguments, stderr=log, directory=ROOT
            )
        return self

    def send(self, signum: int) -> None:
        assert self.process is not None
        self.process.send_signal(signum)

    def check(self) -> None:
        """Fails if it crashed."""
        code = self.process.poll() if self.process is not None else None
        assert not code, f"{self.name} crashed: it ended with {code}; see {self._log_file}"

    def end(self, signum: int = signal.SIGTERM, seconds: float = 240.0) -> None:
        """Send a signal and wait. A process that does not end is killed, and that is an error."""
        if self.process is None:
            return
        self.check()
        if self.process.poll() is None:
            self.process.send_signal(signum)
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None


class Scene:
    """Replicas behind a proxy, and their consumers and publishers. A context manager."""

    service_proxy: Proxy

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal_file = directory / "journal"
        self._journal = Journal(self.journal_file)
        self.replicas: list[ServeProcess] = []
        self._workers: list[Worker] = []
        self._outcomes: dict[tuple[int, int], str] | None = None
        """By partition and epoch: how the service's history says that it was granted."""
        self._held = contextlib.ExitStack()
        self._held.callback(self._journal.close)
        command = [sys.executable, "-m", "tests.faults.machine", str(self.journal_file)]
        self._machine = subprocess.Popen(command, cwd=ROOT)
        self._held.callback(self._end_machine)

    def _end_machine(self) -> None:
        self._machine.kill()
        self._machine.wait()

    @property
    def log_url(self) -> str:
        """The URL of the database with the log, without any proxy."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @contextlib.contextmanager
    def fault(self, target: str, kind: str, *, from_seconds: float = 0.0) -> Iterator[None]:
        """Within the block `target` counts as broken for the judge.

        `from_seconds`: only if the block takes longer than that.
        """
        began = time.monotonic()
        if not from_seconds:
            self._journal.write(Fault(target, kind))
        try:
            yield
        finally:
            took = time.monotonic() - began
            if from_seconds and took > from_seconds:
                self._journal.write(Fault(target, kind), at=began)
            if took > from_seconds:
                self._journal.write(Mended(target, kind))

    def overloaded(self, since: float) -> bool:
        """Whether the machine was overloaded since then."""
        faults = Faults(
            [line for line in read(self.journal_file) if line.entry[:2] == OVERLOADED],
            reach_seconds=time.monotonic() - since,
        )
        return faults.explain(time.monotonic(), None)

    def consumers(self, name: str, count: int) -> Worker:
        """A process with `count` consumers NAME-0, NAME-1, ..."""
        return self._worker("consume", name, count, LEASE_SECONDS)

    def spark(self, name: str) -> Worker:
        """A process with one PySpark application, the consumer NAME-0."""
        return self._worker("spark", name, 1, SPARK_LEASE_SECONDS)

    def publishers(self, name: str, count: int, messages_per_second: float) -> Worker:
        """A process with `count` publishers, each of which publishes so many messages a second."""
        return self._worker("publish", name, count, messages_per_second)

    def _worker(self, role: str, name: str, count: int, figure: float) -> Worker:
        arguments = (self.service_proxy.url, QUEUE, self.journal_file, name, count, figure)
        worker = Worker(self.directory / f"{name}.log", name, role, *arguments).start()
        self._held.callback(lambda: worker.end(signal.SIGKILL))
        self._workers.append(worker)
        return worker

    def make_queues(
        self, partition_count: int, *, partitioning: str = "fixed", **settings: Any
    ) -> None:
        """The queue of the run, and the one that keeps its log from being trimmed."""
        settings = {
            "rebalance_delay": HOLDDOWN_SECONDS,
            "max_handoff_time": HANDOFF_SECONDS,
            **settings,
        }
        self.ask(
            lambda client: client.create_queue(
                QUEUE, partition_count, partitioning=partitioning, **settings
            )
        )
        self.ask(
            lambda client: client.create_queue(
                AUDIT, log=f"builtin:{QUEUE}", partitioning=partitioning, ordered_resize=False
            )
        )

    def ask(
        self,
        call: Callable[[Client], T],
        seconds: float = 240.0,
        replicas: Sequence[ServeProcess] = (),
    ) -> T:
        """Call the replicas directly, one after the other, until one of them answers.

        `replicas`: only these; otherwise all running ones.
        """
        deadline = time.monotonic() + seconds
        while True:
            running = [each for each in self.replicas if each.process] or self.replicas
            for replica in replicas or running:
                try:
                    with Client(replica.url, timeout_seconds=10) as client:
                        return call(client)
                except CounterpoiseError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)

    def owners(self) -> dict[str, list[int]]:
        """The partitions that each consumer holds, by its name."""
        names = {
            flow.flow_id: flow.client_name for flow in self.ask(lambda client: client.flows(QUEUE))
        }
        held: dict[str, list[int]] = {name: [] for name in names.values()}
        for each in self.ask(lambda client: client.partitions(QUEUE)):
            if each.owner is not None:
                held.setdefault(names.get(each.owner, "?"), []).append(each.partition)
        return held

    def until_each_has_owned(self, count: int) -> None:
        """Until so many consumers have owned partitions: each once, not all at the same moment.

        On a slow machine the lease of one ends while the last ones are still starting.
        """
        seen: set[str] = set()

        def each() -> bool:
            for worker in self._workers:
                worker.check()
            seen.update(name for name, held in self.owners().items() if held)
            return len(seen - {"?"}) == count

        eventually(each, START_SECONDS, f"each of {count} consumers has owned partitions")

    def settle(
        self, publishers: Worker, consumers: Sequence[Worker], partition_count: int
    ) -> Verdict:
        """All faults are over: all published messages are handled in time. Then all leave, and the
        judge decides.
        """
        publishers.end()
        log = self._log(partition_count)
        wanted = {(n, one.position) for n, messages in log.items() for one in messages}
        give_up = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < give_up and not wanted <= self.handled():
            time.sleep(0.5)
        for worker in consumers:
            worker.end()
        lines = [Line(line.at, self._with_outcome(line.entry)) for line in read(self.journal_file)]
        return judge(lines, log, REACH_SECONDS, ordered=self._is_ordered())

    def _with_outcome(self, entry: Entry) -> Entry:
        """What a PySpark application handled, with how it had got the partition: it is not told."""
        if not isinstance(entry, Handled) or entry.handed_over != UNTOLD:
            return entry
        if self._outcomes is None:
            history = self.ask(lambda client: client.rebalances(QUEUE, max_items=None))
            self._outcomes = {
                (move.partition, move.epoch): move.outcome
                for rebalance in history
                for move in rebalance.moves
            }
        outcome = self._outcomes.get((entry.partition, entry.epoch), "unknown")
        return entry._replace(handed_over=outcome)

    def _is_ordered(self) -> bool:
        """Whether the queue keeps the order of a key when its partitions change."""
        queue = self.ask(lambda client: client.queue(QUEUE)).raw
        return bool(queue["ordered_resize"]) or queue["partitioning"] == "dynamic"

    def handled(self) -> set[tuple[int, int]]:
        """Partition and position of all messages handled so far."""
        sink = (line.entry for line in read(self.journal_file))
        return {(one.partition, one.position) for one in sink if isinstance(one, Handled)}

    def handled_by(self, consumer: str) -> int:
        """How many messages this consumer has handled, in all its lives."""
        sink = (line.entry for line in read(self.journal_file))
        return sum(isinstance(e, Handled) and e.consumer.startswith(f"{consumer}/") for e in sink)

    def _log(self, partition_count: int) -> dict[int, list[Stored]]:
        """All messages of these partitions of the log, straight from Postgres."""
        log = open_log(f"builtin:{QUEUE}", self.log_url)
        try:
            return {
                partition: [
                    Stored(int(row["position"]), row["key"], row["value"].decode())
                    for batch in log.read(partition, "0", None, max_messages=10**9)
                    for row in batch.select(["position", "key", "value"]).to_pylist()
                ]
                for partition in range(partition_count)
            }
        finally:
            log.close()


class Stage(Scene):
    """Two replicas with a separate Postgres, and proxies in front of both."""

    def __init__(self, directory: Path, *, replicas: int = 2) -> None:
        super().__init__(directory)
        with contextlib.ExitStack() as starting:
            starting.push(self._held)
            self.postgres = Postgres(directory / "postgres")
            starting.callback(self.postgres.end)
            self.database_proxy = starting.enter_context(Proxy(self.postgres.url))
            self.replicas = [
                ServeProcess(
                    directory / f"replica{number}.log", ["--database-url", self.database_proxy.url]
                )
                for number in range(replicas)
            ]
            for replica in self.replicas:
                starting.enter_context(replica)
            self.service_proxy = starting.enter_context(
                Proxy(*(each.url for each in self.replicas))
            )
            self._held = starting.pop_all()

    @property
    def log_url(self) -> str:
        return self.postgres.url
