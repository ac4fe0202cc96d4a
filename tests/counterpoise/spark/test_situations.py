"""Every sink in every situation, on several queues in one stream.

`test_versions.py` plays it on the other versions of PySpark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest

from counterpoise.publisher import Publisher
from counterpoise.spark.version import has_read_limits
from tests.counterpoise.spark.application import Row
from tests.counterpoise.spark.cluster.test_standalone import values_in
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.situations import AGAIN, HAS_PROCESSORS, EverySink, others
from tests.counterpoise.spark.stage import KEYS, Stage, staged
from tests.counterpoise.spark.test_versions import VERSIONS
from tests.counterpoise.spark.waiting import until
from tests.service import Service

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="versions of PySpark"),
]

FIXED, DYNAMIC = "orders-eu", "orders-us"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Everything(Stage):
    """Two queues in one stream, and what the sinks make of them."""

    QUEUES = (FIXED, DYNAMIC)

    def __init__(self, *args: Any, database: str) -> None:
        super().__init__(*args)
        self.database = psycopg.connect(database, autocommit=True)
        self.database.execute(
            "CREATE TABLE events (queue text, x bigint);"
            "CREATE TABLE ids (queue text, id text);"
            "CREATE TABLE hourly (window_start timestamptz, window_end timestamptz, queue text,"
            " key text, n bigint, total numeric)"
        )
        given = {"rebalance_delay": 0.2, "max_handoff_time": 600}
        self.client.create_queue(FIXED, 3, **given)
        self.client.create_queue(DYNAMIC, 2, partitioning="dynamic", **given)
        for name in ("out", "others"):
            self.client.create_queue(name, 2)
        results = {"database": database, "queue": "out", "others": "others"}
        self.one, self.two = (
            self.add(
                EverySink(
                    name, self.directory, self.url, "", self.drivers, results, leaseSeconds=600
                )
            )
            for name in ("one", "two")
        )

    def publish(self, count: int, at: datetime = NOON) -> None:
        """As many to each of the queues."""
        for queue in self.QUEUES:
            with Publisher(queue, url=self.url, linger_seconds=60) as publisher:
                for number in range(self.published, self.published + count):
                    at += timedelta(seconds=1)
                    publisher.publish(
                        str(number).encode(), key=f"k{number % KEYS}", published_at=at
                    )
        self.published += count

    def until_done(self) -> None:
        """The sinks have everything, and it is committed."""
        self.publish(3 * KEYS)
        until(lambda: self.seen() == self.expected(), "everything is seen")
        until(
            lambda: all(
                one.lag == 0 for name in self.QUEUES for one in self.client.partitions(name)
            ),
            "everything is committed",
        )

    def expected(self) -> set[str]:
        return {f"{name}/{number}" for name in self.QUEUES for number in range(self.published)}

    def seen(self) -> set[str]:  # type: ignore[override]
        return {row.value for row in self.rows()}

    def repeated(self) -> set[str]:
        """What came more than once to the sink that has no fence."""
        counts = Counter(row.value for row in self.rows())
        return {value for value, count in counts.items() if count > 1}

    def owners_of(self, queue: str) -> Counter[str | None]:
        """How many partitions each application has; None: those that are not settled."""
        if self.client.rebalance_status(queue).status != "Ready":
            return Counter([None])
        names = {flow.flow_id: flow.client_name for flow in self.client.flows(queue)}
        left = [one for one in self.client.partitions(queue) if one.state != "finished"]
        return Counter(names.get(one.owner or "") for one in left)

    def until_shared(self, what: str) -> None:
        until(lambda: all(set(self.owners_of(q)) == {"one", "two"} for q in self.QUEUES), what)

    def outcomes(self) -> set[str]:
        return {
            move.outcome
            for queue in self.QUEUES
            for one in self.client.rebalances(queue)
            for move in one.moves
        }

    def hold_amid_a_batch(self, one: EverySink) -> set[str]:
        """Publish, and hold it when all sinks have written its micro-batch. Returns that."""
        one.hold("after")
        self.publish(3 * KEYS)
        until(one.held, f"{one.name} has written a micro-batch")
        last = one.rows()[-1].batch
        return {row.value for row in one.rows() if row.batch == last}

    def table(self, select: str) -> list[Any]:
        statement: Any = f"SELECT {select}"
        return self.database.execute(statement).fetchall()

    def end(self) -> None:
        super().end()
        self.database.close()


@pytest.fixture
def stage(
    service: Service, drivers: Drivers, tmp_path: Path, database_url: str
) -> Iterator[Everything]:
    with staged(Everything, service, tmp_path, drivers, database=database_url) as stage:
        yield stage


def test_what_every_sink_has_in_every_situation(stage: Everything) -> None:
    one, two = stage.one, stage.two
    # By `spark.stop()`. On the newest version `driver/test_stopping.py` plays it.
    two.ends_driver = not pyspark.__version__.startswith(VERSIONS[-1])
    one.start()
    check_refusals(one.refused())
    stage.until_done()
    # A handoff.
    stage.hold_amid_a_batch(one)
    two.start()
    # The micro-batch may have rows of one queue alone; the other one's partitions go at once.
    until(lambda: any(stage.client.rebalance_status(q).handoffs for q in stage.QUEUES), "handoffs")
    one.go_on()
    stage.until_shared("the second has its share")
    stage.until_done()
    # A restart.
    (flow,) = [flow for flow in stage.client.flows(FIXED) if flow.client_name == "one"]
    stage.client.drain(FIXED, flow.flow_id)
    one.drained_from_outside()
    one.start()
    stage.until_shared("the first is back")
    stage.until_done()
    # A change of access, there and back.
    stage.client.change_queue(FIXED, access_type="exclusive")
    until(lambda: stage.owners_of(FIXED) == {"two": 3}, "the queue has one consumer")
    stage.until_done()
    stage.client.change_queue(FIXED, access_type="non_exclusive")
    stage.until_shared("it has two again")
    # A resize, and a split.
    stage.client.change_queue(FIXED, partition_count=5)
    stage.client.split_partition(DYNAMIC, 0)
    until(
        lambda: [stage.owners_of(q).total() for q in stage.QUEUES] == [5, 3],
        "the queues have more partitions",
    )
    stage.until_shared("both have some of them")
    stage.until_done()
    assert stage.repeated() == set()
    assert stage.outcomes() <= {"graceful", "initial", "orphaned"}
    # A crash: it replays the micro-batch that was not in Spark's commit log.
    replayed = stage.hold_amid_a_batch(one)
    before = one.rows()
    one.kill()
    one.go_on()
    one.start()
    stage.until_done()
    assert stage.repeated() == replayed
    check_replayed(before, one.rows()[len(before) :])
    assert "skipped" not in one.said()
    # Frozen between its sinks: the other one reads what was not committed. Then it wakes, too late.
    one.hold("amid")
    stage.publish(3 * KEYS)
    until(one.held, "the first sink has written, and the others have not")
    one.stop_its_source()
    stage.unbind("one")
    until(lambda: set(stage.owners_of(FIXED)) == {"two"}, "the other takes over")
    stage.until_done()
    assert stage.repeated() == replayed
    one.go_on()
    until(lambda: "has a new owner, which has written already" in one.said(), "a fence says so")
    one.continue_its_source()
    one.unbound_from_outside()
    # The end of the hour, in all partitions.
    counted = stage.published
    stage.publish(3 * KEYS, NOON + timedelta(days=1))
    until(lambda: len(stage.table("* FROM hourly")) >= 2 * KEYS, "the windows are closed")
    stage.until_done()
    check_results(stage, counted)
    assert two.stop() == 0


def check_refusals(refused: dict[str, str]) -> None:
    """State that Spark keeps alone, and what this version cannot do: each with a way out."""
    lost = {"groupBy", "with", "dropDuplicates", "distinct", "limit", "join", "processor"}
    for name in lost:
        assert refused[name].startswith("StateLost: ")
        assert "Instead, " in refused[name]
    newer = set() if HAS_PROCESSORS else {"processors"}
    if not has_read_limits(pyspark.__version__):
        newer.add("availableNow")
    assert refused.keys() == lost | newer
    assert all("PySpark 4." in refused[name] for name in newer)


def check_replayed(before: list[Row], since: list[Row]) -> None:
    """The micro-batch came again as it was planned, in its next epoch."""
    number = before[-1].batch
    first, again = (
        {(row.partition, row.position, row.value): row.epoch for row in rows if row.batch == number}
        for rows in (before, since)
    )
    assert again == {message: epoch + 1 for message, epoch in first.items()}


def check_results(stage: Everything, counted: int) -> None:
    """Of each queue everything is there once. `counted`: how many messages closed windows have."""
    everything = [(name, number) for name in stage.QUEUES for number in range(stage.published)]
    assert sorted(stage.table("queue, x FROM events")) == everything
    ids = {f"k{number % KEYS}/{number // AGAIN}" for _, number in everything}
    assert sorted(stage.table("queue, id FROM ids")) == sorted(
        (name, one) for name in stage.QUEUES for one in ids
    )
    assert sorted(stage.table("queue, key, n, total FROM hourly")) == sorted(
        (name, f"k{key}", len(numbers), sum(numbers))
        for name in stage.QUEUES
        for key in range(KEYS)
        for numbers in [range(key, counted, KEYS)]
    )
    assert values_in(stage.client, "out") == Counter(stage.expected())
    assert values_in(stage.client, "others") == Counter(others([stage.one.name, stage.two.name]))
    # The fence's marks are those of the queues, each with its own.
    marks = stage.table(
        "queue, partition, next_position FROM counterpoise_high_water WHERE sink = 'events'"
    )
    positions = {
        (name, one.partition, one.position)
        for name in stage.QUEUES
        for one in stage.client.partitions(name)
    }
    assert {*marks} <= positions
    assert {name for name, _, _ in marks} == {*stage.QUEUES}
