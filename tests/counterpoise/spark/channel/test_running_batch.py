"""Which plan is used for the running micro-batch: sources on a real service, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark.channel import running_batch as module
from counterpoise.spark.channel.channel import channel_to, driver_home
from counterpoise.spark.channel.running_batch import RunningBatch
from counterpoise.spark.errors import SinkError
from counterpoise.spark.offsets import Json
from counterpoise.spark.options import read_options
from counterpoise.spark.source.with_limits import StreamReaderWithLimits
from tests.log_support import until
from tests.service import Service

Source = Callable[..., StreamReaderWithLimits]


@pytest.fixture
def source(service: Service, client: Client) -> Iterator[Source]:
    """Starts the source of a query on a queue of four partitions with messages in each."""
    client.create_queue("flights", 4, rebalance_delay=0)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(40):
            publisher.publish(b"", key=f"k{number}")
    readers = []

    def start(instance: str | None = None, home: str | None = None) -> StreamReaderWithLimits:
        options = {"queue": "flights", "url": service.url}
        options |= {} if instance is None else {"instanceId": instance}
        readers.append(StreamReaderWithLimits(read_options(options), 2, home or driver_home()))
        return readers[-1]

    yield start
    for reader in readers:
        reader.stop()


def planned_by(reader: StreamReaderWithLimits) -> tuple[Json, Json]:
    """Start and end of the first micro-batch, as in the checkpoint."""
    start = reader.initialOffset()
    ends = []

    def plans() -> bool:
        ends.append(reader.latestOffset(start, ReadMaxRows(1000)))
        return len(ends[-1]["partitions"]) == 4

    until(plans)
    return start, ends[-1]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Json], RunningBatch]:
    """The result of `RunningBatch.of`, for the first micro-batch up to this end."""

    def running(end: Json) -> RunningBatch:
        rdd = SimpleNamespace(getNumPartitions=lambda: 1)
        execution = SimpleNamespace(
            availableOffsets=lambda: _progress(end),
            committedOffsets=lambda: _progress(),
            lastExecution=lambda: SimpleNamespace(toRdd=lambda: rdd),
            runId=lambda: "run",
        )
        monkeypatch.setattr(module, "_execution", lambda _: execution)
        return RunningBatch.of(cast(Any, None))

    return running


def _progress(*ends: Json) -> Any:
    """A StreamProgress."""
    left = [
        SimpleNamespace(
            _1=lambda: SimpleNamespace(hashCode=lambda: 1),
            _2=lambda end=end: SimpleNamespace(json=lambda: json.dumps(end)),
        )
        for end in ends
    ]
    iterator = SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop())
    return SimpleNamespace(iterator=lambda: iterator)


@pytest.mark.long
@pytest.mark.parametrize("driver", ["the same", "another"])
def test_under_another_instance_a_replayed_batch_is_the_sources_present_plan(
    source: Source, running: Callable[[Json], RunningBatch], tmp_path: Any, driver: str
) -> None:
    """Row c of the table in docs, *The fenced sink*: a skipped range must not count as read."""
    before = source(home=None if driver == "the same" else str(tmp_path))
    start, end = planned_by(before)
    before.partitions(start, end)
    if driver == "the same":
        assert len(running(end).planned.read) == 4
    before.stop()  # the micro-batch has failed
    named = f"named-{uuid.uuid4()}"
    after = source(named)
    after.partitions(end, end)
    assert after.partitions(start, end) == []
    batch = running(end)
    assert batch.planned.read == ()
    until(lambda: (batch.channel.get("view") or {}).get("instance") == named)
    # The messages in flight are read again, under the instance's new name and as the new owner.
    again = after.latestOffset(end, ReadMaxRows(1000))
    until(lambda: len(after.latestOffset(end, ReadMaxRows(1000))["partitions"]) == 4)
    again = after.latestOffset(end, ReadMaxRows(1000))
    after.partitions(end, again)
    assert {one.epoch for one in running(again).planned.read} == {2}


def test_a_source_that_ends_late_neither_speaks_for_its_successor_nor_silences_it(
    source: Source, running: Callable[[Json], RunningBatch]
) -> None:
    instance = f"me-{uuid.uuid4()}"
    before = source(instance)
    start, end = planned_by(before)
    after = source(instance)
    after.partitions(start, end)
    until(lambda: (channel_to(instance).get("view") or {}).get("status") == "bound")
    before.partitions(start, end)  # Spark did not wait for it when the query was stopped
    before.stop()
    assert {one.epoch for one in running(end).planned.read} == {2}
    view = channel_to(instance).get("view")
    assert view is not None
    assert view["status"] == "bound"


def test_of_a_source_that_is_over_no_plan_is_taken(
    source: Source, running: Callable[[Json], RunningBatch]
) -> None:
    before = source()
    start, end = planned_by(before)
    before.partitions(start, end)
    before.stop()
    with pytest.raises(SinkError, match="has not written the plan"):
        running(end)
