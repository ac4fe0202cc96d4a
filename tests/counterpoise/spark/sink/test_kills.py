"""Applications killed and stuck at every step; in the result, each message is there once, in order.

The steps of a micro-batch, and where each is stopped: planned (`before` the sink), in the
transactions of its partitions (`inside` the first; `amid` them, while others have committed) or, in
a lake, with all files written (before the `commit`), written (`after` the sink, before Spark's
commit log), and in Spark's commit `log`, before the commit at the service.

One driver runs an application for each step, on one queue. Each is held at its step, and one kill
hits them all there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.application import Application
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.sink.application import FencedApplication, FencedApplications
from tests.counterpoise.spark.sink.lakes import LAKES
from tests.counterpoise.spark.small import CLUSTER, LOCAL
from tests.counterpoise.spark.stage import KEYS, Stage, staged
from tests.counterpoise.spark.waiting import until
from tests.service import ServeProcess, Service

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 1")]

STEPS = ("before", "inside", "amid", "after", "log")
LAKE_STEPS = ("before", "commit", "after", "log")
PARTITIONS = 12
"""Each of them has keys that are written, and each application of a test owns two of them."""
EXPECTED_KEYS = [f"k{n}" for n in range(KEYS) if not f"k{n}".endswith("3")]


@dataclass(frozen=True)
class Event:
    """One written row."""

    application: str
    batch: int
    partition: int
    position: int
    epoch: int
    key: str
    value: int


EVENT = tuple(one.name for one in fields(Event))


class Results(Protocol):
    """What all applications write to."""

    settings: Mapping[str, str]

    def events(self) -> list[Event]:
        """In the order of writing within each partition, as far as that is known."""

    def fences(self) -> dict[int, str | None]: ...


class Database:
    """Events in a table of Postgres, which counts them."""

    def __init__(self, url: str) -> None:
        self.settings: Mapping[str, str] = {"database": url}
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(
            "CREATE TABLE events (id bigserial PRIMARY KEY, application text, batch int,"
            " partition int, position bigint, epoch bigint, key text, value int)"
        )

    def events(self) -> list[Event]:
        statement: Any = f"SELECT {', '.join(EVENT)} FROM events ORDER BY id"
        return [Event(*row) for row in self.connection.execute(statement).fetchall()]

    def fences(self) -> dict[int, str | None]:
        statement = "SELECT partition, next_position FROM counterpoise_high_water"
        return dict(self.connection.execute(statement).fetchall())

    def a_writer_waits(self) -> bool:
        """Whether a transaction waits for the row of another one."""
        statement = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
        return self.connection.execute(statement).fetchone() is not None


class Lake:
    """Events in a table of a lake. Rows have no order there, so they are taken by position."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.settings: Mapping[str, str] = {"lake": kind, "directory": str(directory)}
        self._place = LAKES[kind](directory)

    def events(self) -> list[Event]:
        rows = [
            one | {"position": int(one["position"]), "value": int(one["value"])}
            for one in self._place.rows()
        ]
        found = [Event(**{name: one[name] for name in EVENT}) for one in rows]
        return sorted(found, key=lambda one: (one.partition, one.position))

    def fences(self) -> dict[int, str | None]:
        return {number: at for number, (_, at) in self._place.high_water("events").items()}


class SinkStage(Stage):
    """The stage, with the results that all applications write to."""

    def __init__(
        self,
        service: Service | ServeProcess,
        client: Client,
        directory: Path,
        drivers: Drivers,
        results: Results,
    ) -> None:
        super().__init__(service, client, directory, drivers)
        self.results = results

    def fenced(self, name: str, *, master: str = LOCAL, **options: Any) -> FencedApplication:
        return self.add(self._fenced(name, master=master, **options))

    def one_for_each(self, steps: Sequence[str], **options: Any) -> FencedApplications:
        """An application for each step, by the step's name, all in one driver."""
        members = [self._fenced(step, **options) for step in steps]
        return self.add(FencedApplications("victims", self.directory, self.drivers, members))

    def _fenced(self, name: str, **options: Any) -> FencedApplication:
        results = self.results.settings
        return FencedApplication(
            name, self.directory, self.url, "flights", self.drivers, results, **options
        )

    def end(self) -> None:
        for application in self.applications:
            application.end()
            print(f"--- {application.name}:\n{application.said()[-8000:]}")

    def expected(self) -> list[int]:
        return [n for n in range(self.published) if f"k{n % KEYS}" in EXPECTED_KEYS]

    def all_written(self) -> bool:
        return set(self.expected()) <= {one.value for one in self.results.events()}

    def written_since(self, least: int, application: str | None = None) -> list[Event]:
        """The events of messages numbered `least` and up, by writer (None: by all)."""
        return [
            one
            for one in self.results.events()
            if one.value >= least and application in (None, one.application)
        ]

    def partitions_with(self, least: int, application: str | None = None) -> set[int]:
        """The partitions of messages numbered `least` and up, by writer."""
        return {one.partition for one in self.written_since(least, application)}

    def batches_with(self, least: int, application: str) -> set[int]:
        """The micro-batches in which it has written messages numbered `least` and up."""
        return {one.batch for one in self.written_since(least, application)}

    def owned_by(self, *names: str) -> set[int]:
        """The partitions that these own."""
        return {number for number, owner in self.owners().items() if owner in names}

    def shared(self, *names: str) -> bool:
        """Whether nothing moves, and each of them owns at least two partitions."""
        return self.ready() and all(self.owned(name) >= 2 for name in names)

    def until_idle(self) -> None:
        until(self.all_written, "everything is written")
        until(lambda: self.committed() == self.published, "everything is committed")

    def not_told(self) -> set[int]:
        """The partitions whose fence is ahead of the service's position."""
        told = {one.partition: int(one.position or 0) for one in self.client.partitions("flights")}
        fences = self.results.fences()
        return {number for number, fence in fences.items() if int(fence or 0) > told[number]}

    def check(self) -> None:
        """No message repeated or missing, each key in order, no epoch after a higher one, and the
        fence at the service's position.
        """
        self.until_idle()
        events = self.results.events()
        assert sorted(one.value for one in events) == self.expected()
        for key in EXPECTED_KEYS:
            own = [one.value for one in events if one.key == key]
            assert own == sorted(own), key
        for number in {one.partition for one in events}:
            epochs = [one.epoch for one in events if one.partition == number]
            assert epochs == sorted(epochs), number
        assert self.results.fences() == {
            one.partition: one.position for one in self.client.partitions("flights")
        }


@pytest.fixture
def stage(
    service: Service, drivers: Drivers, tmp_path: Path, database_url: str
) -> Iterator[SinkStage]:
    # Another database than the service's, because the fence must not depend on sharing one.
    results = Database(database_url)
    with results.connection, staged(SinkStage, service, tmp_path, drivers, results) as stage:
        yield stage


@pytest.fixture(params=LAKES)
def lake_stage(
    service: Service, drivers: Drivers, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[SinkStage]:
    results = Lake(request.param, tmp_path)
    with staged(SinkStage, service, tmp_path, drivers, results) as stage:
        yield stage


def hold_amid(stage: SinkStage, victim: FencedApplication) -> int:
    """Publish, and hold the victim in one transaction while its other partitions are committed.

    Returns the partition of that transaction.
    """
    number = max(stage.owned_by(victim.name))
    victim.hold(f"inside {number}")
    first = stage.published
    stage.publish(60)
    until_amid(stage, victim, number, first)
    return number


def until_amid(stage: SinkStage, victim: FencedApplication, number: int, first: int) -> None:
    """Wait until it holds there, and has committed others of the messages from `first` on."""
    until(victim.held, f"{victim.name} holds inside of {number}")
    others = stage.owned_by(victim.name) - {number}
    until(lambda: others & stage.partitions_with(first, victim.name), "others are committed")
    assert number not in stage.partitions_with(first, victim.name)


def hold_each_at_its_step(stage: SinkStage, victims: FencedApplications) -> int:
    """Publish, and hold each victim at its step, with some of the new messages in its batch.

    All hold before the sink first. From there they go on one by one, those that hold a task last:
    the driver runs two tasks at a time. Returns the number of the first new message.
    """
    first = stage.published
    members = victims.members
    for one in members.values():
        one.hold("before")
    stage.publish(60)
    for one in members.values():
        until(one.held, f"{one.name} holds before the sink")
    after, log = members["after"], members["log"]
    after.hold("after")
    until(after.held, "one holds after the sink")
    batch = log.finished_batches()
    own = stage.owned_by("log")
    # It renews its lease no more.
    log.stop_its_source()
    log.go_on()
    log.until_finished(batch)
    assert own & stage.not_told()
    if (commit := members.get("commit")) is not None:
        commit.hold("commit")
        until(commit.held, "one holds before its commit")
    if (amid := members.get("amid")) is not None:
        number = max(stage.owned_by("amid"))
        amid.hold(f"inside {number}")
        until_amid(stage, amid, number, first)
    if (inside := members.get("inside")) is not None:
        inside.hold("inside")
        until(inside.held, "one holds inside its first transaction")
    for step in ("before", "inside", "commit"):
        assert not stage.partitions_with(first, step)
    return first


def skipped(application: Application) -> set[int]:
    """The partitions whose planned messages it has skipped."""
    lines = re.findall("counterpoise: skipped (partition .*)", application.said())
    return {int(number) for line in lines for number in re.findall(r"partition (\d+) \[", line)}


@pytest.mark.matrix(of="crashes of writers")
def test_killed_at_every_step_and_restarted_at_once(stage: SinkStage) -> None:
    """The same instances again (`replaced`): their planned batches are replayed, not skipped.

    One of them is killed again while it replays: its planned batch has lost its epoch by then, and
    is skipped. Its messages come again in another micro-batch, from the service's position. So a
    sink that knows micro-batches by their number would write them twice; the fence knows positions.
    """
    stage.queue(PARTITIONS, rebalance_delay=0.2, max_handoff_time=600)
    stage.publish(60)
    victims = stage.one_for_each(STEPS, leaseSeconds=600)
    victims.start()
    until(lambda: stage.shared(*STEPS), "shared")
    stage.until_idle()
    twice = victims.members["amid"]
    others = [one for one in victims.members.values() if one is not twice]
    first = hold_each_at_its_step(stage, victims)
    planned = stage.batches_with(first, "amid")
    batches = {one.name: one.planned_batches() - 1 for one in others}
    victims.kill()
    for one in others:
        one.go_on()
    victims.start()
    until(twice.held, "it replays, and holds again")
    for one in others:
        one.until_finished(batches[one.name])
        assert batches[one.name] in stage.batches_with(first, one.name)
    assert skipped(victims) == set()
    victims.kill()
    twice.go_on()
    victims.start()
    stage.publish(60)
    stage.check()
    assert skipped(victims)
    assert skipped(victims) <= stage.owned_by("amid")
    assert stage.batches_with(first, "amid") > planned
    assert victims.stop() == 0


@pytest.mark.matrix(of="crashes of writers")
def test_on_a_cluster_an_executor_is_killed_and_then_all_of_it(stage: SinkStage) -> None:
    """Between its partitions: the other executor has committed, or a retry finds it done."""
    stage.queue(4, rebalance_delay=0.2)
    stage.publish(60)
    one = stage.fenced("one", master=CLUSTER, leaseSeconds=600).start()
    one.prepare()
    until(stage.all_written, "the first messages")
    partition = hold_amid(stage, one)
    batches = one.finished_batches()
    one.kill_executor(partition)
    one.go_on()
    # Spark retries the task elsewhere: batch and flow are the same.
    one.until_finished(batches)
    hold_amid(stage, one)
    batches = one.finished_batches()
    one.kill()
    one.go_on()
    one.start()
    one.until_finished(batches)
    stage.publish(60)
    stage.check()
    assert one.stop() == 0
    assert "skipped" not in one.said()
    # An executor other than the first two has written too, and none of them was the driver's JVM.
    assert len(one.executors()) >= 3


@pytest.mark.matrix(of="crashes of writers")
def test_killed_at_every_step_and_restarted_when_another_has_taken_over(stage: SinkStage) -> None:
    """The returning applications skip their planned batches, because the other has written them."""
    stage.queue(PARTITIONS, rebalance_delay=0, max_handoff_time=600)
    stage.publish(60)
    other = stage.fenced("other", leaseSeconds=600)
    victims = stage.one_for_each(STEPS, leaseSeconds=600)
    other.start()
    victims.start()
    until(lambda: stage.shared("other", *STEPS), "shared")
    stage.until_idle()
    hold_each_at_its_step(stage, victims)
    held = {step: stage.owned_by(step) for step in STEPS}
    victims.kill()
    stage.unbind(*STEPS)
    until(lambda: stage.owned("other") == PARTITIONS, "the other takes over")
    until(stage.all_written, "the other writes the rest")
    victims.go_on()
    victims.start()
    until(lambda: stage.shared("other", *STEPS), "shared")
    stage.publish(60)
    stage.check()
    assert victims.stop() == 0
    assert other.stop() == 0
    assert skipped(other) == set()
    assert [step for step in STEPS if skipped(victims) & held[step]] == [*STEPS[:4]]


@pytest.mark.matrix(of="crashes of writers")
def test_stuck_ones_that_wake_after_a_forced_handoff(stage: SinkStage) -> None:
    """Once before its transactions, once within one. Its other partitions are written."""
    stage.queue(4, rebalance_delay=0, max_handoff_time=0.5)
    # Another queue on the log has read nothing, so the log keeps the messages of the stuck plan.
    # Otherwise the log could be trimmed past them, and the stuck query would fail before it reaches
    # the fence.
    stage.client.create_queue("archive", 4, log="builtin:flights")
    stage.publish(60)
    stuck = stage.fenced("stuck", leaseSeconds=600)
    other = stage.fenced("other", leaseSeconds=600)
    stuck.start()
    until(stage.all_written, "the first messages")
    first = stage.published
    stuck.hold("before")
    stage.publish(60)
    until(stuck.held, "it holds before the sink")
    other.start()
    until(lambda: stage.owned("other") == 2, "the handoff is forced")
    lost = stage.owned_by("other")
    until(lambda: stage.partitions_with(first) == lost, "the other writes what was in flight")
    stuck.go_on()
    until(lambda: "has a new owner, which has written already" in stuck.said(), "it says so")
    assert not stage.partitions_with(first, "stuck") & lost
    until(
        lambda: stage.partitions_with(first, "stuck") == {0, 1, 2, 3} - lost,
        "the stuck one writes what is its own",
    )
    # Now within a transaction: the successor waits for the row lock, and then finds the written
    # rows.
    until(lambda: stage.committed() == stage.published, "everything is committed")
    hold_amid(stage, stuck)
    # Else it would learn that it has left, and its driver would end its transaction.
    stuck.stop_its_source()
    (flow,) = [one for one in stage.client.flows("flights") if one.client_name == "stuck"]
    stage.client.drain("flights", flow.flow_id)
    until(lambda: stage.owned("other") == 4, "the handoffs are forced")
    assert isinstance(stage.results, Database)
    until(stage.results.a_writer_waits, "the successor waits for the row")
    stuck.go_on()
    stuck.continue_its_source()
    stage.publish(60)
    stage.check()
    stuck.drained_from_outside()
    assert other.stop() == 0
    assert stage.moves()["forced"] >= 3


@pytest.mark.matrix(of="crashes of writers")
def test_in_a_lake_killed_at_every_step_and_stuck_before_a_commit(lake_stage: SinkStage) -> None:
    """Killed and restarted at once: planned batches are replayed, and each is written once.

    Then one is stuck with its files written, loses its partitions to the others, and commits late.
    """
    stage = lake_stage
    stage.queue(8, rebalance_delay=0.2, max_handoff_time=600)
    # It has read nothing, so the log keeps the messages of stuck plans.
    stage.client.create_queue("archive", 8, log="builtin:flights")
    stage.publish(60)
    victims = stage.one_for_each(LAKE_STEPS, leaseSeconds=600)
    victims.start()
    until(lambda: stage.shared(*LAKE_STEPS), "shared")
    stage.until_idle()
    first = hold_each_at_its_step(stage, victims)
    batches = {one.name: one.planned_batches() - 1 for one in victims.members.values()}
    victims.kill()
    victims.go_on()
    victims.start()
    for one in victims.members.values():
        one.until_finished(batches[one.name])
        assert batches[one.name] in stage.batches_with(first, one.name)
    assert skipped(victims) == set()
    stage.until_idle()

    stuck = victims.members["commit"]
    lost = stage.owned_by("commit")
    first = stage.published
    stuck.hold("commit")
    stage.publish(60)
    until(stuck.held, "it holds before its commit")
    stage.client.change_queue("flights", max_handoff_time=0.5)
    (flow,) = [one for one in stage.client.flows("flights") if one.client_name == "commit"]
    stage.client.drain("flights", flow.flow_id)
    until(lambda: not stage.owned_by("commit"), "the handoffs are forced")
    until(lambda: lost <= stage.partitions_with(first), "the others write what was in flight")
    stage.until_idle()
    stuck.go_on()
    until(lambda: "has a new owner, which has written already" in victims.said(), "it says so")
    stage.check()
    assert not stage.partitions_with(first, "commit")
