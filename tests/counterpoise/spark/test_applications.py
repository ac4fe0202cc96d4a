"""Applications that share a queue: each is a process with a Spark of its own, the service is real.

Tests wait for events (a sink that holds, a position that is committed, an owner that the service
names), never for time to pass.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.counterpoise.spark.application import Application, Row
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.stage import Stage, staged
from tests.counterpoise.spark.waiting import until
from tests.service import ServeProcess

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="applications"),
]


def duplicates(rows: list[Row]) -> dict[int, int]:
    """The repeated messages, and how often each came."""
    return {value: n for value, n in Counter(int(row.value) for row in rows).items() if n > 1}


def check_order(rows: list[Row]) -> None:
    """Within a partition, by epoch and then in each owner's order: positions rise by one."""
    by_partition: dict[int, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    for partition, own in by_partition.items():
        own.sort(key=lambda row: row.epoch)  # stable: keeps the order within an epoch
        assert [row.position for row in own] == list(range(len(own))), f"partition {partition}"


def test_a_second_application_joins_and_the_first_leaves_without_a_trace(stage: Stage) -> None:
    stage.queue(4, rebalance_delay=0.2, max_handoff_time=600)
    first = stage.application("first", maxMessagesPerTrigger=50)
    second = stage.application("second", maxMessagesPerTrigger=50)

    def leave() -> None:
        (flow,) = [one for one in stage.client.flows("flights") if one.client_name == "first"]
        stage.client.drain("flights", flow.flow_id)
        until(lambda: stage.owned("second") == 4, "the second owns all")
        first.drained_from_outside()

    check_joining_and_leaving(stage, first, second, leave)


def check_joining_and_leaving(
    stage: Stage, first: Application, second: Application, leave: Callable[[], None]
) -> None:
    """On an empty queue of four partitions. `leave`: the first drains, and ends."""
    stage.publish(400)
    first.hold("after")
    first.start()
    until(lambda: stage.owned("first") == 4 and first.rows(), "the first works on all")
    # The second joins while a micro-batch of the first is in flight; nothing moves before it ends.
    until(first.held, "the first holds")
    stage.publish(400)
    second.start()
    until(lambda: stage.client.rebalance_status("flights").handoffs, "handoffs to the second")
    assert stage.owned("first") == 4
    first.go_on()
    until(lambda: stage.owned("second") == 2, "the second owns its share")
    stage.publish(400)
    until(stage.all_seen, "everything is seen")
    until(lambda: stage.committed() == stage.published, "everything is committed")
    assert {row.application for row in stage.rows()} == {"first", "second"}
    # Now the first is drained, under load, and leaves.
    stage.publish(400)
    leave()
    until(lambda: stage.owned("second") == 4, "the second owns all")
    until(lambda: len(stage.client.flows("flights")) == 1, "the first has left")
    stage.publish(100)
    # If it were stopped before the last micro-batch is in Spark's commit log, that would be
    # repeated.
    until(lambda: stage.committed() == stage.published, "everything is committed")
    assert second.stop() == 0
    rows = stage.rows()
    assert stage.all_seen()
    assert duplicates(rows) == {}
    check_order(rows)
    assert set(stage.moves()) <= {"graceful", "initial", "orphaned"}
    assert stage.moves()["graceful"] == 4


def test_told_twice_to_end_an_application_ends_at_once_and_lets_go(stage: Stage) -> None:
    """Told once it leaves in order: `tests/counterpoise/on_redis/test_spark.py`."""
    stage.queue(2, rebalance_delay=0.2, max_handoff_time=600)
    only = stage.application("only", drain_seconds=300)
    only.hold("after")
    only.start()
    stage.publish(40)
    until(only.held, "a micro-batch in flight")
    only.terminate()
    until(lambda: any(one.draining for one in stage.client.flows("flights")), "it drains")
    only.terminate()
    assert only.ended() == 128 + signal.SIGTERM
    until(lambda: not stage.client.flows("flights"), "it unbinds")


def test_a_batch_that_outlasts_the_handoff_loses_to_the_successor(stage: Stage) -> None:
    stage.queue(2, rebalance_delay=0, max_handoff_time=0.5)
    stage.publish(40)
    slow = stage.application("slow", leaseSeconds=600)
    other = stage.application("other", leaseSeconds=600)
    slow.start()
    until(stage.all_seen, "the first messages")
    until(lambda: stage.committed() == stage.published, "the first commit")
    slow.hold("after")
    stage.publish(40)
    until(slow.held, "a micro-batch that takes long")
    other.start()
    until(lambda: stage.owned("other") == 1, "the handoff is forced")
    (moved,) = [number for number, owner in stage.owners().items() if owner == "other"]
    until(lambda: any(row.application == "other" for row in stage.rows()), "the successor reads")
    until(
        lambda: (
            {row.value for row in slow.rows() if row.partition == moved and int(row.value) >= 40}
            <= {row.value for row in other.rows()}
        ),
        "the successor has read what was in flight",
    )
    at = {one.partition: one.position for one in stage.client.partitions("flights")}[moved]
    slow.go_on()
    until(lambda: "was taken over while a micro-batch" in slow.said(), "the commit is refused")
    stage.publish(100)
    until(stage.all_seen, "everything is seen")
    until(lambda: stage.committed() == stage.published, "everything is committed")
    assert slow.stop() == 0
    assert other.stop() == 0
    # Only messages in flight came twice; nothing was read behind the successor.
    rows = stage.rows()
    twice = duplicates(rows)
    in_flight = {int(row.value) for row in slow.rows() if row.partition == moved and row.epoch == 1}
    assert set(twice) <= in_flight
    assert twice
    assert max(row.epoch for row in slow.rows() if row.partition == moved) == 1
    assert at is not None
    assert stage.moves()["forced"] == 1


def test_a_stuck_application_loses_its_lease_and_comes_back(stage: Stage) -> None:
    stage.queue(2, rebalance_delay=0)
    stage.publish(40)
    stuck = stage.application("stuck", leaseSeconds=15, maxBatchSeconds=3)
    other = stage.application("other", leaseSeconds=600)
    stuck.start()
    until(stage.all_seen, "the first messages")
    other.start()
    until(lambda: stage.ready() and stage.owned("other") == 1, "shared")
    stuck.hold("after")
    stage.publish(40)
    until(stuck.held, "stuck")
    until(lambda: stage.owned("other") == 2, "its lease expires and the other takes over")
    stage.publish(40)
    until(lambda: stage.committed() == stage.published, "the other goes on with everything")
    stuck.go_on()
    until(lambda: stage.ready() and stage.owned("stuck") == 1, "it binds again by itself")
    stage.publish(40)
    until(stage.all_seen, "everything is seen")
    until(lambda: stage.committed() == stage.published, "everything is committed")
    assert stuck.stop() == 0
    assert other.stop() == 0
    assert stage.client.rebalances("flights")


@pytest.fixture
def stage_on_served(served: ServeProcess, drivers: Drivers, tmp_path: Path) -> Iterator[Stage]:
    with staged(Stage, served, tmp_path, drivers) as stage:
        yield stage


def test_a_service_that_is_away_for_a_while_does_not_end_the_query(
    stage_on_served: Stage, served: ServeProcess
) -> None:
    stage = stage_on_served
    stage.queue(2, rebalance_delay=0)
    stage.publish(40)
    one = stage.application("one", leaseSeconds=600).start()
    until(lambda: stage.committed() == stage.published, "the first messages")
    one.hold("before")
    stage.publish(40)
    until(one.held, "a micro-batch in flight")
    served.kill()
    one.go_on()
    # It continues with its partitions: messages are read and written although no replica serves.
    until(lambda: len(stage.seen()) == stage.published, "everything is seen")
    assert not one.over()
    served.start()
    until(lambda: stage.committed() == stage.published, "the commits follow")
    stage.publish(40)
    until(lambda: stage.committed() == stage.published, "it works as before")
    assert one.stop() == 0
    assert duplicates(stage.rows()) == {}
    assert {row.epoch for row in stage.rows()} == {1}
