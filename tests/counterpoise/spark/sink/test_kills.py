"""Applications killed and stuck at every step; in Postgres, each message is there once, in order.

The steps of a micro-batch, and where each is stopped: planned (`before` the sink), in the
transactions of its partitions (`inside` all tasks; `inside` one while others have committed),
written (`after` the sink, before Spark's commit log), and in Spark's commit log, before the commit
at the service (the trigger's interval keeps Spark from asking for more, and its events are lost).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from counterpoise.client import Client
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.sink.application import FencedApplication
from tests.counterpoise.spark.small import CLUSTER, LOCAL
from tests.counterpoise.spark.stage import KEYS, Stage, staged
from tests.counterpoise.spark.waiting import until
from tests.service import ServeProcess, Service

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("spark 2")]

# Spark's triggers are due at multiples of their interval, independent of the query's start.
SLOW_TRIGGER_SECONDS = 10
HOUR_SECONDS = 3600
EXPECTED_KEYS = [f"k{n}" for n in range(KEYS) if not f"k{n}".endswith("3")]


class SinkStage(Stage):
    """The stage, with the database that all applications write to."""

    def __init__(
        self,
        service: Service | ServeProcess,
        client: Client,
        directory: Path,
        drivers: Drivers,
        database: str,
    ) -> None:
        super().__init__(service, client, directory, drivers)
        self.connection = psycopg.connect(database, autocommit=True)
        self.database = database
        self.connection.execute(
            "CREATE TABLE events (id bigserial PRIMARY KEY, application text, batch int,"
            " partition int, position bigint, epoch bigint, key text, value int)"
        )

    def fenced(self, name: str, *, master: str = LOCAL, **options: Any) -> FencedApplication:
        application = FencedApplication(
            name,
            self.directory,
            self.url,
            "flights",
            self.drivers,
            self.database,
            master=master,
            **options,
        )
        return self.add(application)

    def end(self) -> None:
        for application in self.applications:
            application.end()
            print(f"--- {application.name}:\n{application.said()[-8000:]}")
        self.connection.close()

    def expected(self) -> list[int]:
        return [n for n in range(self.published) if f"k{n % KEYS}" in EXPECTED_KEYS]

    def written(self) -> list[int]:
        """All values, in the order of writing within each partition."""
        rows = self.connection.execute("SELECT value FROM events ORDER BY id").fetchall()
        return [value for (value,) in rows]

    def all_written(self) -> bool:
        return set(self.expected()) <= set(self.written())

    def partitions_with(self, least: int, application: str = "%") -> set[int]:
        """The partitions of messages numbered `least` and up, by writer."""
        return {
            partition
            for (partition,) in self.connection.execute(
                "SELECT DISTINCT partition FROM events WHERE value >= %s AND application LIKE %s",
                [least, application],
            )
        }

    def batches_with(self, least: int, application: str) -> set[int]:
        """The micro-batches in which it has written messages numbered `least` and up."""
        return {
            batch
            for (batch,) in self.connection.execute(
                "SELECT DISTINCT batch FROM events WHERE value >= %s AND application = %s",
                [least, application],
            )
        }

    def until_written_by(self, application: FencedApplication, least: int) -> None:
        """Wait until it has written a message numbered `least` or higher."""
        name = application.name
        until(lambda: self.batches_with(least, name), f"{name} writes")

    def check(self) -> None:
        """No message repeated or missing, each key in order, and the fence at the service's
        position.
        """
        until(lambda: self.all_written(), "everything is written")
        until(lambda: self.committed() == self.published, "everything is committed")
        written = self.written()
        assert sorted(written) == self.expected()
        for key in EXPECTED_KEYS:
            own = [value for value in written if f"k{value % KEYS}" == key]
            assert own == sorted(own), key
        epochs = self.connection.execute(
            "SELECT count(*) FROM (SELECT epoch - lag(epoch)"
            " OVER (PARTITION BY partition ORDER BY id) AS step FROM events) _ WHERE step < 0"
        ).fetchone()
        assert epochs == (0,)
        high_water = self.connection.execute(
            "SELECT partition, next_position FROM counterpoise_high_water"
        ).fetchall()
        assert dict(high_water) == {
            one.partition: one.position for one in self.client.partitions("flights")
        }


@pytest.fixture
def stage(
    service: Service, drivers: Drivers, tmp_path: Path, database_url: str
) -> Iterator[SinkStage]:
    # Another database than the service's, because the fence must not depend on sharing one.
    with staged(SinkStage, service, tmp_path, drivers, database_url) as stage:
        yield stage


def hold_amid(stage: SinkStage, victim: FencedApplication) -> int:
    """Publish, and hold the victim in one transaction while its other partitions are committed.

    Returns the partition of that transaction.
    """
    (number,) = [
        max(n for n, owner in stage.owners().items() if owner == victim.name),
    ]
    victim.hold(f"inside {number}")
    first = stage.published
    stage.publish(60)
    until(victim.held, f"{victim.name} holds inside of {number}")
    others = {n for n, owner in stage.owners().items() if owner == victim.name} - {number}
    until(lambda: others & stage.partitions_with(first, victim.name), "others are committed")
    assert number not in stage.partitions_with(first, victim.name)
    return number


def hold_at(stage: SinkStage, victim: FencedApplication, where: str) -> None:
    """Publish, and hold the victim there, with some of the new messages in its batch."""
    if where == "amid":
        hold_amid(stage, victim)
        return
    victim.hold(where)
    stage.publish(60)
    until(victim.held, f"{victim.name} holds {where}")


def test_killed_at_every_step_and_restarted_at_once(stage: SinkStage) -> None:
    """The same instance again (`replaced`): its planned batch is replayed, not skipped."""
    stage.queue(4, rebalance_delay=0.2)
    stage.publish(60)
    one = stage.fenced("one", leaseSeconds=120).start()
    until(stage.all_written, "the first messages")
    for where in ("before", "inside", "amid", "after"):
        hold_at(stage, one, where)
        batches = one.finished_batches()
        one.kill()
        one.go_on()
        slow = HOUR_SECONDS if where == "after" else 0
        one.start(interval_seconds=slow)
        one.until_finished(batches)
    # That was the last step too: the batch is in Spark's commit log, and Spark has not asked since.
    assert stage.committed() < stage.published
    one.kill()
    one.start()
    stage.publish(60)
    stage.check()
    assert one.stop() == 0
    assert "skipped" not in one.said()


def test_on_a_cluster_an_executor_is_killed_and_then_all_of_it(stage: SinkStage) -> None:
    """Between its partitions: the other executor has committed, or a retry finds it done."""
    stage.queue(4, rebalance_delay=0.2)
    stage.publish(60)
    one = stage.fenced("one", master=CLUSTER, leaseSeconds=120).start()
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


def test_killed_twice_amid_one_micro_batch(stage: SinkStage) -> None:
    """Killed again while it replays: the planned batch has lost its epoch by then, and is skipped.

    Its messages come again in another micro-batch, from the service's position. So a sink that
    knows micro-batches by their number would write them twice; the fence knows positions.
    """
    stage.queue(4, rebalance_delay=0.2)
    stage.publish(60)
    one = stage.fenced("one", leaseSeconds=120).start()
    until(stage.all_written, "the first messages")
    first = stage.published
    hold_at(stage, one, "amid")
    planned = stage.batches_with(first, "one")
    one.kill()
    one.start()
    until(one.held, "it replays, and holds again")
    assert "skipped" not in one.said()
    one.kill()
    one.go_on()
    one.start()
    stage.publish(60)
    stage.check()
    assert "skipped partition" in one.said()
    assert stage.batches_with(first, "one") > planned
    assert one.stop() == 0


def finish_without_telling(stage: SinkStage, victim: FencedApplication) -> None:
    """A micro-batch of `victim` is in Spark's commit log, and the service was not told.

    Spark tells the source at the next tick of the trigger. Where a micro-batch takes as long as
    from one tick to the next, the service knows too early: then the next micro-batch is tried.
    """
    for _ in range(10):
        until(lambda: stage.committed() == stage.published, "everything before is committed")
        first = stage.published
        stage.publish(60)
        stage.until_written_by(victim, first)
        victim.until_finished(max(stage.batches_with(first, "victim")))
        if stage.committed() < stage.published:
            return
    pytest.fail("the service was told of each micro-batch at once")


def test_killed_at_every_step_and_restarted_when_another_has_taken_over(stage: SinkStage) -> None:
    """The returning application skips its planned batch, because the other has written it."""
    stage.queue(4, rebalance_delay=0, max_handoff_time=60)
    stage.publish(60)
    other = stage.fenced("other", leaseSeconds=120)
    victim = stage.fenced("victim", leaseSeconds=8)
    other.start()
    victim.start(interval_seconds=SLOW_TRIGGER_SECONDS)
    for where in ("in Spark's commit log", "before", "inside", "amid", "after"):
        until(lambda: stage.ready() and stage.owned("victim") == 2, "shared")
        until(stage.all_written, "everything before is written")
        if where == "in Spark's commit log":
            finish_without_telling(stage, victim)
        else:
            hold_at(stage, victim, where)
        victim.kill()
        until(lambda: stage.owned("other") == 4, "the other takes over")
        until(stage.all_written, "the other writes the rest")
        victim.go_on()
        victim.start()
    until(lambda: stage.ready() and stage.owned("victim") == 2, "shared")
    stage.publish(60)
    stage.check()
    assert victim.stop() == 0
    assert other.stop() == 0
    assert "skipped partition" in victim.said()


def test_stuck_ones_that_wake_after_a_forced_handoff(stage: SinkStage) -> None:
    """Once before its transactions, once within one. Its other partitions are written."""
    stage.queue(4, rebalance_delay=0, max_handoff_time=0.5)
    # Another queue on the log has read nothing, so the log keeps the messages of the stuck plan.
    # Otherwise the log could be trimmed past them, and the stuck query would fail before it reaches
    # the fence.
    stage.client.create_queue("archive", 4, log="builtin:flights")
    stage.publish(60)
    stuck = stage.fenced("stuck", leaseSeconds=120)
    other = stage.fenced("other", leaseSeconds=120)
    stuck.start()
    until(stage.all_written, "the first messages")
    hold_at(stage, stuck, "before")
    first = stage.published - 60
    other.start()
    until(lambda: stage.owned("other") == 2, "the handoff is forced")
    lost = {number for number, owner in stage.owners().items() if owner == "other"}
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
    (flow,) = [one for one in stage.client.flows("flights") if one.client_name == "stuck"]
    stage.client.drain("flights", flow.flow_id)
    until(lambda: stage.owned("other") == 4, "the handoffs are forced")
    until(
        lambda: stage.connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        ).fetchone(),
        "the successor waits for the row",
    )
    stuck.go_on()
    stage.publish(60)
    stage.check()
    stuck.drained_from_outside()
    assert other.stop() == 0
    assert stage.moves()["forced"] >= 3
