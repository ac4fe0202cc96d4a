"""Spark applications leave paused partitions out of their micro-batches, and go on when resumed."""

from __future__ import annotations

import pytest

from tests.counterpoise.spark.stage import Stage
from tests.counterpoise.spark.test_ordered_resize import BATCH, overtaken
from tests.counterpoise.spark.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="applications"),
]


def test_a_paused_partition_is_left_out_of_micro_batches_until_it_is_resumed(stage: Stage) -> None:
    stage.queue(2, rebalance_delay=0, max_handoff_time=600)
    one = stage.application("one", maxMessagesPerTrigger=BATCH).start()

    def lag(number: int) -> int | None:
        return stage.client.partitions("flights")[number].lag

    def position(number: int) -> int:
        return int(stage.client.partitions("flights")[number].position or 0)

    one.hold("before")
    stage.publish(120)
    until(one.held, "the sink holds")
    # What the running micro-batch has of it is finished and committed.
    stage.client.pause_partition("flights", 0, reason="wrong prices")
    one.go_on()
    until(lambda: lag(1) == 0, "the other partition is read")
    reached = position(0)
    assert (lag(0) or 0) > 0, "the paused partition was read on"
    stage.publish(60)
    until(lambda: lag(1) == 0, "the other partition is read again")
    assert position(0) == reached
    # A successor holds it still, too.
    other = stage.application("other", maxMessagesPerTrigger=BATCH).start()
    until(lambda: set(stage.owners().values()) == {"one", "other"}, "both own a partition")
    stage.publish(60)
    until(lambda: lag(1) == 0, "the other partition is read once more")
    assert position(0) == reached
    stage.client.resume_partition("flights", 0)
    until(stage.all_seen, "all messages")
    until(lambda: stage.committed() == stage.published, "all is committed")
    assert len(stage.rows()) == stage.published
    assert overtaken(stage) == []
    assert [application.stop() for application in (one, other)] == [0, 0]
