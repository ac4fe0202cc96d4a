"""The environment of the scenario: the service, the queue, the publisher, the applications.

All files are in one temporary directory, and all processes end with the demo, also after a crash.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.demo.display import (
    Display,
    Doing,
    FlightCounts,
    Observation,
    Observer,
    backlog,
)
from broker.demo.evidence import EpochGrant
from broker.demo.processes import DemoProcess, stop_all
from broker.demo.throttling import Flights, Plan, Rate, ThrottledPublisher
from broker.demo.work.flights import FLIGHTS, Flight, load
from broker.demo.work.sink import Record
from broker.demo.work.staging import DOING, READY
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs import Log, open_log
from counterpoise.publisher import Publisher

QUEUE = "flights"
PARTITIONS = 12
VICTIM = "beta"
DEFAULT_PORT = 8640
REBALANCE_DELAY_SECONDS = 2.0
# A micro-batch takes about a second; on a busy machine a handoff takes longer.
MAX_HANDOFF_SECONDS = 60.0
LEASE_SECONDS = 30.0
# Of what is to be killed: its partitions wait for so long.
SHORT_LEASE_SECONDS = 4.0
POLL_SECONDS = 0.4
WAIT_SECONDS = 300.0
GRACE_SECONDS = 150.0
# How long the service may fail to answer before the demo gives up.
BLIND_SECONDS = 60.0


class DemoFailed(Exception):
    """The demo could not be played to its end; the message gives the reason."""


class Stage:
    """Started by `begin` and `open`, stopped at the end of the context."""

    def __init__(
        self,
        directory: Path,
        rows: int | None,
        display: Display,
        sabotage: str | None,
        *,
        into_lake: bool = False,
    ) -> None:
        self._rows = rows
        self.plan = self.plan_of(min(rows or FLIGHTS, FLIGHTS))
        self.display = display
        self.url = ""
        self.lake = directory / "lake" if into_lake else None
        """The Delta table of the flights, if there is one."""
        self.flights: Sequence[Flight] = ()
        """Those of the demo, in order; empty before `open`."""
        self._directory = directory
        self._sink = directory / "sink.db"
        self._sabotage = sabotage
        self._children: dict[str, DemoProcess] = {}
        self._doing: dict[str, Doing] = {}
        self._told: set[str] = set()
        """The applications that were told to join."""
        self._cleanup = ExitStack()
        self._rate = Rate(directory / "rate")
        self._rate.set(self.plan.rate)
        self._last_act = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    # ------------------------------------------------------------------ what a scenario may change

    def plan_of(self, flights: int) -> Plan:
        """The rates for so many flights."""
        return Plan(flights, PARTITIONS)

    def order_of(self, flights: Sequence[Flight]) -> Flights:
        """The flights as they are published."""
        return flights

    # ------------------------------------------------------------------ setting up

    def begin(self) -> None:
        """Start the service, which takes seconds. Applications may be started from then on."""
        self._start_service()

    def open(self, **queue_settings: Any) -> None:
        """Read the flights, create the queue (with these settings, too), open log and sink.

        Raises ModuleNotFoundError without the data set.
        """
        self._show(FlightCounts(0, 0, 0))
        self.flights = load(self._rows)
        self.client = self._cleanup.enter_context(Client(self.url))
        self._await_service()
        self.client.create_queue(
            QUEUE,
            self.plan.partitions,
            rebalance_delay=REBALANCE_DELAY_SECONDS,
            max_handoff_time=MAX_HANDOFF_SECONDS,
            **queue_settings,
        )
        access = self.client.log_access(QUEUE, "read")
        self.log: Log = open_log(access.log, access.access)
        self._cleanup.callback(self.log.close)
        self.record = Record(self._sink)
        self._cleanup.callback(self.record.close)
        self._observer = Observer(self.client, QUEUE, self.record, self.log)
        self._open_publisher()
        self.seen = self._observer.observe()
        self._looked_at = time.monotonic()

    def _start_service(self) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        data = self._directory / "data"
        command = [sys.executable, "-m", "broker.demo.service", "serve"]
        command += ["--port", str(port), "--data-dir", str(data), "--log-level", "warning"]
        service = self._start("service", command)
        self._does("service", "starts, with its Postgres")
        self._cleanup.callback(lambda: service.stop(GRACE_SECONDS))

    def _await_service(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            self._check_children()
            try:
                self.client.queues()
            except ServiceUnavailable:
                self._show(FlightCounts(0, 0, len(self.flights)))
                time.sleep(POLL_SECONDS)
            else:
                del self._doing["service"]
                return
        raise DemoFailed(f"the service did not start:\n{self._children['service'].tail()}")

    def _open_publisher(self) -> None:
        publisher = Publisher(QUEUE, url=self.url)
        self._cleanup.callback(publisher.close)
        record = Record(self._sink)
        self._cleanup.callback(record.close)
        self.publisher = ThrottledPublisher(
            publisher,
            self.order_of(self.flights),
            self.plan.lead,
            lambda: self.backlog_ahead(record),
        )
        self._cleanup.callback(self.publisher.stop)

    def backlog_ahead(self, record: Record) -> Mapping[int, int]:
        """The waiting flights of the partitions in which the publisher stays ahead."""
        return backlog(self.log, record, range(self.plan.partitions))

    # ------------------------------------------------------------------ applications

    def start_application(self, name: str, instance: str, program: str = "application") -> None:
        """Start an application; it gets ready and waits. A killed one restarts with the same
        `instance_id`. `program` is a module of `broker.demo.work`."""
        own = self._directory / name
        own.mkdir()
        command = [sys.executable, "-m", f"broker.demo.work.{program}"]
        for option, value in {
            "--url": self.url,
            "--queue": QUEUE,
            "--name": name,
            "--instance": instance,
            "--lease-seconds": SHORT_LEASE_SECONDS if name == VICTIM else LEASE_SECONDS,
            "--max-messages": self.plan.batch_messages,
            "--directory": own,
            "--checkpoint": self._directory / f"checkpoint-{instance}",
            "--sink": self._sink,
            "--rate": self._rate.path,
        }.items():
            command += [option, str(value)]
        if self.lake is not None:
            command += ["--lake", str(self.lake)]
        if self._sabotage and name == VICTIM:
            command += ["--sabotage", self._sabotage]
        child = self._start(name, command)
        self._does(name, "starts Python")
        self._cleanup.callback(child.kill)

    def let_join(self, *names: str) -> None:
        """Let applications bind, as soon as all of them are ready."""
        children = [self._children[name] for name in names]
        self.wait(
            f"{', '.join(names)} to be ready",
            lambda _: all(child.last_after(DOING) == READY for child in children),
        )
        for child in children:
            child.tell("go")
            self._told.add(child.name)

    def stop_application(self, name: str) -> None:
        """Stop the application in order and wait for its end."""
        child = self._children[name]
        child.terminate()
        self.wait(f"{name} to stop", lambda _: child.exit_code is not None, ending=name)
        del self._children[name]
        self._does(name, "has left")
        _require_success(child)

    def kill_application(self, name: str) -> None:
        """SIGKILL, also for its JVM and its Python workers."""
        self._children.pop(name).kill()
        self._does(name, "was killed")

    def close_applications(self) -> None:
        """Stop all running applications together."""
        names = [name for name in self._children if name != "service"]
        children = [self._children.pop(name) for name in names]
        stop_all(children, GRACE_SECONDS)
        for child in children:
            _require_success(child)

    # ------------------------------------------------------------------ watching

    def wait(
        self,
        what: str,
        condition: Callable[[Observation], bool],
        *,
        seconds: float = WAIT_SECONDS,
        ending: str | None = None,
    ) -> Observation:
        """Look until the condition holds. Raises DemoFailed at the deadline, or when an
        application other than `ending` ends."""
        deadline = time.monotonic() + seconds
        while True:
            self._check_children(ending)
            if condition(self.observe()):
                return self.seen
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {seconds:.0f} s for {what}")
            time.sleep(POLL_SECONDS)

    def observe(self) -> Observation:
        """Look, show it, and adapt the rate."""
        if self.publisher.error:
            raise DemoFailed(f"publishing failed: {self.publisher.error}")
        try:
            self.seen = self._observer.observe()
            self._looked_at = time.monotonic()
        except CounterpoiseError as error:
            if time.monotonic() - self._looked_at > BLIND_SECONDS:
                tail = self._children["service"].tail()
                raise DemoFailed(f"the service or the log failed: {error}\n{tail}") from error
        counted = self.record.counted()
        if not self._last_act:
            self._rate.set(self.plan.rate_after(counted))
        self._show(FlightCounts(self.publisher.published, counted, len(self.flights)), self.seen)
        return self.seen

    def _show(self, progress: FlightCounts, seen: Observation | None = None) -> None:
        for name, child in self._children.items():
            if seen is not None and name in self._told:
                self._does(name, _share_of(name, seen))
            elif said := child.last_after(DOING):
                self._does(name, said)
        self.display.show(self._doing, seen, progress)

    def _does(self, name: str, text: str) -> None:
        if name not in self._doing or self._doing[name].text != text:
            self._doing[name] = Doing(text, time.monotonic())

    def lift_the_rate(self) -> None:
        """From now on publisher and applications run without a limit."""
        self._last_act = True
        self._rate.set(0.0)
        self.publisher.release()

    def all_committed(self, seen: Observation) -> bool:
        """Whether everything is published and every partition committed to its end."""
        if not self.publisher.done:
            return False
        ends = self._observer.ends(seen.committed)
        return all(position == ends[number] for number, position in seen.committed.items())

    def grants(self) -> list[EpochGrant]:
        """Every grant in the service's history."""
        return [
            EpochGrant(move.partition, move.epoch, move.outcome, move.seconds)
            for rebalance in self.client.rebalances(QUEUE, max_items=None)
            for move in rebalance.moves
        ]

    # ------------------------------------------------------------------ the command line

    def command(self, *arguments: str) -> Any:
        """What this command of `counterpoise` answers as JSON. Raises DemoFailed if it fails."""
        name = " ".join(("counterpoise", *arguments))
        options = ["--json", "--url", self.url]
        self._start(name, [sys.executable, "-m", "counterpoise.cli", *arguments, *options])
        child = self._children[name]
        self.wait(name, lambda _: child.exit_code is not None, ending=name)
        del self._children[name]
        output = child.output(GRACE_SECONDS)
        _require_success(child)
        return json.loads(output)

    # ------------------------------------------------------------------ children

    def _start(self, name: str, command: Sequence[str]) -> DemoProcess:
        log = self._directory / f"{name.replace(' ', '-')}.log"
        child = DemoProcess(name, command, log, {**os.environ, "PYTHONUNBUFFERED": "1"})
        self._children[name] = child
        return child

    def _check_children(self, ending: str | None = None) -> None:
        for name, child in self._children.items():
            if name != ending and child.exit_code is not None:
                raise DemoFailed(f"{name} has ended with {child.exit_code}:\n{child.tail()}")


def _share_of(name: str, seen: Observation) -> str:
    """What an application is doing that was told to join."""
    if name not in seen.flows:
        return "stops" if seen.processed.get(name) else "binds"
    if name in seen.draining:
        return "hands everything over"
    if not seen.owned(name):
        return "is bound, and waits for partitions"
    return "works" if seen.processed.get(name) else "reads its first micro-batch"


def _require_success(child: DemoProcess) -> None:
    code = child.end(GRACE_SECONDS)
    if code != 0:
        raise DemoFailed(f"{child.name} ended with {code} instead of 0:\n{child.tail()}")


def forget_other_services() -> None:
    """The environment has no settings for another service any more, as a key or an access to logs:
    neither for the clients of this process nor for its children.
    """
    for name in [name for name in os.environ if "COUNTERPOISE_" in name]:
        del os.environ[name]


def _free_port() -> int:
    """The default port if it is free, else any free one."""
    for port in (DEFAULT_PORT, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    raise DemoFailed("no free port on 127.0.0.1")
